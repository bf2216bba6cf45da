//! Connect Four solved by alpha-beta with a transposition table: one random read and one random
//! write of a big table per position, as in a chess program.
//!
//! | file | what it decides or does |
//! |---|---|
//! | `board` | a position, its moves and its wins |
//! | `search` | the order of moves, and the result of a position |
//! | `table` | which entries the transposition table keeps |
//!
//! The table's array is of any type that indexes words: a vector in the program `game`, a tree of
//! blocks in measurements of trees. Its size changes how many positions are searched twice, but not
//! the result.

mod board;
mod search;
mod table;

pub use board::Board;
pub use search::{Calls, Plain, PositionValue, Search};
pub use table::{Bounds, TranspositionTable};
