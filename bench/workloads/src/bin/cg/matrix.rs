//! The matrix in compressed sparse rows: the identity plus the Laplacian of a random weighted
//! graph.
//!
//! ```text
//! starts    0       4     7 …
//!           |       |     |
//! columns   0 7 3 9 1 7 2 2 …     the diagonal first, then the others in no order
//! values    d - - - d - - d …     edge: minus its weight, in both rows; diagonal: 1 + the row's weights
//! ```
//! Each row and each column adds up to 1, so 1 is an eigenvalue with the vector of ones. All other
//! eigenvalues are larger.

use fieldstone_workloads::{Error, fill::fill, random::SplitMix64};

/// A symmetric positive definite matrix.
pub(crate) struct Matrix {
    starts: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f64>,
}

impl Matrix {
    /// Makes a matrix of `rows` with `nonzeros` entries per row on average. Drawing the edges twice
    /// avoids any temporary memory.
    pub(crate) fn random(rows: usize, nonzeros: u16, seed: u64) -> Result<Self, Error> {
        let edges = |row: usize| edges(rows, nonzeros, seed, row);
        // The diagonal is one entry per row.
        let mut starts = fill(rows + 1, |row| usize::from(row < rows))?;
        for row in 0..rows {
            for (column, _) in edges(row) {
                starts[row] += 1;
                starts[column as usize] += 1;
            }
        }
        // Each entry becomes the end of its row. Filling a row backwards moves its entry down to
        // the start.
        let mut end = 0;
        for start in &mut starts {
            end += *start;
            *start = end;
        }
        let mut columns = fill(end, |_| 0_u32)?;
        let mut values = fill(end, |_| 0.0_f64)?;
        let mut insert = |row: usize, column: u32, value| {
            starts[row] -= 1;
            (columns[starts[row]], values[starts[row]]) = (column, value);
        };
        for row in 0..rows {
            for (column, weight) in edges(row) {
                insert(row, column, -weight);
                insert(column as usize, narrow(row), -weight);
            }
        }
        for row in 0..rows {
            insert(row, narrow(row), 0.0);
        }
        for row in 0..rows {
            values[starts[row]] = 1.0 - values[starts[row]..starts[row + 1]].iter().sum::<f64>();
        }
        Ok(Self { starts, columns, values })
    }

    /// Average bytes of a row.
    pub(crate) fn row_bytes(nonzeros: u16) -> usize {
        size_of::<usize>() + usize::from(nonzeros) * (size_of::<u32>() + size_of::<f64>())
    }

    /// One component of the product with `vector`.
    #[inline(always)]
    pub(crate) fn row_times(&self, row: usize, vector: &[f64]) -> f64 {
        let range = self.starts[row]..self.starts[row + 1];
        let entries = self.columns[range.clone()].iter().zip(&self.values[range]);
        entries.fold(0.0, |sum, (column, value)| sum + value * vector[*column as usize])
    }
}

/// The edges drawn for a row, half of its final number: target and weight. Loops are left out.
fn edges(rows: usize, nonzeros: u16, seed: u64, row: usize) -> impl Iterator<Item = (u32, f64)> {
    let mut random = SplitMix64::new(seed ^ (row as u64) << 20);
    let drawn = (0..nonzeros / 2).map(move |_| (narrow(random.below(rows)), 0.5 + f64::from(random.unit())));
    drawn.filter(move |(column, _)| *column as usize != row)
}

#[expect(clippy::cast_possible_truncation, reason = "there are at most 2^32 rows")]
const fn narrow(row: usize) -> u32 {
    row as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_symmetric_and_rows_add_up_to_1() {
        let (rows, nonzeros) = (50, 32);
        let matrix = Matrix::random(rows, nonzeros, 1).unwrap();
        let dense: Vec<Vec<f64>> = (0..rows)
            .map(|row| {
                let range = matrix.starts[row]..matrix.starts[row + 1];
                assert_eq!(matrix.columns[range.start] as usize, row, "the diagonal comes first");
                let mut all = vec![0.0; rows];
                range.for_each(|at| all[matrix.columns[at] as usize] += matrix.values[at]);
                all
            })
            .collect();
        let ones = vec![1.0; rows];
        for (row, all) in dense.iter().enumerate() {
            assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            assert!(all.iter().zip(&dense).all(|(value, other)| (value - other[row]).abs() < 1e-12));
            assert!((matrix.row_times(row, &ones) - 1.0).abs() < 1e-12);
        }
        let drawn = matrix.columns.len() as f64 / rows as f64;
        assert!((drawn - f64::from(nonzeros)).abs() < 2.0, "{drawn} entries a row");
    }
}
