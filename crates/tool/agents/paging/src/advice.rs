//! madvise(2): the advice that the kernel does not report to a userfaultfd.
//!
//! | advice | what the agent does |
//! |---|---|
//! | `MADV_GUARD_INSTALL` | drops the pages first, which is reported, so that no stored page outlives them |
//! | `MADV_WIPEONFORK` | remembers that a forked child gets no pages of such memory |
//! | all other | nothing |
//!
//! Calls that bypass libc's function are not seen.

#![allow(unsafe_code, reason = "replaces a function of libc")]

use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use crate::maps::for_each_wiped;
use crate::raw;

/// Linux 6.13; missing in libc.
const MADV_GUARD_INSTALL: c_int = 102;

/// Whether the program has ever asked for memory that a child gets empty.
static HAS_WIPED: AtomicBool = AtomicBool::new(false);

/// madvise(2).
///
/// # Safety
/// As libc's function.
// A test binary would interpose its own calls.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, expect(dead_code, reason = "only the loader binds calls to it"))]
pub(crate) unsafe extern "C" fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    let start = address.addr();
    if advice == libc::MADV_WIPEONFORK {
        HAS_WIPED.store(true, Relaxed);
    }
    if advice == MADV_GUARD_INSTALL {
        // The call below drops these pages, too. Its result is the program's.
        raw::advise(start, bytes, libc::MADV_DONTNEED);
    }
    match raw::advise(start, bytes, advice) {
        0.. => 0,
        error => {
            // SAFETY: libc returns the address of the calling thread's errno.
            unsafe { *libc::__errno_location() = -error as c_int };
            -1
        }
    }
}

/// Calls `visit` for each range whose pages a forked child does not get.
pub(crate) fn visit_wiped(visit: &mut dyn FnMut(Range<usize>)) {
    if HAS_WIPED.load(Relaxed) {
        for_each_wiped(visit);
    }
}
