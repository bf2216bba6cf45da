//! A thread's stack limit. At the limit, reports the thread, the size of its stack and a remedy;
//! then the process aborts.
//!
//! The limit counts the bytes that the thread's segments hold, whether used or not. The default is
//! a quarter of the machine's memory, or `FIELDSTONE_STACK_LIMIT` (bytes, or with K, M, G): more
//! than a correct program needs, and less than an endless recursion would take.

#![allow(unsafe_code, reason = "calls the system and reads the environment")]

use core::ffi::CStr;
use core::fmt::{self, Write};

use fieldstone_blocks::Error;

use crate::message::{DisplayBytes, MessageBuffer};
use crate::segment::StackSegment;
use crate::settings;
use crate::thread::ThreadStack;

/// The calling thread's stack limit in bytes.
#[must_use]
pub fn limit_bytes() -> usize {
    // SAFETY: the record belongs to the calling thread.
    let limit_bytes = unsafe { (*ThreadStack::current_thread()).limit_bytes };
    if limit_bytes == 0 { settings::default_limit_bytes() } else { limit_bytes }
}

/// Sets the calling thread's stack limit in bytes; 0 restores the default.
pub fn set_limit_bytes(bytes: usize) {
    let bytes = if bytes == 0 { settings::default_limit_bytes() } else { bytes };
    // SAFETY: the record belongs to the calling thread.
    unsafe { (*ThreadStack::current_thread()).limit_bytes = bytes };
}

/// Aborts: the thread's limit is reached.
pub(crate) fn reached(thread: &ThreadStack, held_bytes: usize, wanted_bytes: usize) -> ! {
    abort(
        thread,
        held_bytes,
        wanted_bytes,
        format_args!("it is at its limit of {}", DisplayBytes(thread.limit_bytes)),
        format_args!(
            "\ntry: FIELDSTONE_STACK_LIMIT=SIZE, fieldstone_stack_set_limit() or, in Rust, set_limit_bytes, \
             unless the recursion is endless"
        ),
    )
}

/// Aborts: there is no memory for a segment.
pub(crate) fn no_memory(thread: &ThreadStack, held_bytes: usize, wanted_bytes: usize, error: Error) -> ! {
    abort(thread, held_bytes, wanted_bytes, format_args!("{error}"), format_args!(""))
}

/// Aborts: there is no memory for a new stack.
pub fn abort_without_memory(bytes: usize, error: Error) -> ! {
    // SAFETY: the record belongs to the calling thread.
    no_memory(unsafe { &*ThreadStack::current_thread() }, 0, bytes, error)
}

fn abort(thread: &ThreadStack, held: usize, wanted: usize, cause: fmt::Arguments<'_>, remedy: fmt::Arguments<'_>) -> ! {
    let mut name = [0_u8; 16];
    // SAFETY: the kernel writes at most 16 bytes, with a terminating zero.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let name = CStr::from_bytes_until_nul(&name).ok().and_then(|name| name.to_str().ok()).unwrap_or("?");
    // SAFETY: the call returns a number and writes no memory.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) };
    let segments = segments(thread);
    let mut line = MessageBuffer::new();
    let _ = writeln!(
        line,
        "fieldstone: cannot grow the stack of thread '{name}' ({tid}): {cause}; it holds {} in {segments} segment{}, \
         and a call needs {} more{remedy}",
        DisplayBytes(held),
        if segments == 1 { "" } else { "s" },
        DisplayBytes(wanted),
    );
    line.write_to_stderr();
    // SAFETY: the call ends the process.
    unsafe { libc::abort() }
}

fn segments(thread: &ThreadStack) -> usize {
    let next = |segment: &*mut StackSegment| {
        // SAFETY: segments on the list live.
        Some(unsafe { (**segment).prev }).filter(|prev| !prev.is_null())
    };
    core::iter::successors(Some(thread.current).filter(|current| !current.is_null()), next).count()
}
