//! Game search: Connect Four solved by alpha-beta with a transposition table, which is what a chess program does with most of
//! its memory: one read and one write a position, at a random place of a big table.
//!
//! The value of each board is known: all but 7x5 were also solved without a table, the tests check smaller ones against plain
//! minimax, and the search must find it. The table's size changes how much is searched twice, never the value: compare times
//! at the same SIZE only.

use clap::{Parser, ValueEnum};
use fieldstone_workloads::{
    Error,
    game::{Outcome, Search, Table},
    phase::timed,
    size,
    verdict::{conclude, expect_equal},
};
use std::process::ExitCode;

/// Solves Connect Four.
#[derive(Parser)]
#[command(name = "game", version)]
struct Arguments {
    /// Bytes of the transposition table, for example 1G.
    #[arg(value_parser = size::parse)]
    size: usize,
    /// Columns by rows.
    #[arg(value_enum, default_value_t = Size::B6x5)]
    board: Size,
}

/// The boards that are solved in seconds, the last in a quarter of a minute.
#[derive(Clone, Copy, ValueEnum)]
enum Size {
    #[value(name = "5x4")]
    B5x4,
    #[value(name = "6x4")]
    B6x4,
    #[value(name = "7x4")]
    B7x4,
    #[value(name = "6x5")]
    B6x5,
    #[value(name = "7x5")]
    B7x5,
}

fn run(arguments: &Arguments) -> Result<u64, Error> {
    let table = timed("init", || Table::new(arguments.size))?;
    match arguments.board {
        Size::B5x4 => solve::<5, 4>(table, Outcome::Draw),
        Size::B6x4 => solve::<6, 4>(table, Outcome::Loss),
        Size::B7x4 => solve::<7, 4>(table, Outcome::Draw),
        Size::B6x5 => solve::<6, 5>(table, Outcome::Draw),
        Size::B7x5 => solve::<7, 5>(table, Outcome::Draw),
    }
}

/// Solves the board of W columns and H rows. The checksum is the number of positions, which depends on the table's size.
fn solve<const W: u32, const H: u32>(table: Table, expected: Outcome) -> Result<u64, Error> {
    let mut search = Search::<W, H>::new(table);
    let outcome = timed("kernel", || search.solve());
    expect_equal("the value of the empty board", &outcome, &expected)?;
    Ok(search.positions())
}

fn main() -> ExitCode {
    conclude("game", run(&Arguments::parse()))
}
