//! A program's own addresses, done again on both kinds of page: what walks cost with just its locality.
//!
//! A walk that is waited for costs most, and filler overlap: so as many of the loads wait for the one before them as of the program's
//! walks do, as far as that is known, and between two lie as many other instructions as the program has there, which keep walks from
//! overlapping. The interval is that of two more replays, in which the fewest and the most loads wait that the program may have.

use fieldstone_sys::limits::free_memory_bytes;
use super::load_sequence::{Chains, LoadSequence, LoadPhase};
use serde::{Deserialize, Serialize};

use super::array::{array_bytes, calibration_error};
use super::difference::{LoadDifference, Effort, ArrayPair};
use super::filler;
use crate::error::Result;

/// Times that the arrays are placed in memory anew: what lies beneath them, in a virtual machine above all, is luck, and costs.
pub(super) const PLACEMENTS: usize = 3;

/// A phase of the addresses, and what share of its loads waits for another one, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhaseDependence {
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
pub struct ReplayResult {
    /// Addresses that were replayed.
    pub loads: u64,
    /// The 2 MiB chunks that they touch, together.
    pub footprint_bytes: u64,
    /// Other instructions between two loads.
    pub filler: u32,
    /// As many loads wait as is likely.
    pub likely: LoadDifference,
    /// The fewest wait.
    pub fewest: LoadDifference,
    /// The most wait.
    pub most: LoadDifference,
    /// Not the addresses, but as many loads page by page through the same memory: walks whose entries are near.
    pub sequential: LoadDifference,
}

/// Replays `addresses` in their order on each kind of page, each way for as long as `effort` says; and goes through their memory page by
/// page. The program ran so many `instructions` for each of them, and as many of its walks waited as `waiting` says
/// phase by phase. Takes twice the footprint of memory. `between` is asked before each
/// pair of runs; its error ends the measurement.
///
/// # Errors
/// [`crate::Error::PageKind`] when the pages are not to be had, [`crate::Error::System`] without memory, and where the addresses are
/// none or touch more memory than twice fits; what `between` says.
pub fn replay(
    addresses: &[u64],
    instructions: f64,
    dependence: &[PhaseDependence],
    effort: Effort,
    mut before_pair: impl FnMut() -> Result<()>,
) -> Result<ReplayResult> {
    let loads = LoadSequence::compacted(addresses).map_err(calibration_error)?;
    let footprint_bytes = array_bytes(loads.words()) as u64;
    check_memory(footprint_bytes, free_memory_bytes())?;
    let sequential = LoadSequence::page_by_page(footprint_bytes, loads.len()).map_err(calibration_error)?;
    let rounds = filler::rounds(instructions);
    let phases = |share: fn(&PhaseDependence) -> f64| -> Vec<LoadPhase> {
        let phase = |of: &PhaseDependence| LoadPhase { loads: of.loads, chains: Chains::waiting(share(of)) };
        dependence.iter().map(phase).collect()
    };
    let variants = [
        (&loads, phases(|of| of.likely)),
        (&loads, phases(|of| of.fewest)),
        (&loads, phases(|of| of.most)),
        (&sequential, Vec::new()),
    ];
    let mut timed = [const { Vec::new() }; 4];
    for _ in 0..PLACEMENTS {
        let sides = ArrayPair::new(loads.words())?;
        for ((loads, phases), timed) in variants.iter().zip(&mut timed) {
            timed.extend(sides.compare(loads, phases, rounds, effort.split(PLACEMENTS), &mut before_pair)?);
        }
    }
    let [likely, fewest, most, sequential] = timed.map(|pairs| LoadDifference::of(&pairs));
    Ok(ReplayResult {
        loads: loads.len() as u64,
        footprint_bytes,
        filler: filler::instructions(rounds),
        likely,
        fewest,
        most,
        sequential,
    })
}

/// Whether both arrays fit.
fn check_memory(footprint_bytes: u64, free_bytes: u64) -> Result<()> {
    if footprint_bytes <= free_bytes / 2 {
        return Ok(());
    }
    let why = format!(
        "the addresses touch {footprint_bytes} bytes, which are needed twice, and {free_bytes} are free: replay fewer of them"
    );
    Err(calibration_error(std::io::Error::other(why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_the_footprint_has_to_be_free() {
        assert!(check_memory(10, 20).is_ok());
        let error = check_memory(10, 19).unwrap_err();
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
