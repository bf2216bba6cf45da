//! Conjugate gradient (Hestenes and Stiefel): a fixed number of steps from zero, as in NAS CG.

use crate::matrix::Matrix;
use fieldstone_workloads::{Error, fill::fill};

const STEPS: usize = 25;

/// The vectors: x is the right-hand side, z the solution, r the residual, p the direction, q = A p.
pub(crate) struct CgVectors {
    x: Vec<f64>,
    z: Vec<f64>,
    r: Vec<f64>,
    p: Vec<f64>,
    q: Vec<f64>,
}

impl CgVectors {
    /// Bytes per row.
    pub(crate) const ROW_BYTES: usize = 5 * size_of::<f64>();

    pub(crate) fn new(x: Vec<f64>) -> Result<Self, Error> {
        let zeros = || fill(x.len(), |_| 0.0);
        Ok(Self { z: zeros()?, r: zeros()?, p: zeros()?, q: zeros()?, x })
    }

    /// The vector of the iteration.
    pub(crate) fn x(&self) -> &[f64] {
        &self.x
    }

    /// Normalises x to length 1.
    pub(crate) fn normalise(&mut self) {
        let length = dot(&self.x, &self.x).sqrt();
        self.x.iter_mut().for_each(|value| *value /= length);
    }

    /// Solves A z = x. Returns the length of x - A z, recomputed from the matrix.
    #[inline(never)]
    pub(crate) fn solve(&mut self, matrix: &Matrix) -> f64 {
        self.z.fill(0.0);
        self.r.copy_from_slice(&self.x);
        self.p.copy_from_slice(&self.x);
        let mut rho = dot(&self.r, &self.r);
        for _ in 0..STEPS {
            multiply(matrix, &self.p, &mut self.q);
            let alpha = rho / dot(&self.p, &self.q);
            add(&mut self.z, alpha, &self.p);
            add(&mut self.r, -alpha, &self.q);
            let next = dot(&self.r, &self.r);
            // The solution is exact: the next step would divide zero by zero.
            if next == 0.0 {
                break;
            }
            let beta = next / rho;
            rho = next;
            self.p.iter_mut().zip(&self.r).for_each(|(p, r)| *p = r + beta * *p);
        }
        multiply(matrix, &self.z, &mut self.q);
        let squares = self.x.iter().zip(&self.q).map(|(x, product)| (x - product) * (x - product));
        squares.sum::<f64>().sqrt()
    }

    /// The estimate of the eigenvalue from x, which has length 1, and its solution.
    pub(crate) fn estimate(&self) -> f64 {
        1.0 / dot(&self.x, &self.z)
    }

    /// Makes z the next x.
    pub(crate) fn take_solution(&mut self) {
        std::mem::swap(&mut self.x, &mut self.z);
    }
}

fn multiply(matrix: &Matrix, vector: &[f64], product: &mut [f64]) {
    product.iter_mut().enumerate().for_each(|(row, value)| *value = matrix.row_times(row, vector));
}

/// Adds `factor` times `vector` to `to`.
fn add(to: &mut [f64], factor: f64, vector: &[f64]) {
    to.iter_mut().zip(vector).for_each(|(to, value)| *to += factor * value);
}

/// The inner product.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_matrix_leaves_no_residual() {
        let matrix = Matrix::random(300, 64, 5).unwrap();
        let mut vectors = CgVectors::new((0..300).map(|i| f64::from(i % 7) - 3.0).collect()).unwrap();
        vectors.normalise();
        assert!((dot(vectors.x(), vectors.x()) - 1.0).abs() < 1e-12);
        assert!(vectors.solve(&matrix) < 1e-9);
        let other = Matrix::random(300, 64, 6).unwrap();
        multiply(&other, &vectors.z, &mut vectors.q);
        let difference: f64 = vectors.x.iter().zip(&vectors.q).map(|(x, product)| (x - product).abs()).sum();
        assert!(difference > 1e-3, "another matrix has another solution: {difference}");
    }

    #[test]
    fn the_estimate_converges_to_the_smallest_eigenvalue() {
        let matrix = Matrix::random(200, 64, 5).unwrap();
        let mut vectors = CgVectors::new((0..200).map(|i| 1.0 + f64::from(i % 5)).collect()).unwrap();
        let mut estimates = Vec::new();
        for _ in 0..6 {
            vectors.normalise();
            vectors.solve(&matrix);
            estimates.push(vectors.estimate());
            vectors.take_solution();
        }
        assert!(estimates[0] > 1.01, "{estimates:?}");
        assert!((estimates[5] - 1.0).abs() < 1e-9, "{estimates:?}");
    }
}
