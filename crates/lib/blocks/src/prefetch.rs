//! Prefetch instructions: hints that read nothing and fault at no address.

#![allow(unsafe_code, reason = "intrinsics and an instruction of assembly")]

/// Prefetches the cache line at `place` into the first-level cache.
#[inline]
pub fn prefetch<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the prefetch instruction is a hint: it reads nothing and faults at no address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(place.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: the prefetch instruction is a hint: it reads nothing and faults at no address.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) place, options(nostack, readonly, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = place;
}

/// Prefetches the cache line at `place` into the second-level cache. For many lines a page apart:
/// they all map to one set of the first-level cache, where the ninth would evict the first before
/// it is used.
#[inline]
pub fn prefetch_far<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the prefetch instruction is a hint: it reads nothing and faults at no address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T1 }>(place.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: the prefetch instruction is a hint: it reads nothing and faults at no address.
    unsafe {
        core::arch::asm!("prfm pldl2keep, [{}]", in(reg) place, options(nostack, readonly, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = place;
}
