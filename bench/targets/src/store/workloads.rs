//! The cells of YCSB, each against the better of LMDB and redb.

use std::hint::black_box;

use super::Scale;
use super::samples::{RatioCell, Sample, compare};
use super::ycsb::{Client, WORKLOADS, run};
use crate::cell::GoalCell;
use crate::request::Request;
use fieldstone_peers::store::RandomBytes;
use fieldstone_peers::store::{ENGINES, LMDB, OpenStore, REDB};

pub(super) const GOAL: &str = "ycsb_vs_best";
/// The sides: places in [`ENGINES`].
pub(super) const SIDES: [usize; 3] = [0, LMDB, REDB];

/// A store with the records, and what its client has inserted.
struct Side {
    store: OpenStore,
    client: Client,
}

/// Measures the wanted workloads.
pub(super) fn measure(request: &Request<'_>, scale: &Scale, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let bytes = RandomBytes::new();
    let names = SIDES.map(|side| ENGINES[side].name);
    let mut loaded: Vec<Side> = Vec::new();
    for workload in WORKLOADS {
        let Some(cell) = RatioCell::wanted(request, GOAL, workload.name, &[1, 2])? else { continue };
        if loaded.is_empty() || workload.needs_new_store() {
            loaded.clear();
            loaded = load(scale, &bytes)?;
        }
        let count = workload.operations / scale.ycsb_divisor;
        let sample = |side: usize, seed| {
            let Side { store, client } = &mut loaded[side];
            let operations = client.operations(workload, count, seed, &bytes);
            let work = || run(&*store.engine, &operations).map(|totals| _ = black_box(totals));
            if workload.has_writes() { Sample::of_wall_time(work) } else { Sample::of_cpu_time(work) }
        };
        let compared = compare(vec![cell], &names, request.limit, scale.pause, sample)?;
        println!("{}", times_line(workload.name, &compared.seconds, count));
        compared.cells.into_iter().for_each(&mut *show);
    }
    Ok(())
}

/// The times of all sides, from the seconds of their samples.
pub(super) fn times_line(workload: &str, seconds: &[f64], operations: usize) -> String {
    let time =
        |(&side, seconds): (&usize, &f64)| format!("{} {:.2}", ENGINES[side].name, seconds * 1e6 / operations as f64);
    let times: Vec<String> = SIDES.iter().zip(seconds).map(time).collect();
    format!("# YCSB {workload}, median µs an operation: {}", times.join(", "))
}

/// New stores with the records of YCSB.
fn load(scale: &Scale, bytes: &RandomBytes) -> anyhow::Result<Vec<Side>> {
    let load = |&side: &usize| -> anyhow::Result<Side> {
        let store = OpenStore::create(ENGINES[side])?;
        let client = Client::load(&*store.engine, scale.ycsb_records, scale.batch, bytes)?;
        store.engine.scan(&[b"user"], usize::MAX)?;
        Ok(Side { store, client })
    };
    SIDES.iter().map(load).collect()
}
