//! Pages leave memory: a sweep over the addresses moves them to staging, and then to a store.
//!
//! ```text
//! sweep ─→ chunk with resident pages ─→ UFFDIO_MOVE to staging ─→ zeros?     nothing is stored
//!                                                              ├→ store      first with room
//!                                                              └→ held       no store took it: it goes back
//! ```
//! A move takes a page away at one instant: a thread that writes to it then faults and waits for
//! the chunk. No write is lost, and no page needs protection first. Adjacent pages are moved by one
//! call, because each call interrupts the other processors.
//!
//! Source: the second chance of a page is its next fault, as in a sweep (FIFO by address): a bit for
//! each access, which better rules need, is not available to user code.

#![allow(unsafe_code, reason = "reads and drops pages of the staging range")]

use core::ops::Range;

use crate::count::{add, value};
use crate::kernel::{self, EAGAIN, EINVAL, ENOENT, PAGE};
use crate::pager::{Pager, Work};
use crate::store::Page;
use crate::table::{CHUNK, CHUNK_PAGES, LockedChunk, PageTable, Stored, bits};

/// Pages that are free after an eviction: two moves of a chunk.
const SPARE: usize = 128;

static ZEROS: Page = [0; PAGE];

/// What a step of the sweep did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Pages left memory.
    Evicted,
    /// No page of the chunk could leave memory.
    Skipped,
    /// The address space changes: messages must be read first.
    Changing,
    /// No store took a page.
    Full,
    /// No page is resident.
    Empty,
}

impl Pager {
    /// Makes room for `wanted` pages, and for more in the same go, so that the next faults find it.
    /// Returns false if messages must be read first.
    pub(crate) fn make_room(&self, work: &mut Work, wanted: usize) -> bool {
        if self.excess(wanted) == 0 {
            return true;
        }
        self.evict(work, wanted.max(self.spare()))
    }

    /// Pages that stay free below the bound.
    pub(crate) fn spare(&self) -> usize {
        SPARE.min(value(&self.counters.bound) / 8)
    }

    /// Evicts pages until at most `bound - margin` are resident. Returns false if messages must be
    /// read first.
    pub(crate) fn evict(&self, work: &mut Work, margin: usize) -> bool {
        if !self.return_held(work) {
            return false;
        }
        let mut sweeps = 0;
        while self.excess(margin) > 0 && sweeps < 2 {
            let before = work.cursor;
            match self.evict_chunk(work, self.excess(margin)) {
                Step::Evicted => sweeps = 0,
                // The sweep began again at the lowest address.
                Step::Skipped => sweeps += usize::from(work.cursor <= before),
                Step::Full => return self.return_held(work),
                Step::Changing => return false,
                Step::Empty => break,
            }
        }
        true
    }

    /// Evicts at most `wanted` pages of the next chunk.
    fn evict_chunk(&self, work: &mut Work, wanted: usize) -> Step {
        let Some(start) = self.table.next_occupied(work.cursor) else { return Step::Empty };
        let Some(mut chunk) = self.table.lock_known(start) else { return Step::Empty };
        let first = if work.cursor > start && work.cursor < start + CHUNK { (work.cursor - start) / PAGE } else { 0 };
        let candidates = take_lowest(chunk.chunk.resident & !chunk.chunk.kept & (u64::MAX << first), wanted);
        if candidates == 0 {
            if chunk.chunk.resident == 0 {
                PageTable::clear_occupied(&chunk);
            }
            work.cursor = start + CHUNK;
            return Step::Skipped;
        }
        let last = CHUNK_PAGES - candidates.leading_zeros() as usize;
        work.cursor = start + last * PAGE;
        self.evict_pages(work, &mut chunk, candidates)
    }

    /// Evicts pages of a chunk.
    pub(crate) fn evict_pages(&self, work: &mut Work, chunk: &mut LockedChunk<'_>, candidates: u64) -> Step {
        let (moved, is_changing) = self.stage(work, chunk, candidates);
        let evicted = self.store_staged(work, chunk, moved);
        match () {
            () if work.held != 0 => Step::Full,
            () if is_changing => Step::Changing,
            () if evicted == 0 => Step::Skipped,
            () => Step::Evicted,
        }
    }

    /// Moves pages of a chunk to the same places of staging. Returns the bits of those that were
    /// moved, and whether the address space changes.
    fn stage(&self, work: &Work, chunk: &mut LockedChunk<'_>, candidates: u64) -> (u64, bool) {
        let (mut left, mut moved) = (candidates, 0);
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let count = (left >> first).trailing_ones() as usize;
            let from = chunk.page(first)..chunk.page(first + count);
            // SAFETY: the pages are the program's, which gets them back at its next access.
            let (bytes, result) = unsafe { self.fd.move_pages(work.staging + first * PAGE, from) };
            let done = bytes / PAGE;
            moved |= bits(first, done);
            left &= !bits(first, done);
            match result {
                Ok(()) => {}
                // A part was moved: the request goes on with the next page.
                Err(EAGAIN) if done > 0 => {}
                Err(EAGAIN) => return (moved, true),
                Err(errno) => {
                    let page = bits(first + done, 1) & left;
                    left &= !page;
                    self.skip(chunk, page, errno);
                }
            }
        }
        (moved, false)
    }

    /// A page of the chunk was not moved.
    fn skip(&self, chunk: &mut LockedChunk<'_>, page: u64, errno: kernel::Errno) {
        if errno == ENOENT {
            // The program dropped it.
            self.count_missing(chunk.set_missing(page));
            return;
        }
        add(&self.counters.unmovable, 1);
        if errno != EINVAL {
            // Shared with a forked child, or it was until now: a write makes it this process's own,
            // and the next sweep moves it. The program's contents do not change.
            let at = chunk.page(page.trailing_zeros() as usize);
            let _ = kernel::populate_write(at..at + PAGE);
        }
    }

    /// Stores the staged pages of a chunk; the number of those that left memory.
    fn store_staged(&self, work: &mut Work, chunk: &mut LockedChunk<'_>, moved: u64) -> usize {
        if moved == 0 {
            return 0;
        }
        let mut pages = [&ZEROS; CHUNK_PAGES];
        let (mut indexes, mut count) = ([0; CHUNK_PAGES], 0);
        for index in (0..CHUNK_PAGES).filter(|&index| moved >> index & 1 == 1) {
            let at = work.staging + index * PAGE;
            // SAFETY: the page was just moved here, and stays until it is dropped below.
            let page = unsafe { &*core::ptr::with_exposed_provenance::<Page>(at) };
            if is_zero(page) {
                add(&self.counters.evicted_zero, 1);
                continue;
            }
            (pages[count], indexes[count]) = (page, index);
            count += 1;
        }
        let mut stored = [Stored::NONE; CHUNK_PAGES];
        let done = self.store(&pages[..count], &mut stored[..count]);
        for at in 0..done {
            chunk.chunk.stored[indexes[at]] = stored[at];
        }
        for &index in &indexes[done..count] {
            work.held |= bits(index, 1);
        }
        work.held_chunk = chunk.start;
        let gone = moved & !work.held;
        self.count_missing(chunk.set_missing(gone));
        if work.held == 0 {
            self.empty(work.staging..work.staging + CHUNK);
        }
        add(&self.counters.evicted, gone.count_ones() as usize);
        gone.count_ones() as usize
    }

    /// Moves pages that no store took back to the program. Returns false if messages must be read
    /// first: while the address space changes, no page is moved.
    pub(crate) fn return_held(&self, work: &mut Work) -> bool {
        while work.held != 0 {
            let index = work.held.trailing_zeros() as usize;
            let from = work.staging + index * PAGE;
            let to = work.held_chunk + index * PAGE;
            // SAFETY: the page is the program's, which waits for it if it accesses it.
            match unsafe { self.fd.move_pages(to, from..from + PAGE) }.1 {
                Err(EAGAIN) => return false,
                // The program has unmapped the page, or replaced it.
                Err(_) => {
                    if let Some(mut chunk) = self.table.lock_known(to) {
                        self.count_missing(chunk.set_missing(bits(index, 1)));
                    }
                }
                Ok(()) => {}
            }
            work.held &= !bits(index, 1);
            if work.held == 0 {
                self.empty(work.staging..work.staging + CHUNK);
            }
        }
        true
    }

    /// Drops the pages of the staging range. It is unregistered meanwhile, because its own drop
    /// would otherwise wait until this thread reads the message.
    fn empty(&self, staging: Range<usize>) {
        let _ = self.fd.unregister(staging.clone());
        // SAFETY: the pages are stored, or were moved back.
        unsafe { kernel::discard(staging.clone()) };
        let _ = self.fd.register(staging);
    }
}

/// The lowest `count` bits of a word.
fn take_lowest(mut word: u64, count: usize) -> u64 {
    let mut taken = 0;
    for _ in 0..count.min(CHUNK_PAGES) {
        taken |= word & word.wrapping_neg();
        word &= word.wrapping_sub(1);
    }
    taken
}

fn is_zero(page: &Page) -> bool {
    page.as_chunks::<64>().0.iter().all(|line| line.iter().fold(0, |all, &byte| all | byte) == 0)
}
