//! Frees segments and alloca memory of a stack.

#![allow(unsafe_code, reason = "frees raw memory")]

use core::ptr::{NonNull, null_mut};

use crate::arena;
use crate::segment::{DynamicMemory, StackSegment};

/// Frees the segments after this one.
///
/// # Safety
/// No frame is in them.
pub(crate) unsafe fn free_after(segment: &mut StackSegment) {
    let mut next = core::mem::replace(&mut segment.next, null_mut());
    while let Some(mut taken) = NonNull::new(next) {
        // SAFETY: a segment on the list lives until it is freed here.
        next = unsafe { taken.as_ref().next };
        // SAFETY: no frame is in the segment, so nothing uses its alloca memory either.
        unsafe {
            free_dynamic(taken.as_mut());
            free_segment(taken);
        }
    }
}

/// Frees a segment of blocks that is on no list.
///
/// # Safety
/// No frame is in it.
pub(crate) unsafe fn free_segment(segment: NonNull<StackSegment>) {
    // SAFETY: by contract nothing else uses the record.
    let (low, blocks) = unsafe { (segment.as_ref().low, segment.as_ref().blocks()) };
    if let Some(low) = NonNull::new(core::ptr::without_provenance_mut(low)) {
        // SAFETY: the segment's blocks were allocated from the arena.
        unsafe { arena::free(low, blocks) };
    }
}

/// Frees the memory of frames below `frame`, which have returned.
pub(crate) fn free_returned(segment: &mut StackSegment, frame: usize) {
    // SAFETY: records on the list live.
    while let Some(record) = NonNull::new(segment.dynamic).filter(|record| unsafe { record.as_ref().frame } < frame) {
        // SAFETY: the record is on the list, so it lives; its frame has returned, so nothing uses
        // its memory.
        unsafe {
            segment.dynamic = record.as_ref().next;
            free_memory(record);
        }
    }
}

/// Frees all alloca memory of a segment, whose frames have returned or are never returned to.
pub(crate) fn free_dynamic(segment: &mut StackSegment) {
    let mut next = core::mem::replace(&mut segment.dynamic, null_mut());
    while let Some(record) = NonNull::new(next) {
        // SAFETY: records on the list live until they are freed here.
        unsafe {
            next = record.as_ref().next;
            free_memory(record);
        }
    }
}

/// # Safety
/// The record is on no list, and nothing uses the memory that follows it.
unsafe fn free_memory(record: NonNull<DynamicMemory>) {
    // SAFETY: by contract nothing uses the memory, whose blocks were allocated from the arena.
    unsafe { arena::free(record.cast(), record.as_ref().blocks) };
}
