//! x86-64: 18 dependent additions.

/// Adds 3 to `sum`, 18 times.
#[inline(always)]
pub(super) fn add_18(mut sum: u64) -> u64 {
    // SAFETY: the instructions only use two registers, which the compiler chooses.
    unsafe {
        std::arch::asm!(".rept 18", "add {0}, {1}", ".endr", inout(reg) sum, in(reg) 3_u64, options(nomem, nostack));
    }
    sum
}
