//! x86-64: a store that reports a guard page instead of a fault, without a branch.
//!
//! ```text
//!   alloc                          the table, in a section of its own
//!      mov rax, [heap.next]
//!   2: mov [rax + size - 8], rcx   [ 2 - here | full - here ]
//!      mov [rax], rdx
//!      add ...
//! full:                            reached only from the signal handler
//!      call slow_path
//! ```
//! The linker collects the entries of all inlined copies of this store between two symbols. The
//! handler of `fieldstone_pages` searches the faulting instruction there, and continues at `full`
//! with unchanged registers. Nothing was stored then.

#![allow(unsafe_code, reason = "stores words")]

use std::arch::asm;
use std::mem::MaybeUninit;

use fieldstone_pages::{ResumePoint, resume_faults};

use crate::bump::last_word;
use crate::error::{Error, Result};

unsafe extern "C" {
    #[link_name = "__start_fieldstone_bump_stores"]
    static START: ResumePoint;
    #[link_name = "__stop_fieldstone_bump_stores"]
    static STOP: ResumePoint;
}

/// Whether a guard checks the limit.
pub(crate) const IS_CHECKED_BY_GUARD: bool = true;

/// Prepares the process for [`store_is_refused`].
pub(crate) fn prepare() -> Result<()> {
    // The linker defines the symbols only if there is an entry: this one.
    let mut word = 0_u64;
    // SAFETY: the word is a live local.
    unsafe { store_is_refused::<u64>((&raw mut word).cast(), MaybeUninit::new(1)) };
    // SAFETY: the linker defines both symbols around the entries that `store_is_refused` emits,
    // which fulfil the requirements.
    let registered = unsafe {
        let (start, stop) = (&raw const START, &raw const STOP);
        resume_faults(std::slice::from_raw_parts(start, stop.offset_from_unsigned(start)))
    };
    registered.map_err(|error| Error::Signal { errno: error.errno().unwrap_or(0) })
}

/// Stores the last word of a `T` at `start`. True if it is in a guard; nothing is stored then.
///
/// # Safety
/// The word is in memory that belongs to the caller, or in a guard.
#[inline(always)]
pub(crate) unsafe fn store_is_refused<T>(start: *mut u8, word: MaybeUninit<u64>) -> bool {
    // SAFETY: the instruction stores to memory of the caller. If it faults, the thread continues at
    // the label, and no register has changed.
    unsafe {
        asm!(
            "2: mov qword ptr [{start} + {last_word}], {word}",
            ".pushsection fieldstone_bump_stores,\"aR\",@progbits",
            ".balign 4",
            ".long 2b - .",
            ".long {refused} - .",
            ".popsection",
            start = in(reg) start,
            last_word = const last_word::<T>(),
            word = in(reg) word,
            refused = label { return true },
            options(nostack, preserves_flags)
        );
    }
    false
}
