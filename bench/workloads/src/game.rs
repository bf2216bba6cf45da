//! Connect Four solved by alpha-beta with a transposition table: one read and one write a position, at a random place of a
//! big table, which is what a chess program does with most of its memory.
//!
//! The table lies in whatever indexes words: a vector in the program `game`, a tree of blocks where trees are measured. Its
//! size changes how much is searched twice, never the value.

mod board;
mod search;
mod table;

pub use board::Board;
pub use search::{Calls, Outcome, Plain, Search};
pub use table::{Bounds, Table};
