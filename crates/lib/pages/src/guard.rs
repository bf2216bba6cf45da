//! Guards: inaccessible pages, limited only by the memory for page tables.
//!
//! Since Linux 6.13 a guard is a marker in the page table (`MADV_GUARD_INSTALL`). It splits no
//! mapping, so vm.max_map_count does not limit guards. Before, mprotect(2) makes each guard its own
//! mapping. In both cases the contents of private pages are lost, an access raises `SIGSEGV`, and a
//! forked child inherits the guards.

#![allow(unsafe_code, reason = "drops page contents, which is its purpose")]

use std::io;
use std::ops::Range;
use std::ptr::with_exposed_provenance_mut;

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::protect::mprotect;

/// The implementation of a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuardMechanism {
    /// A marker in the page table, Linux 6.13 (6.15 for shared memory and files).
    Marker,
    /// A separate mapping, by mprotect(2).
    Protect,
}

const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

impl Memory {
    /// Makes whole pages guards, given in bytes from the start; contents of private pages are lost.
    /// Returns the mechanism used.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Unsupported`] for controlled memory, whose traps would be lost;
    /// [`Error::System`] with `ENOMEM` when mprotect(2) has no mappings left.
    #[inline]
    pub fn guard(&self, range: Range<usize>) -> Result<GuardMechanism> {
        match self.guard_with(range.clone(), GuardMechanism::Marker) {
            Err(error) if error.errno() == Some(libc::EINVAL) => {
                self.guard_with(range, GuardMechanism::Protect).map(|()| GuardMechanism::Protect)
            }
            done => done.map(|()| GuardMechanism::Marker),
        }
    }

    /// As [`Memory::guard`], by the given mechanism.
    ///
    /// # Errors
    /// As [`Memory::guard`]; `EINVAL` if the kernel has no markers for this memory.
    #[inline]
    pub fn guard_with(&self, range: Range<usize>, mechanism: GuardMechanism) -> Result<()> {
        self.check_free()?;
        let addresses = self.addresses(&range)?;
        match mechanism {
            GuardMechanism::Marker => advise("madvise(GUARD_INSTALL)", addresses, MADV_GUARD_INSTALL),
            GuardMechanism::Protect => {
                // Both mechanisms lose private contents, so that programs cannot depend on one of
                // them.
                advise("madvise(DONTNEED)", addresses.clone(), libc::MADV_DONTNEED)?;
                mprotect(addresses, libc::PROT_NONE)
            }
        }
    }

    /// Turns guards into plain pages, zeros in private memory.
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
        // The mechanism is not recorded; making an accessible page accessible costs one call.
        mprotect(addresses, libc::PROT_READ | libc::PROT_WRITE)
    }
}

#[inline]
fn advise(call: &'static str, range: Range<usize>, advice: i32) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    loop {
        // SAFETY: the caller owns the memory and gives up its contents.
        if unsafe { libc::madvise(with_exposed_provenance_mut(range.start), range.len(), advice) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        // The kernel handles a long range in parts, which a signal or another thread's fault may
        // interrupt.
        if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) {
            return Err(Error::system(call, range.start, range.len(), error));
        }
    }
}
