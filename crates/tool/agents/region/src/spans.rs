//! What is known of memory outside the region, and of reservations everywhere: a table of ranges without a lock.
//!
//! Each word is a [`Span`] and changes by compare-exchange. Ranges are rounded to 64 KiB, so a word may claim a little more
//! than is there: it decides about huge-page advice and attribution, never about who owns an address. When all words are
//! taken, further ranges are not noted. Cost: one pass over the words in use for each call that maps outside the region.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::PlacementReason;
use fieldstone_wire::span::{SPANS, Span, SpanKind, UNIT};

/// The table of this process.
pub(crate) static KNOWN: Spans = Spans::new();

/// Memory that is served at the program's own addresses.
pub(crate) const OPENED: SpanKind = SpanKind::Memory(PlacementReason::InPlace);

/// A table of ranges.
pub(crate) struct Spans {
    words: [AtomicU64; SPANS],
    /// Words that have been used so far.
    used: AtomicUsize,
}

impl Spans {
    const fn new() -> Self {
        Self { words: [const { AtomicU64::new(0) }; SPANS], used: AtomicUsize::new(0) }
    }

    /// Where the words lie, for the supervisor.
    pub(crate) fn address(&self) -> u64 {
        self.words.as_ptr().addr() as u64
    }

    /// Notes what a range holds, in place of what was noted before.
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

    /// Forgets the whole units of a range that was unmapped.
    pub(crate) fn forget(&self, address: usize, bytes: usize) {
        let (mut start, end) = ((address as u64).next_multiple_of(UNIT), (address + bytes) as u64 / UNIT * UNIT);
        while start < end {
            let span = Span::around(start, end - start, SpanKind::Reserved);
            self.cut(span);
            start = span.end();
        }
    }

    /// Whether some of the range holds that.
    pub(crate) fn has(&self, address: usize, bytes: usize, holding: SpanKind) -> bool {
        self.common(address..address + bytes, holding).any(|bytes| bytes > 0)
    }

    /// Whether all of the range holds that.
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

    /// Takes a range out of all spans.
    fn cut(&self, range: Span) {
        for word in self.in_use() {
            let held = word.load(SeqCst);
            let Some(span) = Span::from_word(held).filter(|span| span.overlap(range.start(), range.end()) > 0) else {
                continue;
            };
            let [below, above] = span.without(range).map(Span::word);
            let (kept, rest) = if below == 0 { (above, 0) } else { (below, above) };
            // Another thread that changes the word at this moment knows better.
            if word.compare_exchange(held, kept, SeqCst, SeqCst).is_ok()
                && let Some(rest) = Span::from_word(rest)
            {
                self.insert(rest);
            }
        }
    }

    /// Adds a span: joined to a neighbour of its kind, or in an empty word.
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
        let spans = Spans::new();
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
        let spans = Spans::new();
        spans.note(1 << 40, 20 << 40, SpanKind::Reserved);
        assert!(spans.covers(1 << 40, 20 << 40, SpanKind::Reserved));
        spans.forget(1 << 40, 20 << 40);
        assert!(!spans.has(1 << 40, 20 << 40, SpanKind::Reserved));
    }

    #[test]
    fn a_full_table_loses_ranges_and_nothing_else() {
        let spans = Spans::new();
        (0..2 * SPANS).for_each(|at| spans.note(2 * at * U, U, OPENED));
        assert!(spans.has(0, U, OPENED) && !spans.has(3 * SPANS * U, U, OPENED));
        spans.forget(0, 4 * SPANS * U);
        spans.note(3 * SPANS * U, U, OPENED);
        assert!(spans.has(3 * SPANS * U, U, OPENED));
    }
}
