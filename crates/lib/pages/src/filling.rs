//! Memory whose pages come when they are first touched: from a file, a network, a compressed store, a collector's other space.
//!
//! The handler fills a page by copy, zeros or a move, or says that it is lost. Pages can be given up again (`evict`), and filled
//! before anybody asks (`fill`). With [`Filling::tracked`], writes to what was filled are noted as by [`crate::Tracking`].

#![allow(unsafe_code, reason = "gives memory back to the system; runs handlers in signals, on the caller's word")]

use std::ops::Range;
use std::sync::Arc;

use fieldstone_sys::userfault::Modes;
use rustix::mm::{Advice, madvise};

use crate::choice::{IN_SIGNAL, IN_THREAD, first_that_works};
use crate::error::{Error, Result};
use crate::fault::{Fault, Outcome};
use crate::fills::Fills;
use crate::memory::Memory;
use crate::region::{Handler, Loss, Mechanism, Plan, Region, Watch, mprotect};
use crate::tracking::Dirty;

/// Memory whose pages are filled by a handler. None is there at first.
///
/// Several threads that touch a page at the same time may each call the handler for it: the first answer counts. In a forked child
/// the memory is plain, and a page that was not there is zeros.
#[derive(Debug)]
pub struct Filling {
    region: Box<Region>,
    tracked: bool,
}

impl Filling {
    /// Handlers run in a thread of this crate, as those of [`crate::Trapping::new`].
    ///
    /// The memory is to be untouched: what was written before is there already for userfaultfd, and filled over by mprotect(2).
    ///
    /// Without userfaultfd it takes [`Memory::shared`], which is filled through a second view.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for files and for private memory without userfaultfd.
    pub fn new(memory: Memory, handler: impl Fn(&Fault<'_>) -> Outcome + Send + Sync + 'static) -> Result<Self> {
        Self::first(memory, false, &IN_THREAD, Arc::new(handler))
    }

    /// As [`Filling::new`], with writes to filled pages noted: see [`Filling::dirty`]. A page that was filled is clean.
    ///
    /// # Errors
    /// As [`Filling::new`].
    pub fn tracked(memory: Memory, handler: impl Fn(&Fault<'_>) -> Outcome + Send + Sync + 'static) -> Result<Self> {
        Self::first(memory, true, &[Mechanism::Scan, Mechanism::ProtectThread], Arc::new(handler))
    }

    /// Handlers run in a signal handler of who faulted, as those of [`crate::Trapping::in_signal`].
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
        Self::first(memory, false, &IN_SIGNAL, Arc::new(handler))
    }

    /// By a mechanism of the caller's choice; `tracked` takes one of [`Mechanism::Scan`] and those of mprotect(2).
    ///
    /// # Errors
    /// As [`Filling::new`]; nothing else is tried.
    ///
    /// # Safety
    /// As [`Filling::in_signal`] where the mechanism is one in a signal.
    pub unsafe fn with(
        memory: Memory,
        tracked: bool,
        mechanism: Mechanism,
        handler: impl Fn(&Fault<'_>) -> Outcome + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::first(memory, tracked, &[mechanism], Arc::new(handler))
    }

    fn first(memory: Memory, tracked: bool, wanted: &[Mechanism], handler: Handler) -> Result<Self> {
        if memory.is_file() {
            // Filling would write over the file, and giving a page up would make a hole in it.
            return Err(Error::Unsupported {
                what: "filling a file's pages",
                why: "the file fills them: fill other memory",
            });
        }
        let region = first_that_works(wanted, |mechanism| {
            if mechanism.is_protect() {
                closed(&memory, tracked, mechanism, handler.clone())
            } else {
                missing(&memory, tracked, mechanism, handler.clone())
            }
        })?;
        Ok(Self { region, tracked })
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.region.memory
    }

    /// Fills a page before anybody asks for it; `offset` is its start. A page that is there stays as it is.
    ///
    /// # Errors
    /// [`Error::Fill`], [`Error::Range`], [`Error::Forked`], and as the system call.
    pub fn fill(&self, offset: usize, contents: &[u8]) -> Result<()> {
        let page = self.page(offset)?;
        self.region.fill(page, contents)
    }

    /// Fills a page with zeros before anybody asks for it. A page that is there stays as it is.
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

    /// Gives pages back to the system, given in bytes from the start: what they hold is lost, and the next access calls the handler
    /// again. Nobody may write to them meanwhile, or the write is lost too.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Forked`], and as madvise(2).
    pub fn evict(&self, range: Range<usize>) -> Result<()> {
        let addresses = self.region.memory.addresses(&range)?;
        let region = &self.region;
        region.check_generation()?;
        if addresses.is_empty() {
            return Ok(());
        }
        let empty = || {
            let (start, bytes) = (addresses.start, addresses.len());
            let advice =
                if self.region.memory.is_private_anonymous() { Advice::LinuxDontNeed } else { Advice::LinuxRemove };
            // SAFETY: the memory is ours, and the caller gives its contents up.
            let done = unsafe { madvise(std::ptr::with_exposed_provenance_mut(start), bytes, advice) };
            done.map_err(|errno| Error::system("madvise", start, bytes, errno))
        };
        match region.fills() {
            Some(fills) => fills.evict(addresses.clone(), region, empty),
            None => empty(),
        }?;
        if region.mechanism == Mechanism::Scan { region.protect(addresses) } else { Ok(()) }
    }

    /// The ranges that were written since they were filled or since the last look. See [`crate::Tracking::dirty`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] unless made by [`Filling::tracked`]; [`Error::Forked`] in a child.
    pub fn dirty(&self) -> Result<Dirty<'_>> {
        self.dirty_in(0..self.region.memory.bytes())
    }

    /// The written ranges of a part of the memory, given in bytes from its start. See [`Filling::dirty`].
    ///
    /// # Errors
    /// As [`Filling::dirty`]; [`Error::Range`].
    pub fn dirty_in(&self, range: Range<usize>) -> Result<Dirty<'_>> {
        if !self.tracked {
            return Err(Error::Unsupported {
                what: "a list of dirty pages",
                why: "writes are not tracked: use `tracked`",
            });
        }
        let region = &self.region;
        let log = region.fills().and_then(|fills| fills.log.as_ref());
        Dirty::new(region, log, range, true)
    }

    /// How it is done.
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        self.region.mechanism
    }

    /// What another mechanism would give; with writes tracked, as [`crate::Tracking::losses`].
    #[must_use]
    pub fn losses(&self) -> Vec<Loss> {
        if self.tracked { self.region.losses_of_tracking() } else { self.region.losses() }
    }
}

/// By userfaultfd: the kernel knows what is missing.
fn missing(memory: &Memory, tracked: bool, mechanism: Mechanism, handler: Handler) -> Result<Box<Region>> {
    if tracked != (mechanism == Mechanism::Scan) {
        let why = if tracked { "of userfaultfd, pagemap-scan alone notes them" } else { "pagemap-scan tracks, too" };
        return Err(Error::Unsupported { what: "filling with writes told so", why });
    }
    let modes = Modes { missing: true, write_protect: tracked };
    let region = Region::new(memory, Plan { mechanism, watch: Watch::Writes, modes }, None, handler)?;
    if tracked {
        // What is missing and not marked would count as written.
        region.protect(region.range.clone())?;
    }
    Ok(region)
}

/// By mprotect(2) and a second view.
fn closed(memory: &Memory, tracked: bool, mechanism: Mechanism, handler: Handler) -> Result<Box<Region>> {
    let alias = memory.alias()?;
    let fills = Fills::new(alias, memory.page_bytes(), tracked);
    let served: Handler = Arc::new(move |fault: &Fault<'_>| {
        let Some(fills) = fault.region().fills() else { return Outcome::Chain };
        // Somebody else filled it, or it is a first write.
        match fills.settle(fault.page().start / fault.page().len(), fault.region()) {
            Ok(true) => Outcome::Resolved,
            Ok(false) => handler(fault),
            Err(_) => Outcome::Chain,
        }
    });
    // Protected means that the first write is to be noted; what is missing is closed besides.
    let plan = Plan { mechanism, watch: Watch::Writes, modes: Modes { missing: false, write_protect: false } };
    let region = Region::new(memory, plan, Some(fills), served)?;
    mprotect(region.range.clone(), libc::PROT_NONE)?;
    Ok(region)
}
