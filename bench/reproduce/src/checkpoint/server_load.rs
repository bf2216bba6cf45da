//! The cells of a server under load: the latency of its replies without saves, and while it saves.

use anyhow::{Result, ensure};
use fieldstone_report::quantity::bytes;
use fieldstone_stats::median;

use super::redis_benchmark::{Latencies, PERCENTILES};
use super::server::{BackgroundSave, Program, Server};
use crate::experiment::{Cell, MeasuredValue, Quantity, Row};
use crate::folder::Folder;
use crate::sibling_programs::{Missing, outcome};

const LATENCY: &str = "Server under redis-benchmark: latency of SET";
const RATIOS: &str = "Server under redis-benchmark: with saves, relative to the same server without";
const SAVES: &str = "Server under redis-benchmark: saves";

const THROUGHPUT: &str = "throughput";
const REQUESTS_WITHOUT: &str = "requests per second, without saves";
const REQUESTS_WITH: &str = "requests per second, with saves";
const COUNT: &str = "saves during the load";
const TOTAL: &str = "time of a save";
const STOP: &str = "stop of a save, or time of fork(2)";

/// What a server contains, and what a load requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadSize {
    pub(super) keys: u32,
    pub(super) requests: u32,
    /// Size of the heap of `examples/kv`.
    pub(super) heap_bytes: u64,
}

impl LoadSize {
    /// Saves that are on disk together: those that `examples/kv` keeps, and the next one.
    fn disk_bytes(self) -> u64 {
        4 * self.heap_bytes / 2
    }

    pub(super) fn cell(self, program: Program) -> Cell {
        let (id, column) = program.names();
        let id = format!("checkpoint/server/{}k/{id}", self.keys / 1000);
        // After a fork, all pages in use may be copied.
        Cell::new(id, column, 2 * self.heap_bytes, rows(), move |_| outcome(self.measure(program)))
    }

    fn measure(self, program: Program) -> Result<Vec<MeasuredValue>> {
        let folder = Folder::new()?;
        self.check_disk(&folder)?;
        let mut server = Server::start(program, &folder, self.heap_bytes)?;
        server.fill(self.keys)?;
        let keys = server.keys()?;
        ensure!(keys == self.keys, "the server has {keys} keys of {}", self.keys);
        let without = server.load(&folder, self.requests, self.keys)?;
        let (with, saves) = server.load_with_saves(&folder, self.requests, self.keys)?;
        ensure!(!saves.is_empty(), "the load ended before a save began");
        Ok(values(&without, &with, &saves))
    }

    fn check_disk(self, folder: &Folder) -> Result<()> {
        let disk = rustix::fs::statvfs(folder.path())?;
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free_bytes >= self.disk_bytes() {
            return Ok(());
        }
        let (needed, free) = (bytes(self.disk_bytes()), bytes(free_bytes));
        let place = std::env::temp_dir();
        let place = place.display();
        Err(Missing(format!("the saves need {needed} in {place}, which has {free}: set TMPDIR to another folder"))
            .into())
    }
}

fn rows() -> Vec<Row> {
    let latency = |name| [without(name), with(name)].map(|row| Row::new(Quantity::Nanoseconds, LATENCY, row));
    let ratios = PERCENTILES.into_iter().chain([THROUGHPUT]).map(|name| Row::ratio(RATIOS, name));
    let saves = [
        (Quantity::Count, REQUESTS_WITHOUT),
        (Quantity::Count, REQUESTS_WITH),
        (Quantity::Count, COUNT),
        (Quantity::Nanoseconds, TOTAL),
        (Quantity::Nanoseconds, STOP),
    ];
    let saves = saves.map(|(shows, name)| Row::new(shows, SAVES, name));
    PERCENTILES.into_iter().flat_map(latency).chain(ratios).chain(saves).collect()
}

fn without(percentile: &str) -> String {
    format!("{percentile}, without saves")
}

fn with(percentile: &str) -> String {
    format!("{percentile}, with saves")
}

fn values(before: &Latencies, during: &Latencies, saves: &[BackgroundSave]) -> Vec<MeasuredValue> {
    let mut all = Vec::new();
    for (name, (ms_before, ms_during)) in PERCENTILES.into_iter().zip(before.ms.into_iter().zip(during.ms)) {
        all.push(MeasuredValue::of(without(name), ms_before * 1e6));
        all.push(MeasuredValue::of(with(name), ms_during * 1e6));
        all.push(ratio(name, ms_during * 1e6, ms_during / ms_before));
    }
    all.push(ratio(THROUGHPUT, during.requests_per_s, during.requests_per_s / before.requests_per_s));
    all.push(MeasuredValue::of(REQUESTS_WITHOUT, before.requests_per_s.round()));
    all.push(MeasuredValue::of(REQUESTS_WITH, during.requests_per_s.round()));
    all.push(MeasuredValue::of(COUNT, saves.len() as f64));
    let middle = |name, of: fn(&BackgroundSave) -> f64| {
        Some(MeasuredValue::of(name, median(&saves.iter().map(of).collect::<Vec<_>>())? * 1e9))
    };
    all.extend(middle(TOTAL, |save| save.total_s));
    all.extend(middle(STOP, |save| save.stop_s));
    all
}

fn ratio(name: &str, value: f64, ratio: f64) -> MeasuredValue {
    MeasuredValue { ratio: Some(ratio), ..MeasuredValue::of(name, value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_a_value_and_ratios_are_to_the_load_without_saves() {
        let before = Latencies { requests_per_s: 100.0, ms: [1.0, 2.0, 3.0, 4.0] };
        let during = Latencies { requests_per_s: 80.0, ms: [2.0, 2.0, 30.0, 60.0] };
        let save = |stop_s| BackgroundSave { total_s: 0.5, stop_s };
        let values = values(&before, &during, &[save(0.001), save(0.003)]);
        let of = |row: &str| values.iter().find(|value| value.row == row).unwrap();
        assert_eq!((of("p99.9").ratio, of("p99.9, with saves").value), (Some(10.0), 30e6));
        assert_eq!((of("throughput").ratio, of("maximum").ratio), (Some(0.8), Some(15.0)));
        assert_eq!((of(COUNT).value, of(STOP).value), (2.0, 2e6));
        let names: Vec<String> = rows().iter().map(Row::value_name).collect();
        assert!(values.iter().all(|value| names.contains(&value.row)) && values.len() == names.len());
    }
}
