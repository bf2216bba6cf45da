//! A block-tridiagonal solver in the shape of NAS BT: a cube of cells with five unknowns each, and lines through it in x, y and z that
//! are solved one after the other.
//!
//! ```text
//!   x   neighbours 40 bytes apart            a line is in a page or two
//!   y   a row apart: 40 bytes times SIDE     a line touches a page every few cells
//!   z   a layer apart: times SIDE again      a line touches a page for each cell, and so does the next
//! ```
//! A step is one of an implicit time scheme (approximate factorisation, as in BT): the right side from each cell's six
//! neighbours, then each line's system of 5x5 blocks, in the three directions in turn, in place, and the result added. Where we differ: the
//! equation is a diffusion whose coefficients depend on the state, not the one of a flow; the blocks are as full and are made anew
//! for each line, and the memory that a cell has is the state and the right side only.
//!
//! Check: of every 16th line, another one in each step, the residual is computed from the blocks and the right side as they
//! were. It costs about a hundredth of the time.

mod block;
mod grid;
mod line;

use clap::Parser;
use fieldstone_workloads::{Error, phase::timed, random::mix, size, verdict::conclude};
use grid::{CELL_BYTES, Direction, Grid};
use line::Solver;
use std::process::ExitCode;

/// Solves lines of 5x5 blocks through a cube, in three directions.
#[derive(Parser)]
#[command(name = "bt", version)]
struct Arguments {
    /// Bytes of the cube, for example 1G.
    #[arg(value_parser = size::parse)]
    size: usize,
    /// Time steps.
    #[arg(default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
}

/// Every so many lines one is checked.
const CHECKED: usize = 16;

fn run(arguments: &Arguments) -> Result<u64, Error> {
    let side = side(arguments.size);
    if side < 3 {
        return Err(Error::Argument {
            what: format!("SIZE is less than a cube of 3 cells: give {} or more", 27 * CELL_BYTES),
        });
    }
    let mut grid = timed("init", || Grid::new(side))?;
    timed("kernel", || (0..arguments.steps as usize).try_for_each(|number| step(&mut grid, number)))?;
    timed("verify", || checksum(&grid))
}

/// Cells along an edge of the largest cube that `bytes` hold.
fn side(bytes: usize) -> usize {
    let cells = bytes / CELL_BYTES;
    // 2^21 cubed is 2^63: nothing larger has an address.
    (1..1 << 21).take_while(|side| side * side * side <= cells).last().unwrap_or(0)
}

fn step(grid: &mut Grid, number: usize) -> Result<(), Error> {
    grid.make_right_side();
    let mut solver = Solver::new(grid.side())?;
    for direction in Direction::ALL {
        for (index, line) in grid.lines(direction).enumerate() {
            if (index + number).is_multiple_of(CHECKED) {
                solver.keep(grid, line);
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

/// Every bit of the state, which has to be finite.
fn checksum(grid: &Grid) -> Result<u64, Error> {
    grid.state().iter().flatten().try_fold(0, |sum, value| {
        if value.is_finite() {
            Ok(mix(sum ^ value.to_bits()))
        } else {
            Err(Error::wrong(format!("the state holds {value}")))
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
