//! Chooses the segment for a call whose frame does not fit: the decisions behind `__morestack`.
//!
//! In this order, each step only if the one before does not suffice:
//!
//! 1. *Find the current segment.* The stack pointer is in the current segment; or in an earlier
//!    one, after a longjmp; or in none, in a signal handler with its own stack.
//! 2. *Check the space again.* After a jump only the guard was wrong.
//! 3. *Extend in place* into free blocks below. The guard moves down and stays there, so the next
//!    call across the old border costs nothing.
//! 4. *Use the next segment*, if it is large enough.
//! 5. *Allocate a segment* and insert it between the current one and the next.
//!
//! A signal handler may run during `__morestack` (the guard is then [`SWITCHING`]). It always goes
//! to the next segment, never in place. It frees no existing segment and changes `prev` only of the
//! segment it enters. So the interrupted switch continues unaffected.
//!
//! Source: the ABI of -fsplit-stack (gcc's wiki, SplitStacks); Zagieboylo (blog), "Dealing with the
//! stack". Differences from gcc's run-time library: the headroom, growth in place, and signals
//! blocked only while a segment is allocated.

#![allow(unsafe_code, reason = "walks the list of segments, which is raw memory")]

use core::ptr::NonNull;

use crate::arena;
use crate::limit;
use crate::release;
use crate::segment::{SLACK_BYTES, StackSegment, find_containing, insert_after};
use crate::signals::BlockedSignals;
use crate::thread::{self, SWITCHING, ThreadStack};

/// The words that `__morestack` has pushed before it calls `place_frame`, lowest address first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct MorestackFrame {
    /// Bytes of arguments on the stack.
    arguments: usize,
    /// Input: bytes that the function needs, with its arguments. Output: the address of the segment
    /// that it is called from.
    bytes: usize,
    /// The segment that the function continues in.
    entered: *mut StackSegment,
    /// The guard before the switch, which is restored afterwards.
    guard: usize,
    /// The current segment before the switch, which is restored afterwards.
    current: *mut StackSegment,
    rdi: usize,
    rax: usize,
    rbp: usize,
    into_function: usize,
    to_caller: usize,
}

impl MorestackFrame {
    /// The address of `__morestack`'s frame.
    fn frame(&self) -> usize {
        (&raw const self.rbp).addr()
    }
}

/// Chooses the segment that a call continues in; null for the current one.
///
/// # Safety
/// Called by `__morestack` only, with its frame.
pub(crate) unsafe extern "C" fn place_frame(call: &mut MorestackFrame) -> *mut StackSegment {
    let stack_pointer = core::ptr::from_ref(&call.to_caller).addr();
    // SAFETY: the call returns the address of the calling thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: errno is a word of the calling thread.
    let errno_before = unsafe { *errno };
    let signals = BlockedSignals::new();
    // SAFETY: the record belongs to the calling thread, and no handler runs while signals are
    // blocked.
    let thread = unsafe { &mut *ThreadStack::current_thread() };
    let segment = choose_segment(thread, call, stack_pointer, call.bytes.saturating_add(SLACK_BYTES));
    drop(signals);
    // SAFETY: errno is a word of the calling thread.
    unsafe { *errno = errno_before };
    segment
}

fn choose_segment(
    thread: &mut ThreadStack,
    call: &mut MorestackFrame,
    stack_pointer: usize,
    bytes: usize,
) -> *mut StackSegment {
    if thread.current.is_null() {
        thread::init_thread();
        call.current = thread.current;
        call.guard = thread.first.guard;
    }
    let found = NonNull::new(thread.current).unwrap_or(NonNull::from(&mut thread.first));
    let containing = find_containing(found, stack_pointer);
    // If none contains it, this is a signal handler's own stack, and the segments after the current
    // one are free.
    call.bytes = containing.unwrap_or(found).addr().get();
    if call.guard == SWITCHING {
        thread.record_handler(call.frame());
        return next_segment(thread, containing.unwrap_or(found), bytes).as_ptr();
    }
    let Some(mut containing) = containing else {
        return next_segment(thread, found, bytes).as_ptr();
    };
    // SAFETY: the segment is on this thread's list, and nothing else accesses it while signals are
    // blocked.
    let segment = unsafe { containing.as_mut() };
    thread.current = segment;
    call.current = segment;
    if !segment.fits(stack_pointer, bytes) {
        grow_in_place(thread, segment, stack_pointer, bytes);
    }
    call.guard = segment.guard;
    if segment.fits(stack_pointer, bytes) {
        thread::set_guard(segment.guard);
        return core::ptr::null_mut();
    }
    next_segment(thread, containing, bytes).as_ptr()
}

/// Returns to the previous segment: the one entered from this frame of `__morestack` is left, by a
/// return or an exception.
///
/// # Safety
/// Called by `__morestack` only, with its frame, while the guard is [`SWITCHING`].
pub(crate) unsafe extern "C" fn leave_segment(frame: usize) {
    let _signals = BlockedSignals::new();
    // SAFETY: the record belongs to the calling thread, and no handler runs while signals are
    // blocked.
    let thread = unsafe { &mut *ThreadStack::current_thread() };
    // A coroutine's stack is unwound in a thread that is not initialised.
    let Some(current) = NonNull::new(thread.current) else { return thread::set_guard(0) };
    let mut before = find_containing(current, frame).unwrap_or(current);
    let mut at = Some(current);
    while let Some(mut segment) = at {
        // SAFETY: segments on the list live, and nothing else accesses them while signals are
        // blocked.
        let segment = unsafe { segment.as_mut() };
        at = NonNull::new(segment.prev);
        if segment.entered_from == frame {
            release::free_dynamic(segment);
            before = at.unwrap_or(before);
            break;
        }
    }
    thread.current = before.as_ptr();
    // SAFETY: the segment is on this thread's list, and lives.
    thread::set_guard(unsafe { before.as_ref().guard });
}

fn grow_in_place(thread: &ThreadStack, segment: &mut StackSegment, stack_pointer: usize, bytes: usize) {
    if !segment.is_made_of_blocks() {
        return;
    }
    let enough = stack_pointer.saturating_sub(bytes.saturating_add(crate::segment::HEADROOM_BYTES));
    let before = segment.held_bytes() - segment.bytes();
    let floor = segment.high.saturating_sub(thread.limit_bytes.saturating_sub(before));
    arena::extend(segment, enough, floor);
}

/// The segment after this one if it has space for `bytes`; else a new one.
fn next_segment(thread: &mut ThreadStack, segment: NonNull<StackSegment>, bytes: usize) -> NonNull<StackSegment> {
    // SAFETY: segments on the list live.
    let next = unsafe { segment.as_ref().next };
    if let Some(mut next) = NonNull::new(next) {
        // SAFETY: the segment is on the list, so it lives, and no frame is in it.
        let next_ref = unsafe { next.as_mut() };
        release::free_dynamic(next_ref);
        if bytes <= next_ref.usable_bytes + SLACK_BYTES {
            return next;
        }
    }
    // SAFETY: the segment is on this thread's list, and lives.
    let held_bytes = unsafe { segment.as_ref() }.held_bytes();
    if held_bytes.saturating_add(bytes) > thread.limit_bytes {
        limit::reached(thread, held_bytes, bytes);
    }
    let made = arena::allocate(bytes).unwrap_or_else(|error| limit::no_memory(thread, held_bytes, bytes, error));
    thread::register_destructor(thread);
    // SAFETY: both segments live, and nothing else refers to the new one.
    unsafe { insert_after(segment, made) };
    made
}
