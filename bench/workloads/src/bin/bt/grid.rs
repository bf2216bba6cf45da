//! The cube: state and right side, each an array of cells.
//!
//! ```text
//! cell (x, y, z) is at (z * side + y) * side + x
//! ```

use crate::block::Cell;
use fieldstone_workloads::{Error, fill::fill, random::SplitMix64};

/// What a cell takes.
pub(crate) const CELL_BYTES: usize = 2 * size_of::<Cell>();

/// How far a step goes: stable for any, since the scheme is implicit; the blocks stay dominant below 1.
pub(crate) const TAU: f64 = 0.5;

const SEED: u64 = 0x6274;

/// The cube.
pub(crate) struct Grid {
    side: usize,
    state: Vec<Cell>,
    right: Vec<Cell>,
}

/// Along which edge a line runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    X,
    Y,
    Z,
}

impl Direction {
    pub(crate) const ALL: [Self; 3] = [Self::X, Self::Y, Self::Z];
}

/// The cells of a line: `start`, `start + stride`, ... as many as the cube's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) start: usize,
    pub(crate) stride: usize,
}

impl Grid {
    /// A cube of `side` cells each way with a random state.
    pub(crate) fn new(side: usize) -> Result<Self, Error> {
        let mut random = SplitMix64::new(SEED);
        let cells = side * side * side;
        let state = fill(cells, |_| std::array::from_fn(|_| 2.0 * f64::from(random.unit()) - 1.0))?;
        Ok(Self { side, state, right: fill(cells, |_| [0.0; 5])? })
    }

    pub(crate) const fn side(&self) -> usize {
        self.side
    }

    pub(crate) fn state(&self) -> &[Cell] {
        &self.state
    }

    pub(crate) fn right(&self) -> &[Cell] {
        &self.right
    }

    pub(crate) fn right_mut(&mut self) -> &mut [Cell] {
        &mut self.right
    }

    /// All lines of a direction, those of neighbouring cells one after the other.
    pub(crate) fn lines(&self, direction: Direction) -> impl Iterator<Item = Line> + use<> {
        let side = self.side;
        // The strides of the line, of the next line, and of the line after a row of lines.
        let (stride, next, row) = match direction {
            Direction::X => (1, side, side * side),
            Direction::Y => (side, 1, side * side),
            Direction::Z => (side * side, 1, side),
        };
        (0..side).flat_map(move |outer| (0..side).map(move |inner| Line { start: outer * row + inner * next, stride }))
    }

    /// The right side: what flows into each cell from its neighbours in one step. Nothing flows through the outside.
    #[inline(never)]
    pub(crate) fn make_right_side(&mut self) {
        let side = self.side;
        for at in 0..self.state.len() {
            let here = self.state[at];
            let mut flow = [0.0; 5];
            for stride in [1, side, side * side] {
                let place = at / stride % side;
                let before = if place > 0 { self.state[at - stride] } else { here };
                let behind = if place + 1 < side { self.state[at + stride] } else { here };
                for unknown in 0..5 {
                    flow[unknown] += before[unknown] + behind[unknown] - 2.0 * here[unknown];
                }
            }
            self.right[at] = flow.map(|value| TAU * value);
        }
    }

    /// The state after the step: the right side, which is solved by now, is added.
    #[inline(never)]
    pub(crate) fn add(&mut self) {
        for (state, change) in self.state.iter_mut().zip(&self.right) {
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
    fn what_flows_out_of_one_cell_flows_into_others() {
        let mut grid = Grid::new(5).unwrap();
        grid.make_right_side();
        for unknown in 0..5 {
            let sum: f64 = grid.right().iter().map(|cell| cell[unknown]).sum();
            assert!(sum.abs() < 1e-10, "{sum}");
        }
        assert!(grid.right().iter().flatten().any(|value| value.abs() > 0.1));
        grid.state.fill([3.0; 5]);
        grid.make_right_side();
        assert!(grid.right().iter().flatten().all(|value| *value == 0.0), "an even state does not change");
    }
}
