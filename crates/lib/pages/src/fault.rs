//! A fault, as its handler sees it, and what the handler can do about it.

#![allow(unsafe_code, reason = "asks for the thread's number; moves pages")]

use std::cell::Cell;
use std::ffi::c_void;
use std::ops::Range;

use crate::error::Result;
use crate::region::Region;

/// How memory was accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For reading, or in a way that the processor does not tell apart.
    Read,
    /// For writing.
    Write,
}

/// What comes after a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Outcome {
    /// The access is tried again. If the page is as it was, it faults again.
    Resolved,
    /// The fault was a mistake of the program: the handler that the process had for `SIGSEGV` or `SIGBUS` gets it, or the process
    /// ends as it would have. A system call cannot be refused from a thread: it ends the process, with a message.
    Chain,
}

/// An access to a page that is protected, or missing.
#[derive(Debug)]
pub struct Fault<'a> {
    region: &'a Region,
    address: usize,
    access: Access,
    thread: u32,
    context: *mut c_void,
    woken: Cell<bool>,
}

impl<'a> Fault<'a> {
    pub(crate) fn new(region: &'a Region, address: usize, access: Access, thread: u32, context: *mut c_void) -> Self {
        Self { region, address, access, thread, context, woken: Cell::new(false) }
    }

    /// The address that was accessed.
    #[must_use]
    pub fn address(&self) -> usize {
        self.address
    }

    /// The byte that was accessed, from the start of the memory.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.address - self.region.range.start
    }

    /// The page that was accessed, in bytes from the start of the memory.
    #[must_use]
    pub fn page(&self) -> Range<usize> {
        let start = self.region.page_of(self.address) - self.region.range.start;
        start..start + self.region.page_bytes
    }

    /// How it was accessed.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The number of the thread that waits, as of gettid(2).
    #[must_use]
    pub fn thread(&self) -> u32 {
        if self.thread == 0 { rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned() } else { self.thread }
    }

    /// In a signal handler, the `ucontext_t` of who faulted; else null.
    #[must_use]
    pub fn context(&self) -> *mut c_void {
        self.context
    }

    /// Opens the page that was accessed.
    ///
    /// # Errors
    /// As [`crate::Trapping::unprotect`].
    pub fn unprotect(&self) -> Result<()> {
        let page = self.region.page_of(self.address);
        self.answered(self.region.unprotect(page..page + self.region.page_bytes))
    }

    /// Protects other pages of the memory, given in bytes from its start.
    ///
    /// # Errors
    /// As [`crate::Trapping::protect`].
    pub fn protect_others(&self, range: Range<usize>) -> Result<()> {
        self.region.protect(self.region.memory.addresses(&range)?)
    }

    /// Opens more pages of the memory than the one that was accessed, given in bytes from its start.
    ///
    /// # Errors
    /// As [`crate::Trapping::unprotect`].
    pub fn unprotect_others(&self, range: Range<usize>) -> Result<()> {
        let addresses = self.region.memory.addresses(&range)?;
        let wakes = addresses.contains(&self.address);
        let done = self.region.unprotect(addresses);
        if wakes { self.answered(done) } else { done }
    }

    /// Fills the page that is missing with a copy. A page that another thread filled meanwhile stays as it is.
    ///
    /// # Errors
    /// [`crate::Error::Fill`] for contents that are not a page, and as the system call.
    pub fn fill(&self, contents: &[u8]) -> Result<()> {
        self.answered(self.region.fill(self.region.page_of(self.address), contents))
    }

    /// Fills the page that is missing with zeros.
    ///
    /// # Errors
    /// As the system call.
    pub fn zero(&self) -> Result<()> {
        self.answered(self.region.zero(self.region.page_of(self.address)))
    }

    /// Fills the page that is missing by moving another page there, without a copy. `from` is missing, or zeros, afterwards.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] for memory that is not private and anonymous, and as the system call.
    ///
    /// # Safety
    /// `from` is the start of a page of this process's private anonymous memory, which nobody uses any more.
    pub unsafe fn move_from(&self, from: *mut u8) -> Result<()> {
        // SAFETY: as promised.
        self.answered(unsafe { self.region.move_from(self.region.page_of(self.address), from.expose_provenance()) })
    }

    /// Has this and every later access to the page end in a `SIGBUS`, as after an error of the hardware: for contents that are lost.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] without userfaultfd or before Linux 6.6. In a signal, `EEXIST` for a page that is there or was
    /// poisoned before: return [`Outcome::Chain`] then.
    pub fn poison(&self) -> Result<()> {
        self.answered(self.region.poison(self.region.page_of(self.address)))
    }

    pub(crate) fn region(&self) -> &'a Region {
        self.region
    }

    /// What opens or fills the page wakes who waits for it.
    fn answered(&self, done: Result<()>) -> Result<()> {
        self.woken.set(done.is_ok());
        done
    }

    pub(crate) fn has_woken(&self) -> bool {
        self.woken.get()
    }
}
