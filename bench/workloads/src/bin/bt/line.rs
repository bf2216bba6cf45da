//! One line's system: each cell with the one before it and the one behind it, in blocks, solved by elimination in one pass and
//! substitution in a second (Thomas).
//!
//! ```text
//!   | B C       |     A = C = -tau D, B = 1 + 2 tau D, where D is the cell's own, of its state
//!   | A B C     |
//!   |   A B C   |     at each cell: row minus A times the row before, then divided by B, so that 1 stays there
//! ```

use crate::{
    block::{Block, Cell, divide, subtract_block_product, subtract_product},
    grid::{Grid, Line, TAU},
};
use fieldstone_workloads::{Error, fill::fill};

/// Room for one line.
pub(crate) struct Solver {
    /// C of each cell, divided.
    behind: Vec<Block>,
    /// The right side of a line as it was.
    kept: Vec<Cell>,
}

impl Solver {
    pub(crate) fn new(side: usize) -> Result<Self, Error> {
        Ok(Self { behind: fill(side, |_| [[0.0; 5]; 5])?, kept: fill(side, |_| [0.0; 5])? })
    }

    /// Solves a line in place: the right side becomes the solution.
    #[inline(never)]
    pub(crate) fn solve(&mut self, grid: &mut Grid, line: Line) {
        let mut before: Option<(Cell, Block)> = None;
        for (cell, behind) in self.behind.iter_mut().enumerate() {
            let at = line.start + cell * line.stride;
            let (beside, mut own) = blocks(&grid.state()[at]);
            let right = &mut grid.right_mut()[at];
            if let Some((solution, divided)) = &before {
                subtract_product(right, &beside, solution);
                subtract_block_product(&mut own, &beside, divided);
            }
            *behind = beside;
            divide(&mut own, behind, right);
            before = Some((*right, *behind));
        }
        let mut next = None;
        for (cell, behind) in self.behind.iter().enumerate().rev() {
            let right = &mut grid.right_mut()[line.start + cell * line.stride];
            if let Some(solution) = next {
                subtract_product(right, behind, &solution);
            }
            next = Some(*right);
        }
    }

    /// Keeps the right side of a line that is about to be solved.
    pub(crate) fn keep(&mut self, grid: &Grid, line: Line) {
        for (cell, kept) in self.kept.iter_mut().enumerate() {
            *kept = grid.right()[line.start + cell * line.stride];
        }
    }

    /// The largest difference between the right side that was kept and what the solution makes, for a right side of about 1.
    pub(crate) fn residual(&self, grid: &Grid, line: Line) -> f64 {
        let solution = |cell: usize| &grid.right()[line.start + cell * line.stride];
        let mut largest = 0.0_f64;
        for (cell, kept) in self.kept.iter().enumerate() {
            let (beside, own) = blocks(&grid.state()[line.start + cell * line.stride]);
            let mut rest = *kept;
            subtract_product(&mut rest, &own, solution(cell));
            if cell > 0 {
                subtract_product(&mut rest, &beside, solution(cell - 1));
            }
            if cell + 1 < self.kept.len() {
                subtract_product(&mut rest, &beside, solution(cell + 1));
            }
            for value in rest {
                // Unlike `max`, keeps what is no number.
                largest = if largest.is_nan() || value.abs() <= largest { largest } else { value.abs() };
            }
        }
        largest
    }
}

/// The blocks of a cell: A, which is C too, and B. D is near 1 and full, its entries depend on the state and are bounded.
#[inline(always)]
fn blocks(state: &Cell) -> (Block, Block) {
    let bounded = state.map(|value| value / (1.0 + value * value));
    let diffusion = |row: usize, column: usize| {
        if row == column { 1.0 + 0.25 * bounded[row] } else { 0.05 * bounded[column] }
    };
    let beside = std::array::from_fn(|row| std::array::from_fn(|column| -TAU * diffusion(row, column)));
    let own = std::array::from_fn(|row| {
        std::array::from_fn(|column| f64::from(u8::from(row == column)) + 2.0 * TAU * diffusion(row, column))
    });
    (beside, own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::Direction;

    #[test]
    fn lines_are_solved_in_each_direction_and_no_other_cell_changes() {
        for direction in Direction::ALL {
            let mut grid = Grid::new(7).unwrap();
            grid.make_right_side();
            let line = grid.lines(direction).nth(17).unwrap();
            let before = grid.right().to_vec();
            let mut solver = Solver::new(7).unwrap();
            solver.keep(&grid, line);
            assert!(solver.residual(&grid, line) > 1e-3, "not solved yet");
            solver.solve(&mut grid, line);
            assert!(solver.residual(&grid, line) < 1e-13);
            let on_line = |at: usize| (0..7).any(|cell| line.start + cell * line.stride == at);
            assert!((0..343).all(|at| (grid.right()[at] != before[at]) == on_line(at)), "{direction:?}");
        }
    }

    #[test]
    fn a_wrong_cell_is_seen_in_the_residual() {
        let mut grid = Grid::new(5).unwrap();
        grid.make_right_side();
        let line = Line { start: 0, stride: 1 };
        let mut solver = Solver::new(5).unwrap();
        solver.keep(&grid, line);
        solver.solve(&mut grid, line);
        for wrong in [1e-6, f64::NAN] {
            grid.right_mut()[3][2] += wrong;
            let residual = solver.residual(&grid, line);
            assert!(residual.is_nan() || residual > 1e-8, "{wrong}: {residual}");
        }
    }
}
