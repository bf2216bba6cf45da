//! Replay a program's own addresses on both kinds of page, to measure the cost of walks with its
//! locality.
//!
//! A walk costs most if another load waits for it; independent walks overlap. So the replay uses
//! the share of dependent loads of the program's walks, and as many filler instructions per load as
//! the program runs. Two more replays use the lowest and the highest plausible share, which gives
//! the interval.

use fieldstone_stats::Interval;
use fieldstone_sys::limits::free_memory_bytes;

use super::array::{array_bytes, calibration_error};
use super::difference::{ArrayPair, Effort, LoadDifference};
use super::filler;
use super::load_sequence::{Chains, LoadPhase, LoadSequence};
use crate::error::Result;

/// Number of times that the arrays are mapped again: the cost depends on the physical pages, above
/// all in a VM.
pub(super) const PLACEMENTS: usize = 3;

/// A phase of the addresses, and the share of its loads that depend on another, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhaseDependence {
    /// Number of addresses.
    pub loads: usize,
    /// The most likely share, between the lowest and the highest plausible one.
    pub share: Interval,
}

/// The extra time on 4 KiB pages for the replayed addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayResult {
    /// Number of replayed addresses.
    pub loads: u64,
    /// Size of the 2 MiB chunks that contain them, in bytes.
    pub footprint_bytes: u64,
    /// Filler instructions between two loads.
    pub filler_instructions: u32,
    /// With the most likely share of dependent loads.
    pub likely: LoadDifference,
    /// With the lowest share.
    pub fewest: LoadDifference,
    /// With the highest share.
    pub most: LoadDifference,
    /// As many loads page by page through the same memory: walks with near entries.
    pub sequential: LoadDifference,
}

/// Replays `addresses` in order on both kinds of page, in each variant with `effort`, and then goes
/// through their memory page by page. `instructions` is the number that the program runs per
/// address. `dependence` gives the phases. Calls `before_pair` before each pair of runs; its error
/// ends the measurement.
///
/// Needs twice the footprint in memory.
///
/// # Errors
/// [`crate::Error::Launch`] if pages of a kind are not available, memory is short, or there are no
/// addresses or too many; the error of `before_pair`.
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
    let phases = |bound: fn(&Interval) -> f64| -> Vec<LoadPhase> {
        let phase = |of: &PhaseDependence| LoadPhase { loads: of.loads, chains: Chains::waiting(bound(&of.share)) };
        dependence.iter().map(phase).collect()
    };
    let variants = [
        (&loads, phases(|share| share.likely)),
        (&loads, phases(|share| share.low)),
        (&loads, phases(|share| share.high)),
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
        filler_instructions: filler::instructions(rounds),
        likely,
        fewest,
        most,
        sequential,
    })
}

/// Checks that both arrays fit into free memory.
fn check_memory(footprint_bytes: u64, free_bytes: u64) -> Result<()> {
    if footprint_bytes <= free_bytes / 2 {
        return Ok(());
    }
    let why = format!(
        "the replay needs {footprint_bytes} bytes twice, and {free_bytes} bytes are free: replay fewer addresses"
    );
    Err(calibration_error(std::io::Error::other(why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_the_footprint_must_be_free() {
        assert!(check_memory(10, 20).is_ok());
        let error = check_memory(10, 19).unwrap_err();
        assert!(error.to_string().contains("replay fewer"), "{error}");
    }

    #[test]
    fn addresses_that_cannot_be_replayed_are_rejected() {
        let why = |addresses: &[u64]| {
            replay(addresses, 5.0, &[], Effort { pairs: 6, ns: 0 }, || Ok(())).unwrap_err().to_string()
        };
        assert!(why(&[]).contains("no address"));
        let scattered: Vec<u64> = (0..16_385).map(|chunk| chunk << 21).collect();
        assert!(why(&scattered).contains("32 GiB"));
    }
}
