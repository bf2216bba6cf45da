//! The cells of durable commits: their time relative to LMDB, and its parts.
//!
//! ```text
//! process   each store: load ── warm-up ── commits ── as many bytes by direct writes
//! ```

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fieldstone_peers::store::{DirectWriter, EngineType, OpenStore, Records, ThreadTime, written_bytes};
use fieldstone_stats::order;

use super::{BASELINE, LOAD_BATCH, MEMORY_BYTES, STORES, nanoseconds};
use crate::experiment::{Cell, MeasuredValue, Quantity, Row, SampleOutcome};
use crate::trial::Trial;

/// Updates of a commit, the heading of their column, and commits of a sample. The log of the store turns
/// during them, so a sample contains what that costs.
const SIZES: [(usize, &str, usize); 3] = [(1, "1 update", 2000), (10, "10 updates", 500), (100, "100 updates", 100)];
/// Direct writes that are timed.
const DIRECT_WRITES: usize = 200;

const RELATIVE: &str = "Durable commits: time without the wait for a processor, relative to LMDB";
/// The tables of the stores, in the order of [`STORES`].
const PARTS: [&str; STORES.len()] = [
    "Fieldstone: parts of the time of a commit",
    "LMDB: parts of the time of a commit",
    "redb: parts of the time of a commit",
];

const PROCESSOR: &str = "processor time";
const DISK: &str = "wait for the disk";
const RUN_QUEUE: &str = "wait for a processor";
const MEDIAN: &str = "median commit, µs";
const WORST: &str = "99th percentile, µs";
const PROCESSOR_TIME: &str = "processor time of a commit, µs";
const DIRECT: &str = "one direct write of as many bytes, µs";
const DIRECT_PROCESSOR: &str = "processor time of that write, µs";
const BYTES: &str = "bytes written by the thread";

/// A cell for each size of a commit; each sample has `1 / divisor` of the commits.
pub(super) fn cells(records: usize, divisor: usize) -> impl Iterator<Item = Cell> {
    SIZES.into_iter().map(move |(updates, column, commits)| {
        let id = format!("persistent-store/commit/{updates}/{records}");
        let commits = (commits / divisor).max(2);
        Cell::new(id, column, MEMORY_BYTES, rows(), move |trial| {
            Ok(SampleOutcome::measured(measure(trial, records, updates, commits)?))
        })
    })
}

/// The name of a row with a part of the time of a store.
fn part(store: EngineType, name: &str) -> String {
    format!("{}: {name}", store.name)
}

fn rows() -> Vec<Row> {
    let contenders: Vec<&str> =
        STORES.iter().map(|store| store.name).filter(|name| *name != STORES[BASELINE].name).collect();
    let parts = STORES.into_iter().zip(PARTS).flat_map(|(store, table)| {
        let row = move |shows, name| Row::new(shows, table, part(store, name));
        let shares = [PROCESSOR, DISK, RUN_QUEUE].map(|name| row(Quantity::Share, name));
        let times = [MEDIAN, WORST, PROCESSOR_TIME, DIRECT, DIRECT_PROCESSOR];
        let times = times.map(|name| row(Quantity::Microseconds, name));
        shares.into_iter().chain(times).chain([row(Quantity::Count, BYTES)])
    });
    Row::compared(RELATIVE, STORES[BASELINE].name, &contenders).into_iter().chain(parts).collect()
}

/// What the commits of a store cost.
struct CommitCost {
    /// Of each commit, from the shortest to the longest.
    latencies: Vec<Duration>,
    /// Of all commits.
    time: ThreadTime,
    /// Of a commit, on average.
    bytes: f64,
    /// Of [`DIRECT_WRITES`] writes.
    direct: ThreadTime,
}

fn measure(trial: &Trial, records: usize, updates: usize, commits: usize) -> Result<Vec<MeasuredValue>> {
    let records = Records::new(records);
    let seed = trial.layout.seed;
    let mut costs: Vec<Option<CommitCost>> = STORES.iter().map(|_| None).collect();
    // The seeds of consecutive samples are consecutive.
    for index in order(STORES.len(), usize::try_from(seed % 2)?) {
        let cost = commit(STORES[index], &records, (updates, commits), seed);
        costs[index] = Some(cost.with_context(|| format!("cannot measure {}", STORES[index].name))?);
    }
    let costs: Vec<CommitCost> = costs.into_iter().flatten().collect();
    // The run queue belongs to the machine, not to the store.
    let mean = |cost: &CommitCost| nanoseconds(cost.time.processor + cost.time.asleep()) / commits as f64;
    let baseline = mean(&costs[BASELINE]);
    let relative = STORES.iter().zip(&costs).enumerate().map(|(index, (store, cost))| MeasuredValue {
        ratio: (index != BASELINE).then(|| mean(cost) / baseline),
        ..MeasuredValue::of(store.name, mean(cost))
    });
    let parts = STORES.into_iter().zip(&costs).flat_map(|(store, cost)| cost.values(store));
    Ok(relative.chain(parts).collect())
}

/// Loads a store and times commits.
fn commit(store: EngineType, records: &Records, (updates, commits): (usize, usize), seed: u64) -> Result<CommitCost> {
    let store = OpenStore::create(store)?;
    store.write(&records.shuffled(1), LOAD_BATCH)?;
    store.write(&records.updates(updates * (commits / 10 + 1), !seed), updates)?;
    let entries = records.updates(updates * commits, seed);
    let mut latencies = Vec::with_capacity(commits);
    let written_before = written_bytes()?;
    let time = ThreadTime::of(|| {
        entries.chunks(updates).try_for_each(|entries| {
            let since = Instant::now();
            store.engine.commit(entries)?;
            latencies.push(since.elapsed());
            Ok(())
        })
    })?;
    let bytes = (written_bytes()? - written_before) as f64 / commits as f64;
    latencies.sort_unstable();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a commit has some bytes")]
    let direct = DirectWriter::create(store.directory())?.time(bytes.round() as usize, DIRECT_WRITES)?;
    Ok(CommitCost { latencies, time, bytes, direct })
}

impl CommitCost {
    fn values(&self, store: EngineType) -> Vec<MeasuredValue> {
        let (count, total) = (self.latencies.len(), nanoseconds(self.time.total));
        let quantile = |percent: usize| nanoseconds(self.latencies[(count * percent / 100).min(count - 1)]);
        let each = |time: Duration, count: usize| nanoseconds(time) / count as f64;
        // The clocks are read one after the other, so the parts may be longer than the whole.
        let slept = self.time.asleep();
        let all = nanoseconds(self.time.processor + self.time.waiting + slept).max(total);
        let values = [
            (PROCESSOR, nanoseconds(self.time.processor) / all),
            (DISK, nanoseconds(slept) / all),
            (RUN_QUEUE, nanoseconds(self.time.waiting) / all),
            (MEDIAN, quantile(50)),
            (WORST, quantile(99)),
            (PROCESSOR_TIME, each(self.time.processor, count)),
            (DIRECT, each(self.direct.total, DIRECT_WRITES)),
            (DIRECT_PROCESSOR, each(self.direct.processor, DIRECT_WRITES)),
            (BYTES, self.bytes),
        ];
        values.map(|(name, value)| MeasuredValue::of(part(store, name), value)).into()
    }
}
