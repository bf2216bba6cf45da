//! Guards: pages that no access passes, as many as there is memory for their page tables.
//!
//! Since Linux 6.13 a guard is a mark in the page table (`MADV_GUARD_INSTALL`): no mapping is split, so that vm.max_map_count does
//! not bound them. Before that, mprotect(2) makes a mapping of each. Either way what a private page held is lost, an access is a
//! `SIGSEGV`, and a forked child has the guards too.

#![allow(unsafe_code, reason = "takes memory away, which is its purpose")]

use std::io;
use std::ops::Range;
use std::ptr::with_exposed_provenance_mut;

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::region::mprotect;

/// How a guard is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuardMechanism {
    /// A mark in the page table, Linux 6.13 (6.15 for shared memory and files).
    Marker,
    /// A mapping of its own, by mprotect(2).
    Protect,
}

const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

impl Memory {
    /// Makes whole pages guards, given in bytes from the start; what private ones held is lost. How it was done.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Unsupported`] for memory under control, whose traps would be lost; [`Error::System`] with `ENOMEM`
    /// where mprotect(2) has no mappings left.
    #[inline]
    pub fn guard(&self, range: Range<usize>) -> Result<GuardMechanism> {
        match self.guard_with(range.clone(), GuardMechanism::Marker) {
            Err(error) if error.errno() == Some(libc::EINVAL) => {
                self.guard_with(range, GuardMechanism::Protect).map(|()| GuardMechanism::Protect)
            }
            done => done.map(|()| GuardMechanism::Marker),
        }
    }

    /// As [`Memory::guard`], by a mechanism of the caller's choice.
    ///
    /// # Errors
    /// As [`Memory::guard`]; `EINVAL` where the kernel has no markers for this memory.
    #[inline]
    pub fn guard_with(&self, range: Range<usize>, mechanism: GuardMechanism) -> Result<()> {
        self.check_free()?;
        let addresses = self.addresses(&range)?;
        match mechanism {
            GuardMechanism::Marker => advise("madvise(GUARD_INSTALL)", addresses, MADV_GUARD_INSTALL),
            GuardMechanism::Protect => {
                // Both lose private contents, so that no program comes to lean on one of them.
                advise("madvise(DONTNEED)", addresses.clone(), libc::MADV_DONTNEED)?;
                mprotect(addresses, libc::PROT_NONE)
            }
        }
    }

    /// Makes guards plain pages again, of zeros in private memory.
    ///
    /// # Errors
    /// As [`Memory::guard`].
    pub fn unguard(&self, range: Range<usize>) -> Result<()> {
        self.check_free()?;
        let addresses = self.addresses(&range)?;
        match advise("madvise(GUARD_REMOVE)", addresses.clone(), MADV_GUARD_REMOVE) {
            Err(error) if error.errno() != Some(libc::EINVAL) => return Err(error),
            _ => {}
        }
        // Whether it was the one or the other is not kept; opening what is open is one call.
        mprotect(addresses, libc::PROT_READ | libc::PROT_WRITE)
    }
}

#[inline]
fn advise(call: &'static str, range: Range<usize>, advice: i32) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    loop {
        // SAFETY: the memory is the caller's own, who gives its contents up.
        if unsafe { libc::madvise(with_exposed_provenance_mut(range.start), range.len(), advice) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // A long range is done in parts, and a signal or another thread's fault may come in between.
        if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) {
            return Err(Error::system(call, range.start, range.len(), error));
        }
    }
}
