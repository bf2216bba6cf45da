//! The system of one line. Each cell is coupled with the cells before and behind it by matrices.
//! Thomas's algorithm solves it: one elimination pass, one substitution pass.
//!
//! ```text
//!   | B C       |     A = C = -tau D, B = 1 + 2 tau D; D depends on the cell's state
//!   | A B C     |
//!   |   A B C   |     per cell: subtract A times the previous row, then divide by B
//! ```

use crate::{
    grid::{Grid, GridLine, TAU},
    matrix5::{Matrix5, Vector5, divide, subtract_block_product, subtract_product},
};
use fieldstone_workloads::{Error, fill::fill};

/// Solves lines, with the scratch memory for one of them.
pub(crate) struct Solver {
    /// C of each cell, divided.
    behind: Vec<Matrix5>,
    /// The original right-hand side of a line.
    saved: Vec<Vector5>,
}

impl Solver {
    pub(crate) fn new(side: usize) -> Result<Self, Error> {
        Ok(Self { behind: fill(side, |_| [[0.0; 5]; 5])?, saved: fill(side, |_| [0.0; 5])? })
    }

    /// Solves a line in place: the solution replaces the right-hand side.
    #[inline(never)]
    pub(crate) fn solve(&mut self, grid: &mut Grid, line: GridLine) {
        let mut before: Option<(Vector5, Matrix5)> = None;
        for (cell, behind) in self.behind.iter_mut().enumerate() {
            let at = line.start + cell * line.stride;
            let (coupling, mut diagonal) = blocks(&grid.state()[at]);
            let rhs = &mut grid.rhs_mut()[at];
            if let Some((solution, divided)) = &before {
                subtract_product(rhs, &coupling, solution);
                subtract_block_product(&mut diagonal, &coupling, divided);
            }
            *behind = coupling;
            divide(&mut diagonal, behind, rhs);
            before = Some((*rhs, *behind));
        }
        let mut next = None;
        for (cell, behind) in self.behind.iter().enumerate().rev() {
            let rhs = &mut grid.rhs_mut()[line.start + cell * line.stride];
            if let Some(solution) = next {
                subtract_product(rhs, behind, &solution);
            }
            next = Some(*rhs);
        }
    }

    /// Saves the right-hand side of a line before it is solved.
    pub(crate) fn save_rhs(&mut self, grid: &Grid, line: GridLine) {
        for (cell, saved) in self.saved.iter_mut().enumerate() {
            *saved = grid.rhs()[line.start + cell * line.stride];
        }
    }

    /// The largest difference between the saved right-hand side and the product of the system with
    /// the solution. The right-hand side is about 1.
    pub(crate) fn residual(&self, grid: &Grid, line: GridLine) -> f64 {
        let solution = |cell: usize| &grid.rhs()[line.start + cell * line.stride];
        let mut largest = 0.0_f64;
        for (cell, saved) in self.saved.iter().enumerate() {
            let (coupling, diagonal) = blocks(&grid.state()[line.start + cell * line.stride]);
            let mut rest = *saved;
            subtract_product(&mut rest, &diagonal, solution(cell));
            if cell > 0 {
                subtract_product(&mut rest, &coupling, solution(cell - 1));
            }
            if cell + 1 < self.saved.len() {
                subtract_product(&mut rest, &coupling, solution(cell + 1));
            }
            for value in rest {
                // Unlike `max`, this keeps NaN.
                largest = if largest.is_nan() || value.abs() <= largest { largest } else { value.abs() };
            }
        }
        largest
    }
}

/// The matrices of a cell: A (equal to C) and B. D is full and close to 1; its entries depend on
/// the state and are bounded.
#[inline(always)]
fn blocks(state: &Vector5) -> (Matrix5, Matrix5) {
    let bounded = state.map(|value| value / (1.0 + value * value));
    let diffusion = |row: usize, column: usize| {
        if row == column { 1.0 + 0.25 * bounded[row] } else { 0.05 * bounded[column] }
    };
    let coupling = std::array::from_fn(|row| std::array::from_fn(|column| -TAU * diffusion(row, column)));
    let diagonal = std::array::from_fn(|row| {
        std::array::from_fn(|column| f64::from(u8::from(row == column)) + 2.0 * TAU * diffusion(row, column))
    });
    (coupling, diagonal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::Direction;

    #[test]
    fn solving_a_line_changes_no_other_cell() {
        for direction in Direction::ALL {
            let mut grid = Grid::new(7).unwrap();
            grid.compute_rhs();
            let line = grid.lines(direction).nth(17).unwrap();
            let before = grid.rhs().to_vec();
            let mut solver = Solver::new(7).unwrap();
            solver.save_rhs(&grid, line);
            assert!(solver.residual(&grid, line) > 1e-3, "not solved yet");
            solver.solve(&mut grid, line);
            assert!(solver.residual(&grid, line) < 1e-13);
            let on_line = |at: usize| (0..7).any(|cell| line.start + cell * line.stride == at);
            assert!((0..343).all(|at| (grid.rhs()[at] != before[at]) == on_line(at)), "{direction:?}");
        }
    }

    #[test]
    fn a_wrong_cell_changes_the_residual() {
        let mut grid = Grid::new(5).unwrap();
        grid.compute_rhs();
        let line = GridLine { start: 0, stride: 1 };
        let mut solver = Solver::new(5).unwrap();
        solver.save_rhs(&grid, line);
        solver.solve(&mut grid, line);
        for wrong in [1e-6, f64::NAN] {
            grid.rhs_mut()[3][2] += wrong;
            let residual = solver.residual(&grid, line);
            assert!(residual.is_nan() || residual > 1e-8, "{wrong}: {residual}");
        }
    }
}
