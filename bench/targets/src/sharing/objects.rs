//! Adjacent objects (`bench/workloads/src/sharing/objects.cpp`): a table of run times with and
//! without `run --repair`.
//!
//! These programs have no speed goal, but they must not get slower: a repair without a gain must
//! end soon.

use std::collections::BTreeSet;

use anyhow::ensure;
use fieldstone_repair::{RepairEvent, RepairStats};
use fieldstone_stats::{median, pair};

use super::comparisons::WorkSize;
use super::program_run::{Programs, WorkloadRun, find_size};

/// The value of `--only` for the table.
pub(super) const NAME: &str = "objects";

/// Alternating pairs of runs per row.
const PAIRS: usize = 5;
/// Target seconds of a plain run.
const TARGET_RUN_S: f64 = 2.0;

const PROGRAMS: [&str; 4] =
    ["sharing/objects-cxx-O0", "sharing/objects-cxx-O2", "sharing/objects-clang-O0", "sharing/objects-clang-O2"];
const KINDS: [&str; 7] = [
    "--kind virtual --iterations",
    "--kind mutexes --iterations",
    "--kind deques --iterations",
    "--kind list --iterations",
    "--kind table --iterations",
    "--kind recursion --iterations",
    "--kind swaps --iterations",
];

/// Prints a row per program and kind whose name contains all words of `rows`.
pub(super) fn print(programs: &Programs, rows: &str) -> anyhow::Result<()> {
    println!(
        "program, kind: seconds without, seconds under `run --repair`, their ratio (medians of {PAIRS} pairs), final state"
    );
    for program in PROGRAMS {
        if let Some(why) = programs.missing_reason(program) {
            println!("{program}: SKIP {why}");
            continue;
        }
        let is_wanted =
            |option: &&str| rows.split_whitespace().all(|word| format!("{program} {option}").contains(word));
        for option in KINDS.into_iter().filter(is_wanted) {
            print_row(programs, program, option)?;
        }
    }
    Ok(())
}

fn print_row(programs: &Programs, program: &str, option: &'static str) -> anyhow::Result<()> {
    let size = find_size(WorkSize { option, number: 10_000_000 }, TARGET_RUN_S, |size| {
        Ok(programs.plain(program, "", size)?.threads_s())
    })?;
    let (mut plain, mut repaired, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let (mut outputs, mut ends) = (BTreeSet::new(), BTreeSet::new());
    let mut take = |run: &WorkloadRun| {
        outputs.insert(run.output.clone());
        run.threads_s()
    };
    for round in 0..PAIRS {
        let (without, with) =
            pair(round, || programs.plain(program, "", size), || programs.repaired(program, "", size))?;
        let (without_s, with_s) = (take(&without), take(&with.run));
        plain.push(without_s);
        repaired.push(with_s);
        ratios.push(with_s / without_s);
        ends.insert(end(&with.stats));
    }
    ensure!(outputs.len() == 1, "{program} {option}: several results: {outputs:?}");
    let [plain, repaired, ratio] = [plain, repaired, ratios].map(|values| median(&values).unwrap_or(f64::NAN));
    let kind = option.split_whitespace().nth(1).unwrap_or_default();
    let ends: Vec<String> = ends.into_iter().collect();
    println!("{program:<26} {kind:<10} {plain:6.2} {repaired:6.2} {ratio:5.2}  {}", ends.join("; "));
    Ok(())
}

/// The final state of a repair, without numbers.
fn end(stats: &RepairStats) -> String {
    let last = stats.events.iter().rev().find_map(|event| match &event.kind {
        RepairEvent::PageMoved { .. } => Some("moved, stays".to_owned()),
        RepairEvent::PageRestored { why, .. } => {
            Some(format!("restored: {}", why.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ')))
        }
        RepairEvent::PageRefused { why, .. } => Some(format!("left: {why}")),
        _ => None,
    });
    last.unwrap_or_else(|| "nothing moved".to_owned())
}
