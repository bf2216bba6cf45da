//! The stacks of allocations and frees, each stored once.
//!
//! ```text
//! heads: [AtomicU32]    a chain for each value of the hash, as the number of its first entry
//! words: [AtomicUsize]  entry: [ hash 32 | length 32 ] [ next entry ] [ frame ] [ frame ] ...
//! ```
//! The number of a stack is the index of its entry in `words`; 0 is no stack. Entries are only
//! added: a thread reserves words by an addition, writes its entry, and links it by
//! compare-and-swap. If another thread was faster, only the entries that are new in the chain are
//! compared. Two threads that add one stack at the same time leave an unused entry behind.
//!
//! Invariant: the words of a linked entry but the first two never change, and those were written
//! before the link. So readers need no lock, also in signal handlers.
//! Cost: one load and one comparison of the frames for a known stack; 16 bytes and 8 for each frame.

use crate::finding::StackId;
use crate::sync::{AtomicU32, AtomicUsize, Ordering};

/// The most frames that are kept of one stack.
pub const MAX_FRAMES: usize = 64;

/// Words of an entry before its frames.
const HEADER: usize = 2;

/// The table, in memory of its owner that is zero at first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackTable<'a> {
    /// Its length is a power of two.
    pub(crate) heads: &'a [AtomicU32],
    /// The entries.
    pub(crate) words: &'a [AtomicUsize],
    /// The words in use; an unused word comes first.
    pub(crate) used: &'a AtomicUsize,
    /// The number of stacks.
    pub(crate) count: &'a AtomicUsize,
}

/// FNV-1a on words, folded so that the low bits depend on all frames.
fn hash(frames: &[usize]) -> u32 {
    let mix = |hash: u64, &frame: &usize| (hash ^ frame as u64).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    let hash = frames.iter().fold(0xcbf2_9ce4_8422_2325, mix);
    (hash ^ hash >> 32) as u32
}

impl StackTable<'_> {
    /// The number of a stack. [`StackId::NONE`] for no frames, and for a new stack if the table is
    /// full or `may_grow` refuses the bytes of its entry.
    pub(crate) fn insert(&self, frames: &[usize], may_grow: impl FnOnce(usize) -> bool) -> StackId {
        let frames = frames.get(..MAX_FRAMES).unwrap_or(frames);
        if frames.is_empty() {
            return StackId::NONE;
        }
        let hash = hash(frames);
        let Some(head) = self.heads.get(hash as usize & self.heads.len().wrapping_sub(1)) else {
            return StackId::NONE;
        };
        let mut first = head.load(Ordering::Acquire);
        if let Some(known) = self.find(first, 0, hash, frames) {
            return known;
        }
        let Some(entry) = self.reserve(HEADER + frames.len(), may_grow) else { return StackId::NONE };
        self.write(entry as usize, hash, frames);
        loop {
            self.store(entry as usize + 1, first as usize);
            match head.compare_exchange(first, entry, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => {
                    if let Some(known) = self.find(now, first, hash, frames) {
                        return known;
                    }
                    first = now;
                }
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        StackId(entry)
    }

    /// Copies the frames of a stack; returns how many.
    pub(crate) fn frames(&self, stack: StackId, into: &mut [usize]) -> usize {
        let entry = stack.0 as usize;
        if entry == 0 || entry >= self.used.load(Ordering::Acquire) {
            return 0;
        }
        let frames = self.words.get(entry + HEADER..).unwrap_or_default();
        let copies = into.iter_mut().zip(frames).take(self.load(entry) & 0xffff_ffff);
        copies.map(|(to, from)| *to = from.load(Ordering::Relaxed)).count()
    }

    /// Searches a chain from the entry `from` to the entry `to`, which is excluded.
    fn find(&self, from: u32, to: u32, hash: u32, frames: &[usize]) -> Option<StackId> {
        let mut entry = from;
        while entry != to {
            let at = entry as usize;
            let is_equal = || {
                let stored = self.words.get(at + HEADER..).unwrap_or_default();
                frames.iter().zip(stored).all(|(frame, stored)| stored.load(Ordering::Relaxed) == *frame)
            };
            if self.load(at) == header(hash, frames.len()) && is_equal() {
                return Some(StackId(entry));
            }
            entry = self.load(at + 1) as u32;
        }
        None
    }

    /// Reserves words; returns the index of the first.
    fn reserve(&self, count: usize, may_grow: impl FnOnce(usize) -> bool) -> Option<u32> {
        let limit = self.words.len().min(u32::MAX as usize);
        let used = self.used.load(Ordering::Relaxed).max(1);
        if used + count > limit || !may_grow(count * size_of::<usize>()) {
            return None;
        }
        let update = |used: usize| Some(used.max(1) + count).filter(|&used| used <= limit);
        let before = self.used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, update).ok()?;
        u32::try_from(before.max(1)).ok()
    }

    fn write(&self, entry: usize, hash: u32, frames: &[usize]) {
        self.store(entry, header(hash, frames.len()));
        for (at, &frame) in frames.iter().enumerate() {
            self.store(entry + HEADER + at, frame);
        }
    }

    fn load(&self, at: usize) -> usize {
        self.words.get(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn store(&self, at: usize, value: usize) {
        if let Some(word) = self.words.get(at) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

const fn header(hash: u32, length: usize) -> usize {
    (hash as usize) << 32 | length
}
