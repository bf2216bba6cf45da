//! The section `[region]`: `fieldstone run --region` against 4 KiB pages and against other
//! solutions.
//!
//! The peers reach the same by other means: glibc's tunables for transparent (`hugetlb=1`) and for
//! reserved huge pages (`hugetlb=2`), and mimalloc with large pages, which is also another
//! allocator. The pool is filled during a comparison, so that no peer falls back to small pages.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use fieldstone_launch::pages;
use fieldstone_sys::knob::Restorer;
use fieldstone_wire::PageKind;

use crate::cell::GoalCell;
use crate::goals::Goal;
use crate::program_comparison::{Variant, best_peer, compare_programs, ratio_to};
use crate::request::Request;

const SECTION: &str = "region";
const MIMALLOC: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/libmimalloc.so.2", "/usr/lib/aarch64-linux-gnu/libmimalloc.so.2"];

/// A workload and its memory, in bytes.
struct RegionWorkload {
    name: &'static str,
    arguments: &'static [&'static str],
    memory_bytes: u64,
}

/// Large enough that the page size matters.
const BIG: [RegionWorkload; 4] = [
    RegionWorkload { name: "gups", arguments: &["2G"], memory_bytes: 5 << 29 },
    RegionWorkload { name: "rbtree", arguments: &["3000000"], memory_bytes: 1 << 30 },
    RegionWorkload { name: "chase", arguments: &["1G"], memory_bytes: 3 << 29 },
    RegionWorkload { name: "bfs", arguments: &["19"], memory_bytes: 3 << 29 },
];

/// CPU-bound or small, so huge pages cannot help.
const SMALL: [RegionWorkload; 3] = [
    RegionWorkload { name: "spin", arguments: &["400000000"], memory_bytes: 0 },
    RegionWorkload { name: "game", arguments: &["64K", "7x4"], memory_bytes: 0 },
    RegionWorkload { name: "blackscholes", arguments: &["10000", "6000"], memory_bytes: 0 },
];

/// Measures the cells of the section.
pub(crate) fn measure(request: &Request<'_>, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let Request { goals, limit, only, .. } = *request;
    let directory = std::env::current_exe()?.parent().context("the path of this program has a directory")?.to_owned();
    let bench = RegionBench { directory, restorer: Restorer::start()?, limit };
    for (goal, workload) in [("gups_2g_vs_4k", &BIG[0]), ("map_vs_4k", &BIG[1])] {
        if goal.contains(only) {
            for kind in ["thp", "hugetlb"] {
                show(bench.compare_with_small_pages(goals.get(SECTION, goal)?, workload, kind)?);
            }
        }
    }
    if "vs_best_of_peers".contains(only) {
        for workload in &BIG {
            show(bench.compare_with_peers(goals.get(SECTION, "vs_best_of_peers")?, workload)?);
        }
    }
    if "no_gain_cost".contains(only) {
        for workload in &SMALL {
            show(bench.no_gain(goals.get(SECTION, "no_gain_cost")?, workload)?);
        }
    }
    Ok(())
}

struct RegionBench {
    directory: PathBuf,
    restorer: Restorer,
    limit: Duration,
}

impl RegionBench {
    fn compare_with_small_pages(
        &self,
        goal: Goal,
        workload: &RegionWorkload,
        kind: &'static str,
    ) -> anyhow::Result<GoalCell> {
        let bytes = if kind == "hugetlb" { workload.memory_bytes } else { 0 };
        let _pool = match pages::reserve(&self.restorer, PageKind::Hugetlb2m, bytes) {
            Ok(held) => held,
            Err(error) => return Ok(GoalCell::skipped(goal, &error.to_string())),
        };
        let small = Variant { small_pages: true, ..self.plain("4k", workload) };
        self.compare(goal, workload, kind, &[self.region(workload, kind), small])
    }

    fn no_gain(&self, goal: Goal, workload: &RegionWorkload) -> anyhow::Result<GoalCell> {
        self.compare(goal, workload, "thp", &[self.region(workload, "thp"), self.plain("plain", workload)])
    }

    fn compare_with_peers(&self, goal: Goal, workload: &RegionWorkload) -> anyhow::Result<GoalCell> {
        let _pool = match pages::reserve(&self.restorer, PageKind::Hugetlb2m, workload.memory_bytes) {
            Ok(held) => held,
            Err(error) => return Ok(GoalCell::skipped(goal, &error.to_string())),
        };
        let mut variants = vec![self.region(workload, "hugetlb")];
        for (name, tunable) in [("glibc hugetlb=1", "1"), ("glibc hugetlb=2", "2")] {
            let environment = vec![("GLIBC_TUNABLES", format!("glibc.malloc.hugetlb={tunable}"))];
            variants.push(Variant { environment, ..self.plain(name, workload) });
        }
        match MIMALLOC.into_iter().find(|library| Path::new(library).exists()) {
            Some(library) => {
                let environment = vec![("LD_PRELOAD", library.to_owned()), ("MIMALLOC_LARGE_OS_PAGES", "1".to_owned())];
                variants.push(Variant { environment, ..self.plain("mimalloc large", workload) });
            }
            None => eprintln!("SKIP mimalloc is not installed (apt-get install libmimalloc2.0)"),
        }
        self.compare(goal, workload, "hugetlb", &variants)
    }

    fn compare(
        &self,
        goal: Goal,
        workload: &RegionWorkload,
        kind: &str,
        variants: &[Variant],
    ) -> anyhow::Result<GoalCell> {
        if !self.directory.join(workload.name).exists() {
            return Ok(GoalCell::skipped(
                goal,
                &format!("{} is not built (make build; rbtree needs a C++ compiler)", workload.name),
            ));
        }
        let times = compare_programs(variants, workload.memory_bytes, goal.limit, self.limit)?;
        let best = best_peer(variants.len(), &times);
        let note = format!("against {}", variants[best].name);
        let mut cell = GoalCell::measured(goal, &format!("{} on {kind}", workload.name), ratio_to(best, &times), &note);
        cell.samples = variants.iter().map(|variant| variant.name.to_owned()).zip(times.into_values()).collect();
        Ok(cell)
    }

    fn plain(&self, name: &'static str, workload: &RegionWorkload) -> Variant {
        let mut command = vec![self.directory.join(workload.name).into_os_string()];
        command.extend(workload.arguments.iter().map(OsString::from));
        Variant { name, command, environment: Vec::new(), small_pages: false }
    }

    fn region(&self, workload: &RegionWorkload, kind: &str) -> Variant {
        let plain = self.plain("run --region", workload);
        let mut command = vec![self.directory.join("fieldstone").into_os_string()];
        command.extend(["run", "--region", "--pages", kind, "--"].map(OsString::from));
        command.extend(plain.command.clone());
        Variant { command, ..plain }
    }
}
