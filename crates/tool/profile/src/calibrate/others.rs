//! Instructions between two loads that compute nothing, as many as a program has there.
//!
//! A processor looks ahead over some hundreds of instructions. Walks of loads that wait for nothing overlap as far as these loads are
//! among them: the more lies between two loads, the fewer walks overlap, and the more of each is waited for.

#![allow(unsafe_code, reason = "a compiler leaves out what computes nothing")]

/// The loop of loads has so many itself.
const OF_THE_LOOP: f64 = 5.0;
/// They come in rounds of so many.
const ROUND: u32 = 8;

/// Rounds between two loads of a program that runs so many instructions a load: the nearest number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and few")]
pub(super) fn rounds(instructions: f64) -> u32 {
    ((instructions - OF_THE_LOOP) / f64::from(ROUND)).round().clamp(0.0, 1e3) as u32
}

/// Instructions of so many rounds.
pub(super) const fn instructions(rounds: u32) -> u32 {
    rounds * ROUND
}

/// So many rounds, in three chains that are no longer than a program's own.
#[inline(always)]
pub(super) fn pass(rounds: u32) {
    if rounds == 0 {
        return;
    }
    // SAFETY: counts in registers of its own.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            "2:",
            "inc {a:e}", "inc {b:e}", "inc {c:e}", "inc {a:e}", "inc {b:e}", "inc {c:e}",
            "dec {rounds:e}",
            "jnz 2b",
            rounds = inout(reg) rounds => _,
            a = inout(reg) 0_u32 => _, b = inout(reg) 0_u32 => _, c = inout(reg) 0_u32 => _,
            options(nomem, nostack)
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            "2:",
            "add {a:w}, {a:w}, #1", "add {b:w}, {b:w}, #1", "add {c:w}, {c:w}, #1",
            "add {a:w}, {a:w}, #1", "add {b:w}, {b:w}, #1", "add {c:w}, {c:w}, #1",
            "subs {rounds:w}, {rounds:w}, #1",
            "b.ne 2b",
            rounds = inout(reg) rounds => _,
            a = inout(reg) 0_u32 => _, b = inout(reg) 0_u32 => _, c = inout(reg) 0_u32 => _,
            options(nomem, nostack)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_number_is_taken() {
        let of = [(0.0, 0), (5.0, 0), (8.9, 0), (9.1, 8), (44.0, 40), (256.0, 248)];
        assert_eq!(of.map(|(wanted, _)| instructions(rounds(wanted))), of.map(|(_, expected)| expected));
    }
}
