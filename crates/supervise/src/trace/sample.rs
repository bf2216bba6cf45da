//! Pieces of the trace that are kept, to be replayed: evenly from the whole run, in no more memory than a fixed size.

/// Addresses that are kept at most.
const MOST: usize = 1 << 20;

/// Every so many-th piece of the trace.
#[derive(Clone, Debug)]
pub struct Sample {
    pieces: Vec<Vec<u64>>,
    each: usize,
    seen: usize,
    kept: usize,
    /// Addresses in all pieces that went by, kept or not.
    pub passed: u64,
}

impl Default for Sample {
    fn default() -> Self {
        Self { pieces: Vec::new(), each: 1, seen: 0, kept: 0, passed: 0 }
    }
}

impl Sample {
    /// A piece goes by.
    pub(super) fn pass(&mut self, addresses: impl Iterator<Item = u64>) {
        let turn = self.seen.is_multiple_of(self.each);
        self.seen += 1;
        if !turn {
            self.passed += addresses.count() as u64;
            return;
        }
        let piece: Vec<u64> = addresses.collect();
        self.passed += piece.len() as u64;
        self.kept += piece.len();
        self.pieces.push(piece);
        while self.kept > MOST && self.pieces.len() > 1 {
            let mut turn = false;
            self.pieces.retain(|_| {
                turn = !turn;
                turn
            });
            self.each *= 2;
            self.kept = self.pieces.iter().map(Vec::len).sum();
        }
    }

    /// What was kept, in order.
    #[must_use]
    pub fn addresses(&self) -> Vec<u64> {
        self.pieces.concat()
    }
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
            sample.pass(piece * PIECE..(piece + 1) * PIECE);
        }
        let kept = sample.addresses();
        assert_eq!(sample.passed, PIECES * PIECE);
        assert!(kept.len() <= MOST && kept.len() > MOST / 4, "{}", kept.len());
        assert!(kept.is_sorted());
        let middle = kept[kept.len() / 2];
        assert!((PIECES * PIECE / 3..PIECES * PIECE * 2 / 3).contains(&middle), "{middle}");
    }

    #[test]
    fn a_short_one_is_kept_whole() {
        let mut sample = Sample::default();
        sample.pass([3, 1, 2].into_iter());
        sample.pass([7].into_iter());
        assert_eq!(sample.addresses(), [3, 1, 2, 7]);
    }
}
