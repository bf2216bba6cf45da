//! Prefetch instructions: hints that read nothing and fault at no address.

#![allow(unsafe_code, reason = "intrinsics and an instruction of assembly")]

#[cfg_attr(all(target_arch = "x86_64", not(miri)), path = "prefetch/x86_64.rs")]
#[cfg_attr(all(target_arch = "aarch64", not(miri)), path = "prefetch/aarch64.rs")]
#[cfg_attr(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))), path = "prefetch/none.rs")]
mod arch;

/// Prefetches the cache line at `place` into the first-level cache.
#[inline]
pub fn prefetch<T>(place: *const T) {
    arch::first_level(place);
}

/// Prefetches the cache line at `place` into the second-level cache. For many lines a page apart:
/// they all map to one set of the first-level cache, where the ninth would evict the first before
/// it is used.
#[inline]
pub fn prefetch_far<T>(place: *const T) {
    arch::second_level(place);
}
