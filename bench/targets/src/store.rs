//! The section `[store]`: `fieldstone-store` against LMDB, redb, SQLite and fjall.
//!
//! | module | what it contains |
//! |---|---|
//! | `commits_and_reads` | durable commits of 1, 10 and 100 updates, gets and scans |
//! | `workloads` | the workloads A to F of YCSB |
//! | `larger_than_memory` | workload B with ten times as many records as fit in memory |
//! | `churn` | the size of the files after overwriting |
//! | `oo7` | objects with pointers |
//! | `samples` | timed samples, in rounds of alternating order |
//! | `ycsb`, `zipfian` | the operations of YCSB, and how it draws records |
//!
//! The stores and their settings are those of [`fieldstone_peers::store`]. Work with commits is compared by wall time, other work by processor time. Lines
//! that begin with `#` have the times of all measured stores; SQLite and fjall have no goal.

mod churn;
mod commits_and_reads;
mod larger_than_memory;
mod oo7;
mod samples;
mod workloads;
mod ycsb;
mod zipfian;

use std::time::Duration;

pub(crate) use larger_than_memory::print_sample;

use crate::cell::GoalCell;
use crate::request::Request;

const SECTION: &str = "store";

/// How much is measured.
struct Scale {
    records: usize,
    /// Entries of a transaction that loads records.
    batch: usize,
    /// Updates of a commit, and commits of a sample. The store fills half of its log in fewer commits, so a
    /// sample contains what it costs to empty the log.
    commits: [(usize, usize); 3],
    /// Gets of a sample.
    gets: usize,
    /// Short scans of a sample.
    scans: usize,
    ycsb_records: usize,
    /// By what the operations of a sample of YCSB are divided.
    ycsb_divisor: usize,
    /// Whether workload B is measured with records that do not fit in memory too.
    is_larger_than_memory: bool,
    /// Traversals of OO7 of a sample.
    traversals: usize,
    /// Before each sample.
    pause: Duration,
}

const FULL_SCALE: Scale = Scale {
    records: 200_000,
    batch: 10_000,
    commits: [(1, 2000), (10, 500), (100, 100)],
    gets: 100_000,
    scans: 10_000,
    ycsb_records: 100_000,
    ycsb_divisor: 1,
    is_larger_than_memory: true,
    traversals: 20,
    pause: Duration::from_millis(20),
};

/// Measures the cells of the section.
pub(crate) fn measure(request: &Request<'_>, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    measure_at(&FULL_SCALE, request, show)
}

fn measure_at(scale: &Scale, request: &Request<'_>, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    commits_and_reads::measure(request, scale, show)?;
    workloads::measure(request, scale, show)?;
    larger_than_memory::measure(request, scale, show)?;
    churn::measure(request, scale, show)?;
    oo7::measure(request, scale, show)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::cell::GoalVerdict;
    use crate::goals::Goals;

    const SMALL_SCALE: Scale = Scale {
        records: 1000,
        batch: 300,
        commits: [(1, 4), (10, 2), (100, 2)],
        gets: 100,
        scans: 10,
        ycsb_records: 100,
        ycsb_divisor: 500,
        is_larger_than_memory: false,
        traversals: 1,
        pause: Duration::ZERO,
    };

    fn measure_small(only: &str) -> Vec<GoalCell> {
        let goals = Goals::read().unwrap();
        let request = Request { goals: &goals, limit: Duration::ZERO, only, runs: None };
        let mut cells = Vec::new();
        measure_at(&SMALL_SCALE, &request, &mut |cell| cells.push(cell)).unwrap();
        cells
    }

    #[test]
    fn every_goal_has_its_cells() {
        let mut counts = BTreeMap::new();
        for cell in measure_small("") {
            assert_eq!(cell.estimate.is_none(), cell.verdict == GoalVerdict::Skip, "{cell}");
            *counts.entry(cell.name.split(' ').next().unwrap().to_owned()).or_insert(0) += 1;
        }
        let goals = Goals::read().unwrap();
        assert!(goals.of(SECTION).all(|goal| counts.contains_key(&goal.name)), "{counts:?}");
        let of = |goal: &str| counts[goal];
        assert_eq!(
            [of("commit_vs_redb"), of("scan_vs_lmdb"), of("ycsb_vs_best"), of("size_after_churn")],
            [3, 2, 7, 2]
        );
    }

    #[test]
    fn only_the_wanted_cells_are_measured() {
        let cells = measure_small("vs_best E");
        assert_eq!(cells.iter().map(|cell| cell.name.as_str()).collect::<Vec<_>>(), ["ycsb_vs_best E"]);
    }
}
