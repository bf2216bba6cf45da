//! Alpha-beta in negamax form to the end of the game, with a transposition table.
//!
//! Before it tries moves, the search evaluates the board. A reachable winning cell wins. Two
//! threats of the other player lose; one must be answered. A move below a threat is excluded. Moves
//! are tried from the middle column outwards.

use std::marker::PhantomData;
use std::ops::IndexMut;

use super::{Board, Bounds, TranspositionTable};

/// The value of a position under best play, for the player to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PositionValue {
    /// The player to move loses.
    Loss,
    /// No player gets four.
    Draw,
    /// The player to move wins.
    Win,
}

/// The bits of a key.
const KEY_MASK: u64 = (1 << 56) - 1;

/// How the search calls itself: directly, or through a function that may grow the stack.
pub trait Calls {
    /// Calls `f`.
    fn call<R>(f: impl FnOnce() -> R) -> R;
}

/// Direct calls.
#[derive(Debug)]
pub struct Plain;

impl Calls for Plain {
    #[inline(always)]
    fn call<R>(f: impl FnOnce() -> R) -> R {
        f()
    }
}

/// A search of a board with W columns and H rows.
#[derive(Debug)]
pub struct Search<const W: u32, const H: u32, E = Vec<u64>, C = Plain> {
    table: TranspositionTable<E>,
    /// Added above a position's bits in its key, so that entries of earlier games do not match.
    game: u64,
    positions: u64,
    calls: PhantomData<C>,
}

impl<const W: u32, const H: u32, E: IndexMut<usize, Output = u64>, C: Calls> Search<W, H, E, C> {
    /// Creates a search that uses `table`, which is empty.
    pub const fn new(table: TranspositionTable<E>) -> Self {
        Self { table, game: 0, positions: 0, calls: PhantomData }
    }

    /// Starts a new game without clearing the table: old entries do not match and are overwritten.
    /// On the largest board old entries match again after 2^14 games.
    pub const fn start_game(&mut self) {
        self.game += 1 << (W * (H + 1));
    }

    /// Solves the empty board.
    pub fn solve(&mut self) -> PositionValue {
        match self.value(Board::empty(), Bounds::ALL) {
            ..0 => PositionValue::Loss,
            0 => PositionValue::Draw,
            1.. => PositionValue::Win,
        }
    }

    /// Positions visited so far: equal for tables of equal size.
    #[must_use]
    pub const fn positions(&self) -> u64 {
        self.positions
    }

    /// The value of `board` if it is within `window`, else a bound on it (fail-soft).
    fn value(&mut self, board: Board<W, H>, window: Bounds) -> i8 {
        self.positions += 1;
        let moves = match candidates(board) {
            Ok(moves) => moves,
            Err(value) => return value,
        };
        let key = (board.key() | self.game) & KEY_MASK;
        let known = self.table.get(key);
        let window = Bounds { low: window.low.max(known.low), high: window.high.min(known.high) };
        if window.low >= window.high {
            return if known.low >= window.high { known.low } else { known.high };
        }
        let best = self.best(board, moves, window);
        let bounds = if best >= window.high {
            Bounds { low: best, high: known.high }
        } else if best <= window.low {
            Bounds { low: known.low, high: best }
        } else {
            Bounds { low: best, high: best }
        };
        self.table.put(key, bounds);
        best
    }

    /// The best value among `moves`. Stops at the first that reaches the window's upper end.
    fn best(&mut self, board: Board<W, H>, moves: u64, window: Bounds) -> i8 {
        let (mut best, mut low) = (-1, window.low);
        for column in middle_out::<W>() {
            let cell = moves & Board::<W, H>::column(column);
            if cell != 0 {
                let value = -C::call(|| self.value(board.after(cell), Bounds { low: -window.high, high: -low }));
                best = best.max(value);
                low = low.max(value);
                if low >= window.high {
                    break;
                }
            }
        }
        best
    }
}

/// The moves to search, or the value if the board determines it.
fn candidates<const W: u32, const H: u32>(board: Board<W, H>) -> Result<u64, i8> {
    let moves = board.moves();
    if board.winning_cells() & moves != 0 {
        return Err(1);
    }
    if board.is_full() {
        return Err(0);
    }
    let threats = board.threatened_cells();
    let forced = threats & moves;
    if forced.count_ones() > 1 {
        return Err(-1);
    }
    let safe = if forced != 0 { forced } else { moves } & !(threats >> 1);
    if safe == 0 { Err(-1) } else { Ok(safe) }
}

/// Column numbers from the middle outwards: middle cells are part of more lines.
fn middle_out<const W: u32>() -> impl Iterator<Item = u32> {
    (0..W).map(|i| if i % 2 == 0 { (W - 1) / 2 - i / 2 } else { (W - 1) / 2 + i.div_ceil(2) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn solved<const W: u32, const H: u32>(table_bytes: usize) -> PositionValue {
        Search::<W, H>::new(TranspositionTable::new(table_bytes).unwrap()).solve()
    }

    /// Plain minimax: no table, no window, no threats.
    fn naive<const W: u32, const H: u32>(board: Board<W, H>) -> i8 {
        if board.winning_cells() & board.moves() != 0 {
            return 1;
        }
        let cells = (0..W).map(|c| board.moves() & Board::<W, H>::column(c)).filter(|cell| *cell != 0);
        cells.map(|cell| -naive(board.after(cell))).max().unwrap_or(0)
    }

    #[test]
    fn every_column_comes_once() {
        assert_eq!(middle_out::<7>().collect::<Vec<_>>(), [3, 4, 2, 5, 1, 6, 0]);
        assert_eq!(middle_out::<6>().collect::<Vec<_>>(), [2, 3, 1, 4, 0, 5]);
    }

    #[test]
    fn small_boards_agree_with_plain_minimax() {
        let value = |outcome| match outcome {
            PositionValue::Loss => -1,
            PositionValue::Draw => 0,
            PositionValue::Win => 1,
        };
        assert_eq!(value(solved::<4, 3>(1 << 12)), naive(Board::<4, 3>::empty()));
        assert_eq!(value(solved::<5, 2>(1 << 12)), naive(Board::<5, 2>::empty()));
    }

    #[test]
    fn a_new_game_does_not_use_old_entries() {
        let mut search = Search::<4, 4>::new(TranspositionTable::new(1 << 12).unwrap());
        let first = (search.solve(), search.positions());
        // With its own entries, the root's value is looked up.
        assert_eq!((search.solve(), search.positions()), (first.0, first.1 + 1));
        search.start_game();
        let before = search.positions();
        assert_eq!(search.solve(), first.0);
        let again = search.positions() - before;
        assert!(again > first.1 / 2, "{again} positions after {}", first.1);
    }

    #[test]
    fn the_table_does_not_change_the_value() {
        for bytes in [0, 64, 1 << 20] {
            assert_eq!(solved::<4, 4>(bytes), PositionValue::Draw, "{bytes}");
        }
    }
}
