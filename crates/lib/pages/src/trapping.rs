//! TRAP, PROT1, PROTN and UNPROT: an access to a protected page calls a handler.
//!
//! Source: Appel and Li, *Virtual Memory Primitives for User Programs*: TRAP "handle page-fault
//! traps in user mode", PROT1 "decrease the accessibility of a page", PROTN "… of N pages", UNPROT
//! "increase the accessibility of a page". Their advice holds: protect pages in batches, and
//! unprotect them one at a time.

#![allow(unsafe_code, reason = "runs handlers in signals, as the caller permits")]

use std::ops::Range;
use std::sync::Arc;

use fieldstone_sys::userfault::Modes;

use crate::choice::{IN_SIGNAL, IN_THREAD, first_supported};
use crate::error::{Error, Result};
use crate::fault::{Fault, Outcome};
use crate::mechanism::{Loss, Mechanism, Watch};
use crate::memory::Memory;
use crate::region::{Handler, Region, RegionConfig};

/// Memory whose pages can be protected; an access that a protected page refuses calls a handler.
///
/// All pages are accessible at first. Threads that access a page concurrently may each call the
/// handler, and may find the page accessible already; unprotecting it again is harmless. In a
/// forked child the memory is plain.
#[derive(Debug)]
pub struct Trapping(Box<Region>);

impl Trapping {
    /// Runs handlers in a thread of this crate while the faulting thread waits. They may allocate
    /// and lock, but must not wait for the faulting thread. They run one at a time while each is
    /// fast, and in parallel when one is slow. A panic in one ends the process.
    ///
    /// The mechanism is userfaultfd if it supports the memory and `watch` is [`Watch::Writes`],
    /// else mprotect(2).
    ///
    /// # Errors
    /// [`Error::System`] if neither works.
    pub fn new(
        memory: Memory,
        watch: Watch,
        handler: impl Fn(&Fault<'_>) -> Outcome + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::with_first(memory, watch, &IN_THREAD, Arc::new(handler))
    }

    /// Runs handlers in a signal handler of the faulting thread, which is about twice as fast, and
    /// gives access to its registers ([`Fault::context`]).
    ///
    /// # Errors
    /// As [`Trapping::new`].
    ///
    /// # Safety
    /// The handler must be async-signal-safe: no allocation, no lock that other threads hold, no
    /// jump out of it. It must fit in the thread's alternate stack, which is 8 KiB for a Rust
    /// thread: no page on the stack.
    pub unsafe fn in_signal(
        memory: Memory,
        watch: Watch,
        handler: impl Fn(&Fault<'_>) -> Outcome + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::with_first(memory, watch, &IN_SIGNAL, Arc::new(handler))
    }

    /// Uses the given mechanism.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an unsuitable one, and as [`Trapping::new`]; no other is tried.
    ///
    /// # Safety
    /// As [`Trapping::in_signal`] if the mechanism runs handlers in signals.
    pub unsafe fn with(
        memory: Memory,
        watch: Watch,
        mechanism: Mechanism,
        handler: impl Fn(&Fault<'_>) -> Outcome + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::with_first(memory, watch, &[mechanism], Arc::new(handler))
    }

    fn with_first(memory: Memory, watch: Watch, wanted: &[Mechanism], handler: Handler) -> Result<Self> {
        let region = first_supported(wanted, |mechanism| match mechanism {
            Mechanism::Scan => Err(Error::Unsupported { what: "a trap", why: "pagemap-scan only records writes" }),
            Mechanism::UserfaultThread | Mechanism::UserfaultSignal if watch == Watch::Accesses => {
                Err(Error::Unsupported {
                    what: "a trap on reads",
                    why: "userfaultfd refuses writes only: use mprotect",
                })
            }
            _ => {
                let modes = Modes { missing: false, write_protect: true };
                Region::new(&memory, RegionConfig { mechanism, watch, modes }, None, handler.clone())
            }
        })?;
        Ok(Self(region))
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    /// Protects whole pages, given in bytes from the start. When it returns, no thread can make a
    /// refused access.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Forked`] in a child; [`Error::System`] when mprotect(2) has no
    /// mappings left.
    pub fn protect(&self, range: Range<usize>) -> Result<()> {
        self.0.protect(self.0.memory.addresses(&range)?)
    }

    /// Unprotects whole pages, given in bytes from the start.
    ///
    /// # Errors
    /// As [`Trapping::protect`].
    pub fn unprotect(&self, range: Range<usize>) -> Result<()> {
        self.0.unprotect(self.0.memory.addresses(&range)?)
    }

    /// The mechanism in use.
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        self.0.mechanism
    }

    /// What other mechanisms support and this one does not.
    #[must_use]
    pub fn losses(&self) -> Vec<Loss> {
        self.0.losses()
    }
}
