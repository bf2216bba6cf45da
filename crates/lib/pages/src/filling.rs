//! Memory whose pages are filled at their first access: from a file, a network, a compressed store,
//! or another space of a collector.
//!
//! The handler fills a page by a copy, zeros or a move, or reports that it is lost. Pages can be
//! evicted (`evict`), and filled in advance (`fill`). [`Filling::tracked`] also tracks writes to
//! filled pages, as [`crate::Tracking`] does.

#![allow(unsafe_code, reason = "runs handlers in signals, as the caller permits")]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fieldstone_sys::userfault::Modes;

use crate::choice::{IN_SIGNAL, IN_THREAD, first_supported};
use crate::controlled_range::NumberedPages;
use crate::error::{Error, Result};
use crate::fault::{Fault, Outcome};
use crate::mechanism::{Loss, Mechanism, Watch};
use crate::memory::Memory;
use crate::mprotect_fill::MprotectFill;
use crate::protect::mprotect;
use crate::region::{Handler, Region, RegionConfig};
use crate::tracking::DirtyRanges;

/// Memory whose pages are filled by a handler. All pages are missing at first.
///
/// Several threads that access a page concurrently may each call the handler; the first fill
/// counts. In a forked child the memory is plain, and missing pages read as zeros, or it is
/// inaccessible ([`Filling::close_in_child`]).
#[derive(Debug)]
pub struct Filling {
    region: Box<Region>,
    tracked: bool,
}

impl Filling {
    /// Runs handlers in a thread of this crate, as [`crate::Trapping::new`].
    ///
    /// The memory must be untouched: userfaultfd treats written pages as present, and mprotect(2)
    /// overwrites them. Without userfaultfd only [`Memory::shared`] works, which is filled through
    /// an alias.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for files, and for private memory without userfaultfd.
    pub fn new(memory: Memory, handler: impl Fn(&Fault<'_>) -> Outcome + Send + Sync + 'static) -> Result<Self> {
        Self::with_first(memory, false, &IN_THREAD, Arc::new(handler))
    }

    /// As [`Filling::new`], and tracks writes to filled pages: see [`Filling::dirty`]. A filled
    /// page is clean.
    ///
    /// # Errors
    /// As [`Filling::new`].
    pub fn tracked(memory: Memory, handler: impl Fn(&Fault<'_>) -> Outcome + Send + Sync + 'static) -> Result<Self> {
        Self::with_first(memory, true, &[Mechanism::Scan, Mechanism::ProtectThread], Arc::new(handler))
    }

    /// Runs handlers in a signal handler of the faulting thread, as [`crate::Trapping::in_signal`].
    ///
    /// # Errors
    /// As [`Filling::new`].
    ///
    /// # Safety
    /// As for [`crate::Trapping::in_signal`].
    pub unsafe fn in_signal(
        memory: Memory,
        handler: impl Fn(&Fault<'_>) -> Outcome + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::with_first(memory, false, &IN_SIGNAL, Arc::new(handler))
    }

    /// Uses the given mechanism. `tracked` requires [`Mechanism::Scan`] or one of mprotect(2).
    ///
    /// # Errors
    /// As [`Filling::new`]; no other mechanism is tried.
    ///
    /// # Safety
    /// As [`Filling::in_signal`] if the mechanism runs handlers in signals.
    pub unsafe fn with(
        memory: Memory,
        tracked: bool,
        mechanism: Mechanism,
        handler: impl Fn(&Fault<'_>) -> Outcome + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::with_first(memory, tracked, &[mechanism], Arc::new(handler))
    }

    fn with_first(memory: Memory, tracked: bool, wanted: &[Mechanism], handler: Handler) -> Result<Self> {
        if memory.is_file() {
            // Filling would overwrite the file, and evicting a page would punch a hole into it.
            return Err(Error::Unsupported {
                what: "filling pages of a file",
                why: "the file itself fills them: use other memory",
            });
        }
        let region = first_supported(wanted, |mechanism| {
            if mechanism.is_protect() {
                by_mprotect(&memory, tracked, mechanism, handler.clone())
            } else {
                by_userfaultfd(&memory, tracked, mechanism, handler.clone())
            }
        })?;
        Ok(Self { region, tracked })
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.region.memory
    }

    /// Fills a page in advance; `offset` is its start. A present page stays as it is.
    ///
    /// # Errors
    /// [`Error::Fill`], [`Error::Range`], [`Error::Forked`], and as the system call.
    pub fn fill(&self, offset: usize, contents: &[u8]) -> Result<()> {
        let page = self.page(offset)?;
        self.region.fill(page, contents)
    }

    /// Fills a page with zeros in advance. A present page stays as it is.
    ///
    /// # Errors
    /// As [`Filling::fill`].
    pub fn zero(&self, offset: usize) -> Result<()> {
        let page = self.page(offset)?;
        self.region.zero(page)
    }

    fn page(&self, offset: usize) -> Result<usize> {
        let end = offset.saturating_add(self.region.memory.page_bytes());
        Ok(self.region.memory.addresses(&(offset..end))?.start)
    }

    /// Evicts pages, given in bytes from the start: their contents are lost, and the next access
    /// calls the handler. A write during the call may be lost too.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Forked`], and as madvise(2).
    pub fn evict(&self, range: Range<usize>) -> Result<()> {
        self.region.evict(self.region.memory.addresses(&range)?)
    }

    /// Makes the memory inaccessible in forked children, where missing pages read as zeros
    /// otherwise: an access there raises `SIGSEGV`.
    pub fn close_in_child(&self) {
        self.region.is_closed_in_child.store(true, Ordering::Relaxed);
    }

    /// The ranges written since they were filled or since the last call. See
    /// [`crate::Tracking::dirty`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] unless created by [`Filling::tracked`]; [`Error::Forked`] in a child.
    pub fn dirty(&self) -> Result<DirtyRanges<'_>> {
        self.dirty_in(0..self.region.memory.bytes())
    }

    /// The written ranges of a part of the memory, in bytes from its start. See [`Filling::dirty`].
    ///
    /// # Errors
    /// As [`Filling::dirty`]; [`Error::Range`].
    pub fn dirty_in(&self, range: Range<usize>) -> Result<DirtyRanges<'_>> {
        if !self.tracked {
            return Err(Error::Unsupported {
                what: "a list of dirty pages",
                why: "writes are not tracked: create it by `tracked`",
            });
        }
        let region = &self.region;
        let log = region.mprotect_fill().and_then(|fill| fill.log.as_ref());
        DirtyRanges::new(region, log, range, true)
    }

    /// The mechanism in use.
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        self.region.mechanism
    }

    /// What other mechanisms support and this one does not; for tracked writes, as
    /// [`crate::Tracking::losses`].
    #[must_use]
    pub fn losses(&self) -> Vec<Loss> {
        if self.tracked { self.region.losses_of_tracking() } else { self.region.losses() }
    }
}

/// By userfaultfd: the kernel reports missing pages.
fn by_userfaultfd(memory: &Memory, tracked: bool, mechanism: Mechanism, handler: Handler) -> Result<Box<Region>> {
    if tracked != (mechanism == Mechanism::Scan) {
        let why = if tracked {
            "userfaultfd tracks writes by pagemap-scan only"
        } else {
            "pagemap-scan always tracks writes"
        };
        return Err(Error::Unsupported { what: "this combination of filling and tracking", why });
    }
    let modes = Modes { missing: true, write_protect: tracked };
    let region = Region::new(memory, RegionConfig { mechanism, watch: Watch::Writes, modes }, None, handler)?;
    if tracked {
        // Missing pages without the mark would count as written.
        region.protect(region.range.clone())?;
    }
    Ok(region)
}

/// By mprotect(2) and an alias.
fn by_mprotect(memory: &Memory, tracked: bool, mechanism: Mechanism, handler: Handler) -> Result<Box<Region>> {
    let alias = memory.alias().map_err(|_| Error::Unsupported {
        what: "filling this memory at its first access",
        why: "it is private, and this process may open no userfaultfd: allow it (sudo sysctl \
              vm.unprivileged_userfaultfd=1), or use `Memory::shared`",
    })?;
    let fill = MprotectFill::new(memory.start(), alias, memory.page_bytes(), tracked);
    let resolving: Handler = Arc::new(move |fault: &Fault<'_>| {
        let Some(fill) = fault.region().mprotect_fill() else { return Outcome::Chain };
        // Another thread has filled the page, or this is a first write.
        match fill.resolve_present(fault.page().start / fault.page().len(), &NumberedPages(fault.region())) {
            Ok(true) => Outcome::Resolved,
            Ok(false) => handler(fault),
            Err(_) => Outcome::Chain,
        }
    });
    // Protection means that the first write is recorded; missing pages are inaccessible in
    // addition.
    let config =
        RegionConfig { mechanism, watch: Watch::Writes, modes: Modes { missing: false, write_protect: false } };
    let region = Region::new(memory, config, Some(fill), resolving)?;
    mprotect(region.range.clone(), libc::PROT_NONE)?;
    Ok(region)
}
