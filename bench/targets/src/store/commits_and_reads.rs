//! The cells of durable commits, gets and scans, on stores with the same records.

use std::hint::black_box;
use std::time::Duration;

use anyhow::ensure;

use super::Scale;
use super::samples::{Comparison, RatioCell, Sample, compare};
use crate::cell::GoalCell;
use crate::request::Request;
use fieldstone_peers::store::Records;
use fieldstone_peers::store::{ENGINES, Engine, LMDB, OpenStore, REDB, Totals};

/// Entries of a short scan, as redb's own benchmark has them.
const SHORT_SCAN: usize = 10;

/// All stores, open, with the same records.
struct Bench<'a> {
    records: Records,
    stores: Vec<OpenStore>,
    time_limit: Duration,
    scale: &'a Scale,
}

/// Measures the cells of commits, gets and scans.
pub(super) fn measure(request: &Request<'_>, scale: &Scale, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let mut commits = Vec::new();
    for size in scale.commits {
        commits.push((size, commit_cells(request, size.0)?));
    }
    let wanted = |goal, case: &str| RatioCell::wanted(request, goal, case, &[LMDB]);
    let gets = wanted("get_vs_lmdb", "random keys")?;
    let scans = wanted("scan_vs_lmdb", "all entries")?;
    let short_scans = wanted("scan_vs_lmdb", &format!("{SHORT_SCAN} from a random key"))?;
    let has_reads = gets.is_some() || scans.is_some() || short_scans.is_some();
    if !has_reads && commits.iter().all(|(_, cells)| cells.is_empty()) {
        return Ok(());
    }
    let bench = Bench::open(request.limit, scale)?;
    for (size, cells) in commits {
        bench.compare_commits(size, cells, show)?;
    }
    let Scale { gets: get_count, scans: scan_count, .. } = *scale;
    bench.compare_reads(gets, get_count, show, |engine, keys| engine.get(keys))?;
    bench.compare_reads(scans, 1, show, |engine, _| engine.scan(&[b"0"], usize::MAX))?;
    bench.compare_reads(short_scans, scan_count, show, |engine, keys| engine.scan(keys, SHORT_SCAN))
}

/// The wanted cells of commits with this number of updates.
fn commit_cells(request: &Request<'_>, updates: usize) -> anyhow::Result<Vec<RatioCell>> {
    let cells = [
        RatioCell::wanted(request, &format!("commit_{updates}_vs_lmdb"), "random keys", &[LMDB])?,
        RatioCell::wanted(request, "commit_vs_redb", &format!("{updates}, random keys"), &[REDB])?,
    ];
    Ok(cells.into_iter().flatten().collect())
}

fn names() -> [&'static str; ENGINES.len()] {
    ENGINES.map(|engine_type| engine_type.name)
}

impl<'a> Bench<'a> {
    /// Writes the records to all stores in random order, and reads them all.
    fn open(time_limit: Duration, scale: &'a Scale) -> anyhow::Result<Self> {
        let records = Records::new(scale.records);
        let mut stores = Vec::new();
        for engine_type in ENGINES {
            let store = OpenStore::create(engine_type)?;
            store.write(&records.shuffled(1), scale.batch)?;
            let found = store.engine.scan(&[b"0"], usize::MAX)?.entries();
            ensure!(found == records.count() as u64, "{} has {found} entries", engine_type.name);
            stores.push(store);
        }
        Ok(Self { records, stores, time_limit, scale })
    }

    /// Compares durable commits: `commits` transactions of `updates` updates each.
    fn compare_commits(
        &self,
        (updates, commits): (usize, usize),
        cells: Vec<RatioCell>,
        show: &mut dyn FnMut(GoalCell),
    ) -> anyhow::Result<()> {
        if cells.is_empty() {
            return Ok(());
        }
        let sample = |side: usize, seed| {
            let entries = self.records.updates(updates * commits, seed);
            Sample::of_wall_time(|| self.stores[side].write(&entries, updates))
        };
        let compared = compare(cells, &names(), self.time_limit, self.scale.pause, sample)?;
        let plural = if updates == 1 { "" } else { "s" };
        print_times(&format!("commit of {updates} update{plural}"), commits, &compared);
        compared.cells.into_iter().for_each(show);
        Ok(())
    }

    /// Compares reads of `count` random keys by their processor time.
    fn compare_reads(
        &self,
        cell: Option<RatioCell>,
        count: usize,
        show: &mut dyn FnMut(GoalCell),
        read: impl Fn(&dyn Engine, &[&[u8]]) -> anyhow::Result<Totals>,
    ) -> anyhow::Result<()> {
        let Some(cell) = cell else { return Ok(()) };
        let what = format!("{} {}", cell.goal.name, cell.case);
        let sample = |side: usize, seed| {
            let keys = self.records.random_keys(count, seed);
            let slices = keys.slices();
            Sample::of_cpu_time(|| read(&*self.stores[side].engine, &slices).map(|totals| _ = black_box(totals)))
        };
        let compared = compare(vec![cell], &names(), self.time_limit, self.scale.pause, sample)?;
        print_times(&what, count, &compared);
        compared.cells.into_iter().for_each(show);
        Ok(())
    }
}

/// Prints the median time of one of `operations` for each store.
fn print_times(what: &str, operations: usize, compared: &Comparison) {
    let time = |(name, seconds): (&str, &f64)| format!("{name} {:.2}", seconds * 1e6 / operations as f64);
    let times: Vec<String> = names().into_iter().zip(&compared.seconds).map(time).collect();
    println!("# {what}, median µs: {}", times.join(", "));
}
