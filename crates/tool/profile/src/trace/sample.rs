//! Sample pieces of the trace for a replay: evenly from the whole run, in bounded memory.
//!
//! ```text
//!   weights        1 1 1 1  2   2   4       4       the part of the run that a piece represents
//!   positions      . . . .  . . . . . . . . . . . .
//!   every fourth   ^        ^       ^       ^       a piece is kept if it covers such a position
//! ```
//! Systematic sampling by weight. When memory is full, the sampling interval doubles. In the end it
//! is at least as long as the heaviest piece, so no piece is sampled twice: a repetition would
//! change the program's locality. Pieces with few walks are dropped, because their other costs
//! would distort the price of a walk.
//!
//! Cost: at most 2^20 addresses, 8 MiB.

use std::ops::Range;

use fieldstone_wire::trace::{CHASES, Record};

/// Maximum number of kept addresses, of a run and of a burst.
const MAX_ADDRESSES: usize = 1 << 20;
const MAX_BURST_ADDRESSES: usize = 1 << 17;

/// A piece with fewer walks per address than this part of the average is dropped. All such pieces
/// together have less than this part of the walks, which get the price of the other walks. If they
/// were kept, their misses of only the first-level TLB would count as a cost of their walks.
const MIN_RELATIVE_WALKS: f64 = 0.5;

/// Walks, and how many of them depend on a loaded address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DependenceCounts {
    /// All walks.
    pub all: u64,
    /// Walks whose dependence was classified.
    pub classified: u64,
    /// Classified walks that waited for a loaded address.
    pub dependent: u64,
    /// Dependent walks that are certain from the instruction alone.
    pub certain: u64,
}

impl DependenceCounts {
    /// Counts the walks of these records.
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

/// Minimum number of classified walks per phase.
const MIN_CLASSIFIED: u64 = 64;

/// A systematic sample of the pieces of a trace.
#[derive(Clone, Debug)]
pub struct AddressSample {
    max_addresses: usize,
    pieces: Vec<Piece>,
    interval: u64,
    kept_addresses: usize,
    /// End of the positions that all pieces cover.
    positions: u64,
    /// Weighted addresses and walks of all pieces, including dropped ones.
    totals: StreamTotals,
}

/// The weighted numbers of addresses and walks in a stream of pieces.
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
    walks: DependenceCounts,
}

impl Piece {
    fn totals(&self) -> StreamTotals {
        StreamTotals { addresses: self.addresses.len() as f64, walks: self.walks.all as f64 }
    }

    /// Whether it has few walks per address compared with `all`.
    fn has_few_walks(&self, all: StreamTotals) -> bool {
        let own = self.totals();
        own.walks * all.addresses < MIN_RELATIVE_WALKS * all.walks * own.addresses
    }
}

impl Default for AddressSample {
    fn default() -> Self {
        Self {
            max_addresses: MAX_ADDRESSES,
            pieces: Vec::new(),
            interval: 1,
            kept_addresses: 0,
            positions: 0,
            totals: StreamTotals::default(),
        }
    }
}

impl AddressSample {
    /// An empty sample for one burst.
    pub(super) fn for_burst() -> Self {
        Self { max_addresses: MAX_BURST_ADDRESSES, ..Self::default() }
    }

    /// Adds the pieces of a burst, each with this weight. The totals include pieces that the burst
    /// dropped.
    pub(super) fn add_burst(&mut self, burst: Self, weight: u64) {
        self.totals.add(burst.totals, weight);
        for piece in burst.pieces {
            let positions = self.advance(weight * burst.interval);
            if is_kept(&positions, self.interval) {
                self.keep(Piece { positions, ..piece });
            }
        }
    }

    /// Adds a piece with this weight.
    pub(crate) fn add_piece(&mut self, addresses: impl Iterator<Item = u64>, walks: DependenceCounts, weight: u64) {
        let positions = self.advance(weight);
        if is_kept(&positions, self.interval) {
            let piece = Piece { positions, addresses: addresses.collect(), walks };
            self.totals.add(piece.totals(), weight);
            self.keep(piece);
        } else {
            self.totals.add(StreamTotals { addresses: addresses.count() as f64, walks: walks.all as f64 }, weight);
        }
    }

    /// The next `weight` positions.
    fn advance(&mut self, weight: u64) -> Range<u64> {
        let first = self.positions;
        self.positions += weight;
        first..self.positions
    }

    /// Keeps a piece with enough walks, and thins the sample if it is too large.
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

    /// Drops the pieces that have few walks by now; if there are none, doubles the interval.
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

    /// The pieces of the final sample, in order.
    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        let walking = || self.pieces.iter().filter(|piece| !piece.has_few_walks(self.totals));
        let heaviest = walking().map(|piece| piece.positions.end - piece.positions.start).max().unwrap_or(1);
        let interval = self.interval.max(heaviest);
        walking().filter(move |piece| is_kept(&piece.positions, interval))
    }

    /// The sampled addresses, in order.
    #[must_use]
    pub fn addresses(&self) -> Vec<u64> {
        self.pieces().flat_map(|piece| &piece.addresses).copied().collect()
    }

    /// The lengths of phases of the sampled addresses, with their walks; each with at least 64
    /// classified walks, except the last.
    #[must_use]
    pub fn phases(&self) -> Vec<(usize, DependenceCounts)> {
        let mut phases: Vec<(usize, DependenceCounts)> = Vec::new();
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

/// Whether the positions include a multiple of `interval`.
const fn is_kept(positions: &Range<u64>, interval: u64) -> bool {
    positions.start.next_multiple_of(interval) < positions.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_trace_is_sampled_evenly() {
        let mut sample = AddressSample::default();
        const PIECE: u64 = 1 << 14;
        const PIECES: u64 = 3000;
        for piece in 0..PIECES {
            sample.add_piece(piece * PIECE..(piece + 1) * PIECE, DependenceCounts::default(), 1);
        }
        let kept = sample.addresses();
        assert!(kept.len() <= MAX_ADDRESSES && kept.len() > MAX_ADDRESSES / 4, "{}", kept.len());
        assert!(kept.is_sorted());
        let middle = kept[kept.len() / 2];
        assert!((PIECES * PIECE / 3..PIECES * PIECE * 2 / 3).contains(&middle), "{middle}");
    }

    #[test]
    fn a_short_trace_is_kept_whole() {
        let mut sample = AddressSample::default();
        sample.add_piece([3, 1, 2].into_iter(), DependenceCounts::default(), 1);
        sample.add_piece([7].into_iter(), DependenceCounts::default(), 1);
        assert_eq!(sample.addresses(), [3, 1, 2, 7]);
    }

    #[test]
    fn phases_are_as_short_as_the_classified_walks_allow() {
        let mut sample = AddressSample::default();
        let piece = |classified, dependent| DependenceCounts { all: 100, classified, dependent, certain: 0 };
        for (addresses, of) in [(10, piece(40, 0)), (10, piece(30, 0)), (5, piece(70, 70)), (1, piece(3, 1))] {
            sample.add_piece(0..addresses, of, 1);
        }
        assert_eq!(
            sample.phases(),
            [(20, DependenceCounts { all: 200, ..piece(70, 0) }), (5, piece(70, 70)), (1, piece(3, 1))]
        );
        let loads: usize = sample.phases().iter().map(|(loads, _)| loads).sum();
        assert_eq!(loads, sample.addresses().len());
    }

    #[test]
    fn a_dependence_within_an_instruction_is_certain() {
        let record = Record::data(0x1008);
        let all = [
            record,
            record.with_dependence(false),
            record.with_dependence(true),
            record.with(CHASES).with_dependence(true),
        ];
        assert_eq!(
            DependenceCounts::of(all.into_iter()),
            DependenceCounts { all: 4, classified: 3, dependent: 2, certain: 1 }
        );
    }

    #[test]
    fn pieces_are_kept_in_proportion_to_their_weight() {
        for pieces in [800_u64, 80_000] {
            let mut sample = AddressSample::default();
            // Half of the pieces have weight 1, half weight 4, all 100 addresses.
            for piece in 0..pieces {
                let weight = if piece < pieces / 2 { 1 } else { 4 };
                sample.add_piece(std::iter::repeat_n(weight, 100), DependenceCounts::default(), weight);
            }
            let kept = sample.addresses();
            let of = |weight| kept.iter().filter(|&&address| address == weight).count() as f64;
            assert!((3.9..4.1).contains(&(of(4) / of(1))), "{} to {}", of(4), of(1));
            assert!(
                kept.len() > MAX_ADDRESSES / 4 || pieces == 800 && of(4) == (pieces / 2 * 100) as f64,
                "{}",
                kept.len()
            );
        }
    }

    #[test]
    fn pieces_with_few_walks_are_dropped_first() {
        let walks = |all| DependenceCounts { all, ..DependenceCounts::default() };
        let mut sample = AddressSample::default();
        // Ten thousand pieces with few walks, as many with 100 times the rate, and again as many
        // with few walks.
        for (first, walks) in [(0, walks(1)), (1, walks(100)), (2, walks(1))] {
            (0..10_000).for_each(|_| sample.add_piece(std::iter::repeat_n(first, 100), walks, 1));
        }
        let kept = sample.addresses();
        assert!(kept.iter().all(|&address| address == 1));
        assert_eq!(kept.len(), 1_000_000, "pieces with few walks are dropped before the interval grows");
        assert_eq!(sample.phases().iter().map(|(loads, _)| loads).sum::<usize>(), kept.len());
    }

    #[test]
    fn the_totals_of_a_burst_include_dropped_pieces() {
        let walks = |all| DependenceCounts { all, ..DependenceCounts::default() };
        let mut sample = AddressSample::default();
        for (address, walks, pieces) in [(1, walks(4), 100), (2, walks(40), 3000)] {
            let mut burst = AddressSample::for_burst();
            (0..pieces).for_each(|_| burst.add_piece(std::iter::repeat_n(address, 100), walks, 1));
            sample.add_burst(burst, 1);
        }
        // The average is 0.388 walks per address, so 0.04 is below half of it.
        assert!(sample.addresses().iter().all(|&address| address == 2));
    }
}
