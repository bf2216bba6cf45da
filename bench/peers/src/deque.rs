//! The deques that a C++ user would take instead, behind the few functions of `src/deque.cpp`.
//!
//! The loops are compiled with the deques, by the C++ compiler, with the same numbers as ours. Where there was no C++ compiler at build
//! time there are none, and where there were no Boost headers there is no Boost deque.

#![allow(unsafe_code, reason = "calls C++")]

use std::ffi::c_void;

/// A C++ deque of numbers.
#[derive(Debug)]
pub struct Deque {
    kind: Kind,
    raw: *mut c_void,
}

/// Whose deque.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `std::deque`.
    Std,
    /// `boost::container::deque`, with blocks of 32 KiB.
    Boost,
}

/// Whether this program was built with such deques.
#[must_use]
pub const fn is_there(kind: Kind) -> bool {
    match kind {
        Kind::Std => cfg!(has_cpp),
        Kind::Boost => cfg!(has_boost),
    }
}

impl Deque {
    /// A deque with the elements 0, 1, … below `len`; none where [`is_there`] is false or memory runs out.
    #[must_use]
    pub fn counting(kind: Kind, len: u64) -> Option<Self> {
        // SAFETY: the function has no precondition; it returns null when it cannot.
        let raw = unsafe { ffi::make(kind, len) };
        (!raw.is_null()).then_some(Self { kind, raw })
    }

    /// Reads so many elements at random places, those of [`super::random_get`]; their sum.
    #[must_use]
    pub fn random_get(&self, gets: u64, seed: u64) -> u64 {
        // SAFETY: `raw` is a deque of this kind.
        unsafe { ffi::random_get(self.kind, self.raw, gets, seed) }
    }

    /// The sum of all elements, by iterators.
    #[must_use]
    pub fn sum(&self) -> u64 {
        // SAFETY: as above.
        unsafe { ffi::sum(self.kind, self.raw) }
    }
}

impl Drop for Deque {
    fn drop(&mut self) {
        // SAFETY: as above; it is not used again.
        unsafe { ffi::free(self.kind, self.raw) };
    }
}

#[cfg(has_cpp)]
mod ffi {
    use std::ffi::c_void;

    use super::Kind;

    macro_rules! by_kind {
        ($kind:expr, $std:ident, $boost:ident, $($argument:expr),*) => {
            match $kind {
                // SAFETY: the caller's promise.
                Kind::Std => unsafe { $std($($argument),*) },
                #[cfg(has_boost)]
                // SAFETY: the caller's promise.
                Kind::Boost => unsafe { $boost($($argument),*) },
                #[cfg(not(has_boost))]
                Kind::Boost => Default::default(),
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

    pub(super) unsafe fn make(kind: Kind, len: u64) -> *mut c_void {
        if !super::is_there(kind) {
            return std::ptr::null_mut();
        }
        match kind {
            // SAFETY: no precondition.
            Kind::Std => unsafe { std_deque_make(len) },
            #[cfg(has_boost)]
            // SAFETY: no precondition.
            Kind::Boost => unsafe { boost_deque_make(len) },
            #[cfg(not(has_boost))]
            Kind::Boost => std::ptr::null_mut(),
        }
    }

    pub(super) unsafe fn random_get(kind: Kind, raw: *mut c_void, gets: u64, seed: u64) -> u64 {
        by_kind!(kind, std_deque_get, boost_deque_get, raw, gets, seed)
    }

    pub(super) unsafe fn sum(kind: Kind, raw: *mut c_void) -> u64 {
        by_kind!(kind, std_deque_sum, boost_deque_sum, raw)
    }

    pub(super) unsafe fn free(kind: Kind, raw: *mut c_void) {
        by_kind!(kind, std_deque_free, boost_deque_free, raw);
    }
}

#[cfg(not(has_cpp))]
mod ffi {
    use std::ffi::c_void;

    use super::Kind;

    pub(super) unsafe fn make(_: Kind, _: u64) -> *mut c_void {
        std::ptr::null_mut()
    }

    pub(super) unsafe fn random_get(_: Kind, _: *mut c_void, _: u64, _: u64) -> u64 {
        0
    }

    pub(super) unsafe fn sum(_: Kind, _: *mut c_void) -> u64 {
        0
    }

    pub(super) unsafe fn free(_: Kind, _: *mut c_void) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deques_see_the_same_numbers() {
        for kind in [Kind::Std, Kind::Boost] {
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
