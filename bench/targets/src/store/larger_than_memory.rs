//! The cell of YCSB B with ten times as many bytes of records as the memory of the process.
//!
//! ```text
//! this process   load each store, close it
//! each sample    drop the page cache of its files ─→ a process in a new memory control group:
//!                open ─ operations that fill the memory ─ timed operations
//! ```
//! The group bounds what the process allocates together with the page cache of the files. Fieldstone has half
//! of it as its default bound, redb gets half, and LMDB has no memory but the page cache.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, ensure};
use fieldstone_peers::store::{ENGINES, RandomBytes};
use fieldstone_reproduce::Missing;
use fieldstone_reproduce::compression_paging::{MemoryGroup, SwapSpace};
use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::Scale;
use super::samples::{RatioCell, Sample, compare};
use super::workloads::{GOAL, SIDES, times_line};
use super::ycsb::{Client, WORKLOADS, Workload, run};
use crate::cell::GoalCell;
use crate::request::Request;

const CASE: &str = "10 times memory";
/// The workload B.
const WORKLOAD: Workload = WORKLOADS[1];
/// Records of about 1 KiB.
const RECORDS: usize = 1_310_720;
/// Entries of a transaction that loads records.
const BATCH: usize = 50_000;
/// The limit of the control group.
const MEMORY_BYTES: u64 = 128 << 20;
/// Operations that fill the memory, and timed ones.
const OPERATIONS: [usize; 2] = [20_000, 20_000];

/// What the process of a sample does.
#[derive(Debug, Deserialize, Serialize)]
struct SampleTask {
    /// Place in [`ENGINES`].
    engine: usize,
    records: usize,
    operations: [usize; 2],
    seed: u64,
}

/// Measures the cell, if it is wanted.
pub(super) fn measure(request: &Request<'_>, scale: &Scale, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let Some(cell) = RatioCell::wanted(request, GOAL, CASE, &[1, 2])? else { return Ok(()) };
    let goal = cell.goal.clone();
    let skipped = |why: &str| GoalCell::skipped_case(goal, CASE, why);
    if !scale.is_larger_than_memory {
        show(skipped("these records fit in memory"));
        return Ok(());
    }
    match measured(cell, request, scale) {
        Err(error) if error.is::<Missing>() => show(skipped(&error.to_string())),
        measured => show(measured?),
    }
    Ok(())
}

fn measured(cell: RatioCell, request: &Request<'_>, scale: &Scale) -> anyhow::Result<GoalCell> {
    drop(MemoryGroup::new(SwapSpace::None, 0)?);
    let folders: Vec<TempDir> = SIDES.iter().map(|&side| load(side, RECORDS)).collect::<anyhow::Result<_>>()?;
    let names = SIDES.map(|side| ENGINES[side].name);
    let sample = |side: usize, seed| {
        let task = SampleTask { engine: SIDES[side], records: RECORDS, operations: OPERATIONS, seed };
        sample_in_group(&task, folders[side].path())
    };
    let mut compared = compare(vec![cell], &names, request.limit, scale.pause, sample)?;
    let what = format!("{} in a tenth of its records", WORKLOAD.name);
    println!("{}", times_line(&what, &compared.seconds, OPERATIONS[1]));
    compared.cells.pop().context("the only cell was measured")
}

/// A folder with a closed store of all records.
fn load(engine: usize, records: usize) -> anyhow::Result<TempDir> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let store = (ENGINES[engine].open)(folder.path())?;
    Client::load(&*store, records, BATCH, &RandomBytes::new())?;
    Ok(folder)
}

fn sample_in_group(task: &SampleTask, folder: &Path) -> anyhow::Result<Sample> {
    drop_page_cache(folder)?;
    let group = MemoryGroup::new(SwapSpace::None, 0)?;
    group.lower_limit(MEMORY_BYTES)?;
    let mut command = group.command(std::env::current_exe()?);
    let output = command.arg("--store-sample").arg(serde_json::to_string(task)?).arg(folder).output()?;
    let name = ENGINES[task.engine].name;
    ensure!(
        output.status.success(),
        "{name} with {MEMORY_BYTES} bytes: {}, {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Drops the files of a folder from the page cache: what another group was charged for costs this one nothing.
fn drop_page_cache(folder: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let file = File::open(entry?.path())?;
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

/// What the process of a sample does: it prints a [`Sample`] as JSON.
pub(crate) fn print_sample(task: &str, folder: &Path) -> anyhow::Result<()> {
    let sample = take_sample(&serde_json::from_str(task)?, folder)?;
    println!("{}", serde_json::to_string(&sample)?);
    Ok(())
}

fn take_sample(task: &SampleTask, folder: &Path) -> anyhow::Result<Sample> {
    let bytes = RandomBytes::new();
    let store = (ENGINES[task.engine].open)(folder)?;
    let mut client = Client::of_loaded(task.records);
    let [first, timed] = task.operations;
    run(&*store, &client.operations(WORKLOAD, first, !task.seed, &bytes))?;
    let operations = client.operations(WORKLOAD, timed, task.seed, &bytes);
    let mut found = 0;
    let sample = Sample::of_wall_time(|| {
        found = run(&*store, &operations)?.entries();
        Ok(())
    })?;
    let reads = operations.iter().filter(|operation| operation.is_read()).count() as u64;
    ensure!(found == reads, "{found} of {reads} records were found");
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_opens_what_was_loaded_and_finds_all_records() {
        for engine in SIDES {
            let folder = load(engine, 500).unwrap();
            drop_page_cache(folder.path()).unwrap();
            let task = SampleTask { engine, records: 500, operations: [20, 100], seed: 3 };
            take_sample(&task, folder.path()).unwrap();
            let more = SampleTask { records: 1000, ..task };
            let error = take_sample(&more, folder.path()).unwrap_err().to_string();
            assert!(error.contains("records were found") || error.contains("absent"), "{error}");
        }
    }
}
