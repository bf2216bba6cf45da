//! `make targets-NAME`: measures the cells of one section of `goals.toml`, side by side with the peers.
//!
//! ```text
//! goals     what goals.toml asks
//! contest   programs run alternately, pair by pair, until the verdict stands or the time is over
//! duel      kernels in this process, the same way
//! cell      a line: name, measured, interval, goal, ok | MISS | UNDECIDED | SKIP reason
//! reach     what a huge page is worth here
//! region    the section [region]
//! arrays    the section [arrays]
//! pages     the section [pages]
//! translation  the section [translation]
//! sharing   the section [sharing], and `make soak-sharing`
//! stacks    the section [stacks]
//! ```
//! Exit code: 0 without a MISS, 1 with one, 2 when nothing could be measured.

mod arrays;
mod cell;
mod contest;
mod duel;
mod goals;
mod pages;
mod reach;
mod region;
#[cfg(target_arch = "x86_64")]
mod sharing;
#[cfg(target_arch = "x86_64")]
mod stacks;
mod translation;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;

use cell::{Cell, Verdict};
use goals::Goals;

/// Measures the goals, cell by cell.
#[derive(Debug, Parser)]
#[command(name = "fieldstone-targets", version)]
struct Arguments {
    /// The section of goals.toml; all without it
    section: Option<String>,
    /// Seconds that one cell may take until it is left UNDECIDED
    #[arg(long, default_value_t = 240)]
    limit: u64,
    /// Measure only cells whose name contains this; of [translation], of one program too: 'burst_miss_error cg'
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Runs of each program for wrong_results of sharing; as many as the limit allows without it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Where the raw samples go, as JSON
    #[arg(long, value_name = "FILE", default_value = "build/targets.json")]
    json: PathBuf,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(cells) if cells.iter().any(|cell| cell.verdict == Verdict::Miss) => ExitCode::FAILURE,
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fieldstone-targets: {}", fieldstone_report::error::told(error.as_ref()));
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<Vec<Cell>> {
    let goals = Goals::read()?;
    let mut cells = Vec::new();
    for section in goals.sections(arguments.section.as_deref())? {
        println!("[{section}]");
        let limit = Duration::from_secs(arguments.limit);
        let mut show = |cell: Cell| {
            println!("{cell}");
            cells.push(cell);
        };
        match section.as_str() {
            "region" => region::measure(&goals, limit, &arguments.only, &mut show)?,
            "arrays" => arrays::measure(&goals, limit, &arguments.only, &mut show)?,
            "pages" => pages::measure(&goals, limit, &arguments.only, &mut show)?,
            "translation" => translation::measure(&goals, limit, &arguments.only, &mut show)?,
            #[cfg(target_arch = "x86_64")]
            "sharing" => sharing::measure(&goals, limit, &arguments.only, arguments.runs, &mut show)?,
            #[cfg(target_arch = "x86_64")]
            "stacks" => stacks::measure(&goals, limit, &arguments.only, &mut show)?,
            _ => goals.of(&section).for_each(|goal| show(Cell::skipped(goal, "nothing measures it yet"))),
        }
    }
    if let Some(directory) = arguments.json.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let text = serde_json::to_string_pretty(&cells)?;
    std::fs::write(&arguments.json, text).with_context(|| format!("cannot write {}", arguments.json.display()))?;
    Ok(cells)
}
