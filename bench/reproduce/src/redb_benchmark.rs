//! The benchmark program of redb, on five stores: ours, LMDB, redb, SQLite and fjall.
//!
//! ```text
//! bulk load ── inserts ── gets and ranges ── removals ── size ── compaction ── size ── sorted inserts
//! ```
//! Each removal but the first is followed by a refill with as many new entries, which is not timed.
//!
//! Source: cberner/redb, `crates/redb-bench/benches/lmdb_benchmark.rs` and `common.rs`. Differences: entries
//! are made before they are timed, gets compare whole values, and pops include their commit.

mod pairs;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fieldstone_peers::store::{ENGINES, Engine, EngineType, OpenStore, Totals};
use fieldstone_stats::median;

use crate::experiment::{Cell, Experiment, MeasuredValue, Needs, Quantity, Row, SampleOutcome, Scale};
use pairs::Pairs;

/// The program on each store.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "redb-benchmark",
        title: "The benchmark program of redb",
        source: "cberner/redb, lmdb_benchmark",
        about: "Keys of 24 and values of 150 random bytes, and a cache of 4 GiB if the store has one. The rows are in the \
                order of the program: a bulk load of 5,000,000 entries in one transaction; 1,000 transactions of one \
                insert; 100 of 1,000; 50,000 of one that need not be durable; the count of entries; 1,000,000 random \
                gets, and 500,000 scans of 10 entries from random keys (each the median of three); gets of all entries \
                by 4 to 32 threads. Then, each in one transaction: removal of half of the entries by key; removal of \
                every other entry of the table, and of every other one whose first byte is from 0x55 to 0xA9; 500,000 \
                removals of the first and the last entry in turn. If 5,000 of these take more than a second, their time \
                stands for all. The entries that these three remove are replaced. Then the size of the files, \
                compaction, the size after one more insert, and 1,000,000 inserts of ascending keys. Each durable \
                transaction of each store is synced. LMDB and redb count entries by a stored number, and redb has calls \
                of its own for the removals; other stores read the keys and remove them. fjall has no transaction that \
                sees its own removals: each removal at an end is one of its own, and all are synced at the end. A quick \
                run has a hundredth of the entries. A sample of a full run takes some minutes for each store: use \
                --runs 1.",
        needs: Needs { minutes: 90, memory_bytes: MEMORY_BYTES, disk_bytes: 6 << 30 },
        cells,
    }
}

const MEMORY_BYTES: u64 = 6 << 30;
const MEMORY_BYTES_QUICK: u64 = 256 << 20;

/// How many entries each phase has.
#[derive(Clone, Copy, Debug)]
struct Size {
    bulk: u64,
    singles: u64,
    batches: u64,
    batch: usize,
    later: u64,
    gets: u64,
    ranges: u64,
    pops: u64,
    /// Pops that stand for all if they are slow.
    sampled_pops: u64,
    sorted: u64,
}

const FULL: Size = Size {
    bulk: 5_000_000,
    singles: 1000,
    batches: 100,
    batch: 1000,
    later: 50_000,
    gets: 1_000_000,
    ranges: 500_000,
    pops: 500_000,
    sampled_pops: 5000,
    sorted: 1_000_000,
};
const QUICK: Size = FULL.part(100);

impl Size {
    /// The same program with a `divisor`-th of the entries. Single inserts and batches are a tenth as often.
    const fn part(self, divisor: u64) -> Self {
        Self {
            bulk: self.bulk / divisor,
            singles: self.singles / 10,
            batches: self.batches / 10,
            batch: self.batch / 10,
            later: self.later / divisor,
            gets: self.gets / divisor,
            ranges: self.ranges / divisor,
            pops: self.pops / divisor,
            sampled_pops: self.sampled_pops / divisor,
            sorted: self.sorted / divisor,
        }
    }

    /// Entries before the first removal.
    const fn entries(self) -> u64 {
        self.bulk + self.singles + self.batches * self.batch as u64 + self.later
    }
}

const TABLE: &str = "Time of each phase, and file sizes";
const BULK: &str = "bulk load";
const SINGLES: &str = "single inserts";
const BATCHES: &str = "batches of inserts";
const LATER: &str = "single inserts, not durable";
const COUNT: &str = "count of entries";
const GETS: &str = "random gets";
const RANGES: &str = "random scans of 10";
/// The number of threads of a row.
const THREADS: [(u64, &str); 4] =
    [(4, "gets, 4 threads"), (8, "gets, 8 threads"), (16, "gets, 16 threads"), (32, "gets, 32 threads")];
const REMOVALS: &str = "removals by key";
const RETAIN: &str = "removal of every other entry";
const EXTRACT: &str = "removal of every other entry in a range";
const POPS: &str = "removals at both ends";
const SIZE: &str = "size of the files, MiB";
const COMPACTION: &str = "compaction";
const COMPACTED: &str = "size after compaction, MiB";
const SORTED: &str = "ascending inserts";

/// Entries of a range.
const RANGE_LENGTH: usize = 10;
/// Repeats of gets and of ranges.
const REPEATS: usize = 3;
/// The first and the last keys of the extraction.
const EXTRACTED: [[u8; pairs::KEY_BYTES]; 2] = [[0x55; pairs::KEY_BYTES], [0xAA; pairs::KEY_BYTES]];
/// Sampled pops of at least this time stand for all.
const SLOW_POPS: Duration = Duration::from_secs(1);

fn cells(scale: Scale) -> Vec<Cell> {
    let (size, memory_bytes) = if scale == Scale::Quick { (QUICK, MEMORY_BYTES_QUICK) } else { (FULL, MEMORY_BYTES) };
    let cell = |store: EngineType| {
        let id = format!("redb-benchmark/{}/{}", store.name.to_lowercase(), size.bulk);
        Cell::new(id, store.name, memory_bytes, rows(), move |_| {
            Ok(SampleOutcome::measured(Program::new(store, size)?.run()?))
        })
    };
    ENGINES.map(cell).into()
}

fn rows() -> Vec<Row> {
    let times = |names: &[&'static str]| {
        let rows = names.iter().map(|&name| Row::new(Quantity::Nanoseconds, TABLE, name));
        rows.collect::<Vec<_>>()
    };
    let bytes = |name| vec![Row::new(Quantity::Count, TABLE, name)];
    [
        times(&[BULK, SINGLES, BATCHES, LATER, COUNT, GETS, RANGES]),
        times(&THREADS.map(|(_, name)| name)),
        times(&[REMOVALS, RETAIN, EXTRACT, POPS]),
        bytes(SIZE),
        times(&[COMPACTION]),
        bytes(COMPACTED),
        times(&[SORTED]),
    ]
    .concat()
}

/// A run of the program on one store.
struct Program {
    size: Size,
    store: OpenStore,
    /// The next pair that is inserted.
    next_pair: u64,
    values: Vec<MeasuredValue>,
}

impl Program {
    fn new(store: EngineType, size: Size) -> Result<Self> {
        Ok(Self { size, store: OpenStore::create(store)?, next_pair: 0, values: Vec::new() })
    }

    fn run(mut self) -> Result<Vec<MeasuredValue>> {
        self.insert()?;
        self.read()?;
        self.read_in_threads()?;
        self.remove()?;
        self.pop()?;
        self.compact()
    }

    /// The next pairs.
    fn take(&mut self, count: u64) -> Pairs {
        let first = self.next_pair;
        self.next_pair += count;
        Pairs::new(first, count)
    }

    /// Times a phase.
    fn time<T>(&mut self, row: &str, work: impl FnOnce(&dyn Engine) -> Result<T>) -> Result<T> {
        let since = Instant::now();
        let result = work(&*self.store.engine)?;
        self.record(row, since.elapsed());
        Ok(result)
    }

    fn record(&mut self, row: &str, time: Duration) {
        self.values.push(MeasuredValue::of(row, time.as_secs_f64() * 1e9));
    }

    fn record_size(&mut self, row: &str) -> Result<()> {
        let mebibytes = self.store.file_bytes()? as f64 / f64::from(1 << 20);
        self.values.push(MeasuredValue::of(row, mebibytes));
        Ok(())
    }

    fn insert(&mut self) -> Result<()> {
        let Size { bulk, singles, batches, batch, later, .. } = self.size;
        let pairs = self.take(bulk);
        self.time(BULK, |engine| engine.commit(&pairs.entries()))?;
        for (row, count, batch) in [(SINGLES, singles, 1), (BATCHES, batches * batch as u64, batch)] {
            let pairs = self.take(count);
            self.time(row, |engine| pairs.entries().chunks(batch).try_for_each(|entries| engine.commit(entries)))?;
        }
        let pairs = self.take(later);
        self.time(LATER, |engine| engine.commit_each_later(&pairs.entries()))?;
        let count = self.time(COUNT, |engine| engine.count())?;
        ensure!(count == self.size.entries(), "{count} entries are in the store, not {}", self.size.entries());
        Ok(())
    }

    /// Gets and ranges, each the median of its repeats.
    fn read(&mut self) -> Result<()> {
        let (pairs, starts) = (Pairs::new(0, self.size.gets), Pairs::new(0, self.size.ranges));
        let (keys, starts, expected) = (pairs.keys(), starts.keys(), pairs.totals());
        self.time_repeats(GETS, |engine| ensure_equal(engine.get(&keys)?, expected))?;
        self.time_repeats(RANGES, |engine| {
            let found = engine.scan(&starts, RANGE_LENGTH)?.entries();
            ensure!(found > (starts.len() * RANGE_LENGTH / 2) as u64, "scans have found {found} entries");
            Ok(())
        })
    }

    /// Times a phase several times. Records the median.
    fn time_repeats(&mut self, row: &str, work: impl Fn(&dyn Engine) -> Result<()>) -> Result<()> {
        let mut seconds = Vec::new();
        for _ in 0..REPEATS {
            let since = Instant::now();
            work(&*self.store.engine)?;
            seconds.push(since.elapsed().as_secs_f64());
        }
        self.record(row, Duration::from_secs_f64(median(&seconds).unwrap_or(0.0)));
        Ok(())
    }

    fn read_in_threads(&mut self) -> Result<()> {
        let pairs = Pairs::new(0, self.size.entries());
        let (keys, expected) = (pairs.keys(), pairs.totals());
        for (threads, row) in THREADS {
            let shards: Vec<&[&[u8]]> = keys.chunks(keys.len().div_ceil(usize::try_from(threads)?)).collect();
            let found = self.time(row, |engine| engine.get_in_threads(&shards))?;
            ensure_equal(found, expected)?;
        }
        Ok(())
    }

    fn remove(&mut self) -> Result<()> {
        let pairs = Pairs::new(0, self.size.entries() / 2);
        let keys = pairs.keys();
        let removed = self.time(REMOVALS, |engine| engine.remove(&keys))?;
        ensure!(removed == keys.len() as u64, "{removed} of {} entries were removed", keys.len());
        let removed = self.time(RETAIN, |engine| engine.retain_every_other())?;
        let rest = self.size.entries() - keys.len() as u64;
        ensure!(removed == rest / 2, "{removed} of {rest} entries were removed");
        self.refill(removed)?;
        let [from, to] = EXTRACTED;
        let removed = self.time(EXTRACT, |engine| engine.extract_every_other(&from, &to))?;
        // A third of the keys are in the range.
        ensure!((rest / 8..rest / 4).contains(&removed), "{removed} of {rest} entries were extracted");
        self.refill(removed)
    }

    fn refill(&mut self, count: u64) -> Result<()> {
        let pairs = self.take(count);
        self.store.engine.commit(&pairs.entries())
    }

    fn pop(&mut self) -> Result<()> {
        let Size { pops, sampled_pops, .. } = self.size;
        let since = Instant::now();
        let mut popped = self.store.engine.pop_ends(sampled_pops)?;
        let mut time = since.elapsed();
        if time > SLOW_POPS {
            time = time.mul_f64(pops as f64 / sampled_pops as f64);
        } else {
            popped += self.store.engine.pop_ends(pops - sampled_pops)?;
            time = since.elapsed();
        }
        ensure!([sampled_pops, pops].contains(&popped), "{popped} entries were removed");
        self.record(POPS, time);
        self.refill(popped)
    }

    fn compact(mut self) -> Result<Vec<MeasuredValue>> {
        self.record_size(SIZE)?;
        let since = Instant::now();
        self.store = self.store.compact()?;
        self.record(COMPACTION, since.elapsed());
        self.refill(1)?;
        self.record_size(COMPACTED)?;
        let sorted = Pairs::ascending(self.next_pair, self.size.sorted);
        self.time(SORTED, |engine| engine.append(&sorted.entries()))?;
        Ok(self.values)
    }
}

fn ensure_equal(found: Totals, expected: Totals) -> Result<()> {
    ensure!(found == expected, "gets have found {found:?}, not {expected:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_store_has_a_value_for_each_row() {
        let names: Vec<String> = rows().iter().map(Row::value_name).collect();
        for store in ENGINES {
            let values = Program::new(store, FULL.part(5000)).unwrap().run().unwrap();
            let measured: Vec<&str> = values.iter().map(|value| value.row.as_str()).collect();
            assert_eq!(measured, names, "{}", store.name);
            assert!(values.iter().all(|value| value.value > 0.0), "{}: {values:?}", store.name);
        }
    }

    #[test]
    fn the_full_program_has_the_entries_of_redb_s() {
        assert_eq!(FULL.entries(), 5_151_000);
    }
}
