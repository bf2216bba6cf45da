//! A baseline and its contenders, timed alternately in one process.
//!
//! ```text
//! sides      array          tree                  data in memory, with kernels that run on it
//! round 0    A A A A        B B B B               a batch of calls each, the same number for all
//! round 1                   B B B B   A A A A     in the opposite order
//! ```
//! The batch is long enough for the baseline. All kernels of a comparison do the same work, and the
//! sums of their results must be equal. If the sides do not fit in memory together, they are built
//! and measured one after the other.
//!
//! Kernels may read the same data, so a kernel could find it in the cache. If a side is larger than
//! a cache, the cache is filled with other data before each batch.
//!
//! Times are CPU time of this thread, without other programs of a shared machine.

use anyhow::{Result, bail, ensure};
use fieldstone_stats::order;

use crate::experiment::{MeasuredValue, SampleOutcome};
use crate::provenance::thread_cpu_s;
use crate::trial::{Task, Trial};

/// The work that is timed, on the data of a [`Side`].
pub struct Kernel {
    /// The row that its time fills.
    pub row: String,
    /// The row of its baseline; for a baseline its own. Baselines are in the first side.
    pub against: String,
    /// Operations (elements, steps) per call.
    pub operations: u64,
    /// One call. The compared kernels must return the same.
    pub call: Box<dyn FnMut() -> u64>,
}

impl Kernel {
    /// A baseline. Create `call` by [`crate::kernel!`].
    pub fn baseline(row: &str, operations: u64, call: Box<dyn FnMut() -> u64>) -> Self {
        Self { row: row.to_owned(), against: row.to_owned(), operations, call }
    }

    /// A kernel with the baseline `against`. Create `call` by [`crate::kernel!`].
    pub fn contender(row: &str, against: &str, operations: u64, call: Box<dyn FnMut() -> u64>) -> Self {
        Self { row: row.to_owned(), against: against.to_owned(), operations, call }
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").field("row", &self.row).field("against", &self.against).finish_non_exhaustive()
    }
}

/// A side whose data is filled and resident.
#[derive(Debug)]
pub struct BuiltSide {
    /// Its kernels, which own the data.
    pub kernels: Vec<Kernel>,
    /// The page kinds of its memory (see [`crate::pages`]).
    pub pages: Option<String>,
}

/// A side before it is built.
pub struct Side<'a> {
    /// The memory that it will use.
    pub bytes: u64,
    /// Builds it.
    pub build: Box<dyn FnOnce() -> Result<BuiltSide> + 'a>,
}

impl<'a> Side<'a> {
    /// A side of `bytes` that `build` builds.
    pub fn new(bytes: u64, build: impl FnOnce() -> Result<BuiltSide> + 'a) -> Self {
        Self { bytes, build: Box::new(build) }
    }
}

impl std::fmt::Debug for Side<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Side").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// More than the last-level cache of most machines. Smaller sides are in the cache in any case.
const CACHE_BYTES: u64 = 64 << 20;

/// The minimum length of the baseline's batch, and the number of batches.
#[derive(Clone, Copy)]
struct BatchEffort {
    batch_s: f64,
    rounds: usize,
    /// Whether the cache is filled with other data before each batch.
    fills_cache: bool,
}

/// A kernel with its measurements.
struct Runner {
    kernel: Kernel,
    pages: Option<String>,
    /// Calls per batch.
    calls: u64,
    /// Sum of the returned values.
    sum: u64,
    batches_s: Vec<f64>,
}

/// Builds the sides and runs the task of the trial with their kernels.
///
/// # Errors
/// If a side cannot be built, if results differ, or if a baseline is missing.
pub fn compare_sides(trial: &Trial, sides: Vec<Side<'_>>) -> Result<SampleOutcome> {
    if let Task::Call { row, calls } = &trial.task {
        return call_one(sides, row, *calls);
    }
    let (batch_s, rounds) = if trial.quick { (0.002, 5) } else { (0.01, 9) };
    let fills_cache = sides.iter().any(|side| side.bytes >= CACHE_BYTES);
    let effort = BatchEffort { batch_s, rounds, fills_cache };
    let alternately = sides.iter().map(|side| side.bytes).sum::<u64>() <= trial.memory_bytes;
    let mut done = Vec::<Runner>::new();
    if alternately {
        for side in sides {
            done.extend(runners(side)?);
        }
        run(&mut done, 0, effort, trial.layout.seed)?;
    } else {
        for side in sides {
            let first = done.len();
            done.extend(runners(side)?);
            run(&mut done, first, effort, trial.layout.seed)?;
            for runner in &mut done[first..] {
                // Frees the memory of this side.
                runner.kernel.call = Box::new(|| 0);
            }
        }
    }
    figures(&done).map(|figures| SampleOutcome::Measured { figures, alternately })
}

fn runners(side: Side<'_>) -> Result<impl Iterator<Item = Runner>> {
    let prepared = (side.build)()?;
    let pages = prepared.pages;
    let runner = move |kernel| Runner { kernel, pages: pages.clone(), calls: 0, sum: 0, batches_s: Vec::new() };
    Ok(prepared.kernels.into_iter().map(runner))
}

/// Warms up the runners from `first` on, and times them round by round in alternating order.
fn run(runners: &mut [Runner], first: usize, effort: BatchEffort, seed: u64) -> Result<()> {
    for at in first..runners.len() {
        let against = runners[at].kernel.against.clone();
        if runners[at].kernel.row == against {
            runners[at].calls = runners[at].calibrate(effort.batch_s);
        } else {
            let baseline = runners[..at].iter().find(|runner| runner.kernel.row == against);
            let Some(calls) = baseline.map(|runner| runner.calls) else {
                bail!("the baseline {against:?} must come before {:?}", runners[at].kernel.row);
            };
            runners[at].calls = calls;
            runners[at].warm_up();
        }
    }
    let count = runners.len() - first;
    let other_data = vec![1_u8; if effort.fills_cache { usize::try_from(CACHE_BYTES)? } else { 0 }];
    let start = usize::try_from(seed % 1024)?;
    for round in 0..effort.rounds {
        for index in order(count, start + round) {
            std::hint::black_box(
                std::hint::black_box(&other_data).iter().step_by(64).map(|byte| u64::from(*byte)).sum::<u64>(),
            );
            runners[first + index].time();
        }
    }
    Ok(())
}

impl Runner {
    fn batch(&mut self, calls: u64) -> f64 {
        let start = thread_cpu_s();
        for _ in 0..calls {
            self.sum = self.sum.wrapping_add((self.kernel.call)());
        }
        thread_cpu_s() - start
    }

    /// The number of calls per batch: 1, 2, 4, ... until a batch is long enough.
    fn calibrate(&mut self, batch_s: f64) -> u64 {
        let mut calls = 1;
        while self.batch(calls) < batch_s && calls < 1 << 40 {
            calls *= 2;
        }
        calls
    }

    /// Runs as many calls as the calibration of the baseline.
    fn warm_up(&mut self) {
        self.batch(2 * self.calls - 1);
    }

    fn time(&mut self) {
        let took_s = self.batch(self.calls);
        self.batches_s.push(took_s);
    }

    fn nanoseconds(&self) -> Option<f64> {
        let operations = self.kernel.operations.checked_mul(self.calls)?.max(1);
        fieldstone_stats::median(&self.batches_s).map(|batch_s| batch_s * 1e9 / operations as f64)
    }
}

fn figures(runners: &[Runner]) -> Result<Vec<MeasuredValue>> {
    let figure = |runner: &Runner| {
        let Some(baseline) = runners.iter().find(|baseline| baseline.kernel.row == runner.kernel.against) else {
            bail!("there is no baseline {:?}", runner.kernel.against);
        };
        ensure!(
            baseline.sum == runner.sum,
            "results differ: {:?} returned {:#x}, and {:?} {:#x}",
            baseline.kernel.row,
            baseline.sum,
            runner.kernel.row,
            runner.sum
        );
        let (Some(value), Some(of)) = (runner.nanoseconds(), baseline.nanoseconds()) else {
            bail!("{:?} was not timed", runner.kernel.row);
        };
        let is_baseline = runner.kernel.row == runner.kernel.against;
        let ratio = (!is_baseline && of > 0.0).then(|| value / of);
        Ok(MeasuredValue { ratio, pages: runner.pages.clone(), ..MeasuredValue::of(runner.kernel.row.clone(), value) })
    };
    runners.iter().map(figure).collect()
}

/// The name of the function whose instructions a tool counts ([`crate::count`]).
pub const COUNTED: &str = "counted_calls";

#[inline(never)]
fn counted_calls(kernel: &mut Kernel, calls: u64) {
    let mut sum = 0_u64;
    // No closure: its symbol would contain the name too.
    for _ in 0..calls {
        sum = sum.wrapping_add((kernel.call)());
    }
    std::hint::black_box(sum);
}

/// Builds the side that has the kernel of `row`, and calls it.
fn call_one(sides: Vec<Side<'_>>, row: &str, calls: u64) -> Result<SampleOutcome> {
    for side in sides {
        for mut runner in runners(side)? {
            if runner.kernel.row == row {
                counted_calls(&mut runner.kernel, calls);
                return Ok(SampleOutcome::Measured { figures: Vec::new(), alternately: false });
            }
        }
    }
    bail!("there is no kernel {row:?}")
}
