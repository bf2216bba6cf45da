//! The section `[paging]`: `fieldstone run --resident` against swap space and mapped files.
//!
//! | module | what it measures |
//! |---|---|
//! | `peers` | rounds of runs with ours and with the peers, and the cells of their ratios |
//! | `redis` | redis-server with half its memory resident |
//!
//! ```text
//! round 0   ours   zram   swap file
//! round 1   swap file   zram   ours      the same runs of ours serve all cells of a case
//! ```
//! The workload `bounded-memory` has 512 MiB in pages that compress 1.7 to 1, and half of its
//! operations write. `fieldstone_reproduce::compression_paging` runs it, with each peer in a memory
//! control group whose limit is the bound. Each run checks the contents of all pages. A peer that is
//! killed for lack of memory runs again; the cell shows how often.

mod peers;
mod redis;

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context;
use fieldstone_reproduce::compression_paging::{BoundMethod, PageAccesses};

use crate::cell::GoalCell;
use crate::goals::Goal;
use crate::program_comparison::{Variant, compare_programs, ratio_to};
use crate::request::Request;
use peers::{PeerCell, compare};

const SECTION: &str = "paging";
const BYTES: u64 = 512 << 20;
const PERCENTAGES: [u64; 2] = [50, 25];
const THREADS: [u64; 2] = [1, 2];
/// Cases of a goal, which share its time.
const CASES: u32 = 4;

/// A pattern, its goal, and operations that take zram one or two seconds.
struct PatternGoal {
    pattern: &'static str,
    goal: &'static str,
    operations: u64,
}

const PATTERNS: [PatternGoal; 3] = [
    PatternGoal { pattern: "random", goal: "vs_zram_random", operations: 120_000 },
    PatternGoal { pattern: "zipf", goal: "vs_zram_zipf", operations: 500_000 },
    PatternGoal { pattern: "sequential", goal: "vs_zram_sequential", operations: 200_000 },
];
const SWAP_FILE_GOAL: &str = "vs_swap_file";
const MAPPED_FILE_GOAL: &str = "vs_mmap_file";

/// Measures the cells of the section.
pub(crate) fn measure(request: &Request<'_>, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let Request { goals, limit, only, .. } = *request;
    let get = |name: &str| goals.get(SECTION, name);
    let (swap_file, mapped_file) = (get(SWAP_FILE_GOAL)?, get(MAPPED_FILE_GOAL)?);
    let wanted = |cells: Vec<PeerCell>| cells.into_iter().filter(|cell| cell.name().contains(only)).collect::<Vec<_>>();
    for PatternGoal { pattern, goal, operations } in PATTERNS {
        for (percent, threads) in PERCENTAGES.into_iter().flat_map(|percent| THREADS.map(|threads| (percent, threads)))
        {
            let accesses = PageAccesses { pattern, bytes: BYTES, operations, threads };
            let case = case(percent, threads);
            let cells = wanted(vec![
                PeerCell::new(get(goal)?, case.clone(), BoundMethod::Zram),
                PeerCell::new(swap_file.clone(), format!("{pattern} {case}"), BoundMethod::SwapFile),
            ]);
            let bound_bytes = BYTES / 100 * percent;
            let run = |method| Ok(vec![accesses.run(method, bound_bytes)?]);
            compare(BoundMethod::PagedLz4, cells, limit / CASES, run)?.into_iter().for_each(&mut *show);
        }
    }
    redis::measure(&get("vs_zram_redis")?, &swap_file, limit, &wanted, show)?;
    for PatternGoal { pattern, operations, .. } in PATTERNS {
        for threads in THREADS {
            // A page from the disk takes longer than one from lz4.
            let accesses = PageAccesses { pattern, bytes: BYTES, operations: operations / 8, threads };
            let case = format!("{pattern} {}", case(25, threads));
            let cells = wanted(vec![PeerCell::new(mapped_file.clone(), case, BoundMethod::MappedFile)]);
            let run = |method| Ok(vec![accesses.run(method, BYTES / 4)?]);
            compare(BoundMethod::PagedFile, cells, limit / CASES, run)?.into_iter().for_each(&mut *show);
        }
    }
    no_pressure(&get("no_pressure_cost")?, limit, only, show)
}

fn case(percent: u64, threads: u64) -> String {
    format!("{percent} %, {threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// Programs whose memory is far below the bound.
const NO_PRESSURE: [(&str, &[&str]); 2] =
    [("gups", &["512M"]), ("bounded-memory", &["512M", "20000000", "--pattern", "zipf", "--threads", "2"])];
const NO_PRESSURE_BOUND: &str = "4G";

fn no_pressure(goal: &Goal, limit: Duration, only: &str, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let directory = std::env::current_exe()?.parent().context("the path of this program has a directory")?.to_owned();
    for (name, arguments) in NO_PRESSURE {
        if !format!("{} {name}", goal.name).contains(only) {
            continue;
        }
        let mut plain = vec![directory.join(name).into_os_string()];
        plain.extend(arguments.iter().map(OsString::from));
        let mut paged = vec![directory.join("fieldstone").into_os_string()];
        paged.extend(["run", "--resident", NO_PRESSURE_BOUND, "--"].map(OsString::from));
        paged.extend(plain.clone());
        let variant = |name, command| Variant { name, command, environment: Vec::new(), small_pages: false };
        let variants = [variant("run --resident", paged), variant("plain", plain)];
        if let Some(missing) = variants.iter().find(|variant| !std::path::Path::new(&variant.command[0]).exists()) {
            let why = format!("{} is not built: make build", missing.command[0].display());
            show(GoalCell::skipped_case(goal.clone(), name, &why));
            continue;
        }
        let times = compare_programs(&variants, BYTES, goal.limit, limit / 2)?;
        let mut cell = GoalCell::measured(goal.clone(), name, ratio_to(1, &times), "whole runs, bound 4 GiB");
        cell.samples = variants.iter().map(|variant| variant.name.to_owned()).zip(times.into_values()).collect();
        show(cell);
    }
    Ok(())
}
