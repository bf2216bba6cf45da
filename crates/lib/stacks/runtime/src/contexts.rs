//! Separate stacks by the nine `__splitstack_…` functions of gcc's run-time library: a
//! `fieldstone_stacks::StackContext` in ten words of the caller.

#![allow(unsafe_code, reason = "a C interface over raw memory")]

use core::ffi::{c_int, c_void};
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicI32, Ordering};

use fieldstone_stacks::{StackContext, StackRanges};

/// Allocates a stack with space for `bytes` at once. Returns its lowest byte, and stores its size.
///
/// # Safety
/// `context` points to ten words, `size` to one.
pub(crate) unsafe extern "C" fn make(bytes: usize, context: *mut StackContext, size: *mut usize) -> *mut c_void {
    let made = StackContext::new(bytes).unwrap_or_else(|error| fieldstone_stacks::abort_without_memory(bytes, error));
    let (low, all) = made.bounds();
    // SAFETY: by contract both pointers are valid for these writes.
    unsafe {
        context.write(made);
        size.write(all);
    }
    low.cast()
}

/// # Safety
/// `context` points to ten words.
pub(crate) unsafe extern "C" fn get(context: *mut StackContext) {
    // SAFETY: by contract the pointer is valid.
    unsafe { (*context).get() };
}

/// # Safety
/// As for [`StackContext::set`].
pub(crate) unsafe extern "C" fn set(context: *const StackContext) {
    // SAFETY: by contract the pointer is valid and the caller switches stacks at once.
    unsafe { (*context).set() };
}

/// # Safety
/// As for [`StackContext::reset`]; the context was made.
pub(crate) unsafe extern "C" fn reset(context: *mut StackContext, size: *mut usize) -> *mut c_void {
    // SAFETY: by contract the pointers are valid and nothing uses the stack's contents.
    unsafe {
        (*context).reset();
        let (low, all) = (*context).bounds();
        size.write(all);
        low.cast()
    }
}

/// # Safety
/// As for [`StackContext::release`].
pub(crate) unsafe extern "C" fn release(context: *mut StackContext) {
    // SAFETY: by contract the pointer is valid and nothing uses the stack's contents.
    unsafe { (*context).release() };
}

/// Sets whether to block signals while a segment is allocated. This run time always blocks them
/// then, so it only stores the value.
///
/// # Safety
/// Each pointer is null or points to a word.
pub(crate) unsafe extern "C" fn block_signals(new: *const c_int, old: *mut c_int) {
    static BLOCKED: AtomicI32 = AtomicI32::new(1);
    // SAFETY: by contract each pointer is null or valid.
    unsafe {
        if !old.is_null() {
            old.write(BLOCKED.load(Ordering::Relaxed));
        }
        if !new.is_null() {
            BLOCKED.store(new.read(), Ordering::Relaxed);
        }
    }
}

/// Does the same as `block_signals` for a context.
///
/// # Safety
/// `context` points to ten words; `new` and `old` are null or point to a word.
pub(crate) unsafe extern "C" fn block_signals_context(context: *mut StackContext, new: *const c_int, old: *mut c_int) {
    // SAFETY: by contract `context` is valid, and the others are null or valid.
    unsafe {
        let word = &mut (*context).spare[0];
        if !old.is_null() {
            old.write(c_int::from(*word != 0));
        }
        if !new.is_null() {
            *word = usize::from(new.read() != 0);
        }
    }
}

/// The value of `next_segment` after the last segment.
const DONE: usize = 1;

/// Iterates over the used ranges of a stack, for example for a root scan. Two nulls give the
/// calling thread's newest range. The values stored in `next_segment` and `next_sp` give the one
/// before. Returns null at the end.
///
/// # Safety
/// The other pointers point to words; the stack does not change during the iteration.
pub(crate) unsafe extern "C" fn find(
    segment: usize,
    stack_pointer: usize,
    length: *mut usize,
    next_segment: *mut usize,
    next_sp: *mut usize,
    initial_sp: *mut usize,
) -> *mut c_void {
    let mut ranges = match segment {
        DONE => return null_mut(),
        0 => StackRanges::here(),
        // SAFETY: by contract the words are those of the previous call.
        _ => unsafe { StackRanges::from_raw((segment, stack_pointer)) },
    };
    let Some((low, bytes)) = ranges.next() else { return null_mut() };
    let (before, before_sp) = ranges.as_raw();
    // SAFETY: by contract the pointers are valid for these writes.
    unsafe {
        length.write(bytes);
        next_segment.write(if before == 0 { DONE } else { before });
        next_sp.write(before_sp);
        if before == 0 {
            initial_sp.write(low + bytes);
        }
    }
    without_provenance_mut(low)
}

/// Does the same as `find` for a context that is not running. Its stack pointer is unknown, so its
/// newest segment counts in full.
///
/// # Safety
/// The other pointers point to words; the context was saved or made.
pub(crate) unsafe extern "C" fn find_context(
    context: *const StackContext,
    length: *mut usize,
    next_segment: *mut usize,
    next_sp: *mut usize,
    initial_sp: *mut usize,
) -> *mut c_void {
    // SAFETY: by contract the pointers are valid and the context's segments live.
    unsafe {
        let Some((segment, low)) = (*context).newest() else { return null_mut() };
        find(segment, low, length, next_segment, next_sp, initial_sp)
    }
}
