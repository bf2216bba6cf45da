//! A program's own addresses, done again on both kinds of page: what walks cost with just its locality.
//!
//! The true cost lies between the two orders: a program's loads depend on each other in part. Between independent ones lie as many
//! instructions as the program has there: they keep walks from overlapping. What it computes may hide more of a walk, so that the upper
//! bound holds for a program that does nothing but load.

use fieldstone_sys::limits::free_memory_bytes;
use fieldstone_workloads::replay::Places;
use serde::{Deserialize, Serialize};

use super::array::{array_bytes, refused};
use super::difference::{Difference, Effort, Order, Sides};
use super::others;
use crate::error::Result;

/// What 4 KiB pages cost the addresses more, at best and at worst.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replayed {
    /// Addresses that were replayed.
    pub loads: u64,
    /// The 2 MiB chunks that they touch, together.
    pub footprint_bytes: u64,
    /// Other instructions between two loads that are independent.
    pub others: u32,
    /// None waits for another: the lower bound.
    pub independent: Difference,
    /// Each waits for the one before it: the upper bound.
    pub dependent: Difference,
    /// Not the addresses, but as many loads page by page through the same memory: walks whose entries are near.
    pub sequential: Difference,
}

/// Replays `addresses` in their order on each kind of page, each way for as long as `effort` says; and goes through their memory page by
/// page. The program ran so many `instructions` for each of them. Takes twice the footprint of memory. `between` is asked before each
/// pair of runs; its error ends the measurement.
///
/// # Errors
/// [`crate::Error::PageKind`] when the pages are not to be had, [`crate::Error::System`] without memory, and where the addresses are
/// none or touch more memory than twice fits; what `between` says.
pub fn replay(
    addresses: &[u64],
    instructions: f64,
    effort: Effort,
    mut between: impl FnMut() -> Result<()>,
) -> Result<Replayed> {
    let places = Places::compacted(addresses).map_err(refused)?;
    let footprint_bytes = array_bytes(places.words()) as u64;
    check_room(footprint_bytes, free_memory_bytes())?;
    let in_order = Places::page_by_page(footprint_bytes, places.len()).map_err(refused)?;
    let sides = Sides::new(places.words())?;
    let rounds = others::rounds(instructions);
    let mut compare = |places: &Places, order| sides.compare(places, order, effort, &mut between);
    Ok(Replayed {
        loads: places.len() as u64,
        footprint_bytes,
        others: others::instructions(rounds),
        independent: compare(&places, Order::Independent { rounds })?,
        dependent: compare(&places, Order::Dependent)?,
        sequential: compare(&in_order, Order::Independent { rounds })?,
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
        let why =
            |addresses: &[u64]| replay(addresses, 5.0, Effort { pairs: 6, ns: 0 }, || Ok(())).unwrap_err().to_string();
        assert!(why(&[]).contains("no address"));
        let scattered: Vec<u64> = (0..16_385).map(|chunk| chunk << 21).collect();
        assert!(why(&scattered).contains("32 GiB"));
    }
}
