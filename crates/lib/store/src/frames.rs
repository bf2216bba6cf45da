//! The pages in memory: a frame for each version that somebody may read.
//!
//! ```text
//! page ─→ frame of the newest version ─→ older version ─→ …
//! ```
//! A frame never changes once it is published: a snapshot reads the newest one that is not newer than
//! itself. A frame that was replaced is free when no snapshot is older than the version behind it.
//!
//! There is a bound on the number of frames. When it is reached, pages that the file contains as well are
//! *evicted*, by the clock algorithm: those that were not read since the hand was there. What a snapshot
//! was lent must stay, so the frame of an evicted page is free when all snapshots that were there have
//! ended; until then it *waits*. Whoever needs the page meanwhile takes it back. So there are more frames than the
//! bound while a snapshot reads much, but one for each page of it at most, and in a transaction that changes
//! much. The next transaction takes the same frames.
//!
//! Source of the clock: Corbató, *A Paging Experiment with the Multics System* (1968).

#![allow(unsafe_code, reason = "lends pages of a mapping")]

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use fieldstone_pages::Memory;

use crate::error::{Error, ErrorKind, Result};
use crate::extent::Evicted;
use crate::lock::lock;
use crate::page::{PAGE, Page};
use crate::readers::{Reader, Readers, Replaced};

/// Pages of the largest store: 256 GiB.
pub(crate) const MOST_PAGES: u32 = 1 << 26;
/// Frames at one time.
const MOST_FRAMES: u32 = 1 << 26;
/// Words that describe a frame: those that are used, and room up to a cache line.
const RECORD: usize = 8;
/// Frames that the hand of the clock passes at a time, and those that it evicts at most.
const SWEEP: u32 = 4096;
const BATCH: usize = 128;
/// After a pass that evicts fewer frames, at most this many are taken without another one.
const FEW: usize = 16;
const PAUSE: u32 = 64;
/// Evicted frames that wait, in addition to one for each frame above the bound. With more of them, evicting would
/// not help.
const MOST_WAITING: usize = 1024;

/// Marks the newest frame of a page as evicted: it waits.
const WAITS: u64 = 1 << 63;

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame(pub(crate) u32);

/// The pages in memory.
#[derive(Debug)]
pub(crate) struct Frames {
    contents: Memory,
    /// The number of the newest frame of each page, plus one, with [`WAITS`] if it is evicted; 0 for a page that is
    /// in the file only.
    newest: Memory,
    /// For each page, an epoch of the log: the page may be evicted when the file contains that epoch.
    kept: Memory,
    /// See [`FrameRecord`].
    records: Memory,
    unused: Mutex<Unused>,
    readers: Mutex<Readers>,
    /// The epochs before this one are in the file.
    flushed: AtomicU64,
    /// Held while pages are evicted, and while one is marked as kept.
    hand: Mutex<Hand>,
    /// Frames above which pages are evicted.
    bound: u32,
    /// Versions below this one are too old to be read.
    floor: AtomicU64,
}

/// What is known of a frame.
#[derive(Clone, Copy)]
struct FrameRecord<'a> {
    /// The commit that has made it.
    made_by: &'a AtomicU64,
    /// The frame of the version before, plus one.
    older: &'a AtomicU64,
    page: &'a AtomicU64,
    /// Whether it was read since the hand of the clock was here.
    was_read: &'a AtomicU64,
    /// The oldest version for which it was found.
    lent_to: &'a AtomicU64,
    /// The number of the eviction since which it waits.
    evicted_at: &'a AtomicU64,
}

/// The hand of the clock.
#[derive(Debug, Default)]
struct Hand {
    frame: u32,
    /// Frames that are taken without a look for pages to evict, after one that found few.
    pause: u32,
}

#[derive(Debug, Default)]
struct Unused {
    free: Vec<u32>,
    /// The frames from here on were never used.
    end: u32,
}

impl Unused {
    /// Frames that are not free, those that wait for readers to end included.
    const fn used(&self) -> usize {
        self.end as usize - self.free.len()
    }

    /// A free frame, or one that was never used.
    fn take(&mut self) -> Option<Frame> {
        if let Some(free) = self.free.pop() {
            return Some(Frame(free));
        }
        let end = self.end;
        (end < MOST_FRAMES).then(|| {
            self.end += 1;
            Frame(end)
        })
    }
}

impl Frames {
    /// Reserves addresses. With more than `memory` bytes of pages, pages are evicted.
    ///
    /// # Errors
    /// Without enough addresses.
    pub(crate) fn new(path: &Path, memory: usize) -> Result<Self> {
        let reserve = |bytes: u64| {
            Memory::anonymous(bytes as usize).map_err(|error| {
                Error::new(ErrorKind::Memory, path, format!("cannot reserve addresses: {error}"))
                    .with_remedy("a larger limit of address space (ulimit -v)")
            })
        };
        let contents = reserve(u64::from(MOST_FRAMES) * PAGE as u64)?;
        // Random pages of a large store miss in the table of addresses otherwise.
        contents.advise_huge();
        Ok(Self {
            contents,
            newest: reserve(u64::from(MOST_PAGES) * 8)?,
            kept: reserve(u64::from(MOST_PAGES) * 8)?,
            records: reserve(u64::from(MOST_FRAMES) * RECORD as u64 * 8)?,
            unused: Mutex::default(),
            readers: Mutex::default(),
            flushed: AtomicU64::new(0),
            hand: Mutex::default(),
            bound: u32::try_from(memory / PAGE).unwrap_or(MOST_FRAMES).min(MOST_FRAMES),
            floor: AtomicU64::new(0),
        })
    }

    #[inline]
    fn newest(&self, page: u32) -> &AtomicU64 {
        &self.newest.words()[page as usize]
    }

    #[inline]
    fn record(&self, frame: Frame) -> FrameRecord<'_> {
        let words = &self.records.words()[frame.0 as usize * RECORD..][..RECORD];
        FrameRecord {
            made_by: &words[0],
            older: &words[1],
            page: &words[2],
            was_read: &words[3],
            lent_to: &words[4],
            evicted_at: &words[5],
        }
    }

    /// A frame that is not published, with any contents; `None` if there is no memory for more.
    pub(crate) fn take(&self) -> Option<Frame> {
        let used = lock(&self.unused).used();
        if used >= self.bound as usize {
            self.evict(used);
        }
        lock(&self.unused).take()
    }

    /// Returns a frame that was not published.
    pub(crate) fn put(&self, frame: Frame) {
        lock(&self.unused).free.push(frame.0);
    }

    #[inline]
    fn start(&self, frame: Frame) -> *mut Page {
        // SAFETY: each frame that was taken is inside the mapping.
        unsafe { self.contents.as_ptr().add(frame.0 as usize * PAGE).cast() }
    }

    /// The contents of a published frame.
    ///
    /// # Safety
    /// The caller keeps a snapshot of this version or an older one, or is the only writer, while it uses
    /// the result.
    #[inline]
    pub(crate) unsafe fn contents(&self, frame: Frame) -> &Page {
        // SAFETY: a published frame never changes, and it is not free while the caller reads.
        unsafe { &*self.start(frame) }
    }

    /// The contents of a frame that was taken and not published.
    ///
    /// # Safety
    /// The caller has taken it, and lends it once at a time.
    #[expect(clippy::mut_from_ref, reason = "the frame belongs to the caller")]
    pub(crate) unsafe fn contents_mut(&self, frame: Frame) -> &mut Page {
        // SAFETY: the caller alone has the frame, which was taken.
        unsafe { &mut *self.start(frame) }
    }

    /// The newest frame of a page that is not newer than a version; `None` as well if the version is too old.
    #[inline]
    pub(crate) fn find(&self, page: u32, version: u64) -> Option<Frame> {
        let mut next = self.newest(page).load(Acquire);
        loop {
            let frame = Frame(u32::try_from(next.checked_sub(1)?).ok()?);
            let record = self.record(frame);
            if record.made_by.load(Relaxed) <= version {
                // Others read the record: it is written only if it changes.
                if record.was_read.load(Relaxed) == 0 {
                    record.was_read.store(1, Relaxed);
                }
                return self.lend(frame, version).then_some(frame);
            }
            next = record.older.load(Acquire);
        }
    }

    /// Marks a frame as lent to a version. Returns whether the version is not too old: only then may the
    /// frame be used. Either this sees the new floor, or [`Self::reclaim`], which raises the floor first,
    /// sees the mark.
    pub(crate) fn lend(&self, frame: Frame, version: u64) -> bool {
        let lent_to = self.record(frame).lent_to;
        if lent_to.load(SeqCst) > version {
            lent_to.fetch_min(version, SeqCst);
        }
        // A frame that was freed and published again was so after the floor had been raised.
        fence(Acquire);
        !self.is_too_old(version)
    }

    /// Whether a version can no longer be read.
    pub(crate) fn is_too_old(&self, version: u64) -> bool {
        version < self.floor.load(SeqCst)
    }

    /// Limits the memory for replaced versions of pages, in bytes. Beyond it the oldest readers become too
    /// old.
    pub(crate) fn limit_old_versions(&self, bytes: usize) {
        lock(&self.readers).limit_replaced(bytes / PAGE);
    }

    /// Whether a page is in memory.
    pub(crate) fn has(&self, page: u32) -> bool {
        !matches!(self.newest(page).load(Acquire), 0 | WAITS..)
    }

    /// Makes a frame the newest one of a page, as of a commit. 0 is what the file contains.
    pub(crate) fn publish(&self, page: u32, frame: Frame, commit: u64) {
        if let Some(replaced) = self.set_newest(page, frame, commit) {
            lock(&self.readers).add_replaced(replaced);
        }
    }

    /// Makes the frames of a commit the newest ones of their pages, which are kept in memory until the file
    /// contains this epoch of the log.
    pub(crate) fn publish_all(&self, pages: impl Iterator<Item = (u32, Frame)>, commit: u64, epoch: u64) {
        let _hand = lock(&self.hand);
        let mut readers = lock(&self.readers);
        for (page, frame) in pages {
            if let Some(replaced) = self.set_newest(page, frame, commit) {
                readers.add_replaced(replaced);
            }
            self.kept.words()[page as usize].store(epoch, Relaxed);
        }
    }

    /// Makes a frame the newest one of a page; what it has replaced.
    fn set_newest(&self, page: u32, frame: Frame, commit: u64) -> Option<Replaced> {
        let (newest, record) = (self.newest(page), self.record(frame));
        // One that waits is no older version: what a snapshot reads is kept in memory before it is replaced.
        let old = Some(newest.load(Relaxed)).filter(|&old| old < WAITS).unwrap_or(0);
        // Pairs with the fence of `lend`.
        fence(Release);
        record.made_by.store(commit, Relaxed);
        record.older.store(old, Relaxed);
        record.page.store(page.into(), Relaxed);
        record.was_read.store(1, Relaxed);
        record.lent_to.store(u64::MAX, Relaxed);
        newest.store(u64::from(frame.0) + 1, Release);
        old.checked_sub(1).map(|old| Replaced { by: commit, old: Frame(old as u32), new: frame })
    }

    /// Keeps a page in memory until the file contains an epoch of the log.
    pub(crate) fn keep(&self, page: u32, epoch: u64) {
        let _hand = lock(&self.hand);
        self.kept.words()[page as usize].store(epoch, Relaxed);
    }

    /// The file contains all epochs of the log before this one.
    pub(crate) fn set_flushed(&self, epoch: u64) {
        self.flushed.store(epoch, Release);
    }

    /// Evicts pages that were not read for long, unless fewer than the bound are used without those that wait.
    #[cold]
    fn evict(&self, used: usize) {
        let mut hand = lock(&self.hand);
        hand.pause = hand.pause.saturating_sub(1);
        let (end, flushed) = (lock(&self.unused).end, self.flushed.load(Acquire));
        let (bound, waiting) = (self.bound as usize, lock(&self.readers).waiting());
        let is_enough = used < bound + waiting || waiting >= MOST_WAITING + (end as usize).saturating_sub(bound);
        if hand.pause > 0 || is_enough {
            return;
        }
        let mut evicted = Vec::new();
        for _ in 0..SWEEP.min(end * 2) {
            hand.frame = if hand.frame + 1 < end { hand.frame + 1 } else { 0 };
            if self.try_evict(Frame(hand.frame), flushed) {
                evicted.push(hand.frame);
                if evicted.len() == BATCH {
                    break;
                }
            }
        }
        if evicted.len() < FEW {
            hand.pause = (end / FEW as u32).min(PAUSE);
        }
        let eviction = lock(&self.readers).add_evicted(&evicted);
        evicted.iter().for_each(|&frame| self.record(Frame(frame)).evicted_at.store(eviction, Relaxed));
        drop(hand);
        self.free_evicted();
    }

    /// Takes back the frame of a page that was evicted and waits.
    pub(crate) fn take_back(&self, page: u32) -> Option<Frame> {
        // So no page is evicted and not counted as such yet.
        let _hand = lock(&self.hand);
        let mut readers = lock(&self.readers);
        let newest = self.newest(page);
        let frame = Frame((newest.load(Acquire).checked_sub(WAITS)? - 1) as u32);
        let record = self.record(frame);
        readers.take_back(record.evicted_at.load(Relaxed), frame.0);
        record.was_read.store(1, Relaxed);
        newest.store(u64::from(frame.0) + 1, Release);
        Some(frame)
    }

    /// Takes back a large value that was evicted and waits.
    pub(crate) fn take_back_contents(&self, start: u32) -> Option<Box<[u8]>> {
        lock(&self.readers).take_back_contents(start)
    }

    /// A large value is gone: none that begins at this page is taken back.
    pub(crate) fn forget_contents(&self, start: u32) {
        lock(&self.readers).forget_contents(start);
    }

    /// Evicts the page of a frame, if it was not read for long, no older version of it is kept for
    /// snapshots, and the file contains it.
    fn try_evict(&self, frame: Frame, flushed: u64) -> bool {
        let record = self.record(frame);
        let page = record.page.load(Relaxed) as u32;
        let newest = self.newest(page);
        // A frame that is free, or that a transaction has, is not the newest one of a page.
        if newest.load(Acquire) != u64::from(frame.0) + 1 || record.older.load(Acquire) != 0 {
            return false;
        }
        if self.kept.words()[page as usize].load(Relaxed) >= flushed || record.was_read.swap(0, Relaxed) != 0 {
            return false;
        }
        newest.store(WAITS + u64::from(frame.0) + 1, Release);
        true
    }

    /// Frees the frames of evicted pages that no snapshot can have been lent.
    fn free_evicted(&self) {
        let mut readers = lock(&self.readers);
        let (frames, contents) = readers.take_evicted();
        for &frame in &frames {
            let newest = self.newest(self.record(Frame(frame)).page.load(Relaxed) as u32);
            // Another frame if the page was made again since then.
            let _ = newest.compare_exchange(WAITS + u64::from(frame) + 1, 0, Release, Relaxed);
        }
        drop(readers);
        drop(contents);
        lock(&self.unused).free.extend(frames);
    }

    /// Drops large values, each with its first page, when all readers that are registered now have ended.
    pub(crate) fn drop_later(&self, contents: Vec<Evicted>) {
        if !contents.is_empty() {
            lock(&self.readers).add_contents(contents);
        }
    }

    /// The last durable commit, and the pages of the file then.
    pub(crate) fn published(&self) -> (u64, u32) {
        lock(&self.readers).published
    }

    pub(crate) fn set_published(&self, version: u64, end: u32) {
        lock(&self.readers).published = (version, end);
    }

    /// Registers a reader of a version that is not older than the last durable commit, or that is
    /// registered.
    pub(crate) fn begin(&self, version: u64) -> Reader {
        lock(&self.readers).begin(version)
    }

    /// Registers a reader of the last durable commit. Returns it and the pages of the file then.
    pub(crate) fn begin_published(&self) -> (Reader, u32) {
        self.register(Readers::begin)
    }

    /// As [`Frames::begin_published`], of a reader that keeps no evicted page in memory. Its version never becomes
    /// too old.
    pub(crate) fn begin_published_pinned(&self) -> (Reader, u32) {
        self.register(Readers::begin_pinned)
    }

    /// Registers a reader of a version that is registered, which keeps no evicted page in memory. The version
    /// never becomes too old; `None` if it is.
    pub(crate) fn begin_pinned(&self, version: u64) -> Option<Reader> {
        let mut readers = lock(&self.readers);
        (!self.is_too_old(version)).then(|| readers.begin_pinned(version))
    }

    #[inline]
    fn register(&self, begin: impl FnOnce(&mut Readers, u64) -> Reader) -> (Reader, u32) {
        let mut readers = lock(&self.readers);
        let (version, end) = readers.published;
        (begin(&mut readers, version), end)
    }

    /// Ends a reader.
    pub(crate) fn end(&self, reader: Reader) {
        if lock(&self.readers).end(reader) {
            self.free_evicted();
        }
    }

    /// The oldest version that a reader has or the next one gets, where `version` is the newest one.
    pub(crate) fn oldest(&self, version: u64) -> u64 {
        lock(&self.readers).oldest(version)
    }

    /// Frees the frames that no snapshot can need, now that `version` is the newest one. If there are too
    /// many replaced ones, the oldest snapshots become too old: what they were lent stays until they end.
    pub(crate) fn reclaim(&self, version: u64) {
        let mut readers = lock(&self.readers);
        self.floor.store(readers.end_oldest(version), SeqCst);
        let mut unused = lock(&self.unused);
        while let Some(replaced) = readers.take_replaced(version) {
            // Whoever reads this page now stops at the newer frame.
            self.record(replaced.new).older.store(0, Release);
            if readers.is_lent(replaced, self.record(replaced.old).lent_to.load(SeqCst)) {
                readers.add_lent(replaced.old);
            } else {
                unused.free.push(replaced.old.0);
            }
        }
    }

    /// Frames that were used until now.
    #[cfg(test)]
    pub(crate) fn used(&self) -> u32 {
        lock(&self.unused).end
    }
}
