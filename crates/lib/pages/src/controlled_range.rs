//! A controlled range of memory: its mechanism, and the four operations as system calls.
//!
//! Addresses here are absolute and page-aligned; the public types check that. Nothing here
//! allocates, or locks anything but the spin lock of `mprotect_fill`, so handlers in signals may
//! call it.

#![allow(unsafe_code, reason = "protects memory in use, which is its purpose")]

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use fieldstone_sys::userfault::FaultOrigin;
use rustix::mm::{Advice, madvise};

use crate::dirty_log::Gate;
use crate::error::{Error, Result};
use crate::fork;
use crate::mechanism::{Loss, Mechanism, Watch};
use crate::memory::Memory;
use crate::mprotect_fill::MprotectFill;
use crate::protect::mprotect;
use crate::shared_userfaultfd::SharedUserfaultfd;

pub(crate) struct ControlledRange {
    pub(crate) range: Range<usize>,
    pub(crate) page_bytes: usize,
    pub(crate) mechanism: Mechanism,
    pub(crate) watch: Watch,
    pub(crate) userfaultfd: Option<&'static SharedUserfaultfd>,
    pub(crate) generation: u32,
    /// The fill state if userfaultfd is not used.
    pub(crate) mprotect_fill: Option<MprotectFill>,
    /// Whether the kernel reports missing pages.
    pub(crate) missing: bool,
    /// Whether forked children must not access the memory.
    pub(crate) is_closed_in_child: AtomicBool,
    pub(crate) memory: Memory,
}

impl ControlledRange {
    /// The start of an address's page.
    pub(crate) fn page_of(&self, address: usize) -> usize {
        address & !(self.page_bytes - 1)
    }

    pub(crate) fn check_generation(&self) -> Result<()> {
        if self.generation == fork::generation() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Whether this is a forked child that must not access the memory.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed_in_child.load(Ordering::Relaxed) && self.check_generation().is_err()
    }

    /// The userfaultfd, in the process that created the region.
    pub(crate) fn userfaultfd(&self) -> Result<&'static SharedUserfaultfd> {
        self.check_generation()?;
        self.userfaultfd.ok_or(Error::Unsupported { what: "this operation", why: "the region uses mprotect(2)" })
    }

    #[inline]
    pub(crate) fn protect(&self, range: Range<usize>) -> Result<()> {
        let refused = if self.watch == Watch::Accesses { libc::PROT_NONE } else { libc::PROT_READ };
        self.set(range, true, refused)
    }

    #[inline]
    pub(crate) fn unprotect(&self, range: Range<usize>) -> Result<()> {
        self.set(range, false, libc::PROT_READ | libc::PROT_WRITE)
    }

    #[inline]
    fn set(&self, range: Range<usize>, on: bool, protection: i32) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        self.check_generation()?;
        let Some(userfaultfd) = self.userfaultfd else { return mprotect(range, protection) };
        let (start, bytes) = (range.start, range.len());
        let done = userfaultfd.run(|fd| fd.write_protect(range.clone(), on));
        done.map_err(|error| Error::system("UFFDIO_WRITEPROTECT", start, bytes, error))
    }

    /// Makes the pages of a range accessible that still belong to this region, if the program has
    /// mapped over others.
    #[cold]
    pub(crate) fn unprotect_remaining(&self, range: Range<usize>) {
        let half = range.len() / self.page_bytes / 2 * self.page_bytes;
        if self.unprotect(range.clone()).is_err() && half > 0 {
            self.unprotect_remaining(range.start..range.start + half);
            self.unprotect_remaining(range.start + half..range.end);
        }
    }

    pub(crate) fn fill(&self, page: usize, contents: &[u8]) -> Result<()> {
        if contents.len() != self.page_bytes {
            return Err(Error::Fill { bytes: contents.len(), page_bytes: self.page_bytes });
        }
        // The contents may be in a missing page: its fault must not occur under a lock or in the
        // kernel.
        let touched = contents.iter().step_by(rustix::param::page_size()).chain(contents.last());
        std::hint::black_box(touched.fold(0, |all, byte| all ^ byte));
        if let Some(mprotect_fill) = &self.mprotect_fill {
            self.check_generation()?;
            return mprotect_fill.fill(page, Some(contents));
        }
        self.copy(page, contents)
    }

    /// Filled pages are clean if writes are tracked.
    fn copy(&self, page: usize, contents: &[u8]) -> Result<()> {
        let write_protected = self.mechanism == Mechanism::Scan;
        self.filled(self.userfaultfd()?.run(|fd| fd.copy(page, contents, write_protected)), "UFFDIO_COPY", page)
    }

    pub(crate) fn zero(&self, page: usize) -> Result<()> {
        if let Some(mprotect_fill) = &self.mprotect_fill {
            self.check_generation()?;
            return mprotect_fill.fill(page, None);
        }
        let range = page..page + self.page_bytes;
        let userfaultfd = self.userfaultfd()?;
        if self.mechanism != Mechanism::Scan && self.page_bytes == rustix::param::page_size() {
            return self.filled(userfaultfd.run(|fd| fd.zero(range.clone())), "UFFDIO_ZEROPAGE", page);
        }
        // The zero page cannot be write-protected, and hugetlb has none.
        static ZEROS: [u8; 2 << 20] = [0; 2 << 20];
        self.copy(page, &ZEROS[..self.page_bytes])
    }

    /// # Safety
    /// As [`crate::Fault::move_from`].
    pub(crate) unsafe fn move_from(&self, page: usize, from: usize) -> Result<()> {
        if !self.memory.is_private_anonymous() || self.mprotect_fill.is_some() || self.mechanism == Mechanism::Scan {
            return Err(Error::Unsupported {
                what: "moving a page",
                why: "it needs userfaultfd on private anonymous memory without tracking",
            });
        }
        // SAFETY: no code uses the page at `from`, as the caller guarantees.
        let moved = self.userfaultfd()?.run(|fd| unsafe { fd.move_pages(page, from..from + self.page_bytes) });
        self.filled(moved, "UFFDIO_MOVE", page)
    }

    pub(crate) fn poison(&self, page: usize) -> Result<()> {
        let poisoned = self.userfaultfd()?.run(|fd| fd.poison(page..page + self.page_bytes));
        if poisoned.as_ref().is_err_and(|error| matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOTTY))) {
            return Err(Error::Unsupported { what: "poisoning a page", why: "it needs Linux 6.6" });
        }
        if self.mechanism == Mechanism::UserfaultSignal {
            // Without CONFIG_MEMORY_FAILURE a poisoned page raises the signal of a missing one, so
            // the handler must see the error.
            return poisoned.map_err(|error| Error::system("UFFDIO_POISON", page, self.page_bytes, error));
        }
        // UFFDIO_POISON wakes no thread.
        let woken = self.userfaultfd()?.run(|fd| fd.wake(page..page + self.page_bytes));
        self.filled(poisoned.and(woken), "UFFDIO_POISON", page)
    }

    /// Treats a page that is present already as filled, and wakes the threads that wait for it.
    fn filled(&self, done: io::Result<()>, call: &'static str, page: usize) -> Result<()> {
        match done {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                let woken = self.userfaultfd()?.run(|fd| fd.wake(page..page + self.page_bytes));
                woken.map_err(|error| Error::system("UFFDIO_WAKE", page, self.page_bytes, error))
            }
            done => done.map_err(|error| Error::system(call, page, self.page_bytes, error)),
        }
    }

    /// Makes pages missing again. Handlers may call it for other pages than their own.
    pub(crate) fn evict(&self, addresses: Range<usize>) -> Result<()> {
        self.check_generation()?;
        if addresses.is_empty() {
            return Ok(());
        }
        let empty = || {
            let (start, bytes) = (addresses.start, addresses.len());
            let advice = if self.memory.is_private_anonymous() { Advice::LinuxDontNeed } else { Advice::LinuxRemove };
            // SAFETY: the region owns the memory, and the caller gives up its contents.
            let done = unsafe { madvise(std::ptr::with_exposed_provenance_mut(start), bytes, advice) };
            done.map_err(|errno| Error::system("madvise", start, bytes, errno))
        };
        match &self.mprotect_fill {
            Some(fill) => fill.evict(addresses.clone(), &NumberedPages(self), empty),
            None => empty(),
        }?;
        if self.mechanism == Mechanism::Scan { self.protect(addresses) } else { Ok(()) }
    }

    pub(crate) fn mprotect_fill(&self) -> Option<&MprotectFill> {
        self.mprotect_fill.as_ref()
    }

    /// What other mechanisms support and this one does not.
    pub(crate) fn losses(&self) -> Vec<Loss> {
        let reaches_kernel = match self.mechanism {
            // Missing pages wait for a handler, writes do not.
            Mechanism::Scan if !self.missing => true,
            Mechanism::Scan | Mechanism::UserfaultThread => {
                self.userfaultfd.is_some_and(|userfaultfd| userfaultfd.reach() == FaultOrigin::UserAndKernel)
            }
            _ => false,
        };
        let by_signal = self.mechanism.is_protect() || self.mechanism.is_in_signal();
        let losses = [
            (!reaches_kernel, Loss::KernelAccesses),
            (self.mechanism.is_protect(), Loss::Mappings),
            (by_signal, Loss::BlockedSignals),
        ];
        losses.into_iter().filter_map(|(is_lost, loss)| is_lost.then_some(loss)).collect()
    }

    /// [`ControlledRange::losses`], and writers that do not make pages dirty.
    pub(crate) fn losses_of_tracking(&self) -> Vec<Loss> {
        let mut losses = self.losses();
        losses.extend(has_pinned_pages().then_some(Loss::PinnedPages));
        losses.extend((!self.memory.is_private_anonymous()).then_some(Loss::SharedMemory));
        losses
    }

    /// Makes pages accessible that mprotect(2) protected, or all inaccessible if children must not
    /// access them. userfaultfd's traps do not exist in a child.
    pub(crate) fn make_plain(&self) {
        if self.is_closed_in_child.load(Ordering::Relaxed) {
            let _ = mprotect(self.range.clone(), libc::PROT_NONE);
        } else if self.mechanism.is_protect() {
            let _ = mprotect(self.range.clone(), libc::PROT_READ | libc::PROT_WRITE);
        }
    }
}

impl fmt::Debug for ControlledRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlledRange")
            .field("range", &self.range)
            .field("mechanism", &self.mechanism)
            .finish_non_exhaustive()
    }
}

/// Whether the process has pages that the kernel counts as pinned (`VmPin`), as for io_uring and
/// RDMA.
fn has_pinned_pages() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pinned = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    pinned.is_some_and(|kib| kib.trim_start_matches([' ', '\t']).split(' ').next() != Some("0"))
}

/// Pages of a region by number, opened and closed to writes.
pub(crate) struct NumberedPages<'a>(pub(crate) &'a ControlledRange);

impl NumberedPages<'_> {
    fn addresses(&self, pages: Range<usize>) -> Range<usize> {
        let at = |page| self.0.range.start + page * self.0.page_bytes;
        at(pages.start)..at(pages.end)
    }
}

impl Gate for NumberedPages<'_> {
    type Error = Error;

    fn open(&self, page: usize) -> Result<()> {
        self.0.unprotect(self.addresses(page..page + 1))
    }

    fn close(&self, pages: Range<usize>) -> Result<()> {
        self.0.protect(self.addresses(pages))
    }
}
