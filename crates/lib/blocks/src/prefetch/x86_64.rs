//! x86-64: `prefetcht0` and `prefetcht1`.

use core::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

#[inline(always)]
pub(super) fn first_level<T>(place: *const T) {
    // SAFETY: the prefetch instruction is a hint: it reads nothing and faults at no address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
}

#[inline(always)]
pub(super) fn second_level<T>(place: *const T) {
    // SAFETY: the prefetch instruction is a hint: it reads nothing and faults at no address.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(place.cast()) };
}
