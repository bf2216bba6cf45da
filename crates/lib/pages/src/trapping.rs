//! TRAP, PROT1, PROTN and UNPROT: memory whose protected pages call a handler when they are accessed.
//!
//! Source: Appel and Li, *Virtual Memory Primitives for User Programs*: TRAP "handle page-fault traps in user mode", PROT1
//! "decrease the accessibility of a page", PROTN "… of N pages", UNPROT "increase the accessibility of a page". Their advice holds:
//! make pages less accessible in batches, and more accessible one at a time.

#![allow(unsafe_code, reason = "runs handlers in signals, on the caller's word")]

use std::ops::Range;
use std::sync::Arc;

use fieldstone_sys::userfault::Modes;

use crate::choice::{IN_SIGNAL, IN_THREAD, first_that_works};
use crate::error::{Error, Result};
use crate::fault::{Fault, Outcome};
use crate::memory::Memory;
use crate::region::{Handler, Loss, Mechanism, Plan, Region, Watch};

/// Memory whose pages can be protected; an access that a protected page refuses calls a handler.
///
/// All pages are open at first. Threads that access a page at the same time may each call the handler for it, and one of them may
/// find it opened; opening it again does no harm. In a forked child the memory is plain.
#[derive(Debug)]
pub struct Trapping(Box<Region>);

impl Trapping {
    /// Handlers run in a thread of this crate, while who faulted waits: they may allocate, lock, and do as they like, as long as
    /// they do not wait for who faulted. They run one at a time while each is quick; in parallel when one takes its time. A panic
    /// in one ends the process.
    ///
    /// The mechanism is userfaultfd where it serves the memory and [`Watch::Writes`] is asked for, mprotect(2) else.
    ///
    /// # Errors
    /// [`Error::System`] where neither can be had.
    pub fn new(
        memory: Memory,
        watch: Watch,
        handler: impl Fn(&Fault<'_>) -> Outcome + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::first(memory, watch, &IN_THREAD, Arc::new(handler))
    }

    /// Handlers run in a signal handler of who faulted, which is about twice as fast, and sees its registers
    /// ([`Fault::context`]).
    ///
    /// # Errors
    /// As [`Trapping::new`].
    ///
    /// # Safety
    /// The handler is async-signal-safe: no allocation, no lock that others hold, no jump out of it; and it fits in the thread's
    /// alternate stack where there is one, which for a thread of Rust's is 8 KiB: no page on the stack.
    pub unsafe fn in_signal(
        memory: Memory,
        watch: Watch,
        handler: impl Fn(&Fault<'_>) -> Outcome + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::first(memory, watch, &IN_SIGNAL, Arc::new(handler))
    }

    /// By a mechanism of the caller's choice.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for one that cannot do it, and as [`Trapping::new`]; nothing else is tried.
    ///
    /// # Safety
    /// As [`Trapping::in_signal`] where the mechanism is one in a signal.
    pub unsafe fn with(
        memory: Memory,
        watch: Watch,
        mechanism: Mechanism,
        handler: impl Fn(&Fault<'_>) -> Outcome + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::first(memory, watch, &[mechanism], Arc::new(handler))
    }

    fn first(memory: Memory, watch: Watch, wanted: &[Mechanism], handler: Handler) -> Result<Self> {
        let region = first_that_works(wanted, |mechanism| match mechanism {
            Mechanism::Scan => Err(Error::Unsupported { what: "a trap", why: "pagemap-scan only notes writes" }),
            Mechanism::UserfaultThread | Mechanism::UserfaultSignal if watch == Watch::Accesses => {
                Err(Error::Unsupported {
                    what: "a trap on reads",
                    why: "userfaultfd refuses writes only: use mprotect",
                })
            }
            _ => {
                let modes = Modes { missing: false, write_protect: true };
                Region::new(&memory, Plan { mechanism, watch, modes }, None, handler.clone())
            }
        })?;
        Ok(Self(region))
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    /// Protects whole pages, given in bytes from the start. When it returns, no thread can do what they refuse.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Forked`] in a child; [`Error::System`] where mprotect(2) has no mappings left.
    pub fn protect(&self, range: Range<usize>) -> Result<()> {
        self.0.protect(self.0.memory.addresses(&range)?)
    }

    /// Opens whole pages, given in bytes from the start.
    ///
    /// # Errors
    /// As [`Trapping::protect`].
    pub fn unprotect(&self, range: Range<usize>) -> Result<()> {
        self.0.unprotect(self.0.memory.addresses(&range)?)
    }

    /// How it is done.
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        self.0.mechanism
    }

    /// What another mechanism would give.
    #[must_use]
    pub fn losses(&self) -> Vec<Loss> {
        self.0.losses()
    }
}
