//! A program's own addresses, done again on both kinds of page: what walks cost with just its locality.
//!
//! A walk that is waited for costs most, and others overlap: so as many of the loads wait for the one before them as of the program's
//! walks do, as far as that is known, and between two lie as many other instructions as the program has there, which keep walks from
//! overlapping. The interval is that of two more replays, in which the fewest and the most loads wait that the program may have.

use super::kernel::{Chains, Places, Stretch};
use fieldstone_sys::limits::free_memory_bytes;
use serde::{Deserialize, Serialize};

use super::array::{array_bytes, refused};
use super::difference::{Difference, Effort, Sides};
use super::others;
use crate::error::Result;

/// Times that the arrays are placed in memory anew: what lies beneath them, in a virtual machine above all, is luck, and costs.
pub(super) const PLACEMENTS: usize = 3;

/// A stretch of the addresses, and what share of its loads waits for another one, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waiting {
    /// Addresses.
    pub loads: usize,
    /// At least.
    pub fewest: f64,
    /// Most likely.
    pub likely: f64,
    /// At most.
    pub most: f64,
}

/// What 4 KiB pages cost the addresses more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replayed {
    /// Addresses that were replayed.
    pub loads: u64,
    /// The 2 MiB chunks that they touch, together.
    pub footprint_bytes: u64,
    /// Other instructions between two loads.
    pub others: u32,
    /// As many loads wait as is likely.
    pub likely: Difference,
    /// The fewest wait.
    pub fewest: Difference,
    /// The most wait.
    pub most: Difference,
    /// Not the addresses, but as many loads page by page through the same memory: walks whose entries are near.
    pub sequential: Difference,
}

/// Replays `addresses` in their order on each kind of page, each way for as long as `effort` says; and goes through their memory page by
/// page. The program ran so many `instructions` for each of them, and as many of its walks waited as `waiting` says
/// stretch by stretch. Takes twice the footprint of memory. `between` is asked before each
/// pair of runs; its error ends the measurement.
///
/// # Errors
/// [`crate::Error::PageKind`] when the pages are not to be had, [`crate::Error::System`] without memory, and where the addresses are
/// none or touch more memory than twice fits; what `between` says.
pub fn replay(
    addresses: &[u64],
    instructions: f64,
    waiting: &[Waiting],
    effort: Effort,
    mut between: impl FnMut() -> Result<()>,
) -> Result<Replayed> {
    let places = Places::compacted(addresses).map_err(refused)?;
    let footprint_bytes = array_bytes(places.words()) as u64;
    check_room(footprint_bytes, free_memory_bytes())?;
    let in_order = Places::page_by_page(footprint_bytes, places.len()).map_err(refused)?;
    let rounds = others::rounds(instructions);
    let stretches = |share: fn(&Waiting) -> f64| -> Vec<Stretch> {
        let stretch = |of: &Waiting| Stretch { loads: of.loads, chains: Chains::waiting(share(of)) };
        waiting.iter().map(stretch).collect()
    };
    let ways = [
        (&places, stretches(|of| of.likely)),
        (&places, stretches(|of| of.fewest)),
        (&places, stretches(|of| of.most)),
        (&in_order, Vec::new()),
    ];
    let mut timed = [const { Vec::new() }; 4];
    for _ in 0..PLACEMENTS {
        let sides = Sides::new(places.words())?;
        for ((places, stretches), timed) in ways.iter().zip(&mut timed) {
            timed.extend(sides.compare(places, stretches, rounds, effort.part(PLACEMENTS), &mut between)?);
        }
    }
    let [likely, fewest, most, sequential] = timed.map(|pairs| Difference::of(&pairs));
    Ok(Replayed {
        loads: places.len() as u64,
        footprint_bytes,
        others: others::instructions(rounds),
        likely,
        fewest,
        most,
        sequential,
    })
}

/// Whether both arrays fit.
fn check_room(footprint_bytes: u64, room_bytes: u64) -> Result<()> {
    if footprint_bytes <= room_bytes / 2 {
        return Ok(());
    }
    let why = format!(
        "the addresses touch {footprint_bytes} bytes, which are needed twice, and {room_bytes} are free: replay fewer of them"
    );
    Err(refused(std::io::Error::other(why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_the_footprint_has_to_be_free() {
        assert!(check_room(10, 20).is_ok());
        let error = check_room(10, 19).unwrap_err();
        assert!(error.to_string().contains("replay fewer"), "{error}");
    }

    #[test]
    fn what_cannot_be_replayed_is_told() {
        let why = |addresses: &[u64]| {
            replay(addresses, 5.0, &[], Effort { pairs: 6, ns: 0 }, || Ok(())).unwrap_err().to_string()
        };
        assert!(why(&[]).contains("no address"));
        let scattered: Vec<u64> = (0..16_385).map(|chunk| chunk << 21).collect();
        assert!(why(&scattered).contains("32 GiB"));
    }
}
