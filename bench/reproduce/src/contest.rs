//! A baseline and its contenders, timed alternately in one process.
//!
//! A [`Side`] is something in memory with kernels that run on it; a kernel names the one that it is compared with. Each batch is as many
//! calls as make the baseline's last long enough, the same number for all, so that all do the same work and have to agree on
//! the sum of what they returned. Where the sides do not fit into memory together, one is built and measured after the other.
//!
//! Kernels may run on the same data, so that one would find in the cache what the one before it read: where a side is larger than a
//! cache, the cache is filled with something else before each batch.
//!
//! Times are this thread's CPU time: on a shared machine, what others take is not ours.

use anyhow::{Result, bail, ensure};
use fieldstone_stats::order;

use crate::experiment::{Figure, Outcome};
use crate::provenance::thread_cpu_s;
use crate::trial::{Task, Trial};

/// A piece of work on a [`Side`].
pub struct Kernel {
    /// The row that its time fills.
    pub row: String,
    /// The row of the kernel that it is compared with: its own for a baseline. Baselines lie in the first side.
    pub against: String,
    /// Operations (elements, steps) of one call.
    pub operations: u64,
    /// One call: what it returns is what all that are compared have to agree on.
    pub call: Box<dyn FnMut() -> u64>,
}

impl Kernel {
    /// A kernel that others are compared with. Make `call` by [`crate::kernel!`].
    pub fn baseline(row: &str, operations: u64, call: Box<dyn FnMut() -> u64>) -> Self {
        Self { row: row.to_owned(), against: row.to_owned(), operations, call }
    }

    /// A kernel that is compared with the baseline `against`. Make `call` by [`crate::kernel!`].
    pub fn contender(row: &str, against: &str, operations: u64, call: Box<dyn FnMut() -> u64>) -> Self {
        Self { row: row.to_owned(), against: against.to_owned(), operations, call }
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel").field("row", &self.row).field("against", &self.against).finish_non_exhaustive()
    }
}

/// A side that is built: filled, resident.
#[derive(Debug)]
pub struct Prepared {
    /// What runs on it; the kernels own what they run on.
    pub kernels: Vec<Kernel>,
    /// The pages that it really got (see [`crate::pages`]).
    pub pages: Option<String>,
}

/// A side that is to be built.
pub struct Side<'a> {
    /// Memory that it will take.
    pub bytes: u64,
    /// Builds it.
    pub build: Box<dyn FnOnce() -> Result<Prepared> + 'a>,
}

impl<'a> Side<'a> {
    /// A side of `bytes` that `build` makes.
    pub fn new(bytes: u64, build: impl FnOnce() -> Result<Prepared> + 'a) -> Self {
        Self { bytes, build: Box::new(build) }
    }
}

impl std::fmt::Debug for Side<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Side").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// More than the last-level cache of most machines; below it, sides are in the cache anyway.
const CACHE_BYTES: u64 = 64 << 20;

/// How long a batch of the baseline is at least, and how many are timed.
#[derive(Clone, Copy)]
struct Effort {
    batch_s: f64,
    rounds: usize,
    /// Whether the cache is emptied before each batch.
    scrubs: bool,
}

/// A kernel at work.
struct Runner {
    kernel: Kernel,
    pages: Option<String>,
    calls: u64,
    /// Sum of what it returned.
    sum: u64,
    batches_s: Vec<f64>,
}

/// Builds the sides and does the trial's task with their kernels.
///
/// # Errors
/// When a side cannot be built, when kernels disagree, or when one names a baseline that is not there.
pub fn contest(trial: &Trial, sides: Vec<Side<'_>>) -> Result<Outcome> {
    if let Task::Call { row, calls } = &trial.task {
        return call_one(sides, row, *calls);
    }
    let (batch_s, rounds) = if trial.quick { (0.002, 5) } else { (0.01, 9) };
    let scrubs = sides.iter().any(|side| side.bytes >= CACHE_BYTES);
    let effort = Effort { batch_s, rounds, scrubs };
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
                // Gives the memory of this side back.
                runner.kernel.call = Box::new(|| 0);
            }
        }
    }
    figures(&done).map(|figures| Outcome::Measured { figures, alternately })
}

fn runners(side: Side<'_>) -> Result<impl Iterator<Item = Runner>> {
    let prepared = (side.build)()?;
    let pages = prepared.pages;
    let runner = move |kernel| Runner { kernel, pages: pages.clone(), calls: 0, sum: 0, batches_s: Vec::new() };
    Ok(prepared.kernels.into_iter().map(runner))
}

/// Warms up and times the runners from `first` on, one after the other, round by round, each round in the opposite order.
fn run(runners: &mut [Runner], first: usize, effort: Effort, seed: u64) -> Result<()> {
    for at in first..runners.len() {
        let against = runners[at].kernel.against.clone();
        if runners[at].kernel.row == against {
            runners[at].calls = runners[at].calibrate(effort.batch_s);
        } else {
            let baseline = runners[..at].iter().find(|runner| runner.kernel.row == against);
            let Some(calls) = baseline.map(|runner| runner.calls) else {
                bail!("{:?} is compared with {against:?}, which does not come before it", runners[at].kernel.row);
            };
            runners[at].calls = calls;
            runners[at].warm_up();
        }
    }
    let count = runners.len() - first;
    let other = vec![1_u8; if effort.scrubs { usize::try_from(CACHE_BYTES)? } else { 0 }];
    let start = usize::try_from(seed % 1024)?;
    for round in 0..effort.rounds {
        for index in order(count, start + round) {
            std::hint::black_box(
                std::hint::black_box(&other).iter().step_by(64).map(|byte| u64::from(*byte)).sum::<u64>(),
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

    /// How many calls make a batch: 1, 2, 4, ... until it is long enough.
    fn calibrate(&mut self, batch_s: f64) -> u64 {
        let mut calls = 1;
        while self.batch(calls) < batch_s && calls < 1 << 40 {
            calls *= 2;
        }
        calls
    }

    /// As many calls as the baseline's calibration took.
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

fn figures(runners: &[Runner]) -> Result<Vec<Figure>> {
    let figure = |runner: &Runner| {
        let Some(baseline) = runners.iter().find(|baseline| baseline.kernel.row == runner.kernel.against) else {
            bail!("there is no {:?}", runner.kernel.against);
        };
        ensure!(
            baseline.sum == runner.sum,
            "{:?} came to {:#x}, and {:?} to {:#x}: one of them is wrong",
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
        Ok(Figure { ratio, pages: runner.pages.clone(), ..Figure::of(runner.kernel.row.clone(), value) })
    };
    runners.iter().map(figure).collect()
}

/// The function whose instructions a tool counts ([`crate::count`]), by this name.
pub const COUNTED: &str = "counted_calls";

#[inline(never)]
fn counted_calls(kernel: &mut Kernel, calls: u64) {
    let mut sum = 0_u64;
    // A closure's symbol would have the name in it, too.
    for _ in 0..calls {
        sum = sum.wrapping_add((kernel.call)());
    }
    std::hint::black_box(sum);
}

/// Builds the side that has the kernel, and calls it.
fn call_one(sides: Vec<Side<'_>>, row: &str, calls: u64) -> Result<Outcome> {
    for side in sides {
        for mut runner in runners(side)? {
            if runner.kernel.row == row {
                counted_calls(&mut runner.kernel, calls);
                return Ok(Outcome::Measured { figures: Vec::new(), alternately: false });
            }
        }
    }
    bail!("no kernel is called {row:?}")
}
