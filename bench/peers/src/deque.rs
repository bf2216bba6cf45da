//! C++ deques, behind the C functions of `src/deque.cpp`.
//!
//! The C++ compiler compiles the loops together with the deques; the loops use the same random
//! numbers as the Rust kernels. Without a C++ compiler at build time there are no deques, without
//! Boost headers no Boost deque.

#![allow(unsafe_code, reason = "calls C++")]

use std::ffi::c_void;

/// A C++ deque of numbers.
#[derive(Debug)]
pub struct Deque {
    kind: DequeKind,
    raw: *mut c_void,
}

/// The implementation of a deque.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DequeKind {
    /// `std::deque`.
    Std,
    /// `boost::container::deque`, with blocks of 32 KiB.
    Boost,
}

/// Whether this program was built with this kind of deque.
#[must_use]
pub const fn is_there(kind: DequeKind) -> bool {
    match kind {
        DequeKind::Std => cfg!(has_cpp),
        DequeKind::Boost => cfg!(has_boost),
    }
}

impl Deque {
    /// A deque with the elements 0, 1, … below `len`; `None` if [`is_there`] is false or memory is
    /// exhausted.
    #[must_use]
    pub fn counting(kind: DequeKind, len: u64) -> Option<Self> {
        // SAFETY: the function has no precondition; it returns null on failure.
        let raw = unsafe { ffi::make(kind, len) };
        (!raw.is_null()).then_some(Self { kind, raw })
    }

    /// Reads `gets` elements at the random indices of [`super::random_get`]; returns their sum.
    #[must_use]
    pub fn random_get(&self, gets: u64, seed: u64) -> u64 {
        // SAFETY: `raw` is a live deque of `kind`, made by `counting`.
        unsafe { ffi::random_get(self.kind, self.raw, gets, seed) }
    }

    /// The sum of all elements, by iterators.
    #[must_use]
    pub fn sum(&self) -> u64 {
        // SAFETY: `raw` is a live deque of `kind`, made by `counting`.
        unsafe { ffi::sum(self.kind, self.raw) }
    }
}

impl Drop for Deque {
    fn drop(&mut self) {
        // SAFETY: `raw` is a live deque of `kind`, made by `counting`, and is not used after drop.
        unsafe { ffi::free(self.kind, self.raw) };
    }
}

#[cfg(has_cpp)]
mod ffi {
    use std::ffi::c_void;

    use super::DequeKind;

    macro_rules! by_kind {
        ($kind:expr, $std:ident, $boost:ident, $($argument:expr),*) => {
            match $kind {
                // SAFETY: the caller passes a live deque of this kind.
                DequeKind::Std => unsafe { $std($($argument),*) },
                #[cfg(has_boost)]
                // SAFETY: the caller passes a live deque of this kind.
                DequeKind::Boost => unsafe { $boost($($argument),*) },
                #[cfg(not(has_boost))]
                DequeKind::Boost => Default::default(),
            }
        };
    }

    unsafe extern "C" {
        fn std_deque_make(len: u64) -> *mut c_void;
        fn std_deque_get(raw: *mut c_void, gets: u64, seed: u64) -> u64;
        fn std_deque_sum(raw: *mut c_void) -> u64;
        fn std_deque_free(raw: *mut c_void);
    }
    #[cfg(has_boost)]
    unsafe extern "C" {
        fn boost_deque_make(len: u64) -> *mut c_void;
        fn boost_deque_get(raw: *mut c_void, gets: u64, seed: u64) -> u64;
        fn boost_deque_sum(raw: *mut c_void) -> u64;
        fn boost_deque_free(raw: *mut c_void);
    }

    pub(super) unsafe fn make(kind: DequeKind, len: u64) -> *mut c_void {
        if !super::is_there(kind) {
            return std::ptr::null_mut();
        }
        match kind {
            // SAFETY: the function has no precondition; it returns null on failure.
            DequeKind::Std => unsafe { std_deque_make(len) },
            #[cfg(has_boost)]
            // SAFETY: the function has no precondition; it returns null on failure.
            DequeKind::Boost => unsafe { boost_deque_make(len) },
            #[cfg(not(has_boost))]
            DequeKind::Boost => std::ptr::null_mut(),
        }
    }

    pub(super) unsafe fn random_get(kind: DequeKind, raw: *mut c_void, gets: u64, seed: u64) -> u64 {
        by_kind!(kind, std_deque_get, boost_deque_get, raw, gets, seed)
    }

    pub(super) unsafe fn sum(kind: DequeKind, raw: *mut c_void) -> u64 {
        by_kind!(kind, std_deque_sum, boost_deque_sum, raw)
    }

    pub(super) unsafe fn free(kind: DequeKind, raw: *mut c_void) {
        by_kind!(kind, std_deque_free, boost_deque_free, raw);
    }
}

#[cfg(not(has_cpp))]
mod ffi {
    use std::ffi::c_void;

    use super::DequeKind;

    pub(super) unsafe fn make(_: DequeKind, _: u64) -> *mut c_void {
        std::ptr::null_mut()
    }

    pub(super) unsafe fn random_get(_: DequeKind, _: *mut c_void, _: u64, _: u64) -> u64 {
        0
    }

    pub(super) unsafe fn sum(_: DequeKind, _: *mut c_void) -> u64 {
        0
    }

    pub(super) unsafe fn free(_: DequeKind, _: *mut c_void) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deques_see_the_same_numbers() {
        for kind in [DequeKind::Std, DequeKind::Boost] {
            if !is_there(kind) {
                println!("SKIP no {kind:?} deque: this was built without a C++ compiler or its headers");
                continue;
            }
            let deque = Deque::counting(kind, 10_000).unwrap();
            assert_eq!(deque.sum(), 9999 * 5000);
            assert_eq!(deque.random_get(1000, 7), super::super::random_get(10_000, 1000, 7, |index| index as u64));
        }
    }
}
