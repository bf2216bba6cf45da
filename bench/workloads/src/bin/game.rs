//! Game search: solves Connect Four by alpha-beta search with a transposition table, the main
//! memory use of a chess program. Each position costs one read and one write at a random index of a
//! large table.
//!
//! The value of each board is known, and the search must find it. All boards but 7x5 were also
//! solved without a table, and tests check smaller ones against plain minimax. The size of the
//! table changes only how much is searched twice: compare times at one SIZE.

use clap::{Parser, ValueEnum};
use fieldstone_workloads::{
    Error,
    game::{PositionValue, Search, TranspositionTable},
    phase::timed,
    size,
    verdict::{conclude, expect_equal},
};
use std::process::ExitCode;

/// Solve Connect Four.
#[derive(Parser)]
#[command(name = "game", version)]
struct Arguments {
    /// Size of the transposition table in bytes, for example 1G.
    #[arg(value_parser = size::parse)]
    size: usize,
    /// Board size: columns by rows.
    #[arg(value_enum, default_value_t = BoardSize::B6x5)]
    board: BoardSize,
}

/// The boards that are solved in seconds (7x5: a quarter of a minute).
#[derive(Clone, Copy, ValueEnum)]
enum BoardSize {
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
    let table = timed("init", || TranspositionTable::new(arguments.size))?;
    match arguments.board {
        BoardSize::B5x4 => solve::<5, 4>(table, PositionValue::Draw),
        BoardSize::B6x4 => solve::<6, 4>(table, PositionValue::Loss),
        BoardSize::B7x4 => solve::<7, 4>(table, PositionValue::Draw),
        BoardSize::B6x5 => solve::<6, 5>(table, PositionValue::Draw),
        BoardSize::B7x5 => solve::<7, 5>(table, PositionValue::Draw),
    }
}

/// Solves a board of W columns and H rows. The checksum is the number of positions, which depends
/// on the size of the table.
fn solve<const W: u32, const H: u32>(table: TranspositionTable, expected: PositionValue) -> Result<u64, Error> {
    let mut search = Search::<W, H>::new(table);
    let outcome = timed("kernel", || search.solve());
    expect_equal("the value of the empty board", &outcome, &expected)?;
    Ok(search.positions())
}

fn main() -> ExitCode {
    conclude("game", run(&Arguments::parse()))
}
