//! The section `[region]`: `fieldstone run --region` against 4 KiB pages and against the peers that a user would take.
//!
//! The peers change the same things by other means: glibc's own tunables for transparent (`hugetlb=1`) and for
//! reserved pages (`hugetlb=2`), and mimalloc with large pages, which also changes the allocator. The pool is filled for
//! the time of a contest, so that none of them falls back to small pages.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use fieldstone_launch::pages;
use fieldstone_sys::knob::Restorer;
use fieldstone_wire::PageKind;

use crate::cell::Cell;
use crate::contest::{Contender, best_peer, hold, ratio_to};
use crate::goals::{Goal, Goals};

const SECTION: &str = "region";
const MIMALLOC: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/libmimalloc.so.2", "/usr/lib/aarch64-linux-gnu/libmimalloc.so.2"];

/// A workload with the memory that it needs, in bytes.
struct Workload {
    name: &'static str,
    arguments: &'static [&'static str],
    memory_bytes: u64,
}

/// Big enough that pages matter.
const BIG: [Workload; 4] = [
    Workload { name: "gups", arguments: &["2G"], memory_bytes: 5 << 29 },
    Workload { name: "rbtree", arguments: &["3000000"], memory_bytes: 1 << 30 },
    Workload { name: "chase", arguments: &["1G"], memory_bytes: 3 << 29 },
    Workload { name: "bfs", arguments: &["19"], memory_bytes: 3 << 29 },
];

/// CPU-bound or small: huge pages cannot help them.
const SMALL: [Workload; 3] = [
    Workload { name: "spin", arguments: &["400000000"], memory_bytes: 0 },
    Workload { name: "game", arguments: &["64K", "7x4"], memory_bytes: 0 },
    Workload { name: "blackscholes", arguments: &["10000", "6000"], memory_bytes: 0 },
];

/// Measures the section's cells.
pub(crate) fn measure(goals: &Goals, limit: Duration, only: &str, show: &mut dyn FnMut(Cell)) -> anyhow::Result<()> {
    let directory = std::env::current_exe()?.parent().context("this program lies in a directory")?.to_owned();
    let place = Place { directory, restorer: Restorer::start()?, limit };
    for (goal, workload) in [("gups_2g_vs_4k", &BIG[0]), ("map_vs_4k", &BIG[1])] {
        if goal.contains(only) {
            for kind in ["thp", "hugetlb"] {
                show(place.against_small_pages(goals.get(SECTION, goal)?, workload, kind)?);
            }
        }
    }
    if "vs_best_of_peers".contains(only) {
        for workload in &BIG {
            show(place.against_peers(goals.get(SECTION, "vs_best_of_peers")?, workload)?);
        }
    }
    if "no_gain_cost".contains(only) {
        for workload in &SMALL {
            show(place.without_gain(goals.get(SECTION, "no_gain_cost")?, workload)?);
        }
    }
    Ok(())
}

struct Place {
    directory: PathBuf,
    restorer: Restorer,
    limit: Duration,
}

impl Place {
    fn against_small_pages(&self, goal: Goal, workload: &Workload, kind: &'static str) -> anyhow::Result<Cell> {
        let bytes = if kind == "hugetlb" { workload.memory_bytes } else { 0 };
        let _pool = match pages::hold(&self.restorer, PageKind::Hugetlb2m, bytes) {
            Ok(held) => held,
            Err(error) => return Ok(Cell::skipped(goal, &error.to_string())),
        };
        let small = Contender { small_pages: true, ..self.plain("4k", workload) };
        self.contest(goal, workload, kind, &[self.region(workload, kind), small])
    }

    fn without_gain(&self, goal: Goal, workload: &Workload) -> anyhow::Result<Cell> {
        self.contest(goal, workload, "thp", &[self.region(workload, "thp"), self.plain("plain", workload)])
    }

    fn against_peers(&self, goal: Goal, workload: &Workload) -> anyhow::Result<Cell> {
        let _pool = match pages::hold(&self.restorer, PageKind::Hugetlb2m, workload.memory_bytes) {
            Ok(held) => held,
            Err(error) => return Ok(Cell::skipped(goal, &error.to_string())),
        };
        let mut contenders = vec![self.region(workload, "hugetlb")];
        for (name, tunable) in [("glibc hugetlb=1", "1"), ("glibc hugetlb=2", "2")] {
            let environment = vec![("GLIBC_TUNABLES", format!("glibc.malloc.hugetlb={tunable}"))];
            contenders.push(Contender { environment, ..self.plain(name, workload) });
        }
        match MIMALLOC.into_iter().find(|library| Path::new(library).exists()) {
            Some(library) => {
                let environment = vec![("LD_PRELOAD", library.to_owned()), ("MIMALLOC_LARGE_OS_PAGES", "1".to_owned())];
                contenders.push(Contender { environment, ..self.plain("mimalloc large", workload) });
            }
            None => eprintln!("SKIP mimalloc is not installed (apt-get install libmimalloc2.0)"),
        }
        self.contest(goal, workload, "hugetlb", &contenders)
    }

    fn contest(&self, goal: Goal, workload: &Workload, kind: &str, contenders: &[Contender]) -> anyhow::Result<Cell> {
        if !self.directory.join(workload.name).exists() {
            return Ok(Cell::skipped(
                goal,
                &format!("{} is not built (make build; rbtree needs a C++ compiler)", workload.name),
            ));
        }
        let times = hold(contenders, workload.memory_bytes, goal.limit, self.limit)?;
        let best = best_peer(contenders.len(), &times);
        let note = format!("against {}", contenders[best].name);
        let mut cell = Cell::measured(goal, &format!("{} on {kind}", workload.name), ratio_to(best, &times), &note);
        cell.samples = contenders.iter().map(|contender| contender.name.to_owned()).zip(times.into_values()).collect();
        Ok(cell)
    }

    fn plain(&self, name: &'static str, workload: &Workload) -> Contender {
        let mut command = vec![self.directory.join(workload.name).into_os_string()];
        command.extend(workload.arguments.iter().map(OsString::from));
        Contender { name, command, environment: Vec::new(), small_pages: false }
    }

    fn region(&self, workload: &Workload, kind: &str) -> Contender {
        let plain = self.plain("run --region", workload);
        let mut command = vec![self.directory.join("fieldstone").into_os_string()];
        command.extend(["run", "--region", "--pages", kind, "--"].map(OsString::from));
        command.extend(plain.command.clone());
        Contender { command, ..plain }
    }
}
