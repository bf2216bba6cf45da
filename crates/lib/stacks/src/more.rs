//! Where a call goes on that does not fit: the decisions behind `__morestack`.
//!
//! In this order, each only where the one before does not do:
//!
//! 1. *Where are we?* The stack pointer lies in the current segment; or in one before it, since somebody has jumped (longjmp); or
//!    in none, since a signal handler has a stack of its own.
//! 2. *Is there room after all?* After a jump the guard was wrong, not the room.
//! 3. *In place*: the segment grows into the blocks below it while they are free. The guard moves down and stays there, so that
//!    the next call across the old border costs nothing at all.
//! 4. *The next segment*, if it is large enough.
//! 5. *A new one*, put between the current one and the next.
//!
//! A signal handler may come while `__morestack` is at work (the guard is [`SWITCHING`] then). It is led on to the next segment,
//! never in place, and nothing that was there before is given back, nor is anybody's `prev` changed but that of who is entered, so that
//! the work goes on as if nothing had been.
//!
//! Source: the ABI of -fsplit-stack (gcc's wiki, SplitStacks), Zagieboylo (blog), "Dealing with the stack". We differ from the
//! run-time library of gcc by the headroom, by growth in place, and by not blocking signals unless a segment is allocated.

#![allow(unsafe_code, reason = "walks the list of segments, which is raw memory")]

use core::ptr::NonNull;

use crate::arena;
use crate::limit;
use crate::segment::{SLACK_BYTES, Segment, insert_after};
use crate::thread::{self, BlockedSignals, SWITCHING, Thread};

/// What `__morestack` has put on the stack before it asks, lowest address first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Call {
    /// Bytes of arguments on the stack.
    arguments: usize,
    /// Bytes that the function needs, with its arguments; as an answer, the address of the segment that it comes from.
    bytes: usize,
    /// The segment that it goes on in.
    entered: *mut Segment,
    /// The guard, as it was found and will be again.
    guard: usize,
    /// The current segment, as it was found and will be again.
    current: *mut Segment,
    rdi: usize,
    rax: usize,
    rbp: usize,
    into_function: usize,
    to_caller: usize,
}

impl Call {
    /// The frame of `__morestack`.
    fn frame(&self) -> usize {
        (&raw const self.rbp).addr()
    }
}

/// Where a call goes on: the segment, or null for where it is.
///
/// # Safety
/// Called by `__morestack` only, with its frame.
pub(crate) unsafe extern "C" fn more(call: &mut Call) -> *mut Segment {
    let stack_pointer = core::ptr::from_ref(&call.to_caller).addr();
    // SAFETY: the calling thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let errno_before = unsafe { *errno };
    let signals = BlockedSignals::new();
    // SAFETY: the record is this thread's own, and no handler runs.
    let thread = unsafe { &mut *Thread::here() };
    let segment = go_on(thread, call, stack_pointer, call.bytes.saturating_add(SLACK_BYTES));
    drop(signals);
    // SAFETY: as above.
    unsafe { *errno = errno_before };
    segment
}

fn go_on(thread: &mut Thread, call: &mut Call, stack_pointer: usize, bytes: usize) -> *mut Segment {
    if thread.current.is_null() {
        thread::begin();
        call.current = thread.current;
        call.guard = thread.first.guard;
    }
    let found = NonNull::new(thread.current).unwrap_or(NonNull::from(&mut thread.first));
    let place = holder(found, stack_pointer);
    // Without a place: a stack that is not ours, a signal handler's. What comes after ours is free.
    call.bytes = place.unwrap_or(found).addr().get();
    if call.guard == SWITCHING {
        thread.interrupts(call.frame());
        return next_segment(thread, place.unwrap_or(found), bytes).as_ptr();
    }
    let Some(mut place) = place else {
        return next_segment(thread, found, bytes).as_ptr();
    };
    // SAFETY: the segment is on this thread's list, and nobody else looks at it now.
    let segment = unsafe { place.as_mut() };
    thread.current = segment;
    call.current = segment;
    if !segment.has_room(stack_pointer, bytes) {
        grow_in_place(thread, segment, stack_pointer, bytes);
    }
    call.guard = segment.guard;
    if segment.has_room(stack_pointer, bytes) {
        thread::set_guard(segment.guard);
        return core::ptr::null_mut();
    }
    next_segment(thread, place, bytes).as_ptr()
}

/// The segment that was entered from this frame of `__morestack` is left, by a return or an exception: back to the one before.
///
/// # Safety
/// Called by `__morestack` only, with its frame, while the guard is [`SWITCHING`].
pub(crate) unsafe extern "C" fn left(frame: usize) {
    let _signals = BlockedSignals::new();
    // SAFETY: the record is this thread's own, and no handler runs.
    let thread = unsafe { &mut *Thread::here() };
    // A coroutine's stack, unwound in a thread that is not known.
    let Some(current) = NonNull::new(thread.current) else { return thread::set_guard(0) };
    let mut before = holder(current, frame).unwrap_or(current);
    let mut at = Some(current);
    while let Some(mut segment) = at {
        // SAFETY: segments on the list live, and nobody else looks at them now.
        let segment = unsafe { segment.as_mut() };
        at = NonNull::new(segment.prev);
        if segment.entered_from == frame {
            crate::dynamic::give_all(segment);
            before = at.unwrap_or(before);
            break;
        }
    }
    thread.current = before.as_ptr();
    // SAFETY: as above.
    thread::set_guard(unsafe { before.as_ref().guard });
}

/// The segment that the stack pointer lies in: this one or one before it.
pub(crate) fn holder(from: NonNull<Segment>, stack_pointer: usize) -> Option<NonNull<Segment>> {
    let mut at = Some(from);
    while let Some(segment) = at {
        // SAFETY: segments on the list live.
        let segment_ref = unsafe { segment.as_ref() };
        if segment_ref.contains(stack_pointer) {
            return Some(segment);
        }
        at = NonNull::new(segment_ref.prev);
    }
    None
}

fn grow_in_place(thread: &Thread, segment: &mut Segment, stack_pointer: usize, bytes: usize) {
    if !segment.is_of_blocks() {
        return;
    }
    let enough = stack_pointer.saturating_sub(bytes.saturating_add(crate::segment::HEADROOM_BYTES));
    let before = segment.held_bytes() - segment.bytes();
    let floor = segment.high.saturating_sub(thread.limit_bytes.saturating_sub(before));
    arena::extend(segment, enough, floor);
}

/// The segment after this one, which has room for `bytes`; a new one if it has not, or if there is none.
fn next_segment(thread: &mut Thread, segment: NonNull<Segment>, bytes: usize) -> NonNull<Segment> {
    // SAFETY: segments on the list live.
    let next = unsafe { segment.as_ref().next };
    if let Some(mut next) = NonNull::new(next) {
        // SAFETY: as above; no frame lies in it that will be returned to.
        let next_ref = unsafe { next.as_mut() };
        crate::dynamic::give_all(next_ref);
        if bytes <= next_ref.room_bytes + SLACK_BYTES {
            return next;
        }
    }
    // SAFETY: as above.
    let held_bytes = unsafe { segment.as_ref() }.held_bytes();
    if held_bytes.saturating_add(bytes) > thread.limit_bytes {
        limit::reached(thread, held_bytes, bytes);
    }
    let made = arena::take(bytes).unwrap_or_else(|error| limit::no_memory(thread, held_bytes, bytes, error));
    thread::register(thread);
    // SAFETY: the new segment is nobody else's.
    unsafe { insert_after(segment, made) };
    made
}
