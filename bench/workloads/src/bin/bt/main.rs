//! A block-tridiagonal solver like NAS BT: a cube of cells with five unknowns each. Lines through
//! it in x, y and z are solved one after another.
//!
//! ```text
//!   x   neighbours are 40 bytes apart      a line spans one or two pages
//!   y   40 bytes times SIDE apart          a line touches a page every few cells
//!   z   40 bytes times SIDE squared        a line touches one page per cell, and so does the next
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `grid` | the cube, and the right-hand side |
//! | `line` | the system of one line, and its solution |
//! | `matrix5` | products and elimination of 5x5 matrices |
//!
//! A step belongs to an implicit time scheme (approximate factorisation, as in BT):
//! 1. Compute the right-hand side from the six neighbours of each cell.
//! 2. Solve the 5x5 block system of each line in place, in the three directions in turn.
//! 3. Add the result to the state.
//!
//! The differences to BT: the equation is a diffusion with state-dependent coefficients, not a
//! flow. The matrices are as full but recomputed per line. A cell stores only its state and
//! right-hand side.
//!
//! Check: every 16th line, another one in each step, is multiplied back and compared with its
//! original right-hand side. The check takes about 1 % of the time.

mod grid;
mod line;
mod matrix5;

use clap::Parser;
use fieldstone_workloads::{Error, phase::timed, random::mix, size, verdict::conclude};
use grid::{CELL_BYTES, Direction, Grid};
use line::Solver;
use std::process::ExitCode;

/// Solve lines of 5x5 blocks through a cube, in three directions.
#[derive(Parser)]
#[command(name = "bt", version)]
struct Arguments {
    /// Size of the cube in bytes, for example 1G.
    #[arg(value_parser = size::parse)]
    size: usize,
    /// Number of time steps.
    #[arg(default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
}

/// One line in this many is checked.
const CHECKED: usize = 16;

fn run(arguments: &Arguments) -> Result<u64, Error> {
    let side = side(arguments.size);
    if side < 3 {
        return Err(Error::Argument {
            what: format!("SIZE is less than a cube of 3 cells: use {} or more", 27 * CELL_BYTES),
        });
    }
    let mut grid = timed("init", || Grid::new(side))?;
    timed("kernel", || (0..arguments.steps as usize).try_for_each(|number| step(&mut grid, number)))?;
    timed("verify", || checksum(&grid))
}

/// Cells per edge of the largest cube that fits into `bytes`.
fn side(bytes: usize) -> usize {
    let cells = bytes / CELL_BYTES;
    // 2^21 cubed is 2^63 bytes, more than any address space.
    (1..1 << 21).take_while(|side| side * side * side <= cells).last().unwrap_or(0)
}

fn step(grid: &mut Grid, number: usize) -> Result<(), Error> {
    grid.compute_rhs();
    let mut solver = Solver::new(grid.side())?;
    for direction in Direction::ALL {
        for (index, line) in grid.lines(direction).enumerate() {
            if (index + number).is_multiple_of(CHECKED) {
                solver.save_rhs(grid, line);
                solver.solve(grid, line);
                let residual = solver.residual(grid, line);
                if residual.is_nan() || residual > 1e-12 {
                    return Err(Error::wrong(format!(
                        "line {index} in {direction:?} of step {number} has a residual of {residual:e}"
                    )));
                }
            } else {
                solver.solve(grid, line);
            }
        }
    }
    grid.add();
    Ok(())
}

/// A checksum over every bit of the state; all values must be finite.
fn checksum(grid: &Grid) -> Result<u64, Error> {
    grid.state().iter().flatten().try_fold(0, |sum, value| {
        if value.is_finite() {
            Ok(mix(sum ^ value.to_bits()))
        } else {
            Err(Error::wrong(format!("the state contains {value}")))
        }
    })
}

fn main() -> ExitCode {
    conclude("bt", run(&Arguments::parse()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cube_is_the_largest_that_fits() {
        assert_eq!((side(0), side(CELL_BYTES), side(27 * CELL_BYTES - 1), side(27 * CELL_BYTES)), (0, 1, 2, 3));
        assert_eq!(side(1 << 30), 237);
    }

    #[test]
    fn every_line_is_checked_once_in_sixteen_steps() {
        for index in 0..100_usize {
            assert_eq!((0..16).filter(|number| (index + number).is_multiple_of(CHECKED)).count(), 1);
        }
    }
}
