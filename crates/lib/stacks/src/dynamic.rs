//! Memory that alloca and arrays of variable length could not have from the stack: blocks of their own.
//!
//! Compiled code asks for it where the stack pointer would pass the guard, and forgets it when its function returns. So it is
//! given back late: when somebody asks again from a frame further up, and when the segment is entered anew.
//!
//! ```text
//! segment.dynamic ──► Dynamic ──► Dynamic ──► null      the newest first, so that their frames come in the order of the stack
//! ```
//! A function that calls alloca has a frame pointer; by that its frames are told apart. What a loop asks for in one frame
//! stays until the function returns, as on any other stack.

#![allow(unsafe_code, reason = "a list in memory that it hands out")]

use core::arch::naked_asm;
use core::ptr::{NonNull, null_mut};

use crate::segment::{BLOCK_BYTES, Segment};
use crate::thread::{self, BlockedSignals, Thread};
use crate::{arena, limit, more};

/// The record before such memory.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct Dynamic {
    next: *mut Dynamic,
    blocks: usize,
    /// The frame pointer of the function that asked.
    frame: usize,
}

/// Memory for `bytes` in place of the stack's, 32-aligned, until the calling function returns.
///
/// # Safety
/// Called by code that was compiled for split stacks.
#[unsafe(naked)]
pub unsafe extern "C" fn allocate(bytes: usize) -> *mut u8 {
    naked_asm!("mov rsi, rbp", "jmp {}", sym allocate_for)
}

unsafe extern "C" fn allocate_for(bytes: usize, frame: usize) -> *mut u8 {
    let _signals = BlockedSignals::new();
    // SAFETY: the record is this thread's own, and no handler runs.
    let thread = unsafe { &mut *Thread::here() };
    if thread.current.is_null() {
        thread::begin();
    }
    let stack_pointer = thread::stack_pointer();
    let found = NonNull::new(thread.current).unwrap_or(NonNull::from(&mut thread.first));
    let mut place = more::holder(found, stack_pointer).unwrap_or(found);
    // SAFETY: the segment is on this thread's list.
    let segment = unsafe { place.as_mut() };
    give_older(segment, frame);
    let held_bytes = segment.held_bytes();
    if held_bytes.saturating_add(bytes) > thread.limit_bytes {
        limit::reached(thread, held_bytes, bytes);
    }
    let whole = bytes.saturating_add(size_of::<Dynamic>());
    let (memory, blocks) =
        arena::take_plain(whole).unwrap_or_else(|error| limit::no_memory(thread, held_bytes, bytes, error));
    let record = memory.cast::<Dynamic>();
    // SAFETY: the blocks were just taken, and begin with the record.
    unsafe {
        record.write(Dynamic { next: segment.dynamic, blocks, frame });
        segment.dynamic = record.as_ptr();
        record.add(1).cast().as_ptr()
    }
}

/// Gives back what frames had that lie below `frame`: they have returned.
fn give_older(segment: &mut Segment, frame: usize) {
    // SAFETY: records on the list live.
    while let Some(record) = NonNull::new(segment.dynamic).filter(|record| unsafe { record.as_ref().frame } < frame) {
        // SAFETY: as above; it goes off the list, and its frame has returned.
        unsafe {
            segment.dynamic = record.as_ref().next;
            give(record);
        }
    }
}

/// Gives back all that the frames of a segment had, none of which will be returned to.
pub(crate) fn give_all(segment: &mut Segment) {
    let mut next = core::mem::replace(&mut segment.dynamic, null_mut());
    while let Some(record) = NonNull::new(next) {
        // SAFETY: records on the list live until they are given back here.
        unsafe {
            next = record.as_ref().next;
            give(record);
        }
    }
}

/// # Safety
/// The record is on no list, and nobody uses what follows it.
unsafe fn give(record: NonNull<Dynamic>) {
    // SAFETY: by contract.
    unsafe { arena::give(record.cast(), record.as_ref().blocks) };
}

const _: () = assert!(size_of::<Dynamic>() == 32 && BLOCK_BYTES.is_multiple_of(32));
