//! Phase times on stderr: one line `phase: seconds` at the end of each phase.

use std::time::Instant;

/// Runs `work` and prints its time as `name: seconds`. Returns its result.
pub fn timed<T>(name: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    eprintln!("{name}: {:.6}", start.elapsed().as_secs_f64());
    result
}
