//! A fault as its handler sees it, and the handler's operations on it.

#![allow(unsafe_code, reason = "moves pages")]

use std::cell::Cell;
use std::ffi::c_void;
use std::ops::Range;

use crate::controlled_range::ControlledRange;
use crate::error::Result;

/// The kind of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A read, or an access of a kind that the processor does not report.
    Read,
    /// A write.
    Write,
}

/// The result of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Outcome {
    /// The access is retried. It faults again if the page is unchanged.
    Resolved,
    /// The program must handle the fault: the handler that it had for `SIGSEGV` or `SIGBUS` is
    /// called, or the process ends as it would without this crate. A fault of a system call that
    /// waits for a thread cannot be refused: the process ends with a message.
    Chain,
}

/// An access to a protected or missing page.
#[derive(Debug)]
pub struct Fault<'a> {
    region: &'a ControlledRange,
    address: usize,
    access: Access,
    thread: u32,
    context: *mut c_void,
    has_woken: Cell<bool>,
}

impl<'a> Fault<'a> {
    pub(crate) fn new(
        region: &'a ControlledRange,
        address: usize,
        access: Access,
        thread: u32,
        context: *mut c_void,
    ) -> Self {
        Self { region, address, access, thread, context, has_woken: Cell::new(false) }
    }

    /// The accessed address.
    #[must_use]
    pub fn address(&self) -> usize {
        self.address
    }

    /// The accessed byte's offset from the start of the memory.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.address - self.region.range.start
    }

    /// The accessed page, in bytes from the start of the memory.
    #[must_use]
    pub fn page(&self) -> Range<usize> {
        let start = self.region.page_of(self.address) - self.region.range.start;
        start..start + self.region.page_bytes
    }

    /// The kind of access.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The waiting thread's id, as of gettid(2).
    #[must_use]
    pub fn thread(&self) -> u32 {
        if self.thread == 0 { rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned() } else { self.thread }
    }

    /// In a signal handler, the `ucontext_t` of the faulting thread; otherwise null.
    #[must_use]
    pub fn context(&self) -> *mut c_void {
        self.context
    }

    /// Makes the accessed page accessible.
    ///
    /// # Errors
    /// As [`crate::Trapping::unprotect`].
    pub fn unprotect(&self) -> Result<()> {
        let page = self.region.page_of(self.address);
        self.resolve(self.region.unprotect(page..page + self.region.page_bytes))
    }

    /// Protects other pages, given in bytes from the start of the memory.
    ///
    /// # Errors
    /// As [`crate::Trapping::protect`].
    pub fn protect_others(&self, range: Range<usize>) -> Result<()> {
        self.region.protect(self.region.memory.addresses(&range)?)
    }

    /// Makes more pages accessible, given in bytes from the start of the memory.
    ///
    /// # Errors
    /// As [`crate::Trapping::unprotect`].
    pub fn unprotect_others(&self, range: Range<usize>) -> Result<()> {
        let addresses = self.region.memory.addresses(&range)?;
        let wakes = addresses.contains(&self.address);
        let done = self.region.unprotect(addresses);
        if wakes { self.resolve(done) } else { done }
    }

    /// Fills the missing page with a copy. A page that another thread has filled meanwhile stays as
    /// it is.
    ///
    /// # Errors
    /// [`crate::Error::Fill`] for contents of another size than a page, and as the system call.
    pub fn fill(&self, contents: &[u8]) -> Result<()> {
        self.resolve(self.region.fill(self.region.page_of(self.address), contents))
    }

    /// Evicts other pages, given in bytes from the start of the memory: see
    /// [`crate::Filling::evict`].
    ///
    /// # Errors
    /// As [`crate::Filling::evict`].
    pub fn evict_others(&self, range: Range<usize>) -> Result<()> {
        self.region.evict(self.region.memory.addresses(&range)?)
    }

    /// Fills the missing page with zeros.
    ///
    /// # Errors
    /// As the system call.
    pub fn zero(&self) -> Result<()> {
        self.resolve(self.region.zero(self.region.page_of(self.address)))
    }

    /// Fills the missing page by moving another page there without a copy. `from` is then missing,
    /// or zeros.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] unless the memory is private and anonymous, and as the system
    /// call.
    ///
    /// # Safety
    /// `from` must be the start of a page of this process's private anonymous memory that no code
    /// uses any more.
    pub unsafe fn move_from(&self, from: *mut u8) -> Result<()> {
        // SAFETY: `from` is an unused page of private anonymous memory, as the caller guarantees.
        self.resolve(unsafe { self.region.move_from(self.region.page_of(self.address), from.expose_provenance()) })
    }

    /// Makes this and each later access to the page raise `SIGBUS`, as after a hardware memory
    /// error: for lost contents.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] without userfaultfd or before Linux 6.6. In a signal, `EEXIST`
    /// for a page that is present or already poisoned: return [`Outcome::Chain`] then.
    pub fn poison(&self) -> Result<()> {
        self.resolve(self.region.poison(self.region.page_of(self.address)))
    }

    pub(crate) fn region(&self) -> &'a ControlledRange {
        self.region
    }

    /// An operation that resolves the fault also wakes the waiting threads.
    fn resolve(&self, done: Result<()>) -> Result<()> {
        self.has_woken.set(done.is_ok());
        done
    }

    pub(crate) fn has_woken(&self) -> bool {
        self.has_woken.get()
    }
}
