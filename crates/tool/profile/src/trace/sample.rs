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
const MOST: usize = 1 << 20;
const MOST_OF_BURST: usize = 1 << 17;

/// A piece with fewer walks an address than this part of the average is left out. All such pieces together have less than this part of the
/// walks, which get the price of the others; what else 4 KiB pages cost them (translations that only the first TLB lacks) would be taken for
/// that of their walks.
const FEW: f64 = 0.5;

/// The walks of a piece or more, and what was judged of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walks {
    /// All of them.
    pub all: u64,
    /// Those that were judged.
    pub judged: u64,
    /// Those of these that waited for an address.
    pub waited: u64,
    /// Those of these of which the instruction itself tells, beyond doubt.
    pub surely: u64,
}

impl Walks {
    /// Of their records.
    pub(super) fn of(records: impl Iterator<Item = Record>) -> Self {
        records.fold(Self::default(), |mut walks, record| {
            let waited = record.depends();
            walks.all += 1;
            walks.judged += u64::from(waited.is_some());
            walks.waited += u64::from(waited == Some(true));
            walks.surely += u64::from(waited == Some(true) && record.has(CHASES));
            walks
        })
    }

    fn add(&mut self, other: Self) {
        self.all += other.all;
        self.judged += other.judged;
        self.waited += other.waited;
        self.surely += other.surely;
    }
}

/// So many judged walks speak for a stretch.
const ENOUGH: u64 = 64;

/// Every so many-th piece of the trace.
#[derive(Clone, Debug)]
pub struct Sample {
    most: usize,
    pieces: Vec<Piece>,
    each: u64,
    kept: usize,
    /// Places that all pieces took which went by.
    places: u64,
    /// Their addresses and walks, each piece's as often as it counts.
    passed: Passed,
}

/// Addresses that went by, and how many walks they had.
#[derive(Clone, Copy, Debug, Default)]
struct Passed {
    addresses: f64,
    walks: f64,
}

impl Passed {
    fn add(&mut self, other: Self, weight: u64) {
        self.addresses += other.addresses * weight as f64;
        self.walks += other.walks * weight as f64;
    }
}

#[derive(Clone, Debug)]
struct Piece {
    places: Range<u64>,
    addresses: Vec<u64>,
    walks: Walks,
}

impl Piece {
    fn passed(&self) -> Passed {
        Passed { addresses: self.addresses.len() as f64, walks: self.walks.all as f64 }
    }

    /// Whether it has hardly any walks, as far as `all` have some.
    fn is_little_of(&self, all: Passed) -> bool {
        let own = self.passed();
        own.walks * all.addresses < FEW * all.walks * own.addresses
    }
}

impl Default for Sample {
    fn default() -> Self {
        Self { most: MOST, pieces: Vec::new(), each: 1, kept: 0, places: 0, passed: Passed::default() }
    }
}

impl Sample {
    /// Of one burst.
    pub(super) fn of_burst() -> Self {
        Self { most: MOST_OF_BURST, ..Self::default() }
    }

    /// The pieces of a burst go by, each of which counts so often. What was not kept of it counts with what was.
    pub(super) fn pass_all(&mut self, burst: Self, weight: u64) {
        self.passed.add(burst.passed, weight);
        for piece in burst.pieces {
            let places = self.take(weight * burst.each);
            if is_kept(&places, self.each) {
                self.keep(Piece { places, ..piece });
            }
        }
    }

    /// A piece goes by that counts so often.
    pub(crate) fn pass(&mut self, addresses: impl Iterator<Item = u64>, walks: Walks, weight: u64) {
        let places = self.take(weight);
        if is_kept(&places, self.each) {
            let piece = Piece { places, addresses: addresses.collect(), walks };
            self.passed.add(piece.passed(), weight);
            self.keep(piece);
        } else {
            self.passed.add(Passed { addresses: addresses.count() as f64, walks: walks.all as f64 }, weight);
        }
    }

    /// The next so many places.
    fn take(&mut self, weight: u64) -> Range<u64> {
        let first = self.places;
        self.places += weight;
        first..self.places
    }

    /// Keeps a piece, if it walks, and as many of all as there is room for.
    fn keep(&mut self, piece: Piece) {
        if piece.is_little_of(self.passed) {
            return;
        }
        self.kept += piece.addresses.len();
        self.pieces.push(piece);
        while self.kept > self.most && self.pieces.len() > 1 {
            self.thin();
        }
    }

    /// Lets go of what turned out to walk little, or else of half of the places.
    fn thin(&mut self) {
        let (passed, before) = (self.passed, self.pieces.len());
        self.pieces.retain(|piece| !piece.is_little_of(passed));
        if self.pieces.len() == before {
            self.each *= 2;
            let each = self.each;
            self.pieces.retain(|piece| is_kept(&piece.places, each));
        }
        self.kept = self.pieces.iter().map(|piece| piece.addresses.len()).sum();
    }

    /// The pieces that are kept in the end, in order.
    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        let walking = || self.pieces.iter().filter(|piece| !piece.is_little_of(self.passed));
        let heaviest = walking().map(|piece| piece.places.end - piece.places.start).max().unwrap_or(1);
        let each = self.each.max(heaviest);
        walking().filter(move |piece| is_kept(&piece.places, each))
    }

    /// What was kept, in order.
    #[must_use]
    pub fn addresses(&self) -> Vec<u64> {
        self.pieces().flat_map(|piece| &piece.addresses).copied().collect()
    }

    /// The same addresses, as stretches of so many, and their walks: as short as enough were judged for.
    #[must_use]
    pub fn stretches(&self) -> Vec<(usize, Walks)> {
        let mut stretches: Vec<(usize, Walks)> = Vec::new();
        for piece in self.pieces() {
            match stretches.last_mut().filter(|(_, walks)| walks.judged < ENOUGH) {
                Some((loads, walks)) => {
                    *loads += piece.addresses.len();
                    walks.add(piece.walks);
                }
                None => stretches.push((piece.addresses.len(), piece.walks)),
            }
        }
        stretches
    }
}

/// Whether one of every `each` places is among these.
const fn is_kept(places: &Range<u64>, each: u64) -> bool {
    places.start.next_multiple_of(each) < places.end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_trace_is_kept_evenly_and_never_whole() {
        let mut sample = Sample::default();
        const PIECE: u64 = 1 << 14;
        const PIECES: u64 = 3000;
        for piece in 0..PIECES {
            sample.pass(piece * PIECE..(piece + 1) * PIECE, Walks::default(), 1);
        }
        let kept = sample.addresses();
        assert!(kept.len() <= MOST && kept.len() > MOST / 4, "{}", kept.len());
        assert!(kept.is_sorted());
        let middle = kept[kept.len() / 2];
        assert!((PIECES * PIECE / 3..PIECES * PIECE * 2 / 3).contains(&middle), "{middle}");
    }

    #[test]
    fn a_short_one_is_kept_whole() {
        let mut sample = Sample::default();
        sample.pass([3, 1, 2].into_iter(), Walks::default(), 1);
        sample.pass([7].into_iter(), Walks::default(), 1);
        assert_eq!(sample.addresses(), [3, 1, 2, 7]);
    }

    #[test]
    fn a_stretch_is_as_short_as_what_was_judged_allows() {
        let mut sample = Sample::default();
        let judged = |judged, waited| Walks { all: 100, judged, waited, surely: 0 };
        for (addresses, of) in [(10, judged(40, 0)), (10, judged(30, 0)), (5, judged(70, 70)), (1, judged(3, 1))] {
            sample.pass(0..addresses, of, 1);
        }
        assert_eq!(
            sample.stretches(),
            [(20, Walks { all: 200, ..judged(70, 0) }), (5, judged(70, 70)), (1, judged(3, 1))]
        );
        let loads: usize = sample.stretches().iter().map(|(loads, _)| loads).sum();
        assert_eq!(loads, sample.addresses().len());
    }

    #[test]
    fn what_an_instruction_tells_is_beyond_doubt() {
        let record = Record::data(0x1008);
        let all = [record, record.judged(false), record.judged(true), record.with(CHASES).judged(true)];
        assert_eq!(Walks::of(all.into_iter()), Walks { all: 4, judged: 3, waited: 2, surely: 1 });
    }

    #[test]
    fn heavy_pieces_are_kept_as_much_more_often() {
        for pieces in [800_u64, 80_000] {
            let mut sample = Sample::default();
            // As many of each kind, of a hundred addresses.
            for piece in 0..pieces {
                let weight = if piece < pieces / 2 { 1 } else { 4 };
                sample.pass(std::iter::repeat_n(weight, 100), Walks::default(), weight);
            }
            let kept = sample.addresses();
            let of = |weight| kept.iter().filter(|&&address| address == weight).count() as f64;
            assert!((3.9..4.1).contains(&(of(4) / of(1))), "{} to {}", of(4), of(1));
            assert!(kept.len() > MOST / 4 || pieces == 800 && of(4) == (pieces / 2 * 100) as f64, "{}", kept.len());
        }
    }

    #[test]
    fn what_hardly_walks_is_left_out_as_soon_as_that_is_known() {
        let walks = |all| Walks { all, ..Walks::default() };
        let mut sample = Sample::default();
        // Ten thousand pieces that walk a little, before and after as many that walk a hundred times as often.
        for (first, walks) in [(0, walks(1)), (1, walks(100)), (2, walks(1))] {
            (0..10_000).for_each(|_| sample.pass(std::iter::repeat_n(first, 100), walks, 1));
        }
        let kept = sample.addresses();
        assert!(kept.iter().all(|&address| address == 1));
        assert_eq!(kept.len(), 1_000_000, "the first to go are those that hardly walk");
        assert_eq!(sample.stretches().iter().map(|(loads, _)| loads).sum::<usize>(), kept.len());
    }

    #[test]
    fn a_burst_tells_of_what_was_not_kept_of_it() {
        let walks = |all| Walks { all, ..Walks::default() };
        let mut sample = Sample::default();
        for (address, walks, pieces) in [(1, walks(4), 100), (2, walks(40), 3000)] {
            let mut burst = Sample::of_burst();
            (0..pieces).for_each(|_| burst.pass(std::iter::repeat_n(address, 100), walks, 1));
            sample.pass_all(burst, 1);
        }
        // On average 0.388 an address, of which 0.04 is little.
        assert!(sample.addresses().iter().all(|&address| address == 2));
    }
}
