//! mprotect(2) for memory under control.

#![allow(unsafe_code, reason = "protects memory in use, which is its purpose")]

use std::io;
use std::ops::Range;

use crate::error::{Error, Result};

/// Sets the protection of whole pages, given by their addresses.
#[inline]
pub(crate) fn mprotect(range: Range<usize>, protection: i32) -> Result<()> {
    let start = std::ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: the range belongs to a region's memory; faults on it are what its owner requested.
    if unsafe { libc::mprotect(start, range.len(), protection) } == 0 {
        return Ok(());
    }
    Err(Error::system("mprotect", range.start, range.len(), io::Error::last_os_error()))
}
