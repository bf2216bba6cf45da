//! The section `[stacks]`: stacks made of blocks against plain contiguous ones, which gcc builds from the same source.
//!
//! ```text
//! build     a program of workloads/src/stacks, built plainly or by fieldstone-cc, its functions at a place that a number decides
//! rust      recursion in Rust that asks for its stack, in this process
//! both      trees and stacks of blocks together
//! ```
//! The programs measure themselves by their thread's clock and print what a call took. Each pair is two runs, and where the layout
//! decides some percent two builds.

mod both;
mod build;
mod rust;

use std::time::Duration;

use anyhow::Context;
use fieldstone_report::stats::{Estimate, FEWEST_FOR_INTERVAL};

use crate::cell::Cell;
use crate::duel::duel_of_at_least;
use crate::goals::{Goal, Goals};
use build::{Builds, Kind};

const SECTION: &str = "stacks";

/// Layouts over which fib's time is a median: the goal names them.
const LAYOUTS: usize = 20;

/// A program that prints nanoseconds a call: its goal, what it is given.
struct Contest {
    goal: &'static str,
    part: &'static str,
    program: &'static str,
    /// Options of the compiler.
    options: &'static [&'static str],
    arguments: &'static [&'static str],
    /// Builds to choose from, pair by pair.
    layouts: usize,
    note: &'static str,
}

const CONTESTS: [Contest; 5] = [
    Contest {
        goal: "fib",
        part: "gcc -O2",
        program: "fib",
        options: &[],
        arguments: &["36"],
        layouts: LAYOUTS,
        note: "20 builds each, their functions moved by up to 256 bytes",
    },
    Contest {
        goal: "fib",
        part: "gcc -O2, a call each",
        program: "fib",
        options: &["-DALONE"],
        arguments: &["36"],
        layouts: LAYOUTS,
        note: "20 builds each, their functions moved by up to 256 bytes",
    },
    Contest {
        goal: "hot_split_linked",
        part: "a call over the border",
        program: "border",
        options: &[],
        // The first border: from what the system gave the thread to the first block, which lies elsewhere.
        arguments: &["60000", "72000"],
        layouts: 1,
        note: "the worst of all places around the first border, which is never grown over",
    },
    Contest {
        goal: "hot_split_in_place",
        part: "a call over the border",
        program: "border",
        options: &[],
        // The first segment of blocks ended 108 KiB down, grown once 172, twice 300.
        arguments: &["80000", "320000"],
        layouts: 1,
        note: "the worst of all places in the first blocks, grown into one another",
    },
    Contest {
        goal: "recursion_20k_warm",
        part: "sum of 20,000",
        program: "sum",
        options: &[],
        arguments: &["20000", "1000"],
        layouts: LAYOUTS,
        note: "20 builds each, their functions moved by up to 256 bytes",
    },
];

/// Measures the section's cells.
pub(crate) fn measure(goals: &Goals, limit: Duration, only: &str, show: &mut dyn FnMut(Cell)) -> anyhow::Result<()> {
    let builds = match Builds::find()? {
        Ok(builds) => builds,
        Err(why) => {
            goals.of(SECTION).filter(|goal| goal.name.contains(only)).for_each(|goal| show(Cell::skipped(goal, &why)));
            return Ok(());
        }
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
        show(Cell::skipped(goal, "nothing measures it yet"));
    }
    Ok(())
}

impl Contest {
    fn hold(&self, builds: &Builds, goal: Goal, limit: Duration) -> anyhow::Result<Cell> {
        let mut made = Vec::new();
        for layout in 0..self.layouts {
            let build = |kind| builds.build(self.program, self.options, kind, layout);
            made.push((build(Kind::Blocks)?, build(Kind::Plain)?));
        }
        let mut failed = None;
        let mut run = |program: &std::path::Path| {
            build::run(program, self.arguments).unwrap_or_else(|error| {
                failed.get_or_insert(error);
                f64::NAN
            })
        };
        let (mut own, mut other) = (0, 0);
        let next = |at: &mut usize| {
            *at += 1;
            (*at - 1) % made.len()
        };
        let run = std::cell::RefCell::new(&mut run);
        let cell = duel_of_at_least(
            self.layouts.max(FEWEST_FOR_INTERVAL),
            goal,
            self.part,
            self.note,
            limit,
            || run.borrow_mut()(&made[next(&mut own)].0),
            || run.borrow_mut()(&made[next(&mut other)].1),
        );
        failed.map_or(Ok(cell), |error| Err(error).context(self.program))
    }
}

/// KiB that a waiting coroutine takes, page tables included.
fn coroutines(builds: &Builds, goal: Goal) -> anyhow::Result<Cell> {
    let program = builds.build("coroutines", &[], Kind::Blocks, 0)?;
    let taken =
        (0..FEWEST_FOR_INTERVAL).map(|_| build::run(&program, &["100000"])).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(Cell::measured(goal, "100,000 by ucontext", Estimate::of_median(&taken), "KiB, with page tables; not a ratio"))
}
