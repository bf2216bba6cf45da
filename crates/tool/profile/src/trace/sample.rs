//! Pieces of the trace that are kept, to be replayed: evenly from the whole run, in no more memory than a fixed size.
//!
//! ```text
//!   weights        1 1 1 1  2   2   4       4       what a piece stands for
//!   places         . . . .  . . . . . . . . . . . .
//!   every fourth   ^        ^       ^       ^       a piece is kept if such a place lies in it
//! ```
//! No piece is kept twice: replayed twice it would be other memory than the program's. So places lie at least as far apart as the
//! heaviest piece is long, when all have gone by. Pieces that walk little are left out: replayed, they would add
//! to the price of a walk what is none of its.

use std::ops::Range;

use fieldstone_wire::trace::{CHASES, Record};

/// Addresses that are kept at most, of the run and of a burst.
const MAX_ADDRESSES: usize = 1 << 20;
const MAX_BURST_ADDRESSES: usize = 1 << 17;

/// A piece with fewer walks an address than this part of the average is left out. All such pieces together have less than this part of the
/// walks, which get the price of the others; what else 4 KiB pages cost them (translations that only the first TLB lacks) would be taken for
/// that of their walks.
const MIN_RELATIVE_WALKS: f64 = 0.5;

/// The walks of a piece or more, and what was judged of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkCounts {
    /// All of them.
    pub all: u64,
    /// Those that were judged.
    pub classified: u64,
    /// Those of these that waited for an address.
    pub dependent: u64,
    /// Those of these of which the instruction itself tells, beyond doubt.
    pub certain: u64,
}

impl WalkCounts {
    /// Of their records.
    pub(super) fn of(records: impl Iterator<Item = Record>) -> Self {
        records.fold(Self::default(), |mut walks, record| {
            let dependent = record.depends();
            walks.all += 1;
            walks.classified += u64::from(dependent.is_some());
            walks.dependent += u64::from(dependent == Some(true));
            walks.certain += u64::from(dependent == Some(true) && record.has(CHASES));
            walks
        })
    }

    fn add(&mut self, other: Self) {
        self.all += other.all;
        self.classified += other.classified;
        self.dependent += other.dependent;
        self.certain += other.certain;
    }
}

/// So many judged walks speak for a stretch.
const MIN_CLASSIFIED: u64 = 64;

/// Every so many-th piece of the trace.
#[derive(Clone, Debug)]
pub struct AddressSample {
    max_addresses: usize,
    pieces: Vec<Piece>,
    interval: u64,
    kept_addresses: usize,
    /// Places that all pieces took which went by.
    positions: u64,
    /// Their addresses and walks, each piece's as often as it counts.
    totals: StreamTotals,
}

/// Addresses that went by, and how many walks they had.
#[derive(Clone, Copy, Debug, Default)]
struct StreamTotals {
    addresses: f64,
    walks: f64,
}

impl StreamTotals {
    fn add(&mut self, other: Self, weight: u64) {
        self.addresses += other.addresses * weight as f64;
        self.walks += other.walks * weight as f64;
    }
}

#[derive(Clone, Debug)]
struct Piece {
    positions: Range<u64>,
    addresses: Vec<u64>,
    walks: WalkCounts,
}

impl Piece {
    fn totals(&self) -> StreamTotals {
        StreamTotals { addresses: self.addresses.len() as f64, walks: self.walks.all as f64 }
    }

    /// Whether it has hardly any walks, as far as `all` have some.
    fn has_few_walks(&self, all: StreamTotals) -> bool {
        let own = self.totals();
        own.walks * all.addresses < MIN_RELATIVE_WALKS * all.walks * own.addresses
    }
}

impl Default for AddressSample {
    fn default() -> Self {
        Self { max_addresses: MAX_ADDRESSES, pieces: Vec::new(), interval: 1, kept_addresses: 0, positions: 0, totals: StreamTotals::default() }
    }
}

impl AddressSample {
    /// Of one burst.
    pub(super) fn for_burst() -> Self {
        Self { max_addresses: MAX_BURST_ADDRESSES, ..Self::default() }
    }

    /// The pieces of a burst go by, each of which counts so often. What was not kept of it counts with what was.
    pub(super) fn add_burst(&mut self, burst: Self, weight: u64) {
        self.totals.add(burst.totals, weight);
        for piece in burst.pieces {
            let positions = self.advance(weight * burst.interval);
            if is_kept(&positions, self.interval) {
                self.keep(Piece { positions, ..piece });
            }
        }
    }

    /// A piece goes by that counts so often.
    pub(crate) fn add_piece(&mut self, addresses: impl Iterator<Item = u64>, walks: WalkCounts, weight: u64) {
        let positions = self.advance(weight);
        if is_kept(&positions, self.interval) {
            let piece = Piece { positions, addresses: addresses.collect(), walks };
            self.totals.add(piece.totals(), weight);
            self.keep(piece);
        } else {
            self.totals.add(StreamTotals { addresses: addresses.count() as f64, walks: walks.all as f64 }, weight);
        }
    }

    /// The next so many places.
    fn advance(&mut self, weight: u64) -> Range<u64> {
        let first = self.positions;
        self.positions += weight;
        first..self.positions
    }

    /// Keeps a piece, if it walks, and as many of all as there is room for.
    fn keep(&mut self, piece: Piece) {
        if piece.has_few_walks(self.totals) {
            return;
        }
        self.kept_addresses += piece.addresses.len();
        self.pieces.push(piece);
        while self.kept_addresses > self.max_addresses && self.pieces.len() > 1 {
            self.thin();
        }
    }

    /// Lets go of what turned out to walk little, or else of half of the places.
    fn thin(&mut self) {
        let (totals, before) = (self.totals, self.pieces.len());
        self.pieces.retain(|piece| !piece.has_few_walks(totals));
        if self.pieces.len() == before {
            self.interval *= 2;
            let interval = self.interval;
            self.pieces.retain(|piece| is_kept(&piece.positions, interval));
        }
        self.kept_addresses = self.pieces.iter().map(|piece| piece.addresses.len()).sum();
    }

    /// The pieces that are kept in the end, in order.
    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        let walking = || self.pieces.iter().filter(|piece| !piece.has_few_walks(self.totals));
        let heaviest = walking().map(|piece| piece.positions.end - piece.positions.start).max().unwrap_or(1);
        let interval = self.interval.max(heaviest);
        walking().filter(move |piece| is_kept(&piece.positions, interval))
    }

    /// What was kept, in order.
    #[must_use]
    pub fn addresses(&self) -> Vec<u64> {
        self.pieces().flat_map(|piece| &piece.addresses).copied().collect()
    }

    /// The same addresses, as stretches of so many, and their walks: as short as enough were judged for.
    #[must_use]
    pub fn phases(&self) -> Vec<(usize, WalkCounts)> {
        let mut phases: Vec<(usize, WalkCounts)> = Vec::new();
        for piece in self.pieces() {
            match phases.last_mut().filter(|(_, walks)| walks.classified < MIN_CLASSIFIED) {
                Some((loads, walks)) => {
                    *loads += piece.addresses.len();
                    walks.add(piece.walks);
                }
                None => phases.push((piece.addresses.len(), piece.walks)),
            }
        }
        phases
    }
}

/// Whether one of every `each` places is among these.
const fn is_kept(positions: &Range<u64>, interval: u64) -> bool {
    positions.start.next_multiple_of(interval) < positions.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_trace_is_kept_evenly_and_never_whole() {
        let mut sample = AddressSample::default();
        const PIECE: u64 = 1 << 14;
        const PIECES: u64 = 3000;
        for piece in 0..PIECES {
            sample.add_piece(piece * PIECE..(piece + 1) * PIECE, WalkCounts::default(), 1);
        }
        let kept_addresses = sample.addresses();
        assert!(kept_addresses.len() <= MAX_ADDRESSES && kept_addresses.len() > MAX_ADDRESSES / 4, "{}", kept_addresses.len());
        assert!(kept_addresses.is_sorted());
        let middle = kept_addresses[kept_addresses.len() / 2];
        assert!((PIECES * PIECE / 3..PIECES * PIECE * 2 / 3).contains(&middle), "{middle}");
    }

    #[test]
    fn a_short_one_is_kept_whole() {
        let mut sample = AddressSample::default();
        sample.add_piece([3, 1, 2].into_iter(), WalkCounts::default(), 1);
        sample.add_piece([7].into_iter(), WalkCounts::default(), 1);
        assert_eq!(sample.addresses(), [3, 1, 2, 7]);
    }

    #[test]
    fn a_stretch_is_as_short_as_what_was_judged_allows() {
        let mut sample = AddressSample::default();
        let classified = |classified, dependent| WalkCounts { all: 100, classified, dependent, certain: 0 };
        for (addresses, of) in [(10, classified(40, 0)), (10, classified(30, 0)), (5, classified(70, 70)), (1, classified(3, 1))] {
            sample.add_piece(0..addresses, of, 1);
        }
        assert_eq!(
            sample.phases(),
            [(20, WalkCounts { all: 200, ..classified(70, 0) }), (5, classified(70, 70)), (1, classified(3, 1))]
        );
        let loads: usize = sample.phases().iter().map(|(loads, _)| loads).sum();
        assert_eq!(loads, sample.addresses().len());
    }

    #[test]
    fn what_an_instruction_tells_is_beyond_doubt() {
        let record = Record::data(0x1008);
        let all = [record, record.judged(false), record.judged(true), record.with(CHASES).classified(true)];
        assert_eq!(WalkCounts::of(all.into_iter()), WalkCounts { all: 4, classified: 3, dependent: 2, certain: 1 });
    }

    #[test]
    fn heavy_pieces_are_kept_as_much_more_often() {
        for pieces in [800_u64, 80_000] {
            let mut sample = AddressSample::default();
            // As many of each kind, of a hundred addresses.
            for piece in 0..pieces {
                let weight = if piece < pieces / 2 { 1 } else { 4 };
                sample.add_piece(std::iter::repeat_n(weight, 100), WalkCounts::default(), weight);
            }
            let kept_addresses = sample.addresses();
            let of = |weight| kept_addresses.iter().filter(|&&address| address == weight).count() as f64;
            assert!((3.9..4.1).contains(&(of(4) / of(1))), "{} to {}", of(4), of(1));
            assert!(kept_addresses.len() > MAX_ADDRESSES / 4 || pieces == 800 && of(4) == (pieces / 2 * 100) as f64, "{}", kept_addresses.len());
        }
    }

    #[test]
    fn what_hardly_walks_is_left_out_as_soon_as_that_is_known() {
        let walks = |all| WalkCounts { all, ..WalkCounts::default() };
        let mut sample = AddressSample::default();
        // Ten thousand pieces that walk a little, before and after as many that walk a hundred times as often.
        for (first, walks) in [(0, walks(1)), (1, walks(100)), (2, walks(1))] {
            (0..10_000).for_each(|_| sample.add_piece(std::iter::repeat_n(first, 100), walks, 1));
        }
        let kept_addresses = sample.addresses();
        assert!(kept_addresses.iter().all(|&address| address == 1));
        assert_eq!(kept_addresses.len(), 1_000_000, "the first to go are those that hardly walk");
        assert_eq!(sample.phases().iter().map(|(loads, _)| loads).sum::<usize>(), kept_addresses.len());
    }

    #[test]
    fn a_burst_tells_of_what_was_not_kept_of_it() {
        let walks = |all| WalkCounts { all, ..WalkCounts::default() };
        let mut sample = AddressSample::default();
        for (address, walks, pieces) in [(1, walks(4), 100), (2, walks(40), 3000)] {
            let mut burst = AddressSample::for_burst();
            (0..pieces).for_each(|_| burst.add_piece(std::iter::repeat_n(address, 100), walks, 1));
            sample.add_burst(burst, 1);
        }
        // On average 0.388 an address, of which 0.04 is little.
        assert!(sample.addresses().iter().all(|&address| address == 2));
    }
}
