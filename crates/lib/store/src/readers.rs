//! The readers of each version, and the frames that are kept for them.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::extent::Evicted;
use crate::frames::Frame;

/// A snapshot or a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reader {
    /// The commit whose state it reads.
    pub(crate) version: u64,
    /// Evictions before it began.
    evictions: u64,
    /// Whether its version is kept beyond the bound of old versions.
    is_pinned: bool,
}

/// A version of a page that was replaced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replaced {
    /// The commit that has replaced it.
    pub(crate) by: u64,
    pub(crate) old: Frame,
    pub(crate) new: Frame,
}

/// The readers, and what is kept for them.
#[derive(Debug)]
pub(crate) struct Readers {
    /// The last commit that is durable, and the pages of the file then.
    pub(crate) published: (u64, u32),
    /// The readers that began with the same commit and the same number of evictions as the last one: only
    /// their number is kept, because most readers begin and end between two commits.
    last: Reader,
    last_count: usize,
    /// How many others there are of each version, and since each number of evictions.
    by_version: BTreeMap<u64, usize>,
    by_evictions: BTreeMap<u64, usize>,
    pinned: BTreeMap<u64, usize>,
    /// Versions below this one are too old: they are read no more.
    floor: u64,
    /// Replaced versions of pages that are kept at most.
    most_replaced: usize,
    /// Versions that were replaced, oldest first.
    replaced: VecDeque<Replaced>,
    /// Replaced versions that a reader was lent that is too old, with the number of the eviction.
    lent: VecDeque<(u64, u32)>,
    /// Frames that were evicted, with the number of the eviction.
    evicted: BTreeSet<(u64, u32)>,
    /// Large values that were evicted, by the number of the eviction and the first page.
    contents: BTreeMap<(u64, u32), Box<[u8]>>,
    /// The last evictions of large values that can be taken back, by their first pages.
    last_evictions: HashMap<u32, u64>,
    evictions: u64,
}

/// Removes one from a count.
fn remove(counts: &mut BTreeMap<u64, usize>, key: u64) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

impl Default for Readers {
    fn default() -> Self {
        Self {
            published: (0, 0),
            last: Reader::default(),
            last_count: 0,
            by_version: BTreeMap::new(),
            by_evictions: BTreeMap::new(),
            pinned: BTreeMap::new(),
            floor: 0,
            most_replaced: usize::MAX,
            replaced: VecDeque::new(),
            lent: VecDeque::new(),
            evicted: BTreeSet::new(),
            contents: BTreeMap::new(),
            last_evictions: HashMap::new(),
            evictions: 0,
        }
    }
}

impl Readers {
    pub(crate) fn begin(&mut self, version: u64) -> Reader {
        self.add(Reader { version, evictions: self.evictions, is_pinned: false })
    }

    /// Begins a reader for which its version is kept, which never becomes too old, but no page that is evicted.
    pub(crate) fn begin_pinned(&mut self, version: u64) -> Reader {
        *self.pinned.entry(version).or_default() += 1;
        self.add(Reader { version, evictions: u64::MAX, is_pinned: true })
    }

    fn add(&mut self, reader: Reader) -> Reader {
        if self.last != reader {
            if self.last_count > 0 {
                *self.by_version.entry(self.last.version).or_default() += self.last_count;
                *self.by_evictions.entry(self.last.evictions).or_default() += self.last_count;
            }
            (self.last, self.last_count) = (reader, 0);
        }
        self.last_count += 1;
        reader
    }

    /// Ends a reader. Returns whether evicted frames wait for the end of readers.
    pub(crate) fn end(&mut self, reader: Reader) -> bool {
        if self.last == reader && self.last_count > 0 {
            self.last_count -= 1;
        } else {
            remove(&mut self.by_version, reader.version);
            remove(&mut self.by_evictions, reader.evictions);
        }
        if reader.is_pinned {
            remove(&mut self.pinned, reader.version);
        }
        !(self.evicted.is_empty() && self.contents.is_empty() && self.lent.is_empty())
    }

    /// The oldest version that is read, now or by the next reader: it reads `newest`, while a transaction
    /// may read a later one that is not durable yet.
    pub(crate) fn oldest(&self, newest: u64) -> u64 {
        self.oldest_from(0).unwrap_or(newest).min(newest)
    }

    /// The readers like the last one, if there are any.
    fn last(&self) -> Option<Reader> {
        (self.last_count > 0).then_some(self.last)
    }

    /// The least number of evictions before a reader began.
    fn least_eviction(&self) -> Option<u64> {
        let others = self.by_evictions.first_key_value().map(|(&evictions, _)| evictions);
        others.into_iter().chain(self.last().map(|last| last.evictions)).min()
    }

    pub(crate) fn add_replaced(&mut self, replaced: Replaced) {
        self.replaced.push_back(replaced);
    }

    /// Limits the replaced versions that are kept.
    pub(crate) const fn limit_replaced(&mut self, versions: usize) {
        self.most_replaced = versions;
    }

    /// The oldest version from `first` on that is read.
    fn oldest_from(&self, first: u64) -> Option<u64> {
        let others = self.by_version.range(first..).next().map(|(&version, _)| version);
        let last = self.last().map(|last| last.version).filter(|&version| version >= first);
        others.into_iter().chain(last).min()
    }

    /// The oldest version that is not too old and that is read, now or by the next reader.
    fn oldest_kept(&self, newest: u64) -> u64 {
        self.oldest_from(self.floor).map_or(newest, |oldest| oldest.min(newest))
    }

    /// Ends versions, the oldest first, until the replaced ones that others need are within their bound.
    /// Returns the first version that is not too old.
    pub(crate) fn end_oldest(&mut self, newest: u64) -> u64 {
        let most = self.pinned.first_key_value().map_or(newest, |(&pinned, _)| pinned.min(newest));
        while self.replaced.len() > self.most_replaced {
            let oldest = self.oldest_kept(newest);
            let kept = self.replaced.len() - self.replaced.partition_point(|replaced| replaced.by <= oldest);
            if kept <= self.most_replaced || oldest >= most {
                break;
            }
            self.floor = oldest + 1;
        }
        self.floor
    }

    /// The oldest replaced version, if no reader can need it now that `newest` is the newest one.
    pub(crate) fn take_replaced(&mut self, newest: u64) -> Option<Replaced> {
        let oldest = self.oldest_kept(newest);
        self.replaced.pop_front_if(|replaced| replaced.by <= oldest)
    }

    /// Whether a reader that is too old may use a replaced version, which was lent to `lent_to` and later ones.
    pub(crate) fn is_lent(&self, replaced: Replaced, lent_to: u64) -> bool {
        self.oldest_from(lent_to).is_some_and(|version| version < replaced.by)
    }

    /// Adds a replaced version that stays until the readers of now have ended.
    pub(crate) fn add_lent(&mut self, frame: Frame) {
        self.evictions += 1;
        self.lent.push_back((self.evictions, frame.0));
    }

    /// Adds frames of pages that were just evicted. Returns the number of the eviction.
    pub(crate) fn add_evicted(&mut self, frames: &[u32]) -> u64 {
        self.evictions += 1;
        self.evicted.extend(frames.iter().map(|&frame| (self.evictions, frame)));
        self.evictions
    }

    /// Takes back a frame of an eviction.
    pub(crate) fn take_back(&mut self, eviction: u64, frame: u32) {
        self.evicted.remove(&(eviction, frame));
    }

    /// Adds large values that were just evicted, each with its first page.
    pub(crate) fn add_contents(&mut self, contents: Vec<Evicted>) {
        self.evictions += 1;
        for (start, contents) in contents {
            self.last_evictions.insert(start, self.evictions);
            self.contents.insert((self.evictions, start), contents);
        }
    }

    /// Takes back an evicted large value.
    pub(crate) fn take_back_contents(&mut self, start: u32) -> Option<Box<[u8]>> {
        let eviction = self.last_evictions.remove(&start)?;
        self.contents.remove(&(eviction, start))
    }

    /// An evicted large value cannot be taken back any more.
    pub(crate) fn forget_contents(&mut self, start: u32) {
        self.last_evictions.remove(&start);
    }

    /// Evicted frames that readers may still use.
    pub(crate) fn waiting(&self) -> usize {
        self.evicted.len()
    }

    /// The evicted frames and large values that no reader can use: all of them began later.
    pub(crate) fn take_evicted(&mut self) -> (Vec<u32>, Vec<Box<[u8]>>) {
        // What was evicted before the reader began that began first.
        let end = (self.least_eviction().map_or(u64::MAX, |oldest| oldest.saturating_add(1)), 0);
        let later = self.evicted.split_off(&end);
        let mut frames: Vec<u32> = std::mem::replace(&mut self.evicted, later).into_iter().map(|of| of.1).collect();
        while let Some((_, frame)) = self.lent.pop_front_if(|lent| *lent < end) {
            frames.push(frame);
        }
        let later = self.contents.split_off(&end);
        let mut dropped = Vec::new();
        for ((eviction, start), contents) in std::mem::replace(&mut self.contents, later) {
            if self.last_evictions.get(&start) == Some(&eviction) {
                self.last_evictions.remove(&start);
            }
            dropped.push(contents);
        }
        (frames, dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_version_is_that_of_any_reader() {
        let mut readers = Readers::default();
        let (first, second) = (readers.begin(3), readers.begin(3));
        let later = readers.begin(5);
        assert_eq!((readers.oldest(9), readers.oldest(2)), (3, 2));
        // One of each reader that is counted with others, and of the last one.
        readers.end(first);
        assert_eq!(readers.oldest(9), 3);
        let again = readers.begin(3);
        readers.end(second);
        assert_eq!(readers.oldest(9), 3);
        readers.end(again);
        assert_eq!(readers.oldest(9), 5);
        readers.end(later);
        assert_eq!(readers.oldest(9), 9);
    }

    #[test]
    fn evicted_frames_are_kept_for_readers_that_began_before() {
        let mut readers = Readers::default();
        let first = readers.begin(1);
        readers.add_evicted(&[7]);
        let second = readers.begin(1);
        readers.add_evicted(&[8]);
        assert_eq!(readers.take_evicted().0, []);
        assert!(readers.end(first));
        assert_eq!(readers.take_evicted().0, [7]);
        assert!(readers.end(second));
        assert_eq!(readers.take_evicted().0, [8]);
    }

    #[test]
    fn an_evicted_large_value_is_taken_back_once_unless_it_is_gone() {
        let mut readers = Readers::default();
        let reader = readers.begin(1);
        let value = |byte| vec![byte; 3].into_boxed_slice();
        readers.add_contents(vec![(10, value(1)), (20, value(2))]);
        assert_eq!(readers.take_back_contents(10), Some(value(1)));
        assert_eq!(readers.take_back_contents(10), None);
        // The pages have another value now.
        readers.forget_contents(20);
        readers.add_contents(vec![(20, value(3))]);
        assert_eq!(readers.take_back_contents(20), Some(value(3)));
        readers.add_contents(vec![(20, value(4))]);
        assert!(readers.end(reader));
        assert_eq!(readers.take_evicted().1, [value(2), value(4)]);
        assert_eq!(readers.take_back_contents(20), None);
    }
}
