//! Taking a free slot: an open one, or one that is made ready or reused now.

#![allow(unsafe_code, reason = "opens and closes pages")]

use core::ops::Range;

use crate::kernel::{Errno, PAGE, Pages, protect};
use crate::slots::Slots;
use crate::slots::class::{BATCH, Class};
use crate::slots::geometry::Slot;
use crate::slots::memory::overhead;

/// Live objects without markers. Each object and its guard are two mappings, and the program needs
/// most of its 65,530 itself.
const MAX_LIVE_WITHOUT_MARKERS: usize = 8192;

impl Slots {
    /// An open slot of a class, which the caller owns. `None` if the lock is not available, and
    /// when neither a new nor a freed slot is left.
    pub(super) fn take_slot(&self, class: u32, thread: u32) -> Option<Slot> {
        if !self.guards.has_markers() && self.counts.live.get() >= MAX_LIVE_WITHOUT_MARKERS {
            return None;
        }
        let records = self.memory.records(class);
        let mut classes = self.classes.acquire(thread)?;
        let state = classes.get_mut(class as usize)?;
        let index = state.pop_open(records).or_else(|| {
            self.refill(class, state);
            state.pop_open(records)
        })?;
        Some(Slot { class, index })
    }

    /// Returns a slot without an object.
    pub(super) fn return_slot(&self, slot: Slot) {
        // SAFETY: the caller owns the slot, and no object is in it.
        if unsafe { self.guards.close(self.memory.geometry.pages(slot)) }.is_ok() {
            self.push_freed(slot);
        }
    }

    /// Adds a closed slot to the quarantine.
    pub(super) fn push_freed(&self, slot: Slot) {
        if let Some(freed) = self.freed.get(slot.class as usize) {
            self.counts.quarantined.add();
            freed.push(slot.index, self.memory.records(slot.class));
        }
    }

    fn refill(&self, class: u32, state: &mut Class) {
        let records = self.memory.records(class);
        if let Some(freed) = self.freed.get(class as usize) {
            state.collect(freed, records);
        }
        if !state.is_quarantine_full(self.quarantine) && self.make_ready(class, state) {
            return;
        }
        let (mut slots, mut pages) = ([0_u32; BATCH], [Pages::default(); BATCH]);
        let mut count = 0;
        let wanted = state.reusable(if self.guards.has_markers() { BATCH } else { 1 });
        for (slot, pages) in slots.iter_mut().zip(&mut pages).take(wanted) {
            let Some(index) = state.pop_oldest(records) else { break };
            self.counts.quarantined.subtract();
            (*slot, *pages) = (index, self.memory.geometry.pages(Slot { class, index }).into());
            count += 1;
        }
        // Slots of one page: an object will use all of it, and it counts in the limit then.
        let populates = class == 0 && self.budget.used() + BATCH * PAGE <= self.budget.limit();
        // SAFETY: the slots were in the quarantine, so this thread owns them now.
        let are_open = unsafe { self.guards.open_each(pages.get(..count).unwrap_or_default(), populates) };
        for &index in slots.iter().take(count) {
            // SAFETY: this thread owns the slot.
            let open = || unsafe { self.guards.open(self.memory.geometry.pages(Slot { class, index })) };
            if are_open || open().is_ok() {
                state.push_open(index, records);
            } else {
                self.counts.unprotected.add();
            }
        }
    }

    /// Makes new slots. False if the memory limit or the range does not permit one.
    fn make_ready(&self, class: u32, state: &mut Class) -> bool {
        let wanted = state.new_slots(class, self.memory.geometry.capacity(class));
        let wanted = if self.guards.has_markers() { wanted } else { wanted.min(1) };
        // Near the limit, one slot is better than none.
        let count = [wanted, wanted.min(1)].into_iter().find(|&count| {
            let cost = overhead(class) * count;
            count > 0 && self.budget.take(cost)
        });
        let Some(count) = count else { return false };
        let first = state.first_unused;
        if self.open_new(class, first, count).is_err() {
            self.budget.release(overhead(class) * count);
            return false;
        }
        state.first_unused += count;
        let records = self.memory.records(class);
        (first..first + count).rev().for_each(|index| state.push_open(index as u32, records));
        true
    }

    /// Opens slots that were never used, and closes the guards behind them.
    fn open_new(&self, class: u32, first: usize, count: usize) -> Result<(), Errno> {
        let pages = |index: usize| self.memory.geometry.pages(Slot { class, index: index as u32 });
        let (start, end) = (pages(first).start, pages(first + count - 1).end);
        // SAFETY: the slots are in the range, and no code uses them yet.
        unsafe {
            if !self.guards.has_markers() {
                return protect(start..end, true);
            }
            // One mapping of all slots; its guards are markers.
            protect(start..end + PAGE, true)?;
            let closed = self.close_behind(first..first + count, |index| pages(index).end);
            if closed.is_err() {
                let _ = protect(start..end + PAGE, false);
            }
            closed
        }
    }

    /// Closes the guards behind slots, whose ends are given by `end`.
    ///
    /// # Safety
    /// The caller owns the slots and the guards.
    unsafe fn close_behind(&self, slots: Range<usize>, end: impl Fn(usize) -> usize) -> Result<(), Errno> {
        let guard = |index| end(index)..end(index) + PAGE;
        for first in slots.clone().step_by(BATCH) {
            let batch = first..slots.end.min(first + BATCH);
            let mut pages = [Pages::default(); BATCH];
            pages.iter_mut().zip(batch.clone()).for_each(|(pages, index)| *pages = guard(index).into());
            // SAFETY: the caller owns the guards.
            if !unsafe { self.guards.close_each(pages.get(..batch.len()).unwrap_or_default()) } {
                // SAFETY: the caller owns the guards.
                batch.into_iter().try_for_each(|index| unsafe { self.guards.close(guard(index)) })?;
            }
        }
        Ok(())
    }
}
