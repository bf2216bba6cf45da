//! Guarded slots: objects on pages of their own, between inaccessible pages.
//!
//! ```text
//! range    [ guard | slot | guard | slot | guard | ... ]     an access to a guard raises SIGSEGV
//! slot     [ padding | object | padding ]                    checked at free
//! record   state, size, stacks and threads of allocation and free: 32 bytes for each slot
//! ```
//! | file | content |
//! |---|---|
//! | `builder`, `stats` | options; counts |
//! | `geometry` | size classes; where slots and objects lie |
//! | `memory` | the address range, and the memory of the records |
//! | `record` | the state of a slot, and the numbers of the stacks of its allocation and its free |
//! | `free_slots`, `class`, `freed`, `lock` | free slots: open ones, the quarantine, what was freed just now |
//! | `guards`, `padding` | closing and opening pages; the bytes beside an object |
//! | `stacks` | the frames of each stack, by its number |
//! | `explain` | from an address to the object that an access missed |
//! | `budget` | the memory limit |
//!
//! Algorithm: as Electric Fence and GWP-ASan, an object ends or starts at an inaccessible page, and
//! its pages become inaccessible at its free. The guards are markers in the page table, which
//! split no mapping. So the memory limit bounds the number of objects, and `vm.max_map_count` does
//! not.
//!
//! Invariants: `free` and `explain` take no lock and allocate nothing. `alloc` takes one lock, for a
//! bounded time. No code here panics, uses thread-local storage, calls libc or changes errno.
//!
//! Cost: `make targets-guard` of the repository prints the time of allocation, first access and free
//! of a small object, about half of that of slots by mprotect(2). Most of it is in the kernel: the
//! table in docs/guard.md.

#![allow(unsafe_code, reason = "opens, fills and closes the pages of objects")]

mod budget;
mod builder;
mod class;
mod explain;
mod fork;
mod free_slots;
mod freed;
mod geometry;
mod guards;
mod lock;
mod memory;
mod padding;
mod record;
mod stacks;
mod stats;

/// For the models of `loom_model`.
#[cfg(all(test, loom))]
pub(crate) mod model {
    pub(crate) use super::freed::FreedStack;
    pub(crate) use super::geometry::Placement;
    pub(crate) use super::record::{Phase, Record};
    pub(crate) use super::stacks::StackTable;
}

use core::alloc::Layout;
use core::ops::Range;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::Ordering;

use crate::finding::{Event, Finding, Kind, StackId, Trace};
use crate::kernel::{PAGE, thread_id};
use crate::slots::budget::Budget;
use crate::slots::class::Class;
use crate::slots::explain::{Occupant, invalid_free};
use crate::slots::geometry::{MAX_CLASSES, Placement, Slot, class_for};
use crate::slots::guards::Guards;
use crate::slots::lock::Lock;
use crate::slots::memory::Memory;
use crate::slots::stats::Counts;
use crate::sync::AtomicUsize;

pub use builder::{Side, SlotsBuilder};
pub use stacks::MAX_FRAMES;
pub use stats::SlotStats;

/// An allocator whose objects fault when a program accesses a byte past their end, before their
/// start, or after their free.
///
/// Any thread may allocate and free. Dropping it unmaps all objects.
#[derive(Debug)]
pub struct Slots {
    guards: Guards,
    budget: Budget,
    side: Side,
    quarantine: usize,
    seed: usize,
    classes: Lock<[Class; MAX_CLASSES]>,
    freed: [freed::FreedStack; MAX_CLASSES],
    stack_words: AtomicUsize,
    stack_count: AtomicUsize,
    counts: Counts,
    memory: Memory,
}

impl Slots {
    /// The options, with their defaults.
    pub const fn builder() -> SlotsBuilder {
        SlotsBuilder::new()
    }

    /// Allocates an object. Its memory is zero. `None` if the memory limit is reached, if the object
    /// is larger than the limit, and in a signal handler that interrupted an allocation.
    #[must_use]
    pub fn alloc(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.alloc_traced(layout, Trace::default())
    }

    /// As [`Slots::alloc`], and records the caller.
    #[must_use]
    pub fn alloc_traced(&self, layout: Layout, trace: Trace<'_>) -> Option<NonNull<u8>> {
        self.alloc_at(layout, self.side, trace)
    }

    /// As [`Slots::alloc_traced`], with the side of this object.
    #[must_use]
    pub fn alloc_at(&self, layout: Layout, side: Side, trace: Trace<'_>) -> Option<NonNull<u8>> {
        let count = self.counts.allocated.get();
        let placement = Placement {
            bytes: layout.size(),
            alignment: layout.align().trailing_zeros(),
            is_left: self.is_left(side, count),
        };
        let object = self.allocate(placement, trace);
        if object.is_some() {
            self.counts.allocated.add()
        } else {
            self.counts.refused.add()
        };
        object
    }

    fn is_left(&self, side: Side, count: usize) -> bool {
        // Fibonacci hashing spreads the counts: the allocations of a loop get both sides.
        let bit = count.wrapping_add(self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - 1);
        match side {
            Side::Both => bit != 0,
            Side::Left => true,
            Side::Right => false,
        }
    }

    fn allocate(&self, placement: Placement, trace: Trace<'_>) -> Option<NonNull<u8>> {
        let class = class_for(placement.pages()?);
        let memory = placement.bytes.max(1).checked_next_multiple_of(PAGE)?;
        if class >= self.memory.geometry.classes || !self.budget.take(memory) {
            return None;
        }
        let event = self.event(trace);
        let start = self.place(class, placement, event);
        if start.is_some() {
            _ = self.counts.live.add()
        } else {
            self.budget.release(memory)
        }
        NonNull::new(with_exposed_provenance_mut(start?))
    }

    /// Puts an object into a free slot; returns its address.
    fn place(&self, class: u32, placement: Placement, event: Event) -> Option<usize> {
        loop {
            let slot = self.take_slot(class, event.thread)?;
            let pages = self.memory.geometry.pages(slot);
            let (start, used) = (placement.start(&pages), placement.used(&pages));
            if self.close_beside(slot, placement).is_err() {
                self.return_slot(slot);
                return None;
            }
            // SAFETY: the slot is open and has no object. The object's pages are in it.
            unsafe {
                padding::fill(used.start..start);
                padding::fill(start + placement.bytes..used.end);
            }
            // A retired slot is left alone: its pages stay accessible.
            if self.memory.records(class).get(slot.index as usize)?.allocate(placement, event) {
                return Some(start);
            }
        }
    }

    /// Closes the page beside the used pages of a slot, on each side where the slot goes on.
    fn close_beside(&self, slot: Slot, placement: Placement) -> Result<(), i32> {
        let pages = self.memory.geometry.pages(slot);
        let used = placement.used(&pages);
        if self.guards.has_opened() {
            self.close_opened(slot, &pages)?;
        }
        // SAFETY: the pages are in the slot, which the caller owns, and outside of the object.
        unsafe {
            if used.start > pages.start {
                self.guards.close(used.start - PAGE..used.start)?;
            }
            if used.end < pages.end {
                self.guards.close(used.end..used.end + PAGE)?;
            }
        }
        Ok(())
    }

    /// Closes the guards of a slot, which [`Slots::open_page`] may have opened. A guard beside a live
    /// object stays as it is: its data may be there.
    fn close_opened(&self, slot: Slot, pages: &Range<usize>) -> Result<(), i32> {
        let is_live = |index| self.occupant(Slot { index, ..slot }).is_some_and(|occupant| occupant.is_live());
        // SAFETY: the pages are guards of the slot, which the caller owns; no object is beside them.
        unsafe {
            if !slot.index.checked_sub(1).is_some_and(is_live) {
                self.guards.close(pages.start - PAGE..pages.start)?;
            }
            if !is_live(slot.index + 1) {
                self.guards.close(pages.end..pages.end + PAGE)?;
            }
        }
        Ok(())
    }

    fn event(&self, trace: Trace<'_>) -> Event {
        let thread = if trace.thread == 0 { thread_id() } else { trace.thread };
        Event { stack: self.stacks().insert(trace.frames, |bytes| self.budget.take(bytes)), thread }
    }

    fn stacks(&self) -> stacks::StackTable<'_> {
        stacks::StackTable {
            heads: self.memory.chains(),
            words: self.memory.words(),
            used: &self.stack_words,
            count: &self.stack_count,
        }
    }

    /// Frees an object: its pages become inaccessible. Async-signal-safe.
    ///
    /// # Errors
    /// The finding, for a double free, an invalid free, and a changed byte beside the object. In the
    /// last case the object is freed; otherwise nothing changed.
    ///
    /// # Safety
    /// No code uses the object afterwards, other than to find errors: such an access raises
    /// `SIGSEGV` until the slot is reused.
    pub unsafe fn free(&self, object: NonNull<u8>) -> Result<(), Finding> {
        // SAFETY: the caller's guarantee is the same.
        unsafe { self.free_traced(object, Trace::default()) }
    }

    /// As [`Slots::free`], and records the caller.
    ///
    /// # Errors
    /// As [`Slots::free`].
    ///
    /// # Safety
    /// As [`Slots::free`].
    pub unsafe fn free_traced(&self, object: NonNull<u8>, trace: Trace<'_>) -> Result<(), Finding> {
        let address = object.addr().get();
        let Some(occupant) = self.nearest(address) else { return Err(invalid_free(address)) };
        if occupant.object.start != address {
            return Err(occupant.finding(Kind::InvalidFree, address));
        }
        let record = self.memory.records(occupant.slot.class).get(occupant.slot.index as usize);
        if !record.is_some_and(|record| record.free(&occupant.view, self.event(trace))) {
            // Another thread may have freed it just now.
            let now = self.occupant(occupant.slot).unwrap_or(occupant);
            return Err(now.finding(Kind::DoubleFree, address));
        }
        // SAFETY: this thread ended the object, so it owns the slot.
        let changed = unsafe { self.close_object(&occupant) };
        changed.map_or(Ok(()), |address| Err(occupant.changed_padding(address)))
    }

    /// Closes the slot of an object that was freed; returns the address of a changed byte beside it.
    ///
    /// # Safety
    /// The caller has ended the object.
    unsafe fn close_object(&self, occupant: &Occupant) -> Option<usize> {
        let Occupant { slot, view, object } = *occupant;
        let pages = self.memory.geometry.pages(slot);
        let used = view.placement.used(&pages);
        // SAFETY: the pages are open until the next statement. This thread owns them.
        let changed = unsafe {
            padding::first_changed(used.start..object.start)
                .or_else(|| padding::first_changed(object.start + object.bytes..used.end))
        };
        self.counts.live.subtract();
        // Without markers the whole slot becomes one mapping with its guards. After a finding, unused
        // pages may be open.
        let closed = if self.guards.has_markers() && !self.guards.has_opened() { used.clone() } else { pages };
        // SAFETY: this thread owns the slot.
        if unsafe { self.guards.close(closed) }.is_ok() {
            self.budget.release(used.len());
            self.push_freed(slot);
        } else {
            self.counts.unprotected.add();
        }
        changed
    }

    /// The first address of the range. [`Slots::owns`] compares with it and with [`Slots::span`].
    #[must_use]
    pub const fn base(&self) -> usize {
        self.memory.geometry.base
    }

    /// The size of the range in bytes.
    #[must_use]
    pub const fn span(&self) -> usize {
        self.memory.geometry.bytes()
    }

    /// Whether an address is in the range.
    #[inline]
    #[must_use]
    pub const fn owns(&self, address: usize) -> bool {
        address.wrapping_sub(self.base()) < self.span()
    }

    /// The size, as requested, of the live object that starts at an address.
    #[must_use]
    pub fn bytes_of(&self, object: NonNull<u8>) -> Option<usize> {
        let occupant = self.nearest(object.addr().get())?;
        let is_start = occupant.object.start == object.addr().get();
        (occupant.is_live() && is_start).then_some(occupant.object.bytes)
    }

    /// The bytes from an address to the end of the live object around it. `Some(0)` in guards,
    /// padding and freed objects; `None` outside the range. Async-signal-safe.
    #[must_use]
    pub fn room(&self, address: usize) -> Option<usize> {
        if !self.owns(address) {
            return None;
        }
        let occupant = self.nearest(address).filter(Occupant::is_live);
        let offset = occupant.and_then(|occupant| Some((address.checked_sub(occupant.object.start)?, occupant)));
        Some(offset.map_or(0, |(offset, occupant)| occupant.object.bytes.saturating_sub(offset)))
    }

    /// Makes the page of a guard, of a freed object or of an unused slot accessible, for a program that
    /// goes on after a finding. The slot is not used again. A guard is closed again when an object
    /// is allocated beside it, unless the object on its other side is live. False if the address has
    /// no such page, or the kernel refuses. Async-signal-safe.
    pub fn open_page(&self, address: usize) -> bool {
        if !self.owns(address) {
            return false;
        }
        if let Some(geometry::Place::Inside(slot)) = self.memory.geometry.locate(address) {
            let record = self.memory.records(slot.class).get(slot.index as usize);
            let view = record.map(record::Record::view);
            let is_beside = view.is_some_and(|view| {
                let used = view.placement.used(&self.memory.geometry.pages(slot));
                view.phase() == record::Phase::Live && !used.contains(&address)
            });
            if !is_beside && !record.is_some_and(record::Record::retire) {
                return false;
            }
        }
        let page = address & !(PAGE - 1);
        // SAFETY: the page is a guard, or belongs to a slot without an object.
        unsafe { self.guards.open_after_finding(page..page + PAGE) }.is_ok()
    }

    /// Copies the frames of a stack; returns how many. Async-signal-safe.
    pub fn frames(&self, stack: StackId, into: &mut [usize]) -> usize {
        self.stacks().frames(stack, into)
    }

    /// The counts now. Counts that other threads change meanwhile may differ by what they do.
    #[must_use]
    pub fn stats(&self) -> SlotStats {
        SlotStats {
            live: self.counts.live.get(),
            quarantined: self.counts.quarantined.get(),
            allocated: self.counts.allocated.get(),
            refused: self.counts.refused.get(),
            unprotected: self.counts.unprotected.get(),
            memory: self.budget.used(),
            memory_peak: self.budget.peak(),
            memory_limit: self.budget.limit(),
            reserved: self.span(),
            stacks: self.stack_count.load(Ordering::Relaxed),
            has_markers: self.guards.has_markers(),
        }
    }
}
