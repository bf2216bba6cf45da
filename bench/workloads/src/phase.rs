//! Phase times on stderr, a `phase: seconds` line each, as the phase ends.

use std::time::Instant;

/// Runs `work`, prints how long it took as `name: seconds`, returns what it returned.
pub fn timed<T>(name: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    eprintln!("{name}: {:.6}", start.elapsed().as_secs_f64());
    result
}
