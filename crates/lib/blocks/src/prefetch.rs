//! Prefetch instructions: hints that read nothing and fault at no address.

#![allow(unsafe_code, reason = "intrinsics and an instruction of assembly")]

#[cfg_attr(all(target_arch = "x86_64", not(miri)), path = "prefetch/x86_64.rs")]
#[cfg_attr(all(target_arch = "aarch64", not(miri)), path = "prefetch/aarch64.rs")]
mod hint;

/// Prefetches the cache line at `place` into the first-level cache.
#[inline]
pub fn prefetch<T>(place: *const T) {
    hint::first_level(place);
}

/// Prefetches the cache line at `place` into the second-level cache. For many lines a page apart:
/// they all map to one set of the first-level cache, where the ninth would evict the first before
/// it is used.
#[inline]
pub fn prefetch_far<T>(place: *const T) {
    hint::second_level(place);
}
