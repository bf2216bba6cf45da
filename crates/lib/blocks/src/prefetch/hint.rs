//! Other architectures and Miri: no prefetch.

#[inline(always)]
pub(super) fn first_level<T>(_place: *const T) {}

#[inline(always)]
pub(super) fn second_level<T>(_place: *const T) {}
