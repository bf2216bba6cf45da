//! A piece of memory under control, as the handlers of faults see it: its mechanism, its handler, and the four operations in terms
//! of system calls.
//!
//! Addresses here are absolute and of whole pages; the public types check that. Nothing here allocates or locks but for
//! the spin lock of `fills`, so that handlers in signals may call it.

#![allow(unsafe_code, reason = "protects memory that others use, which is its purpose")]

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use fieldstone_sys::userfault::{FaultOrigin, Modes};

use crate::error::{Error, Result};
use crate::fault::{Fault, Outcome};
use crate::fills::Fills;
use crate::memory::Memory;
use crate::service::{self, Service, Told};
use crate::{fork, registry, serve, signal};

/// How faults are made and told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mechanism {
    /// userfaultfd, to a thread of this crate; who faults waits in the kernel.
    UserfaultThread,
    /// userfaultfd, as a `SIGBUS` to who faults.
    UserfaultSignal,
    /// mprotect(2), whose `SIGSEGV` is passed on to a thread of this crate.
    ProtectThread,
    /// mprotect(2), as a `SIGSEGV` to who faults.
    ProtectSignal,
    /// userfaultfd's asynchronous mode: the kernel notes writes, `PAGEMAP_SCAN` reads the notes. Nobody waits for anybody.
    Scan,
}

impl Mechanism {
    /// Whether handlers run in signal handlers.
    #[must_use]
    pub const fn is_in_signal(self) -> bool {
        matches!(self, Self::UserfaultSignal | Self::ProtectSignal)
    }

    pub(crate) const fn is_protect(self) -> bool {
        matches!(self, Self::ProtectThread | Self::ProtectSignal)
    }

    /// The mechanism's name, for people and for options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UserfaultThread => "userfaultfd-thread",
            Self::UserfaultSignal => "userfaultfd-signal",
            Self::ProtectThread => "mprotect-thread",
            Self::ProtectSignal => "mprotect-signal",
            Self::Scan => "pagemap-scan",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a protected page refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Writes.
    Writes,
    /// Reads and writes. userfaultfd cannot refuse reads of a page that is there, so this takes mprotect(2).
    Accesses,
}

/// What a region does not give: for its mechanism, which another one may give, or for its memory, which none does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// System calls that touch a protected page fail.
    KernelAccesses,
    /// Each piece that is protected apart from its neighbours is a mapping of its own.
    Mappings,
    /// A thread that blocks `SIGSEGV` and `SIGBUS` is killed at a protected or missing page.
    BlockedSignals,
    /// Writes to dirty pages may have been missed: the process has pinned pages now, which devices and io_uring write by their
    /// frames.
    PinnedPages,
    /// Writes to dirty pages may be missed: the memory is a file's or shared, and is written through other mappings too.
    SharedMemory,
}

impl Loss {
    /// What is lost, in two words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::KernelAccesses => "kernel accesses",
            Self::Mappings => "mappings",
            Self::BlockedSignals => "blocked signals",
            Self::PinnedPages => "pinned pages",
            Self::SharedMemory => "shared memory",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KernelAccesses => {
                "a system call that reads or writes a trapped page (read(2) into it) fails with EFAULT: touch the page first; \
                 with a handler in a thread and /dev/userfaultfd or vm.unprivileged_userfaultfd=1 it waits for the handler instead"
            }
            Self::Mappings => {
                "each piece that is protected apart from its neighbours takes one of vm.max_map_count mappings: protect long \
                 pieces; userfaultfd needs none"
            }
            Self::BlockedSignals => {
                "the kernel kills a thread that blocks SIGSEGV and SIGBUS at a trapped page: leave both unblocked; \
                 userfaultfd with a handler in a thread needs no signal"
            }
            Self::PinnedPages => {
                "this process has pinned pages (VmPin): writes through registered buffers of io_uring, and by devices, change \
                 pages without making them dirty: mark such buffers as dirty, or do not register tracked memory"
            }
            Self::SharedMemory => {
                "writes to shared memory or a file through another mapping, by write(2) or by another process do not make \
                 pages dirty: mark the pages, or use private anonymous memory"
            }
        })
    }
}

pub(crate) type Handler = Arc<dyn Fn(&Fault<'_>) -> Outcome + Send + Sync>;

pub(crate) struct Region {
    pub(crate) range: Range<usize>,
    pub(crate) page_bytes: usize,
    pub(crate) mechanism: Mechanism,
    pub(crate) handler: Handler,
    /// Handlers at work, counted by the registry.
    pub(crate) pins: AtomicUsize,
    watch: Watch,
    service: Option<&'static Service>,
    generation: u32,
    /// How missing pages are filled where there is no userfaultfd.
    fills: Option<Fills>,
    /// Whether it gets faults of missing pages from the kernel.
    missing: bool,
    pub(crate) memory: Memory,
}

/// What a region is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) mechanism: Mechanism,
    pub(crate) watch: Watch,
    pub(crate) modes: Modes,
}

impl Region {
    /// Puts memory under control; every page is open, or missing.
    pub(crate) fn new(memory: &Memory, plan: Plan, fills: Option<Fills>, handler: Handler) -> Result<Box<Self>> {
        let Plan { mechanism, watch, modes } = plan;
        let range = memory.start()..memory.start() + memory.bytes();
        let told = match mechanism {
            Mechanism::UserfaultThread => Some(Told::Thread),
            Mechanism::UserfaultSignal => Some(Told::Signal),
            Mechanism::Scan => Some(Told::Scan),
            Mechanism::ProtectThread | Mechanism::ProtectSignal => None,
        };
        let (start, bytes) = (memory.start(), memory.bytes());
        let failed = |call| move |error: io::Error| Error::system(call, start, bytes, error);
        let service = told.map(service::service).transpose().map_err(failed("userfaultfd"))?;
        if mechanism.is_protect() || mechanism.is_in_signal() {
            signal::install().map_err(failed("sigaction"))?;
        }
        if mechanism == Mechanism::ProtectThread {
            serve::start_mail().map_err(failed("pthread_create"))?;
        }
        memory.take_control()?;
        let mut region = Box::new(Self {
            memory: memory.share(),
            range: range.clone(),
            page_bytes: memory.page_bytes(),
            mechanism,
            handler,
            pins: AtomicUsize::new(0),
            watch,
            service,
            generation: fork::generation(),
            fills,
            missing: modes.missing,
        });
        registry::insert(&region);
        if let Some(service) = service {
            if let Err(error) = service.run(|fd| fd.register(range.clone(), modes)) {
                // Another userfaultfd may have the memory: it is not ours to unregister.
                region.service = None;
                return Err(failed("UFFDIO_REGISTER")(error));
            }
            if !service.unpopulated {
                populate(memory)?;
            }
        }
        Ok(region)
    }

    /// The start of the page of an address.
    pub(crate) fn page_of(&self, address: usize) -> usize {
        address & !(self.page_bytes - 1)
    }

    pub(crate) fn check_generation(&self) -> Result<()> {
        if self.generation == fork::generation() { Ok(()) } else { Err(Error::Forked) }
    }

    /// The userfaultfd, in the process that made the region.
    pub(crate) fn service(&self) -> Result<&'static Service> {
        self.check_generation()?;
        self.service.ok_or(Error::Unsupported { what: "this answer", why: "the memory is watched by mprotect(2)" })
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
        let Some(service) = self.service else { return mprotect(range, protection) };
        let (start, bytes) = (range.start, range.len());
        let done = service.run(|fd| fd.write_protect(range.clone(), on));
        done.map_err(|error| Error::system("UFFDIO_WRITEPROTECT", start, bytes, error))
    }

    /// Opens the pages of a range that are still this region's, where the program has mapped over others.
    #[cold]
    pub(crate) fn unprotect_what_is_left(&self, range: Range<usize>) {
        let half = range.len() / self.page_bytes / 2 * self.page_bytes;
        if self.unprotect(range.clone()).is_err() && half > 0 {
            self.unprotect_what_is_left(range.start..range.start + half);
            self.unprotect_what_is_left(range.start + half..range.end);
        }
    }

    pub(crate) fn fill(&self, page: usize, contents: &[u8]) -> Result<()> {
        if contents.len() != self.page_bytes {
            return Err(Error::Fill { bytes: contents.len(), page_bytes: self.page_bytes });
        }
        // The contents may lie in a page that is missing itself: its fault must not come under a lock, or in the kernel.
        let touched = contents.iter().step_by(rustix::param::page_size()).chain(contents.last());
        std::hint::black_box(touched.fold(0, |all, byte| all ^ byte));
        if let Some(fills) = &self.fills {
            self.check_generation()?;
            return fills.fill(page, Some(contents), self);
        }
        self.copy(page, contents)
    }

    /// Filled pages whose writes are noted are clean.
    fn copy(&self, page: usize, contents: &[u8]) -> Result<()> {
        let write_protected = self.mechanism == Mechanism::Scan;
        self.filled(self.service()?.run(|fd| fd.copy(page, contents, write_protected)), "UFFDIO_COPY", page)
    }

    pub(crate) fn zero(&self, page: usize) -> Result<()> {
        if let Some(fills) = &self.fills {
            self.check_generation()?;
            return fills.fill(page, None, self);
        }
        let range = page..page + self.page_bytes;
        let service = self.service()?;
        if self.mechanism != Mechanism::Scan && self.page_bytes == rustix::param::page_size() {
            return self.filled(service.run(|fd| fd.zero(range.clone())), "UFFDIO_ZEROPAGE", page);
        }
        // No zero page can be write-protected, and hugetlb has none.
        static ZEROS: [u8; 2 << 20] = [0; 2 << 20];
        self.copy(page, &ZEROS[..self.page_bytes])
    }

    /// # Safety
    /// As [`Fault::move_from`].
    pub(crate) unsafe fn move_from(&self, page: usize, from: usize) -> Result<()> {
        if !self.memory.is_private_anonymous() || self.fills.is_some() || self.mechanism == Mechanism::Scan {
            return Err(Error::Unsupported {
                what: "moving a page",
                why: "it takes userfaultfd on private anonymous memory whose writes are not tracked",
            });
        }
        // SAFETY: the caller promises that nobody uses the page at `from`.
        let moved = self.service()?.run(|fd| unsafe { fd.move_pages(page, from..from + self.page_bytes) });
        self.filled(moved, "UFFDIO_MOVE", page)
    }

    pub(crate) fn poison(&self, page: usize) -> Result<()> {
        let poisoned = self.service()?.run(|fd| fd.poison(page..page + self.page_bytes));
        if poisoned.as_ref().is_err_and(|error| matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOTTY))) {
            return Err(Error::Unsupported { what: "poison", why: "it takes Linux 6.6" });
        }
        if self.mechanism == Mechanism::UserfaultSignal {
            // Without CONFIG_MEMORY_FAILURE the signal of a poisoned page is that of a missing one: its handler has to know.
            return poisoned.map_err(|error| Error::system("UFFDIO_POISON", page, self.page_bytes, error));
        }
        // Poison wakes nobody.
        let woken = self.service()?.run(|fd| fd.wake(page..page + self.page_bytes));
        self.filled(poisoned.and(woken), "UFFDIO_POISON", page)
    }

    /// A page that is there by now is as good as filled; who waits for it is woken.
    fn filled(&self, done: io::Result<()>, call: &'static str, page: usize) -> Result<()> {
        match done {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                let woken = self.service()?.run(|fd| fd.wake(page..page + self.page_bytes));
                woken.map_err(|error| Error::system("UFFDIO_WAKE", page, self.page_bytes, error))
            }
            done => done.map_err(|error| Error::system(call, page, self.page_bytes, error)),
        }
    }

    pub(crate) fn fills(&self) -> Option<&Fills> {
        self.fills.as_ref()
    }

    /// What another mechanism would give.
    pub(crate) fn losses(&self) -> Vec<Loss> {
        let reaches_kernel = match self.mechanism {
            // What is missing waits for a handler, what is written does not.
            Mechanism::Scan if !self.missing => true,
            Mechanism::Scan | Mechanism::UserfaultThread => {
                self.service.is_some_and(|service| service.reach() == FaultOrigin::UserAndKernel)
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

    /// [`Region::losses`], and what may write to the memory without making its pages dirty.
    pub(crate) fn losses_of_tracking(&self) -> Vec<Loss> {
        let mut losses = self.losses();
        losses.extend(has_pinned_pages().then_some(Loss::PinnedPages));
        losses.extend((!self.memory.is_private_anonymous()).then_some(Loss::SharedMemory));
        losses
    }

    /// Opens what mprotect(2) closed. Userfaultfd's traps are gone in a child already.
    pub(crate) fn make_plain_in_child(&self) {
        if self.mechanism.is_protect() {
            let _ = mprotect(self.range.clone(), libc::PROT_READ | libc::PROT_WRITE);
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("range", &self.range).field("mechanism", &self.mechanism).finish_non_exhaustive()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // First: a handler that is at work finds its region as it was.
        registry::remove(self);
        // In a child the descriptor would name the parent's memory.
        if self.check_generation().is_ok() {
            if let Some(service) = self.service {
                // Threads that wait find the memory plain, or gone. The kernel itself wakes only those that wait for missing pages.
                let _ = service.run(|fd| fd.unregister(self.range.clone()).and(fd.wake(self.range.clone())));
            } else {
                let _ = mprotect(self.range.clone(), libc::PROT_READ | libc::PROT_WRITE);
            }
        }
        self.memory.let_go();
    }
}

#[inline]
pub(crate) fn mprotect(range: Range<usize>, protection: i32) -> Result<()> {
    let start = std::ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: the range is of a region's memory; that accesses then fault is what its owner asked for.
    if unsafe { libc::mprotect(start, range.len(), protection) } == 0 {
        return Ok(());
    }
    Err(Error::system("mprotect", range.start, range.len(), io::Error::last_os_error()))
}

/// Whether the process has pages that the kernel counts as pinned (`VmPin`), as it does for io_uring and RDMA.
fn has_pinned_pages() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pinned = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    pinned.is_some_and(|kib| kib.trim_start_matches([' ', '\t']).split(' ').next() != Some("0"))
}

/// Before Linux 6.4 protection does not hold on a page that was never touched.
fn populate(memory: &Memory) -> Result<()> {
    // SAFETY: populating for reading changes no contents.
    let done =
        unsafe { rustix::mm::madvise(memory.as_ptr().cast(), memory.bytes(), rustix::mm::Advice::LinuxPopulateRead) };
    done.map_err(|errno| Error::system("madvise(POPULATE_READ)", memory.start(), memory.bytes(), errno))
}
