//! A lock-free table of ranges: memory outside the region, and reservations everywhere.
//!
//! Each word is a [`Span`] and changes by compare-exchange. Ranges are rounded to 64 KiB, so a word
//! may cover slightly more than its range. The table decides about huge-page advice and
//! attribution, never about allocation of addresses. If all words are in use, further ranges are
//! not recorded. Cost: one pass over the used words for each call that maps outside the region.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::PlacementReason;
use fieldstone_wire::span::{SPANS, Span, SpanKind, UNIT};

/// The table of this process.
pub(crate) static KNOWN_SPANS: SpanTable = SpanTable::new();

/// Memory that is served at addresses of the program's choice.
pub(crate) const OPENED: SpanKind = SpanKind::Memory(PlacementReason::InPlace);

/// A table of ranges.
pub(crate) struct SpanTable {
    words: [AtomicU64; SPANS],
    /// One past the highest word ever used.
    used: AtomicUsize,
}

impl SpanTable {
    const fn new() -> Self {
        Self { words: [const { AtomicU64::new(0) }; SPANS], used: AtomicUsize::new(0) }
    }

    /// The address of the words, for the supervisor.
    pub(crate) fn address(&self) -> u64 {
        self.words.as_ptr().addr() as u64
    }

    /// Records the use of a range and replaces what was recorded before.
    pub(crate) fn note(&self, address: usize, bytes: usize, holding: SpanKind) {
        let end = (address + bytes) as u64;
        let mut start = address as u64;
        while start < end {
            let span = Span::around(start, end - start, holding);
            self.cut(span);
            self.insert(span);
            start = span.end();
        }
    }

    /// Removes the whole units of a range that was unmapped.
    pub(crate) fn forget(&self, address: usize, bytes: usize) {
        let (mut start, end) = ((address as u64).next_multiple_of(UNIT), (address + bytes) as u64 / UNIT * UNIT);
        while start < end {
            let span = Span::around(start, end - start, SpanKind::Reserved);
            self.cut(span);
            start = span.end();
        }
    }

    /// Whether a part of the range has this use.
    pub(crate) fn has(&self, address: usize, bytes: usize, holding: SpanKind) -> bool {
        self.common(address..address + bytes, holding).any(|bytes| bytes > 0)
    }

    /// Whether all of the range has this use.
    pub(crate) fn covers(&self, address: usize, bytes: usize, holding: SpanKind) -> bool {
        self.common(address..address + bytes, holding).sum::<u64>() >= bytes as u64
    }

    fn common(&self, range: Range<usize>, holding: SpanKind) -> impl Iterator<Item = u64> {
        let spans = self.in_use().iter().filter_map(|word| Span::from_word(word.load(SeqCst)));
        let those = spans.filter(move |span| span.holding == holding);
        those.map(move |span| span.overlap(range.start as u64, range.end as u64))
    }

    fn in_use(&self) -> &[AtomicU64] {
        &self.words[..self.used.load(SeqCst).min(SPANS)]
    }

    /// Removes a range from all spans.
    fn cut(&self, range: Span) {
        for word in self.in_use() {
            let held = word.load(SeqCst);
            let Some(span) = Span::from_word(held).filter(|span| span.overlap(range.start(), range.end()) > 0) else {
                continue;
            };
            let [below, above] = span.without(range).map(Span::word);
            let (kept, rest) = if below == 0 { (above, 0) } else { (below, above) };
            // If another thread changes the word now, its change is the newer one.
            if word.compare_exchange(held, kept, SeqCst, SeqCst).is_ok()
                && let Some(rest) = Span::from_word(rest)
            {
                self.insert(rest);
            }
        }
    }

    /// Adds a span: merges it with an adjacent one of its kind, or stores it in an empty word.
    fn insert(&self, span: Span) {
        for word in self.in_use() {
            let held = word.load(SeqCst);
            if let Some(joined) = Span::from_word(held).and_then(|neighbour| neighbour.joined(span))
                && word.compare_exchange(held, joined.word(), SeqCst, SeqCst).is_ok()
            {
                return;
            }
        }
        for (position, word) in self.words.iter().enumerate() {
            if word.load(SeqCst) == 0 && word.compare_exchange(0, span.word(), SeqCst, SeqCst).is_ok() {
                self.used.fetch_max(position + 1, SeqCst);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const U: usize = UNIT as usize;

    #[test]
    fn neighbours_are_one_span_and_a_hole_makes_two() {
        let spans = SpanTable::new();
        spans.note(8 * U, 2 * U, OPENED);
        spans.note(6 * U, 2 * U, OPENED);
        spans.note(10 * U, 6 * U, OPENED);
        assert_eq!(spans.in_use().len(), 1);
        assert!(spans.covers(6 * U, 10 * U, OPENED) && !spans.covers(5 * U, 2 * U, OPENED));
        spans.note(9 * U, U, SpanKind::Reserved);
        assert!(spans.has(9 * U, 1, SpanKind::Reserved) && !spans.has(9 * U, U, OPENED));
        assert!(spans.covers(6 * U, 3 * U, OPENED) && spans.covers(10 * U, 6 * U, OPENED));
        spans.forget(6 * U + 1, 9 * U);
        assert!(spans.has(6 * U, U, OPENED), "a unit that is unmapped in part stays");
        assert!(!spans.has(7 * U, 8 * U, OPENED) && !spans.has(9 * U, U, SpanKind::Reserved));
    }

    #[test]
    fn a_range_longer_than_a_word_holds_is_noted_whole() {
        let spans = SpanTable::new();
        spans.note(1 << 40, 20 << 40, SpanKind::Reserved);
        assert!(spans.covers(1 << 40, 20 << 40, SpanKind::Reserved));
        spans.forget(1 << 40, 20 << 40);
        assert!(!spans.has(1 << 40, 20 << 40, SpanKind::Reserved));
    }

    #[test]
    fn a_full_table_loses_ranges_and_nothing_else() {
        let spans = SpanTable::new();
        (0..2 * SPANS).for_each(|at| spans.note(2 * at * U, U, OPENED));
        assert!(spans.has(0, U, OPENED) && !spans.has(3 * SPANS * U, U, OPENED));
        spans.forget(0, 4 * SPANS * U);
        spans.note(3 * SPANS * U, U, OPENED);
        assert!(spans.has(3 * SPANS * U, U, OPENED));
    }
}
