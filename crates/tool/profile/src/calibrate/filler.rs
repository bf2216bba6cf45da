//! Filler instructions between two loads, which compute nothing.
//!
//! A processor executes some hundreds of instructions out of order. Independent walks overlap only
//! within that window, so more instructions between two loads mean less overlap.

#![allow(unsafe_code, reason = "inline assembly, because a compiler removes code without effect")]

#[cfg_attr(target_arch = "x86_64", path = "filler/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "filler/aarch64.rs")]
mod arch;

/// Instructions of the loop of loads itself, per load.
const LOOP_INSTRUCTIONS: f64 = 5.0;
/// Instructions per round of filler.
const INSTRUCTIONS_PER_ROUND: u32 = 8;

/// The number of rounds for a program that runs `instructions` per load, rounded to nearest.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0..=1000")]
pub(super) fn rounds(instructions: f64) -> u32 {
    ((instructions - LOOP_INSTRUCTIONS) / f64::from(INSTRUCTIONS_PER_ROUND)).round().clamp(0.0, 1e3) as u32
}

/// The number of filler instructions in `rounds`.
pub(super) const fn instructions(rounds: u32) -> u32 {
    rounds * INSTRUCTIONS_PER_ROUND
}

/// Runs `rounds` rounds of filler in three dependence chains, no longer than those of a program.
#[inline(always)]
pub(super) fn run(rounds: u32) {
    if rounds == 0 {
        return;
    }
    arch::run(rounds);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_rounded_to_the_nearest_round() {
        let of = [(0.0, 0), (5.0, 0), (8.9, 0), (9.1, 8), (44.0, 40), (256.0, 248)];
        assert_eq!(of.map(|(wanted, _)| instructions(rounds(wanted))), of.map(|(_, expected)| expected));
    }
}
