//! AArch64: the loop of filler instructions.

/// Runs `rounds` rounds, at least one, of eight instructions.
#[inline(always)]
pub(super) fn run(rounds: u32) {
    // SAFETY: the code uses only its operand registers, no memory and no stack, and it ends after
    // `rounds` iterations.
    unsafe {
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
