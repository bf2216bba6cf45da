//! Pages leave memory: a sweep over the addresses moves them to staging, and then to a store.
//!
//! ```text
//! sweep ─→ chunk with resident pages ─→ UFFDIO_MOVE to staging ─→ unchanged? it is stored already
//!                                                              ├→ zeros?     nothing is stored
//!                                                              ├→ store      first with room
//!                                                              └→ held       no store took it: it goes back
//! ```
//! A move takes a page away at one instant: a thread that writes to it then faults and waits for
//! the chunk. No write is lost, and no page needs protection first. Adjacent pages are moved by one
//! call, because each call interrupts the other processors.
//!
//! Two threads evict: one ahead of the faults, and the one that serves faults when no page is free.
//! Each has staging addresses of its own; the lock of a chunk decides who evicts its pages. No other
//! lock is held while pages are compressed.
//!
//! Source: the second chance of a page is its next fault, as in a sweep (FIFO by address): a bit for
//! each access, which better rules need, is not available to user code.

#![allow(unsafe_code, reason = "reads and drops pages of the staging range")]

use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::count::{add, subtract, value};
use crate::kernel::{self, EAGAIN, EINVAL, ENOENT, PAGE, now_ns};
use crate::pager::Pager;
use crate::store::Page;
use crate::table::{CHUNK, CHUNK_PAGES, LockedChunk, PageTable, Stored, bits, index_of};

/// Pages that stay free below the bound, so that a fault finds room.
const SPARE: usize = 256;

/// Pages of a chunk that leave at one time: threads that access the chunk wait so long.
const BATCH: usize = 32;

/// How often the evictor tries to begin a move: a few microseconds, in which messages are read.
const SPINS: usize = 500;

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
}

/// What a thread needs to evict pages.
#[derive(Debug)]
pub(crate) struct Lane {
    /// 64 page addresses, registered, to which pages are moved before they are stored.
    pub(crate) staging: usize,
    /// Staged pages that no store took, and the addresses of all staged pages in the program. They go
    /// back to the program before anything else is staged.
    held: u64,
    targets: [usize; CHUNK_PAGES],
    /// Pages of the last chunk that were not moved because a child shares them, or did.
    pub(crate) shared: u64,
}

impl Lane {
    pub(crate) const fn new(staging: usize) -> Self {
        Self { staging, held: 0, targets: [0; CHUNK_PAGES], shared: 0 }
    }

    /// The held pages: their addresses in the program and in staging.
    pub(crate) fn held(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let Self { staging, held, targets, .. } = *self;
        let indexes = (0..CHUNK_PAGES).filter(move |&index| held & bits(index, 1) != 0);
        indexes.map(move |index| (targets[index], staging + index * PAGE))
    }

    /// Forgets held pages that the program has unmapped or dropped.
    fn forget(&mut self, range: &Range<usize>) {
        for (index, target) in self.targets.iter().enumerate() {
            self.held &= !bits(index, usize::from(range.contains(target)));
        }
    }

    /// Follows held pages that the program has moved.
    fn follow_move(&mut self, from: &Range<usize>, to: usize) {
        for target in self.targets.iter_mut().filter(|target| from.contains(target)) {
            *target = to + (*target - from.start);
        }
    }
}

/// The thread that evicts, which is the index of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evictor {
    /// The holder of `work`, mostly the thread that serves faults: all messages that were read are
    /// followed.
    Server,
    /// Another thread: messages may be read and not followed yet.
    Other,
}

impl Pager {
    /// Makes room for `wanted` pages. Returns false if messages must be read first. The caller holds
    /// `work`.
    pub(crate) fn make_room(&self, wanted: usize) -> bool {
        if self.excess(wanted) == 0 {
            return true;
        }
        let start = now_ns();
        if start < self.fruitless_until.load(Relaxed) {
            return true;
        }
        let locked = self.locked_attempts.load(Relaxed);
        let is_ready = self.evict_to(wanted.max(self.spare() / 4));
        if is_ready && self.excess(wanted) > 0 {
            let locked = self.locked_attempts.load(Relaxed) - locked;
            if locked >= self.excess(0) as u64 && self.excess(0) > value(&self.counters.bound) / 8 {
                self.has_locked.store(true, Relaxed);
            }
            // Too few pages can leave. Such a sweep tries all pages, so the next ones are served
            // for as long without another.
            let now = now_ns();
            self.fruitless_until.store(now + (now - start), Relaxed);
        }
        is_ready
    }

    /// Evicts pages until at most `bound - margin` are resident; otherwise as [`Self::make_room`].
    pub(crate) fn evict_to(&self, margin: usize) -> bool {
        self.evict(Evictor::Server, margin)
    }

    /// Evicts ahead of the faults: sleeps while enough pages are free below the bound, at most some
    /// milliseconds, and evicts otherwise. A second thread of the pager calls this in a loop; both
    /// have one descriptor table.
    pub fn evict_ahead(&self, milliseconds: u32) {
        self.has_evictor.store(true, Relaxed);
        self.idle_evictor.store(1, Release);
        if !self.is_short() {
            kernel::wait_while(&self.idle_evictor, 1, milliseconds);
        }
        self.idle_evictor.store(0, Relaxed);
        if self.is_short() && !(self.evict(Evictor::Other, self.spare()) && self.excess(self.spare()) == 0) {
            // No page can leave now.
            kernel::wait_while(&self.idle_evictor, 0, 1);
        }
    }

    /// Wakes the thread that evicts ahead if few pages are free.
    pub(crate) fn wake_evictor(&self) {
        if self.is_short() && self.idle_evictor.load(Acquire) == 1 && self.idle_evictor.swap(0, Acquire) == 1 {
            kernel::wake_one(&self.idle_evictor);
        }
    }

    /// Whether few pages are free below the bound.
    fn is_short(&self) -> bool {
        self.excess(self.spare() / 2) > 0
    }

    /// Pages that stay free below the bound.
    pub(crate) fn spare(&self) -> usize {
        SPARE.min(value(&self.counters.bound) / 8)
    }

    /// Evicts pages until at most `bound - margin` are resident. Returns false if messages must be
    /// read first.
    fn evict(&self, evictor: Evictor, margin: usize) -> bool {
        let mut sweeps = 0;
        while self.excess(margin) > 0 && sweeps < 2 {
            let mut lane = self.lanes[evictor as usize].acquire();
            if !self.return_own_held(&mut lane, evictor) {
                return false;
            }
            let from = self.cursor.load(Relaxed);
            let Some(start) = self.table.next_occupied(from) else { break };
            // The sweep begins again at the lowest address.
            sweeps += usize::from(start + CHUNK <= from);
            let step = self.evict_chunk(&mut lane, from, start, self.excess(margin), evictor);
            if step == Step::Full && !self.drop_copies() {
                return self.return_own_held(&mut lane, evictor);
            }
            let shared = core::mem::take(&mut lane.shared);
            drop(lane);
            self.own_shared(shared, start, evictor);
            match step {
                Step::Changing => return false,
                Step::Evicted => sweeps = 0,
                Step::Skipped | Step::Full => {}
            }
        }
        true
    }

    /// As [`Self::return_held`]; returns false also if another thread holds `work`.
    fn return_own_held(&self, lane: &mut Lane, evictor: Evictor) -> bool {
        match evictor {
            _ if lane.held == 0 => true,
            Evictor::Server => self.return_held(lane),
            Evictor::Other => self.work.try_acquire().is_some_and(|_work| self.return_held(lane)),
        }
    }

    /// Evicts at most `wanted` pages of the chunk at `start`, those behind `from` first.
    fn evict_chunk(&self, lane: &mut Lane, from: usize, start: usize, wanted: usize, evictor: Evictor) -> Step {
        let Some(mut chunk) = self.table.try_lock_known(start) else {
            self.cursor.store(start + CHUNK, Relaxed);
            return Step::Skipped;
        };
        let first = if from > start && from < start + CHUNK { (from - start) / PAGE } else { 0 };
        let candidates = take_lowest(chunk.chunk.resident & !chunk.chunk.kept & (u64::MAX << first), wanted.min(BATCH));
        if candidates == 0 {
            if chunk.chunk.resident == 0 {
                PageTable::clear_occupied(&chunk);
            }
            self.cursor.store(start + CHUNK, Relaxed);
            return Step::Skipped;
        }
        let last = CHUNK_PAGES - candidates.leading_zeros() as usize;
        self.cursor.store(start + last * PAGE, Relaxed);
        self.evict_pages(lane, &mut chunk, candidates, evictor)
    }

    /// Evicts pages of a chunk.
    pub(crate) fn evict_pages(
        &self,
        lane: &mut Lane,
        chunk: &mut LockedChunk<'_>,
        candidates: u64,
        evictor: Evictor,
    ) -> Step {
        let (moved, is_changing) = self.stage(lane, chunk, candidates, evictor);
        let evicted = self.store_staged(lane, chunk, moved);
        match () {
            () if lane.held != 0 => Step::Full,
            () if is_changing => Step::Changing,
            () if evicted == 0 => Step::Skipped,
            () => Step::Evicted,
        }
    }

    /// Moves pages of a chunk to the same places of staging. Returns the bits of those that were
    /// moved, and whether the address space changes.
    fn stage(&self, lane: &mut Lane, chunk: &mut LockedChunk<'_>, candidates: u64, evictor: Evictor) -> (u64, bool) {
        let moving = match evictor {
            Evictor::Server => Some(self.moving.acquire()),
            // The holder of `work` may follow a change and wait for what this thread has locked.
            Evictor::Other => (0..SPINS).find_map(|_| {
                core::hint::spin_loop();
                self.moving.try_acquire()
            }),
        };
        let Some(_moving) = moving else { return (0, true) };
        let (mut left, mut moved) = (candidates, 0);
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let count = (left >> first).trailing_ones() as usize;
            let from = chunk.page(first)..chunk.page(first + count);
            // SAFETY: the pages are the program's, which gets them back at its next access.
            let (bytes, result) = unsafe { self.fd.move_pages(lane.staging + first * PAGE, from) };
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
                    self.skip(lane, chunk, page, errno, evictor);
                }
            }
        }
        (moved, false)
    }

    /// A page of the chunk was not moved.
    fn skip(&self, lane: &mut Lane, chunk: &mut LockedChunk<'_>, page: u64, errno: kernel::Errno, evictor: Evictor) {
        if errno == ENOENT {
            // The program dropped it; or it moved it, and the message is read and not followed yet.
            if evictor == Evictor::Server || self.work.try_acquire().is_some() {
                self.drop_stored(chunk, page);
                self.count_missing(chunk.set_missing(page));
            }
            return;
        }
        add(&self.counters.unmovable, 1);
        if errno == EINVAL {
            self.locked_attempts.fetch_add(1, Relaxed);
        } else {
            lane.shared |= page;
        }
    }

    /// Makes pages the process's own that a forked child shares, or did until now: a write does
    /// that, and the next sweep moves them. The program's contents do not change. [`Evictor::Other`]
    /// holds no lock: if the program drops a page at this moment, the write waits for the thread that
    /// serves faults. [`Evictor::Server`] holds `work`: a drop waits until its message is read.
    pub(crate) fn own_shared(&self, shared: u64, chunk: usize, evictor: Evictor) {
        if shared != 0 && (evictor == Evictor::Other || !self.has_evictor.load(Relaxed)) {
            for index in (0..CHUNK_PAGES).filter(|&index| shared & bits(index, 1) != 0) {
                let page = chunk + index * PAGE;
                let _ = kernel::populate_write(page..page + PAGE);
            }
        }
    }

    /// Stores the staged pages of a chunk; the number of those that left memory.
    fn store_staged(&self, lane: &mut Lane, chunk: &mut LockedChunk<'_>, moved: u64) -> usize {
        if moved == 0 {
            return 0;
        }
        let mut pages = [&ZEROS; CHUNK_PAGES];
        let (mut indexes, mut count, mut unchanged) = ([0; CHUNK_PAGES], 0, 0);
        for index in (0..CHUNK_PAGES).filter(|&index| moved >> index & 1 == 1) {
            let at = lane.staging + index * PAGE;
            // SAFETY: the page was just moved here, and stays until it is dropped below.
            let page = unsafe { &*core::ptr::with_exposed_provenance::<Page>(at) };
            if chunk.chunk.stored[index].is_some() {
                if self.is_unchanged(chunk.chunk.stored[index], page) {
                    unchanged += 1;
                    continue;
                }
                self.drop_stored(chunk, bits(index, 1));
            }
            if is_zero(page) {
                add(&self.counters.evicted_zero, 1);
                continue;
            }
            (pages[count], indexes[count]) = (page, index);
            count += 1;
        }
        subtract(&self.copies, unchanged);
        add(&self.counters.evicted_unchanged, unchanged);
        let mut stored = [Stored::NONE; CHUNK_PAGES];
        self.store(&pages[..count], &mut stored[..count]);
        for (&index, &place) in indexes[..count].iter().zip(&stored) {
            chunk.chunk.stored[index] = place;
            lane.held |= bits(index, usize::from(!place.is_some()));
        }
        lane.targets = core::array::from_fn(|index| chunk.page(index));
        let gone = moved & !lane.held;
        self.count_missing(chunk.set_missing(gone));
        if lane.held == 0 {
            self.empty(lane.staging..lane.staging + CHUNK);
        } else {
            // Before the chunk is unlocked: a fault on a held page waits for its return.
            self.has_held.store(true, Release);
        }
        add(&self.counters.evicted, gone.count_ones() as usize);
        gone.count_ones() as usize
    }

    /// Moves all pages that no store took back to the program; as [`Self::return_held`].
    pub(crate) fn return_all_held(&self) -> bool {
        self.has_held.store(false, Relaxed);
        let is_done = self.lanes.iter().all(|lane| self.return_held(&mut lane.acquire()));
        if !is_done {
            self.has_held.store(true, Relaxed);
        }
        is_done
    }

    /// Forgets held pages that the program has unmapped or dropped. Their chunks are already
    /// without resident pages there, so no thread adds any.
    pub(crate) fn forget_held(&self, range: &Range<usize>) {
        if self.has_held.load(Acquire) {
            self.lanes.iter().for_each(|lane| lane.acquire().forget(range));
        }
    }

    /// Follows held pages that the program has moved.
    pub(crate) fn move_held(&self, from: &Range<usize>, to: usize) {
        if self.has_held.load(Acquire) {
            self.lanes.iter().for_each(|lane| lane.acquire().follow_move(from, to));
        }
    }

    /// Moves pages that no store took back to the program. Returns false if messages must be read
    /// first: while the address space changes, no page is moved. The caller holds `work`: a message
    /// that is read and not followed yet could be a drop of these pages.
    pub(crate) fn return_held(&self, lane: &mut Lane) -> bool {
        while lane.held != 0 {
            let index = lane.held.trailing_zeros() as usize;
            let (from, to) = (lane.staging + index * PAGE, lane.targets[index]);
            match self.return_page(from, to) {
                Err(EAGAIN) => return false,
                // The program has unmapped the page, or replaced it.
                Err(_) => {
                    if let Some(mut chunk) = self.table.lock_known(to) {
                        self.count_missing(chunk.set_missing(bits(index_of(to), 1)));
                    }
                }
                Ok(()) => {}
            }
            lane.held &= !bits(index, 1);
            if lane.held == 0 {
                self.empty(lane.staging..lane.staging + CHUNK);
            }
        }
        true
    }

    /// Gives a staged page back to the program. If the address space begins to change during the request,
    /// the kernel may find no memory there, although the page is only moved. A second request decides:
    /// it is refused by [`EAGAIN`] until the message of the change is read.
    fn return_page(&self, from: usize, to: usize) -> Result<(), kernel::Errno> {
        match self.move_or_copy(from, to) {
            result @ (Ok(()) | Err(EAGAIN)) => result,
            Err(_) => self.move_or_copy(from, to),
        }
    }

    /// Moves a staged page if the program's memory is like staging, and copies it if that was locked or
    /// made read-only meanwhile.
    fn move_or_copy(&self, from: usize, to: usize) -> Result<(), kernel::Errno> {
        // SAFETY: the page is the program's, which waits for it if it accesses it.
        match unsafe { self.fd.move_pages(to, from..from + PAGE) }.1 {
            Err(EINVAL) => {
                // SAFETY: the page stays in staging until this thread drops it.
                let contents = unsafe { &*core::ptr::with_exposed_provenance::<Page>(from) };
                self.fd.copy(to, contents).1
            }
            result => result,
        }
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
