//! A Kronecker graph as compressed sparse rows.
//!
//! ```text
//! starts      0     3  4        9 …      one per vertex, and the end
//!             |     |  |        |
//! neighbours  5 1 9 0  7 2 2 3 8 …       vertex v: starts[v] .. starts[v + 1]
//! ```
//! Each edge is drawn bit by bit. At each of SCALE levels it falls into one quarter of the
//! adjacency matrix, with probabilities A, B, C and the rest (Graph500 1.2: 0.57, 0.19, 0.19,
//! 0.05). Then the vertices are renumbered at random. Loops are dropped; double edges stay.

use fieldstone_workloads::{Error, fill::fill, random::SplitMix64};

/// An undirected graph of at most 2^28 vertices.
pub(crate) struct CsrGraph {
    starts: Vec<usize>,
    neighbours: Vec<u32>,
}

/// Returns `probability` as a threshold for 32 random bits.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a fraction of 2^32, rounded down")]
const fn threshold(probability: f64) -> u32 {
    (probability * 4_294_967_296.0) as u32
}

const UPPER: u32 = threshold(0.57 + 0.19);
const LEFT_IF_UPPER: u32 = threshold(0.57 / (0.57 + 0.19));
const LEFT_IF_LOWER: u32 = threshold(0.19 / (1.0 - (0.57 + 0.19)));

impl CsrGraph {
    /// Makes a graph of 2^`scale` vertices with `edge_factor` edges per vertex. It takes 16 bytes
    /// per edge, and 8 more during construction.
    pub(crate) fn kronecker(scale: u32, edge_factor: u16, random: &mut SplitMix64) -> Result<Self, Error> {
        let vertices = 1_usize << scale;
        let names = shuffled(vertices, random)?;
        let edges = fill(vertices * usize::from(edge_factor), |_| {
            let (row, column) = draw_edge(scale, random);
            (names[row], names[column])
        })?;
        Self::from_edges(vertices, &edges)
    }

    /// Makes the graph of `edges`, each in both directions.
    pub(crate) fn from_edges(vertices: usize, edges: &[(u32, u32)]) -> Result<Self, Error> {
        let mut starts = fill(vertices + 1, |_| 0_usize)?;
        let both_ways = || edges.iter().filter(|(a, b)| a != b).flat_map(|&(a, b)| [(a, b), (b, a)]);
        for (from, _) in both_ways() {
            starts[from as usize] += 1;
        }
        // Each entry becomes the end of its row. Filling a row backwards moves its entry down to
        // the start.
        let mut end = 0;
        for start in &mut starts {
            end += *start;
            *start = end;
        }
        let mut neighbours = fill(end, |_| 0_u32)?;
        for (from, to) in both_ways() {
            let next = &mut starts[from as usize];
            *next -= 1;
            neighbours[*next] = to;
        }
        Ok(Self { starts, neighbours })
    }

    /// The number of vertices.
    pub(crate) const fn vertices(&self) -> usize {
        self.starts.len() - 1
    }

    /// Whether the graph has no edge at all.
    pub(crate) const fn has_no_edge(&self) -> bool {
        self.neighbours.is_empty()
    }

    /// Vertex number `index`, below [`Self::vertices`].
    #[expect(clippy::cast_possible_truncation, reason = "there are at most 2^28 vertices")]
    pub(crate) fn vertex(&self, index: usize) -> u32 {
        debug_assert!(index < self.vertices(), "vertex {index} of {}", self.vertices());
        index as u32
    }

    /// The neighbours of `vertex`; a double edge appears twice.
    pub(crate) fn neighbours(&self, vertex: u32) -> &[u32] {
        let vertex = vertex as usize;
        &self.neighbours[self.starts[vertex]..self.starts[vertex + 1]]
    }
}

/// Draws the row and column of one edge in the adjacency matrix.
fn draw_edge(scale: u32, random: &mut SplitMix64) -> (usize, usize) {
    let (mut row, mut column) = (0, 0);
    for _ in 0..scale {
        let draw = random.draw();
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of a draw")]
        let (first, second) = ((draw >> 32) as u32, draw as u32);
        let lower = first >= UPPER;
        let right = second >= if lower { LEFT_IF_LOWER } else { LEFT_IF_UPPER };
        row = row << 1 | usize::from(lower);
        column = column << 1 | usize::from(right);
    }
    (row, column)
}

/// The numbers 0 to `count` - 1 in random order (Fisher and Yates).
fn shuffled(count: usize, random: &mut SplitMix64) -> Result<Vec<u32>, Error> {
    #[expect(clippy::cast_possible_truncation, reason = "there are at most 2^28 vertices")]
    let mut names = fill(count, |i| i as u32)?;
    for i in (1..count).rev() {
        names.swap(i, random.below(i + 1));
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_each_edge_both_ways_and_no_loop() {
        let graph = CsrGraph::from_edges(4, &[(0, 1), (2, 2), (1, 3), (0, 1)]).unwrap();
        let sorted = |v| {
            let mut row = graph.neighbours(v).to_vec();
            row.sort_unstable();
            row
        };
        assert_eq!((sorted(0), sorted(1)), (vec![1, 1], vec![0, 0, 3]));
        assert_eq!((sorted(2), sorted(3)), (vec![], vec![1]));
    }

    #[test]
    fn quarters_are_drawn_with_their_probabilities() {
        let mut random = SplitMix64::new(3);
        let mut counts = [[0_u32; 2]; 2];
        for _ in 0..100_000 {
            let (row, column) = draw_edge(1, &mut random);
            counts[row][column] += 1;
        }
        let near = |count: u32, percent: u32| count.abs_diff(percent * 1000) < 1000;
        assert!(near(counts[0][0], 57) && near(counts[0][1], 19) && near(counts[1][0], 19), "{counts:?}");
    }
}
