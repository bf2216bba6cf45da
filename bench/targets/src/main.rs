//! `make targets-NAME`: measures the goals of one section of `goals.toml`, next to the peers.
//!
//! ```text
//! goals               the goals of goals.toml
//! request             what a section is asked to measure
//! program_comparison  programs run alternately until the result settles or time is up
//! kernel_comparison   the same for kernels in this process
//! stop_rule           when a measurement ends: the result has settled, or time is up
//! cell                a line: name, measured, interval, goal, ok | MISS | UNDECIDED | SKIP reason
//! huge_page_ratio     whether huge pages are faster on this machine
//! region, arrays, pages, translation, stacks, guard, paging, checkpoint, store   the sections of these names
//! sharing             the section [sharing], and `make soak-sharing`
//! ```
//! Each goal of a section without a measurement (`goals::NOT_MEASURED_YET`) is printed as SKIP.
//! Exit code: 0 without a MISS, 1 with one, 2 on an error.

mod arrays;
mod cell;
mod checkpoint;
mod goals;
mod guard;
mod huge_page_ratio;
mod kernel_comparison;
mod pages;
mod paging;
mod program_comparison;
mod region;
mod request;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_sharing.rs")]
mod sharing;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_stacks.rs")]
mod stacks;
mod stop_rule;
mod store;
mod translation;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;

use cell::{GoalCell, GoalVerdict};
use goals::{Goals, NOT_MEASURED_YET};
use request::Request;

/// Measures the cells of one section, and passes each to the function.
type MeasureSection = fn(&Request<'_>, &mut dyn FnMut(GoalCell)) -> anyhow::Result<()>;

/// The sections that this program can measure.
const SECTIONS: &[(&str, MeasureSection)] = &[
    ("region", region::measure),
    ("arrays", arrays::measure),
    ("pages", pages::measure),
    ("translation", translation::measure),
    ("sharing", sharing::measure),
    ("stacks", stacks::measure),
    ("guard", guard::measure),
    ("paging", paging::measure),
    ("checkpoint", checkpoint::measure),
    ("store", store::measure),
];

/// Measure the goals of goals.toml, cell by cell
#[derive(Debug, Parser)]
#[command(name = "fieldstone-targets", version)]
struct Arguments {
    /// Section of goals.toml [default: all]
    section: Option<String>,
    /// Seconds per cell, after which it is UNDECIDED
    #[arg(long, default_value_t = 240)]
    limit: u64,
    /// Measure only cells whose name contains this. In [translation] the name includes the program:
    /// 'burst_miss_error cg'. In [sharing], 'objects clang-O2 list' prints a row of the table of
    /// objects. In [paging]: 'vs_zram_zipf 25 %, 2 threads'. In [store]: 'ycsb_vs_best A'
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Runs of each program for wrong_results of [sharing] [default: as many as the limit allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// File for the raw samples, as JSON
    #[arg(long, value_name = "FILE", default_value = "build/targets.json")]
    json: PathBuf,
    /// Take a sample of a store, as `store::larger_than_memory` describes it
    #[arg(long, hide = true, num_args = 2, value_names = ["JSON", "FOLDER"])]
    store_sample: Option<Vec<String>>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(cells) if cells.iter().any(|cell| cell.verdict == GoalVerdict::Miss) => ExitCode::FAILURE,
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fieldstone-targets: {}", fieldstone_report::error::with_causes(error.as_ref()));
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<Vec<GoalCell>> {
    if let Some([task, folder]) = arguments.store_sample.as_deref() {
        return store::print_sample(task, Path::new(folder)).map(|()| Vec::new());
    }
    let goals = Goals::read()?;
    let mut cells = Vec::new();
    for section in goals.sections(arguments.section.as_deref())? {
        println!("[{section}]");
        let limit = Duration::from_secs(arguments.limit);
        let request = Request { goals: &goals, limit, only: &arguments.only, runs: arguments.runs };
        let mut show = |cell: GoalCell| {
            println!("{cell}");
            cells.push(cell);
        };
        match SECTIONS.iter().find(|(name, _)| *name == section) {
            Some((_, measure)) => measure(&request, &mut show)?,
            None => unmeasured(&goals, &section, &arguments.only).for_each(show),
        }
    }
    if let Some(directory) = arguments.json.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let text = serde_json::to_string_pretty(&cells)?;
    std::fs::write(&arguments.json, text).with_context(|| format!("cannot write {}", arguments.json.display()))?;
    Ok(cells)
}

/// A skipped cell for each goal of a section that is not in [`SECTIONS`].
fn unmeasured(goals: &Goals, section: &str, only: &str) -> impl Iterator<Item = GoalCell> {
    let why = if NOT_MEASURED_YET.contains(&section) { "not measured yet" } else { "not measured on this processor" };
    goals.of(section).filter(move |goal| goal.name.contains(only)).map(move |goal| GoalCell::skipped(goal, why))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_section_is_measured_or_listed_as_not_measured_yet() {
        let required: BTreeSet<String> = Goals::read().unwrap().sections(None).unwrap().into_iter().collect();
        let named = SECTIONS.iter().map(|(name, _)| *name).chain(NOT_MEASURED_YET);
        let listed: Vec<String> = named.map(str::to_owned).collect();
        assert_eq!(listed.iter().cloned().collect::<BTreeSet<_>>(), required);
        assert_eq!(listed.len(), required.len(), "no section is in both lists: {listed:?}");
    }

    #[test]
    fn a_goal_without_a_measurement_is_skipped_by_name() {
        let goals = Goals::read().unwrap();
        for section in NOT_MEASURED_YET {
            let cells: Vec<GoalCell> = unmeasured(&goals, section, "").collect();
            assert_eq!(cells.len(), goals.of(section).count(), "{section}");
            for cell in cells {
                let line = cell.to_string();
                assert!(cell.verdict == GoalVerdict::Skip && line.ends_with("SKIP not measured yet"), "{line}");
            }
        }
    }
}
