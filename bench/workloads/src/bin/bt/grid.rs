//! The cube: the state and the right-hand side, each an array of cells.
//!
//! ```text
//! cell (x, y, z) has index (z * side + y) * side + x
//! ```

use crate::matrix5::Vector5;
use fieldstone_workloads::{Error, fill::fill, random::SplitMix64};

/// Bytes of a cell.
pub(crate) const CELL_BYTES: usize = 2 * size_of::<Vector5>();

/// The time step. The implicit scheme is stable for any value; the matrices stay dominant below 1.
pub(crate) const TAU: f64 = 0.5;

const SEED: u64 = 0x6274;

/// The cube of cells.
pub(crate) struct Grid {
    side: usize,
    state: Vec<Vector5>,
    rhs: Vec<Vector5>,
}

/// The axis of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    X,
    Y,
    Z,
}

impl Direction {
    pub(crate) const ALL: [Self; 3] = [Self::X, Self::Y, Self::Z];
}

/// The cells of a line: `start`, `start + stride`, ...; their number is the side of the cube.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GridLine {
    pub(crate) start: usize,
    pub(crate) stride: usize,
}

impl Grid {
    /// Makes a cube of `side` cells per axis with a random state.
    pub(crate) fn new(side: usize) -> Result<Self, Error> {
        let mut random = SplitMix64::new(SEED);
        let cells = side * side * side;
        let state = fill(cells, |_| std::array::from_fn(|_| 2.0 * f64::from(random.unit()) - 1.0))?;
        Ok(Self { side, state, rhs: fill(cells, |_| [0.0; 5])? })
    }

    pub(crate) const fn side(&self) -> usize {
        self.side
    }

    pub(crate) fn state(&self) -> &[Vector5] {
        &self.state
    }

    pub(crate) fn rhs(&self) -> &[Vector5] {
        &self.rhs
    }

    pub(crate) fn rhs_mut(&mut self) -> &mut [Vector5] {
        &mut self.rhs
    }

    /// All lines of a direction, in the order of their first cells.
    pub(crate) fn lines(&self, direction: Direction) -> impl Iterator<Item = GridLine> + use<> {
        let side = self.side;
        // The strides of the line, of the next line, and of the line after a row of lines.
        let (stride, next, row) = match direction {
            Direction::X => (1, side, side * side),
            Direction::Y => (side, 1, side * side),
            Direction::Z => (side * side, 1, side),
        };
        (0..side)
            .flat_map(move |outer| (0..side).map(move |inner| GridLine { start: outer * row + inner * next, stride }))
    }

    /// Computes the right-hand side: the flow into each cell from its neighbours in one step.
    /// Nothing flows through the surface.
    #[inline(never)]
    pub(crate) fn compute_rhs(&mut self) {
        let side = self.side;
        for at in 0..self.state.len() {
            let here = self.state[at];
            let mut flow = [0.0; 5];
            for stride in [1, side, side * side] {
                let coordinate = at / stride % side;
                let before = if coordinate > 0 { self.state[at - stride] } else { here };
                let behind = if coordinate + 1 < side { self.state[at + stride] } else { here };
                for unknown in 0..5 {
                    flow[unknown] += before[unknown] + behind[unknown] - 2.0 * here[unknown];
                }
            }
            self.rhs[at] = flow.map(|value| TAU * value);
        }
    }

    /// Adds the solved right-hand side to the state.
    #[inline(never)]
    pub(crate) fn add(&mut self) {
        for (state, change) in self.state.iter_mut().zip(&self.rhs) {
            state.iter_mut().zip(change).for_each(|(value, change)| *value += change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_cover_the_cube_in_each_direction() {
        let grid = Grid::new(4).unwrap();
        for (direction, stride) in Direction::ALL.into_iter().zip([1, 4, 16]) {
            let mut seen = vec![0; 64];
            for line in grid.lines(direction) {
                assert_eq!(line.stride, stride);
                (0..4).for_each(|cell| seen[line.start + cell * line.stride] += 1);
            }
            assert!(seen.iter().all(|times| *times == 1), "{direction:?}: {seen:?}");
        }
    }

    #[test]
    fn the_flows_of_all_cells_add_up_to_zero() {
        let mut grid = Grid::new(5).unwrap();
        grid.compute_rhs();
        for unknown in 0..5 {
            let sum: f64 = grid.rhs().iter().map(|cell| cell[unknown]).sum();
            assert!(sum.abs() < 1e-10, "{sum}");
        }
        assert!(grid.rhs().iter().flatten().any(|value| value.abs() > 0.1));
        grid.state.fill([3.0; 5]);
        grid.compute_rhs();
        assert!(grid.rhs().iter().flatten().all(|value| *value == 0.0), "an even state does not change");
    }
}
