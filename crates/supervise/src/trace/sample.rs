//! Pieces of the trace that are kept, to be replayed: evenly from the whole run, in no more memory than a fixed size.
//!
//! ```text
//!   weights        1 1 1 1  2   2   4       4       what a piece stands for
//!   places         . . . .  . . . . . . . . . . . .
//!   every fourth   ^        ^       ^       ^       a piece is kept if such a place lies in it
//! ```
//! No piece is kept twice: replayed twice it would be other memory than the program's. So places lie at least as far apart as the
//! heaviest piece is long, when all have gone by.

use std::ops::Range;

use fieldstone_wire::trace::{CHASES, Record};

/// Addresses that are kept at most, of the run and of a burst.
const MOST: usize = 1 << 20;
const MOST_OF_BURST: usize = 1 << 17;

/// What was judged of the walks of a piece or more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Walks that were judged.
    pub walks: u64,
    /// Those of them that waited for an address.
    pub waited: u64,
    /// Those of these of which the instruction itself tells, beyond doubt.
    pub surely: u64,
}

impl Judged {
    /// Of the records of walks.
    pub(super) fn of(walks: impl Iterator<Item = Record>) -> Self {
        let mut judged = Self::default();
        for (record, waited) in walks.filter_map(|record| Some((record, record.depends()?))) {
            judged.walks += 1;
            judged.waited += u64::from(waited);
            judged.surely += u64::from(waited && record.has(CHASES));
        }
        judged
    }

    fn add(&mut self, other: Self) {
        self.walks += other.walks;
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
}

#[derive(Clone, Debug)]
struct Piece {
    places: Range<u64>,
    addresses: Vec<u64>,
    judged: Judged,
}

impl Default for Sample {
    fn default() -> Self {
        Self { most: MOST, pieces: Vec::new(), each: 1, kept: 0, places: 0 }
    }
}

impl Sample {
    /// Of one burst.
    pub(super) fn of_burst() -> Self {
        Self { most: MOST_OF_BURST, ..Self::default() }
    }

    /// The pieces of a burst go by, each of which counts so often. What was not kept of it counts with what was.
    pub(super) fn pass_all(&mut self, burst: Self, weight: u64) {
        for piece in burst.pieces {
            self.pass(piece.addresses.into_iter(), piece.judged, weight * burst.each);
        }
    }

    /// A piece goes by that counts so often.
    pub(crate) fn pass(&mut self, addresses: impl Iterator<Item = u64>, judged: Judged, weight: u64) {
        let places = self.places..self.places + weight;
        self.places = places.end;
        if !is_kept(&places, self.each) {
            return;
        }
        let piece = Piece { places, addresses: addresses.collect(), judged };
        self.kept += piece.addresses.len();
        self.pieces.push(piece);
        while self.kept > self.most && self.pieces.len() > 1 {
            self.each *= 2;
            let each = self.each;
            self.pieces.retain(|piece| is_kept(&piece.places, each));
            self.kept = self.pieces.iter().map(|piece| piece.addresses.len()).sum();
        }
    }

    /// The pieces that are kept in the end, in order.
    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        let heaviest = self.pieces.iter().map(|piece| piece.places.end - piece.places.start).max().unwrap_or(1);
        let each = self.each.max(heaviest);
        self.pieces.iter().filter(move |piece| is_kept(&piece.places, each))
    }

    /// What was kept, in order.
    #[must_use]
    pub fn addresses(&self) -> Vec<u64> {
        self.pieces().flat_map(|piece| &piece.addresses).copied().collect()
    }

    /// The same addresses, as stretches of so many, and what was judged of their walks: as short as enough were judged for.
    #[must_use]
    pub fn stretches(&self) -> Vec<(usize, Judged)> {
        let mut stretches: Vec<(usize, Judged)> = Vec::new();
        for piece in self.pieces() {
            match stretches.last_mut().filter(|(_, judged)| judged.walks < ENOUGH) {
                Some((loads, judged)) => {
                    *loads += piece.addresses.len();
                    judged.add(piece.judged);
                }
                None => stretches.push((piece.addresses.len(), piece.judged)),
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
            sample.pass(piece * PIECE..(piece + 1) * PIECE, Judged::default(), 1);
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
        sample.pass([3, 1, 2].into_iter(), Judged::default(), 1);
        sample.pass([7].into_iter(), Judged::default(), 1);
        assert_eq!(sample.addresses(), [3, 1, 2, 7]);
    }

    #[test]
    fn a_stretch_is_as_short_as_what_was_judged_allows() {
        let mut sample = Sample::default();
        let judged = |walks, waited| Judged { walks, waited, surely: 0 };
        for (addresses, of) in [(10, judged(40, 0)), (10, judged(30, 0)), (5, judged(70, 70)), (1, judged(3, 1))] {
            sample.pass(0..addresses, of, 1);
        }
        assert_eq!(sample.stretches(), [(20, judged(70, 0)), (5, judged(70, 70)), (1, judged(3, 1))]);
        let loads: usize = sample.stretches().iter().map(|(loads, _)| loads).sum();
        assert_eq!(loads, sample.addresses().len());
    }

    #[test]
    fn what_an_instruction_tells_is_beyond_doubt() {
        let record = Record::data(0x1008);
        let all = [record, record.judged(false), record.judged(true), record.with(CHASES).judged(true)];
        assert_eq!(Judged::of(all.into_iter()), Judged { walks: 3, waited: 2, surely: 1 });
    }

    #[test]
    fn heavy_pieces_are_kept_as_much_more_often() {
        for pieces in [800_u64, 80_000] {
            let mut sample = Sample::default();
            // As many of each kind, of a hundred addresses.
            for piece in 0..pieces {
                let weight = if piece < pieces / 2 { 1 } else { 4 };
                sample.pass(std::iter::repeat_n(weight, 100), Judged::default(), weight);
            }
            let kept = sample.addresses();
            let of = |weight| kept.iter().filter(|&&address| address == weight).count() as f64;
            assert!((3.9..4.1).contains(&(of(4) / of(1))), "{} to {}", of(4), of(1));
            assert!(kept.len() > MOST / 4 || pieces == 800 && of(4) == (pieces / 2 * 100) as f64, "{}", kept.len());
        }
    }
}
