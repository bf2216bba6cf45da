//! Other architectures: every access counts as a read, and there is no counter of cycles.

#![allow(unsafe_code, reason = "the signatures are those of x86-64")]

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether the access that raised the signal was a write; unknown, so false.
///
/// # Safety
/// None; the signature is that of x86-64.
pub(crate) unsafe fn is_write(_context: *mut c_void) -> bool {
    false
}

/// Whether the access was an instruction fetch; unknown, so false.
///
/// # Safety
/// None; the signature is that of x86-64.
pub(crate) unsafe fn is_fetch(_context: *mut c_void) -> bool {
    false
}

/// A number that grows by 2^32 with each call, so that no two calls seem close in time.
pub(crate) fn cycles() -> u64 {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    CALLS.fetch_add(1 << 32, Ordering::Relaxed)
}

/// The address of the instruction that raised the signal; unknown, so `None`.
///
/// # Safety
/// None; the signature is that of x86-64.
pub(crate) unsafe fn instruction(_context: *mut c_void) -> Option<usize> {
    None
}

/// Is never called, because the instruction is unknown.
///
/// # Safety
/// None; the signature is that of x86-64.
pub(crate) unsafe fn set_instruction(_context: *mut c_void, _address: usize) {}
