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

use fieldstone_sys::userfault::{Modes, Reach};

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

/// What a mechanism does not give, that another one would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// System calls that touch a protected page fail.
    KernelAccesses,
    /// Each piece that is protected apart from its neighbours is a mapping of its own.
    Mappings,
}

impl Loss {
    /// What is lost, in two words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::KernelAccesses => "kernel accesses",
            Self::Mappings => "mappings",
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
            serve::start_post().map_err(failed("pthread_create"))?;
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
            if let Err(error) = service.fd.register(range, modes) {
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
        service.fd.write_protect(range, on).map_err(|error| Error::system("UFFDIO_WRITEPROTECT", start, bytes, error))
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
        self.filled(self.service()?.fd.copy(page, contents, write_protected), "UFFDIO_COPY", page)
    }

    pub(crate) fn zero(&self, page: usize) -> Result<()> {
        if let Some(fills) = &self.fills {
            self.check_generation()?;
            return fills.fill(page, None, self);
        }
        let range = page..page + self.page_bytes;
        let service = self.service()?;
        if self.mechanism != Mechanism::Scan && self.page_bytes == rustix::param::page_size() {
            return self.filled(service.fd.zero(range), "UFFDIO_ZEROPAGE", page);
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
        // SAFETY: as promised.
        let moved = unsafe { self.service()?.fd.move_pages(page, from..from + self.page_bytes) };
        self.filled(moved, "UFFDIO_MOVE", page)
    }

    pub(crate) fn poison(&self, page: usize) -> Result<()> {
        let poisoned = self.service()?.fd.poison(page..page + self.page_bytes);
        if poisoned.as_ref().is_err_and(|error| matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOTTY))) {
            return Err(Error::Unsupported { what: "poison", why: "it takes Linux 6.6" });
        }
        if self.mechanism == Mechanism::UserfaultSignal {
            // Without CONFIG_MEMORY_FAILURE the signal of a poisoned page is that of a missing one: its handler has to know.
            return poisoned.map_err(|error| Error::system("UFFDIO_POISON", page, self.page_bytes, error));
        }
        // Poison wakes nobody.
        let woken = self.service()?.fd.wake(page..page + self.page_bytes);
        self.filled(poisoned.and(woken), "UFFDIO_POISON", page)
    }

    /// A page that is there by now is as good as filled; who waits for it is woken.
    fn filled(&self, done: io::Result<()>, call: &'static str, page: usize) -> Result<()> {
        match done {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                let woken = self.service()?.fd.wake(page..page + self.page_bytes);
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
                self.service.is_some_and(|service| service.fd.reach() == Reach::UserAndKernel)
            }
            _ => false,
        };
        let kernel = (!reaches_kernel).then_some(Loss::KernelAccesses);
        kernel.into_iter().chain(self.mechanism.is_protect().then_some(Loss::Mappings)).collect()
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
                // Who waits finds the memory plain, or gone. The kernel wakes only those who wait for missing pages.
                let _ = service.fd.unregister(self.range.clone());
                let _ = service.fd.wake(self.range.clone());
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

/// Before Linux 6.4 protection does not hold on a page that was never touched.
fn populate(memory: &Memory) -> Result<()> {
    // SAFETY: populating for reading changes no contents.
    let done =
        unsafe { rustix::mm::madvise(memory.as_ptr().cast(), memory.bytes(), rustix::mm::Advice::LinuxPopulateRead) };
    done.map_err(|errno| Error::system("madvise(POPULATE_READ)", memory.start(), memory.bytes(), errno))
}
