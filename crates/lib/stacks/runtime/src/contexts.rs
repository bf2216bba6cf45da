//! Stacks of one's own, by the nine functions that gcc's run-time library has for them (`__splitstack_…`): `fieldstone_stacks::Context`
//! in ten words of the caller's.

#![allow(unsafe_code, reason = "a C interface over raw memory")]

use core::ffi::{c_int, c_void};
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicI32, Ordering};

use fieldstone_stacks::{Context, Parts};

/// A new stack with room for `bytes` at once: its lowest byte, and its size.
///
/// # Safety
/// `context` is ten words, `size` one.
pub(crate) unsafe extern "C" fn make(bytes: usize, context: *mut Context, size: *mut usize) -> *mut c_void {
    let made = Context::new(bytes).unwrap_or_else(|error| fieldstone_stacks::no_memory(bytes, error));
    let (low, all) = made.bounds();
    // SAFETY: by contract.
    unsafe {
        context.write(made);
        size.write(all);
    }
    low.cast()
}

/// # Safety
/// `context` is ten words.
pub(crate) unsafe extern "C" fn get(context: *mut Context) {
    // SAFETY: by contract.
    unsafe { (*context).get() };
}

/// # Safety
/// As [`Context::set`].
pub(crate) unsafe extern "C" fn set(context: *const Context) {
    // SAFETY: by contract.
    unsafe { (*context).set() };
}

/// # Safety
/// As [`Context::reset`]; the context was made.
pub(crate) unsafe extern "C" fn reset(context: *mut Context, size: *mut usize) -> *mut c_void {
    // SAFETY: by contract.
    unsafe {
        (*context).reset();
        let (low, all) = (*context).bounds();
        size.write(all);
        low.cast()
    }
}

/// # Safety
/// As [`Context::release`].
pub(crate) unsafe extern "C" fn release(context: *mut Context) {
    // SAFETY: by contract.
    unsafe { (*context).release() };
}

/// Whether signals are to be blocked while a segment is taken. Here they always are, and never otherwise: the word is only kept.
///
/// # Safety
/// Both are null or a word.
pub(crate) unsafe extern "C" fn block_signals(new: *const c_int, old: *mut c_int) {
    static BLOCKED: AtomicI32 = AtomicI32::new(1);
    // SAFETY: by contract.
    unsafe {
        if !old.is_null() {
            old.write(BLOCKED.load(Ordering::Relaxed));
        }
        if !new.is_null() {
            BLOCKED.store(new.read(), Ordering::Relaxed);
        }
    }
}

/// The same for a context.
///
/// # Safety
/// As above; `context` is ten words.
pub(crate) unsafe extern "C" fn block_signals_context(context: *mut Context, new: *const c_int, old: *mut c_int) {
    // SAFETY: by contract.
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

/// After the last segment.
const DONE: usize = 1;

/// Walks the used parts of a stack, for who looks for pointers there: null and null give the calling thread's newest part; what
/// comes back in `next_segment` and `next_sp` gives the one before; null is the end.
///
/// # Safety
/// The out parameters are words; the stack does not move meanwhile.
pub(crate) unsafe extern "C" fn find(
    segment: usize,
    stack_pointer: usize,
    length: *mut usize,
    next_segment: *mut usize,
    next_sp: *mut usize,
    initial_sp: *mut usize,
) -> *mut c_void {
    let mut parts = match segment {
        DONE => return null_mut(),
        0 => Parts::here(),
        // SAFETY: by contract the words are those of the last call.
        _ => unsafe { Parts::from_raw((segment, stack_pointer)) },
    };
    let Some((low, bytes)) = parts.next() else { return null_mut() };
    let (before, before_sp) = parts.as_raw();
    // SAFETY: by contract.
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

/// The same for a context that is not running. Where its stack pointer is it does not know: all of its newest segment may be in use.
///
/// # Safety
/// As above; the context was got or made.
pub(crate) unsafe extern "C" fn find_context(
    context: *const Context,
    length: *mut usize,
    next_segment: *mut usize,
    next_sp: *mut usize,
    initial_sp: *mut usize,
) -> *mut c_void {
    // SAFETY: by contract.
    unsafe {
        let Some((segment, low)) = (*context).newest() else { return null_mut() };
        find(segment, low, length, next_segment, next_sp, initial_sp)
    }
}
