//! Conjugate gradient on a random sparse matrix, after NAS CG: long sequential reads of the matrix,
//! and a random read of a vector per entry.
//!
//! | file | what it decides or does |
//! |---|---|
//! | `matrix` | the sparse matrix |
//! | `solve` | 25 steps of conjugate gradient |
//!
//! NAS CG finds the smallest eigenvalue of a symmetric positive definite matrix by inverse
//! iteration. Each round solves A z = x by 25 steps of conjugate gradient, estimates the eigenvalue
//! as x·x / x·z, and continues with z, normalised. The difference: the matrix is the identity plus
//! the Laplacian of a random graph. So the eigenvalue is 1 with a vector of ones, for any size.
//!
//! Checks: the residual of each solution is recomputed. A preserves the sum of a vector, since each
//! of its columns adds up to 1. The estimate decreases from round to round, to 1.

mod matrix;
mod solve;

use clap::Parser;
use fieldstone_workloads::{
    Error,
    fill::fill,
    phase::timed,
    random::{SplitMix64, mix},
    size,
    verdict::conclude,
};
use matrix::Matrix;
use solve::{CgVectors, dot};
use std::process::ExitCode;

/// Find the smallest eigenvalue of a random sparse matrix by conjugate gradient.
#[derive(Parser)]
#[command(name = "cg", version)]
struct Arguments {
    /// Size of the matrix and the vectors in bytes, for example 1G.
    #[arg(value_parser = size::parse)]
    size: usize,
    /// Number of rounds, each of 25 steps.
    #[arg(default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Average number of entries per row. NAS has 64 in its smallest class, 480 in class D. Fewer
    /// entries mean larger vectors.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(32..=1024))]
    nonzeros: u16,
}

const SEED: u64 = 0x6367;

fn run(arguments: &Arguments) -> Result<u64, Error> {
    let rows = rows_in(arguments.size, arguments.nonzeros)?;
    let (matrix, mut vectors) = timed("init", || -> Result<_, Error> {
        let matrix = Matrix::random(rows, arguments.nonzeros, SEED)?;
        let mut random = SplitMix64::new(mix(SEED));
        Ok((matrix, CgVectors::new(fill(rows, |_| 0.5 + f64::from(random.unit()))?)?))
    })?;
    let estimates = timed("kernel", || rounds(&matrix, &mut vectors, arguments.rounds))?;
    timed("verify", || verify(&matrix, &vectors, &estimates))
}

/// The number of rows whose matrix and vectors fit into `bytes`.
fn rows_in(bytes: usize, nonzeros: u16) -> Result<usize, Error> {
    let rows = bytes / (Matrix::row_bytes(nonzeros) + CgVectors::ROW_BYTES);
    if rows < 2 {
        return Err(Error::Argument { what: "SIZE is less than two rows of the matrix: use 64K or more".into() });
    }
    // A column is a u32.
    if u32::try_from(rows).is_err() {
        return Err(Error::Argument { what: "SIZE is more than 2^32 rows: use fewer bytes or more --nonzeros".into() });
    }
    Ok(rows)
}

/// The estimates of the eigenvalue, one per round.
fn rounds(matrix: &Matrix, vectors: &mut CgVectors, count: u32) -> Result<Vec<f64>, Error> {
    let mut estimates = Vec::new();
    for round in 1..=count {
        vectors.normalise();
        let residual = vectors.solve(matrix);
        if residual.is_nan() || residual > 1e-6 {
            return Err(Error::wrong(format!(
                "round {round} has a residual of {residual:e}; 25 steps should reach 1e-6"
            )));
        }
        estimates.push(vectors.estimate());
        vectors.take_solution();
    }
    Ok(estimates)
}

fn verify(matrix: &Matrix, vectors: &CgVectors, estimates: &[f64]) -> Result<u64, Error> {
    let before: f64 = vectors.x().iter().sum();
    let product = fill(vectors.x().len(), |row| matrix.row_times(row, vectors.x()))?;
    let after: f64 = product.iter().sum();
    let largest = dot(vectors.x(), vectors.x()).sqrt() * (product.len() as f64).sqrt();
    if (before - after).abs() > 1e-9 * largest {
        return Err(Error::wrong(format!("the matrix changes the sum of a vector from {before} to {after}")));
    }
    // All other eigenvalues are far above 2, so each round reduces the error of the estimate by
    // more than a factor of 4.
    let bounds = std::iter::successors(Some(1.0), |bound| Some(bound / 4.0));
    if estimates.iter().zip(bounds).any(|(estimate, bound)| !(-1e-6..bound + 1e-6).contains(&(estimate - 1.0))) {
        return Err(Error::wrong(format!("the estimates {estimates:?} do not converge to 1")));
    }
    Ok(vectors.x().iter().fold(0, |sum, value| mix(sum ^ value.to_bits())))
}

fn main() -> ExitCode {
    conclude("cg", run(&Arguments::parse()))
}
