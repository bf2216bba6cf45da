//! Blocks for alloca and variable-length arrays that do not fit on the stack.
//!
//! Compiled code requests the memory when the stack pointer would pass the guard, and never frees
//! it. So it is freed late: at the next request from a frame further up, and when the segment is
//! entered again.
//!
//! ```text
//! segment.dynamic ──► DynamicMemory ──► DynamicMemory ──► null      newest first, so in the order of the stack's frames
//! ```
//! A function that calls alloca has a frame pointer, which identifies its frame. Memory that a loop
//! requests in one frame stays until the function returns, as on any other stack.

#![allow(unsafe_code, reason = "a list whose records are in the allocated memory")]

use core::arch::naked_asm;
use core::ptr::NonNull;

use crate::release;
use crate::segment::{self, BLOCK_BYTES, DynamicMemory};
use crate::signals::BlockedSignals;
use crate::thread::{self, ThreadStack};
use crate::{arena, limit};

/// Allocates `bytes` in place of stack memory, 32-aligned, until the calling function returns.
///
/// # Safety
/// The caller is code compiled for split stacks.
#[unsafe(naked)]
pub unsafe extern "C" fn allocate(bytes: usize) -> *mut u8 {
    naked_asm!("mov rsi, rbp", "jmp {}", sym allocate_for)
}

unsafe extern "C" fn allocate_for(bytes: usize, frame: usize) -> *mut u8 {
    let _signals = BlockedSignals::new();
    // SAFETY: the record belongs to the calling thread, and no handler runs while signals are
    // blocked.
    let thread = unsafe { &mut *ThreadStack::current_thread() };
    if thread.current.is_null() {
        thread::init_thread();
    }
    let stack_pointer = thread::stack_pointer();
    let found = NonNull::new(thread.current).unwrap_or(NonNull::from(&mut thread.first));
    let mut containing = segment::find_containing(found, stack_pointer).unwrap_or(found);
    // SAFETY: the segment is on this thread's list.
    let segment = unsafe { containing.as_mut() };
    release::free_returned(segment, frame);
    let held_bytes = segment.held_bytes();
    if held_bytes.saturating_add(bytes) > thread.limit_bytes {
        limit::reached(thread, held_bytes, bytes);
    }
    let whole = bytes.saturating_add(size_of::<DynamicMemory>());
    let (memory, blocks) =
        arena::allocate_memory(whole).unwrap_or_else(|error| limit::no_memory(thread, held_bytes, bytes, error));
    let record = memory.cast::<DynamicMemory>();
    // SAFETY: the blocks were just allocated, and have space for the record.
    unsafe {
        record.write(DynamicMemory { next: segment.dynamic, blocks, frame });
        segment.dynamic = record.as_ptr();
        record.add(1).cast().as_ptr()
    }
}

const _: () = assert!(size_of::<DynamicMemory>() == 32 && BLOCK_BYTES.is_multiple_of(32));
