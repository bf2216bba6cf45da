//! A Connect Four position in two words: W columns of H cells, one bit per cell and a margin bit
//! above each column.
//!
//! ```text
//! H = 4, bit numbers:      4  9 14 …   margin, always 0
//!                          3  8 13 …   top row
//!                          2  7 12 …
//!                          1  6 11 …
//!                          0  5 10 …   bottom row
//! ```
//! An addition drops a stone into a column: `taken + bottom bit` carries through the column's taken
//! cells into the first free one. Two shifts per direction find four in a row; the margin separates
//! the columns.

/// A position, seen by the player to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Board<const W: u32, const H: u32> {
    /// Stones of the player to move.
    mine: u64,
    /// All stones.
    taken: u64,
}

impl<const W: u32, const H: u32> Board<W, H> {
    /// Distance from a column to the next one, in bits.
    const COLUMN: u32 = H + 1;
    /// The lowest cell of each column.
    const BOTTOM: u64 = {
        assert!(W * (H + 1) <= 56, "a position must fit 56 bits, for the table");
        let mut bits = 0;
        let mut column = 0;
        while column < W {
            bits |= 1 << (column * (H + 1));
            column += 1;
        }
        bits
    };
    /// Every cell, without the margin.
    const CELLS: u64 = Self::BOTTOM * ((1 << H) - 1);

    /// The empty board.
    #[must_use]
    pub const fn empty() -> Self {
        Self { mine: 0, taken: 0 }
    }

    /// A unique number of this position, below 2^56.
    #[must_use]
    pub const fn key(self) -> u64 {
        // Per column: the carry of `taken + BOTTOM` marks the height, the bits below it mark the
        // player's stones.
        self.taken + Self::BOTTOM + self.mine
    }

    /// Whether no cell is free.
    #[must_use]
    pub const fn is_full(self) -> bool {
        self.taken == Self::CELLS
    }

    /// The cells that a stone can reach, one per column that is not full.
    #[must_use]
    pub const fn moves(self) -> u64 {
        (self.taken + Self::BOTTOM) & Self::CELLS
    }

    /// The cells of `column`, counted from 0.
    #[must_use]
    pub const fn column(column: u32) -> u64 {
        ((1 << H) - 1) << (column * Self::COLUMN)
    }

    /// The position after a stone in `cell`, one of [`Self::moves`].
    #[must_use]
    pub const fn after(self, cell: u64) -> Self {
        Self { mine: self.mine ^ self.taken, taken: self.taken | cell }
    }

    /// The free cells that complete four for the player to move.
    #[must_use]
    pub const fn winning_cells(self) -> u64 {
        self.completing(self.mine)
    }

    /// The free cells that complete four for the other player.
    #[must_use]
    pub const fn threatened_cells(self) -> u64 {
        self.completing(self.mine ^ self.taken)
    }

    const fn completing(self, stones: u64) -> u64 {
        // Upwards: three below. Other directions: three of the four cells of a line, with any one
        // missing.
        let mut cells = (stones << 1) & (stones << 2) & (stones << 3);
        let directions = [Self::COLUMN, Self::COLUMN - 1, Self::COLUMN + 1];
        let mut i = 0;
        while i < directions.len() {
            let d = directions[i];
            let below = (stones << d) & (stones << (2 * d));
            let above = (stones >> d) & (stones >> (2 * d));
            cells |= below & (stones << (3 * d)) | below & (stones >> d);
            cells |= above & (stones >> (3 * d)) | above & (stones << d);
            i += 1;
        }
        cells & Self::CELLS & !self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;
    use std::collections::HashMap;

    type SmallBoard = Board<5, 4>;

    /// Whether `stones` have four in a row, tested cell by cell.
    fn four(stones: u64) -> bool {
        let has = |x: i32, y: i32| (0..5).contains(&x) && (0..4).contains(&y) && stones >> (x * 5 + y) & 1 == 1;
        (0..5).any(|x| {
            (0..4).any(|y| {
                [(0, 1), (1, 0), (1, 1), (1, -1)].iter().any(|(dx, dy)| (0..4).all(|i| has(x + i * dx, y + i * dy)))
            })
        })
    }

    fn cells(mut set: u64) -> impl Iterator<Item = u64> {
        std::iter::from_fn(move || {
            let lowest = set & set.wrapping_neg();
            set ^= lowest;
            (lowest != 0).then_some(lowest)
        })
    }

    #[test]
    fn random_games_agree_with_the_naive_rules() {
        let mut random = SplitMix64::new(4);
        let mut keys = HashMap::new();
        for _ in 0..300 {
            let mut board = SmallBoard::empty();
            while !board.is_full() {
                for cell in cells(SmallBoard::CELLS & !board.taken) {
                    assert_eq!(board.winning_cells() & cell != 0, four(board.mine | cell), "{board:?}");
                    assert_eq!(
                        board.threatened_cells() & cell != 0,
                        four(board.mine ^ board.taken | cell),
                        "{board:?}"
                    );
                }
                assert_eq!(*keys.entry(board.key()).or_insert(board), board);
                let moves: Vec<u64> = cells(board.moves()).collect();
                let cell = moves[random.below(moves.len())];
                if board.winning_cells() & cell != 0 {
                    break;
                }
                board = board.after(cell);
            }
        }
        assert!(keys.len() > 500);
    }
}
