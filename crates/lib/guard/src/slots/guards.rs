//! Closing and opening pages, by markers in the page table or by mprotect(2).
//!
//! A marker (`MADV_GUARD_INSTALL`, Linux 6.13) splits no mapping: all slots of a class are one
//! mapping. On older kernels each run of accessible pages is a mapping of its own, and a process
//! has at most 65,530 of them (`vm.max_map_count`). Both drop the contents of closed pages.
//!
//! The kernel refuses markers in locked memory (`mlockall`). Pages that the program locked are
//! closed by mprotect(2), and from then on opening makes both calls.

#![allow(unsafe_code, reason = "changes the protection of pages")]

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::kernel::{Advice, EINVAL, Errno, PAGE, Pages, advise, advise_each, protect};
use crate::slots::memory::Memory;

/// How pages are closed.
#[derive(Debug)]
pub(crate) struct Guards {
    /// Fixed when the range is created.
    has_markers: bool,
    /// Whether several pages may be opened or closed by one process_madvise(2).
    has_batches: bool,
    /// Some pages were closed by mprotect(2) although there are markers.
    is_mixed: AtomicBool,
    /// Some guards were opened after a finding.
    has_opened: AtomicBool,
}

impl Guards {
    /// Finds out whether markers work, on the first page of a new range, which is a guard.
    pub(crate) fn new(memory: &Memory, force_protect: bool, has_batches: bool) -> Self {
        let page = memory.geometry.base;
        // SAFETY: the page is a guard and has no contents.
        let result = unsafe { advise(page..page + PAGE, Advice::GuardInstall) };
        let has_markers = result.is_ok() && !force_protect;
        Self {
            has_markers,
            has_batches: has_batches && has_markers,
            is_mixed: AtomicBool::new(false),
            has_opened: AtomicBool::new(false),
        }
    }

    /// Whether [`Guards::open_after_finding`] was called.
    pub(crate) fn has_opened(&self) -> bool {
        self.has_opened.load(Ordering::Relaxed)
    }

    pub(crate) const fn has_markers(&self) -> bool {
        self.has_markers
    }

    /// Closes pages and drops their contents.
    ///
    /// # Safety
    /// The pages belong to the caller, and their contents are not used any more.
    pub(crate) unsafe fn close(&self, pages: Range<usize>) -> Result<(), Errno> {
        if self.has_markers {
            // SAFETY: the caller owns the pages.
            match unsafe { advise(pages.clone(), Advice::GuardInstall) } {
                Err(EINVAL) => self.is_mixed.store(true, Ordering::Relaxed),
                result => return result,
            }
        }
        // SAFETY: the caller owns the pages.
        unsafe {
            protect(pages.clone(), false)?;
            match advise(pages.clone(), Advice::DontNeed) {
                Err(EINVAL) => advise(pages, Advice::DontNeedLocked),
                result => result,
            }
        }
    }

    /// Opens pages that were closed by either means, or never opened, for a program that goes on after
    /// a finding.
    ///
    /// # Safety
    /// The pages belong to the caller.
    pub(crate) unsafe fn open_after_finding(&self, pages: Range<usize>) -> Result<(), Errno> {
        self.is_mixed.store(true, Ordering::Relaxed);
        self.has_opened.store(true, Ordering::Relaxed);
        // SAFETY: the caller owns the pages.
        unsafe { self.open(pages) }
    }

    /// Opens pages; they are zero.
    ///
    /// # Safety
    /// The pages belong to the caller.
    pub(crate) unsafe fn open(&self, pages: Range<usize>) -> Result<(), Errno> {
        if self.has_markers {
            // SAFETY: the caller owns the pages.
            unsafe { advise(pages.clone(), Advice::GuardRemove) }?;
            if !self.is_mixed.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        // SAFETY: the caller owns the pages.
        unsafe { protect(pages, true) }
    }

    /// Opens ranges of pages by one call, and allocates their memory if `populates`, which saves the
    /// faults of the first accesses. False if it did not: the caller opens each.
    ///
    /// # Safety
    /// The pages belong to the caller.
    pub(crate) unsafe fn open_each(&self, slots: &[Pages], populates: bool) -> bool {
        if !self.has_batches || self.is_mixed.load(Ordering::Relaxed) {
            return false;
        }
        // SAFETY: the caller owns the pages.
        unsafe {
            let is_open = advise_each(slots, Advice::GuardRemove);
            if is_open && populates {
                // If it fails, the first access to each page faults.
                advise_each(slots, Advice::PopulateWrite);
            }
            is_open
        }
    }

    /// Closes pages by one call, and drops their contents. False if it did not: the caller closes
    /// each.
    ///
    /// # Safety
    /// As [`Guards::close`].
    pub(crate) unsafe fn close_each(&self, pages: &[Pages]) -> bool {
        // SAFETY: the caller owns the pages.
        self.has_batches && unsafe { advise_each(pages, Advice::GuardInstall) }
    }
}
