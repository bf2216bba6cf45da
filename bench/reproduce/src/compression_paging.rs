//! Data-compression paging by Appel and Li: speed over the share of memory that is resident, with
//! `fieldstone run --resident`, with zram and with a swap file.
//!
//! | module | content |
//! |---|---|
//! | `memory_group` | a control group with swap space, which is removed in any case |
//! | `bounded_program` | a program whose memory is bounded by a method; a run of `bounded-memory` |
//!
//! Source: Appel and Li, *Virtual Memory Primitives for User Programs*, "Data-compression paging".
//! The paper has no times of it.

mod bounded_program;
mod memory_group;

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use fieldstone_stats::order;

pub use bounded_program::{BoundMethod, BoundedProgram, PageAccesses};
pub use memory_group::{MemoryGroup, SwapSpace};

use crate::experiment::{Cell, Experiment, MeasuredValue, Needs, Quantity, Row, Scale};
use crate::sibling_programs::{Missing, outcome};
use crate::trial::Trial;

/// Why a run under a control group did not end well. Reclaim under a limit fails now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunFailure {
    /// The kernel killed it for lack of memory.
    Killed,
    /// It did not end in time.
    Hung,
}

impl std::fmt::Display for RunFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Killed => "killed for lack of memory",
            Self::Hung => "hung",
        })
    }
}

impl std::error::Error for RunFailure {}

/// Repeats a run that ends with a [`RunFailure`], and counts these.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunCount {
    /// All runs.
    pub runs: u32,
    /// Runs that were killed or hung.
    pub failed: u32,
}

impl RunCount {
    /// Runs that may fail one after the other.
    const ATTEMPTS: u32 = 3;

    /// The first result of `run` that is no failure.
    ///
    /// # Errors
    /// [`Missing`] after three failures in a row; any other error of `run`.
    pub fn repeat<T>(&mut self, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..Self::ATTEMPTS {
            self.runs += 1;
            match run() {
                Err(error) if error.is::<RunFailure>() => self.failed += 1,
                result => return result,
            }
        }
        Err(Missing(format!("{} runs in a row were killed or hung", Self::ATTEMPTS)).into())
    }
}

/// Speed over residency.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "compression-paging",
        title: "Data-compression paging",
        source: "Appel and Li, Data-compression paging",
        about: "The workload `bounded-memory` reads and writes pages that compress 1.7 to 1, at random or by a zipfian \
                distribution, with one thread. A column is the bound as a share of the memory. `run --resident` keeps pages above it compressed by lz4 or zstd, or in a \
                file. The others are swap space under a memory control group (version 1) with the same limit: a zram \
                device with lz4, and a file. Compressed pages are not counted by any of the limits. The methods with \
                files count their page cache. A sample is one run of each method, and the order alternates from sample \
                to sample. Each run checks all pages at its end. Runs that the kernel kills for lack of memory are \
                repeated. Speeds are relative to the same program without a bound. The paper has no times.",
        needs: Needs { minutes: 40, memory_bytes: 2 << 30, disk_bytes: 3 << 30 },
        cells,
    }
}

const SPEED: [(&str, &str); 2] = [
    ("random", "Random accesses: speed relative to no bound, by resident share"),
    ("zipf", "Zipfian accesses: speed relative to no bound, by resident share"),
];
const TIMES: [(&str, &str); 2] = [
    ("random", "Random accesses: time relative to zram, by resident share"),
    ("zipf", "Zipfian accesses: time relative to zram, by resident share"),
];

/// The compared methods.
const METHODS: [BoundMethod; 5] =
    [BoundMethod::PagedLz4, BoundMethod::PagedZstd, BoundMethod::PagedFile, BoundMethod::Zram, BoundMethod::SwapFile];
const PERCENTAGES: [u64; 6] = [100, 75, 50, 37, 25, 12];
const BYTES: u64 = 512 << 20;
const BYTES_QUICK: u64 = 64 << 20;

fn cells(scale: Scale) -> Vec<Cell> {
    let is_quick = scale == Scale::Quick;
    let percentages = if is_quick { &PERCENTAGES[2..3] } else { &PERCENTAGES[..] };
    let patterns = SPEED.into_iter().zip(TIMES);
    let cells = patterns.flat_map(|((pattern, speed), (_, times))| {
        percentages.iter().map(move |&percent| {
            let id = format!("compression-paging/{pattern}/{percent}");
            // Twice: the memory, and all of it in a store.
            let memory_bytes = 2 * if is_quick { BYTES_QUICK } else { BYTES };
            Cell::new(id, format!("{percent} %"), memory_bytes, rows(speed, times), move |trial| {
                outcome(measure(trial, pattern, percent))
            })
        })
    });
    cells.collect()
}

fn rows(speed: &'static str, times: &'static str) -> Vec<Row> {
    let time = |method: BoundMethod| match method {
        BoundMethod::Zram => Row::new(Quantity::Nanoseconds, times, time_row(method)),
        _ => Row::ratio(times, time_row(method)),
    };
    METHODS.map(|method| Row::new(Quantity::Share, speed, method.name())).into_iter().chain(METHODS.map(time)).collect()
}

/// The name of a row with times.
fn time_row(method: BoundMethod) -> String {
    format!("{}, time", method.name())
}

fn measure(trial: &Trial, pattern: &'static str, percent: u64) -> Result<Vec<MeasuredValue>> {
    let bytes = if trial.quick { BYTES_QUICK } else { BYTES };
    // A zipfian access hits a resident page more often.
    let operations = bytes / 4096 * if pattern == "zipf" { 4 } else { 1 };
    let accesses = PageAccesses { pattern, bytes, operations, threads: 1 };
    let mut seconds = BTreeMap::new();
    let all: Vec<_> = [BoundMethod::Unbounded].into_iter().chain(METHODS).collect();
    // The seeds of consecutive samples are consecutive.
    for index in order(all.len(), usize::try_from(trial.layout.seed % 2)?) {
        let run = RunCount::default().repeat(|| accesses.run(all[index], bytes / 100 * percent));
        match run {
            Err(error) if error.is::<Missing>() => seconds.insert(index, Err(error.to_string())),
            run => seconds.insert(index, Ok(run?)),
        };
    }
    let unbounded = seconds.remove(&0).context("each method has a run")?.map_err(Missing)?;
    let of_methods: Vec<_> = METHODS.into_iter().zip(seconds.into_values()).collect();
    Ok(values(unbounded, operations, &of_methods))
}

/// The values of a sample, from the seconds without a bound and of each method, or why it has none.
fn values(unbounded: f64, operations: u64, of_methods: &[(BoundMethod, Result<f64, String>)]) -> Vec<MeasuredValue> {
    let is_zram = |(method, seconds): &(BoundMethod, Result<f64, String>)| {
        if *method == BoundMethod::Zram { seconds.clone().ok() } else { None }
    };
    let zram = of_methods.iter().find_map(is_zram);
    let both = of_methods.iter().flat_map(|(method, seconds)| {
        let (name, time_name) = (method.name(), time_row(*method));
        match seconds {
            Err(reason) => [MeasuredValue::word(name, reason.clone()), MeasuredValue::word(time_name, reason.clone())],
            Ok(seconds) => {
                let ratio = zram.filter(|_| *method != BoundMethod::Zram).map(|zram| seconds / zram);
                let time = MeasuredValue { ratio, ..MeasuredValue::of(time_name, seconds * 1e9 / operations as f64) };
                [MeasuredValue::of(name, unbounded / seconds), time]
            }
        }
    });
    both.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_relative_to_no_bound_and_times_to_zram() {
        let of_methods = METHODS.into_iter().zip([Ok(2.0), Ok(2.5), Ok(8.0), Ok(4.0), Err("no disk".to_owned())]);
        let values = values(1.0, 1000, &of_methods.collect::<Vec<_>>());
        let of = |row: &str| values.iter().find(|value| value.row == row).unwrap();
        assert_eq!(of("run --resident, lz4").value, 0.5);
        let time = of("run --resident, lz4, time");
        assert_eq!((time.value, time.ratio), (2e6, Some(0.5)));
        assert_eq!(of("run --resident, zstd").value, 0.4);
        assert_eq!((of("zram swap (lz4)").value, of("zram swap (lz4), time").ratio), (0.25, None));
        assert_eq!(of("swap file, time").instead.as_deref(), Some("no disk"));
        let names: Vec<String> = rows("speed", "times").iter().map(Row::value_name).collect();
        assert!(values.iter().all(|value| names.contains(&value.row)) && values.len() == names.len());
    }

    #[test]
    fn failed_runs_are_repeated_and_counted() {
        let mut count = RunCount::default();
        let mut results = [Err(RunFailure::Killed), Err(RunFailure::Hung), Ok(7)].into_iter();
        assert_eq!(count.repeat(|| Ok(results.next().unwrap()?)).unwrap(), 7);
        assert_eq!((count.runs, count.failed), (3, 2));
        let error = count.repeat(|| -> Result<()> { Err(RunFailure::Killed.into()) }).unwrap_err();
        assert!(error.is::<Missing>() && count.failed == 5);
        assert!(!count.repeat(|| -> Result<()> { anyhow::bail!("wrong result") }).unwrap_err().is::<Missing>());
    }
}
