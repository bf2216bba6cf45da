//! AArch64: `prfm` for loads.

use core::arch::asm;

#[inline(always)]
pub(super) fn first_level<T>(place: *const T) {
    // SAFETY: the prefetch instruction is a hint: it reads nothing and faults at no address.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) place, options(nostack, readonly, preserves_flags)) };
}

#[inline(always)]
pub(super) fn second_level<T>(place: *const T) {
    // SAFETY: the prefetch instruction is a hint: it reads nothing and faults at no address.
    unsafe { asm!("prfm pldl2keep, [{}]", in(reg) place, options(nostack, readonly, preserves_flags)) };
}
