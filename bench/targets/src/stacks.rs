//! The section `[stacks]`: stacks made of blocks against plain contiguous ones, which gcc builds from the same source.
//!
//! ```text
//! linkers   Lua and SQLite by each linker
//! rust      recursion in Rust that asks for its stack, in this process
//! both      trees and stacks of blocks together
//! ```
//! Programs are built by `fieldstone_reproduce::figure3`. The small ones measure themselves by their thread's clock and print what a call
//! took. Each pair is two runs, and where the layout decides some percent two builds.

mod both;
mod linkers;
mod rust;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use fieldstone_reproduce::Missing;
use fieldstone_reproduce::figure3::{BORDER, Builds, COROUTINES, FIB, FIB_ALONE, Kind, Program, SUM};
use fieldstone_stats::{Estimate, FEWEST_FOR_INTERVAL};

use crate::cell::Cell;
use crate::duel::duel_of_at_least;
use crate::goals::{Goal, Goals};

const SECTION: &str = "stacks";

/// Layouts over which fib's time is a median: the goal names them.
const LAYOUTS: usize = 20;

/// A program that prints nanoseconds a call: its goal, what it is given.
struct Contest {
    goal: &'static str,
    part: &'static str,
    program: Program,
    arguments: &'static [&'static str],
    /// Builds to choose from, pair by pair.
    layouts: usize,
    note: &'static str,
}

const CONTESTS: [Contest; 5] = [
    Contest {
        goal: "fib",
        part: "gcc -O2",
        program: FIB,
        arguments: &["36"],
        layouts: LAYOUTS,
        note: "20 builds each, their functions moved by up to 256 bytes",
    },
    Contest {
        goal: "fib",
        part: "gcc -O2, a call each",
        program: FIB_ALONE,
        arguments: &["36"],
        layouts: LAYOUTS,
        note: "20 builds each, their functions moved by up to 256 bytes",
    },
    Contest {
        goal: "hot_split_linked",
        part: "a call over the border",
        program: BORDER,
        // The first border: from what the system gave the thread to the first block, which lies elsewhere.
        arguments: &["60000", "72000"],
        layouts: 1,
        note: "the worst of all places around the first border, which is never grown over",
    },
    Contest {
        goal: "hot_split_in_place",
        part: "a call over the border",
        program: BORDER,
        // The first segment of blocks ended 108 KiB down, grown once 172, twice 300.
        arguments: &["80000", "320000"],
        layouts: 1,
        note: "the worst of all places in the first blocks, grown into one another",
    },
    Contest {
        goal: "recursion_20k_warm",
        part: "sum of 20,000",
        program: SUM,
        arguments: &["20000", "1000"],
        layouts: LAYOUTS,
        note: "20 builds each, their functions moved by up to 256 bytes",
    },
];

/// Measures the section's cells.
pub(crate) fn measure(goals: &Goals, limit: Duration, only: &str, show: &mut dyn FnMut(Cell)) -> anyhow::Result<()> {
    let builds = match Builds::find() {
        Err(error) if error.is::<Missing>() => {
            let why = error.to_string();
            goals.of(SECTION).filter(|goal| goal.name.contains(only)).for_each(|goal| show(Cell::skipped(goal, &why)));
            return Ok(());
        }
        builds => builds?,
    };
    for contest in CONTESTS.iter().filter(|contest| contest.goal.contains(only)) {
        show(contest.hold(&builds, goals.get(SECTION, contest.goal)?, limit)?);
    }
    let named = |name: &str| name.contains(only).then(|| goals.get(SECTION, name)).transpose();
    if let Some(goal) = named("coroutine_resident_kib")? {
        show(coroutines(&builds, goal)?);
    }
    if let Some(goal) = named("rust_fib")? {
        show(rust::fib(goal, limit));
    }
    if let Some(goal) = named("rust_grow_ns_vs_stacker")? {
        show(rust::grow(goal, limit));
    }
    if let Some(goal) = named("trees_and_split_stacks")? {
        show(both::blackscholes(goal.clone(), limit)?);
        show(both::game(goal, limit)?);
    }
    if let Some(goal) = named("lua_sqlite_any_linker")? {
        linkers::measure(&builds, &goal, limit, show)?;
    }
    Ok(())
}

impl Contest {
    fn hold(&self, builds: &Builds, goal: Goal, limit: Duration) -> anyhow::Result<Cell> {
        let made = pairs(builds, &self.program, "bfd", self.layouts)?;
        let fewest = self.layouts.max(FEWEST_FOR_INTERVAL);
        duel_of_builds(&made, fewest, goal, (self.part, self.note), limit, |program| {
            first_number(builds, program, self.arguments)
        })
    }
}

/// Builds on blocks and plain ones, at so many places.
fn pairs(builds: &Builds, program: &Program, linker: &str, layouts: usize) -> anyhow::Result<Vec<(PathBuf, PathBuf)>> {
    let build = |kind, layout| builds.build(program, kind, linker, layout);
    (0..layouts).map(|layout| Ok((build(Kind::Blocks, layout)?, build(Kind::Plain, layout)?))).collect()
}

/// A duel of programs: pair by pair two of `made`, one of ours and one of the others'. `run` gives what one took.
fn duel_of_builds(
    made: &[(PathBuf, PathBuf)],
    fewest: usize,
    goal: Goal,
    (part, note): (&str, &str),
    limit: Duration,
    run: impl Fn(&Path) -> anyhow::Result<f64>,
) -> anyhow::Result<Cell> {
    let failed = RefCell::new(None);
    let run = |program: &Path| {
        run(program).unwrap_or_else(|error| {
            failed.borrow_mut().get_or_insert(error);
            f64::NAN
        })
    };
    let (mut own, mut other) = (0, 0);
    // Each build of ours meets each of the others', not one over and over.
    let next = |at: &mut usize, shift: usize| {
        *at += 1;
        (*at + *at / made.len() * shift) % made.len()
    };
    let (ours, theirs) = (|| run(&made[next(&mut own, 0)].0), || run(&made[next(&mut other, 1)].1));
    let cell = duel_of_at_least(fewest, goal, part, note, limit, ours, theirs);
    failed.into_inner().map_or(Ok(cell), |error| Err(error).with_context(|| part.to_owned()))
}

/// KiB that a waiting coroutine takes, page tables included.
fn coroutines(builds: &Builds, goal: Goal) -> anyhow::Result<Cell> {
    let program = builds.build(&COROUTINES, Kind::Blocks, "bfd", 0)?;
    let taken = (0..FEWEST_FOR_INTERVAL)
        .map(|_| first_number(builds, &program, &["100000"]))
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(Cell::measured(goal, "100,000 by ucontext", Estimate::of_median(&taken), "KiB, with page tables; not a ratio"))
}

/// What a program tells first.
fn first_number(builds: &Builds, program: &Path, arguments: &[&str]) -> anyhow::Result<f64> {
    Ok(builds.run_with(program, arguments)?.numbers()?[0])
}
