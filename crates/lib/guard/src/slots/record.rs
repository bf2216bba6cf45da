//! The record of a slot: its state, and the object in it.
//!
//! ```text
//! state: AtomicU32  [ generation 22 | alignment 6 | retired 1 | left 1 | phase 2 ]
//! UNUSED -> WRITING -> LIVE -> WRITING -> FREED -> WRITING -> LIVE ...
//!           alloc             free                alloc
//! ```
//! Only the thread that moved the state to WRITING writes the other fields. A reader compares the
//! state before and after it read them (a sequence lock), so it needs no lock and sees one object.
//! A free moves the state from LIVE to WRITING by compare-and-swap. Of two threads that free an
//! object, exactly one succeeds, and the other reports a double free. Each allocation has a new
//! generation. So a free that read the fields of an older object fails.

use crate::finding::{Event, StackId};
use crate::slots::geometry::Placement;
use crate::sync::{AtomicU32, AtomicUsize, Ordering, fence, spin_loop};

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Unused = 0,
    Live = 1,
    Freed = 2,
    /// A thread changes the record.
    Writing = 3,
}

const PHASE: u32 = 0b11;
const LEFT: u32 = 1 << 2;
const RETIRED: u32 = 1 << 3;
const ALIGNMENT_SHIFT: u32 = 4;
const ALIGNMENT: u32 = 0b11_1111;
const GENERATION_SHIFT: u32 = 10;

/// How often a reader retries while another thread changes the record. A change takes nanoseconds;
/// but in a signal handler it may be the interrupted thread that changes it.
const MAX_TRIES: u32 = 1000;

/// 32 bytes for each slot. Zero is an unused slot.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Record {
    bytes: AtomicUsize,
    state: AtomicU32,
    allocated_stack: AtomicU32,
    allocated_thread: AtomicU32,
    freed_stack: AtomicU32,
    freed_thread: AtomicU32,
    /// The next slot in a list; lists are in `freed` and `class`.
    pub(crate) next: AtomicU32,
}

/// A consistent copy of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    state: u32,
    pub(crate) placement: Placement,
    pub(crate) allocated: Event,
    freed: Event,
}

impl View {
    /// `Writing` if the record changed at each try.
    pub(crate) fn phase(&self) -> Phase {
        phase(self.state)
    }

    /// The free of the object, if it is freed.
    pub(crate) fn freed(&self) -> Option<Event> {
        (self.phase() == Phase::Freed).then_some(self.freed)
    }
}

fn phase(state: u32) -> Phase {
    match state & PHASE {
        0 => Phase::Unused,
        1 => Phase::Live,
        2 => Phase::Freed,
        _ => Phase::Writing,
    }
}

impl Record {
    /// Starts an object. False if the slot is retired.
    pub(crate) fn allocate(&self, placement: Placement, allocated: Event) -> bool {
        let before = self.state.load(Ordering::Relaxed);
        let writing = (before & !PHASE) | Phase::Writing as u32;
        let is_ours = before & RETIRED == 0
            && self.state.compare_exchange(before, writing, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if !is_ours {
            return false;
        }
        // A reader that sees one of the new fields sees the state WRITING afterwards.
        fence(Ordering::Release);
        self.bytes.store(placement.bytes, Ordering::Relaxed);
        self.allocated_stack.store(allocated.stack.0, Ordering::Relaxed);
        self.allocated_thread.store(allocated.thread, Ordering::Relaxed);
        self.freed_stack.store(0, Ordering::Relaxed);
        self.freed_thread.store(0, Ordering::Relaxed);
        let generation = (before >> GENERATION_SHIFT).wrapping_add(1) << GENERATION_SHIFT;
        let left = if placement.is_left { LEFT } else { 0 };
        let state = generation | placement.alignment << ALIGNMENT_SHIFT | left | Phase::Live as u32;
        self.state.store(state, Ordering::Release);
        true
    }

    /// Ends the object of `view`. False if it is not live any more.
    pub(crate) fn free(&self, view: &View, freed: Event) -> bool {
        let writing = (view.state & !PHASE) | Phase::Writing as u32;
        let is_ours = view.phase() == Phase::Live
            && self.state.compare_exchange(view.state, writing, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_ours {
            fence(Ordering::Release);
            self.freed_stack.store(freed.stack.0, Ordering::Relaxed);
            self.freed_thread.store(freed.thread, Ordering::Relaxed);
            self.state.store((view.state & !PHASE) | Phase::Freed as u32, Ordering::Release);
        }
        is_ours
    }

    /// Excludes a slot without an object from use. False if it has one.
    pub(crate) fn retire(&self) -> bool {
        let is_empty = |state| matches!(phase(state), Phase::Freed | Phase::Unused);
        let update = |state| is_empty(state).then_some(state | RETIRED);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, update).is_ok()
    }

    /// A consistent copy of the record. Async-signal-safe.
    pub(crate) fn view(&self) -> View {
        let mut tries = 0;
        loop {
            let state = self.state.load(Ordering::Acquire);
            let view = self.read(state);
            fence(Ordering::Acquire);
            let is_consistent = phase(state) != Phase::Writing && self.state.load(Ordering::Relaxed) == state;
            if is_consistent || tries == MAX_TRIES {
                let state = if is_consistent { state } else { state | Phase::Writing as u32 };
                return View { state, ..view };
            }
            tries += 1;
            spin_loop();
        }
    }

    fn read(&self, state: u32) -> View {
        let event = |stack: &AtomicU32, thread: &AtomicU32| Event {
            stack: StackId(stack.load(Ordering::Relaxed)),
            thread: thread.load(Ordering::Relaxed),
        };
        View {
            state,
            placement: Placement {
                bytes: self.bytes.load(Ordering::Relaxed),
                alignment: state >> ALIGNMENT_SHIFT & ALIGNMENT,
                is_left: state & LEFT != 0,
            },
            allocated: event(&self.allocated_stack, &self.allocated_thread),
            freed: event(&self.freed_stack, &self.freed_thread),
        }
    }
}
