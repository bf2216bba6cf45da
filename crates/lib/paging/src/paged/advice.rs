//! Pages that are needed soon, or not any more; and a bound that changes.
//!
//! The work is done by the calling thread. While a message of the kernel is not read yet, no page can
//! be moved: the caller then lets the service thread run, and tries again.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use crate::eviction::{Evictor, Step};
use crate::kernel::{PAGE, yield_now};
use crate::pager::{AHEAD, Pager, Work};
use crate::table::{CHUNK, CHUNK_PAGES, bits, index_of};

/// Tries of a step before the rest of the work is left to the next fault.
const TRIES: usize = 1000;

/// What a program knows about a range of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// It accesses the range soon: stored pages come back before the call returns, also those that
    /// were lost if their store returns them now. Pages without contents stay missing. With a range
    /// above the bound, only the last pages stay.
    Soon,
    /// It does not access the range for some time: its pages leave memory before the call returns.
    Cold,
    /// It does not need the contents: the pages are dropped, also from the stores, and read as zeros.
    Drop,
}

impl Pager {
    /// Brings back the stored pages of a range.
    pub(crate) fn load_range(&self, range: Range<usize>) {
        for_each_part(range, |part| {
            let mut page = part.start;
            while page < part.end {
                let Some(next) = self.next_stored(page..part.end) else { return };
                let wanted = AHEAD.min((part.end - next) / PAGE);
                self.step(|work| self.make_room(wanted) && self.fill_run(work, next, wanted).is_some());
                page = next + PAGE;
            }
        });
    }

    /// The first stored page of a range in one chunk.
    fn next_stored(&self, mut part: Range<usize>) -> Option<usize> {
        let locked = self.table.lock_known(part.start)?;
        let index = (index_of(part.start)..CHUNK_PAGES).find(|&index| locked.chunk.stored[index].is_some())?;
        part.start = locked.page(index);
        (!part.is_empty()).then_some(part.start)
    }

    /// Evicts the pages of a range.
    pub(crate) fn evict_range(&self, range: Range<usize>) {
        for_each_part(range, |part| self.step(|_| self.evict_part(&part)));
    }

    /// Evicts a range in one chunk. Returns false if messages must be read first. The caller holds
    /// `work`.
    fn evict_part(&self, part: &Range<usize>) -> bool {
        let mut lane = self.lanes[Evictor::Server as usize].acquire();
        if !self.return_held(&mut lane) {
            return false;
        }
        let Some(mut locked) = self.table.lock_known(part.start) else { return true };
        let pages = locked.chunk.resident & !locked.chunk.kept & bits(index_of(part.start), part.len() / PAGE);
        let step =
            if pages == 0 { Step::Skipped } else { self.evict_pages(&mut lane, &mut locked, pages, Evictor::Server) };
        let chunk = locked.start;
        drop(locked);
        let is_done = match step {
            Step::Changing => false,
            Step::Full => self.return_held(&mut lane),
            Step::Evicted | Step::Skipped => true,
        };
        let shared = std::mem::take(&mut lane.shared);
        drop(lane);
        self.own_shared(shared, chunk, Evictor::Server);
        is_done
    }

    /// The number of resident pages of a range.
    pub(crate) fn resident_in(&self, range: Range<usize>) -> usize {
        let mut count = 0;
        self.table.for_each_in(range, |locked, pages| count += (locked.chunk.resident & pages).count_ones() as usize);
        count
    }

    /// Changes the bound, and evicts what is above the new one.
    pub(crate) fn change_bound(&self, pages: usize) {
        self.counters.bound.store(pages as u64, Relaxed);
        self.step(|_| self.evict_to(0));
    }

    /// Repeats a step that returns false until the service thread has read its messages.
    fn step(&self, mut step: impl FnMut(&mut Work) -> bool) {
        for _ in 0..TRIES {
            if step(&mut self.work.acquire()) {
                return;
            }
            yield_now();
        }
    }
}

/// Calls `visit` for the part of a range in each chunk.
fn for_each_part(range: Range<usize>, mut visit: impl FnMut(Range<usize>)) {
    let mut start = range.start;
    while start < range.end {
        let end = range.end.min((start / CHUNK + 1) * CHUNK);
        visit(start..end);
        start = end;
    }
}
