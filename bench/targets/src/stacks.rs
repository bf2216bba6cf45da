//! The section `[stacks]`: stacks made of blocks against contiguous ones, compiled from the same
//! source.
//!
//! ```text
//! linkers           Lua and SQLite with each linker
//! rust_recursion    recursion in Rust with a check of its stack, in this process
//! trees_and_stacks  trees and stacks of blocks together
//! ```
//! `fieldstone_reproduce::figure3` builds the programs. Small programs time themselves with their
//! thread's clock and print nanoseconds per call. Each pair consists of two runs. Where code layout
//! matters, it also consists of two builds.

mod linkers;
mod rust_recursion;
mod trees_and_stacks;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use fieldstone_reproduce::Missing;
use fieldstone_reproduce::figure3::{BORDER, Builds, COROUTINES, FIB, FIB_ALONE, Kind, SUM, StackProgram};
use fieldstone_stats::{Estimate, FEWEST_FOR_INTERVAL};

use crate::cell::GoalCell;
use crate::goals::Goal;
use crate::kernel_comparison::compare_with_min_pairs;
use crate::request::Request;

const SECTION: &str = "stacks";

/// Number of code layouts for the median of fib's time, as in the goal.
const LAYOUTS: usize = 20;

/// A program that prints nanoseconds per call, with its goal and arguments.
struct StackComparison {
    goal: &'static str,
    case: &'static str,
    program: StackProgram,
    arguments: &'static [&'static str],
    /// Number of builds with different code layouts.
    layouts: usize,
    note: &'static str,
}

const COMPARISONS: [StackComparison; 5] = [
    StackComparison {
        goal: "fib",
        case: "gcc -O2",
        program: FIB,
        arguments: &["36"],
        layouts: LAYOUTS,
        note: "20 builds each, their functions moved by up to 256 bytes",
    },
    StackComparison {
        goal: "fib",
        case: "gcc -O2, a call each",
        program: FIB_ALONE,
        arguments: &["36"],
        layouts: LAYOUTS,
        note: "20 builds each, their functions moved by up to 256 bytes",
    },
    StackComparison {
        goal: "hot_split_linked",
        case: "a call over the border",
        program: BORDER,
        // The first segment border: from the thread's own stack to the first block elsewhere.
        arguments: &["60000", "72000"],
        layouts: 1,
        note: "the worst of all places around the first border, which is never grown over",
    },
    StackComparison {
        goal: "hot_split_in_place",
        case: "a call over the border",
        program: BORDER,
        // The first segment of blocks ended 108 KiB down; grown once, at 172 KiB; grown twice, at
        // 300 KiB.
        arguments: &["80000", "320000"],
        layouts: 1,
        note: "the worst of all places in the first blocks, grown into one another",
    },
    StackComparison {
        goal: "recursion_20k_warm",
        case: "sum of 20,000",
        program: SUM,
        arguments: &["20000", "1000"],
        layouts: LAYOUTS,
        note: "20 builds each, their functions moved by up to 256 bytes",
    },
];

/// Measures the cells of the section.
pub(crate) fn measure(request: &Request<'_>, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let Request { goals, limit, only, .. } = *request;
    let builds = match Builds::find() {
        Err(error) if error.is::<Missing>() => {
            let why = error.to_string();
            goals
                .of(SECTION)
                .filter(|goal| goal.name.contains(only))
                .for_each(|goal| show(GoalCell::skipped(goal, &why)));
            return Ok(());
        }
        builds => builds?,
    };
    for comparison in COMPARISONS.iter().filter(|comparison| comparison.goal.contains(only)) {
        show(comparison.measure(&builds, goals.get(SECTION, comparison.goal)?, limit)?);
    }
    let named = |name: &str| name.contains(only).then(|| goals.get(SECTION, name)).transpose();
    if let Some(goal) = named("coroutine_resident_kib")? {
        show(coroutines(&builds, goal)?);
    }
    if let Some(goal) = named("rust_fib")? {
        show(rust_recursion::fib(goal, limit));
    }
    if let Some(goal) = named("rust_grow_ns_vs_stacker")? {
        show(rust_recursion::grow(goal, limit));
    }
    if let Some(goal) = named("trees_and_split_stacks")? {
        show(trees_and_stacks::blackscholes(goal.clone(), limit)?);
        show(trees_and_stacks::game(goal, limit)?);
    }
    if let Some(goal) = named("lua_sqlite_any_linker")? {
        linkers::measure(&builds, &goal, limit, show)?;
    }
    Ok(())
}

impl StackComparison {
    fn measure(&self, builds: &Builds, goal: Goal, limit: Duration) -> anyhow::Result<GoalCell> {
        let pairs_of_builds = pairs(builds, &self.program, "bfd", self.layouts)?;
        let min_pairs = self.layouts.max(FEWEST_FOR_INTERVAL);
        compare_builds(&pairs_of_builds, min_pairs, goal, (self.case, self.note), limit, |program| {
            first_number(builds, program, self.arguments)
        })
    }
}

/// Builds the program `layouts` times: (on blocks, contiguous).
fn pairs(
    builds: &Builds,
    program: &StackProgram,
    linker: &str,
    layouts: usize,
) -> anyhow::Result<Vec<(PathBuf, PathBuf)>> {
    let build = |kind, layout| builds.build(program, kind, linker, layout);
    (0..layouts).map(|layout| Ok((build(Kind::Blocks, layout)?, build(Kind::Plain, layout)?))).collect()
}

/// Compares builds pair by pair. `run` returns the seconds of one run.
fn compare_builds(
    pairs_of_builds: &[(PathBuf, PathBuf)],
    min_pairs: usize,
    goal: Goal,
    (case, note): (&str, &str),
    limit: Duration,
    run: impl Fn(&Path) -> anyhow::Result<f64>,
) -> anyhow::Result<GoalCell> {
    let failed = RefCell::new(None);
    let run = |program: &Path| {
        run(program).unwrap_or_else(|error| {
            failed.borrow_mut().get_or_insert(error);
            f64::NAN
        })
    };
    let (mut own, mut other) = (0, 0);
    // Shifts the second side after each cycle, so that all combinations of builds meet.
    let next_build = |at: &mut usize, shift: usize| {
        *at += 1;
        (*at + *at / pairs_of_builds.len() * shift) % pairs_of_builds.len()
    };
    let (ours, theirs) =
        (|| run(&pairs_of_builds[next_build(&mut own, 0)].0), || run(&pairs_of_builds[next_build(&mut other, 1)].1));
    let cell = compare_with_min_pairs(min_pairs, goal, case, note, limit, ours, theirs);
    failed.into_inner().map_or(Ok(cell), |error| Err(error).with_context(|| case.to_owned()))
}

/// Resident KiB per waiting coroutine, with page tables.
fn coroutines(builds: &Builds, goal: Goal) -> anyhow::Result<GoalCell> {
    let program = builds.build(&COROUTINES, Kind::Blocks, "bfd", 0)?;
    let kib = (0..FEWEST_FOR_INTERVAL)
        .map(|_| first_number(builds, &program, &["100000"]))
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(GoalCell::measured(goal, "100,000 by ucontext", Estimate::of_median(&kib), "KiB, with page tables; not a ratio"))
}

/// The first number that a program prints.
fn first_number(builds: &Builds, program: &Path, arguments: &[&str]) -> anyhow::Result<f64> {
    Ok(builds.run_with(program, arguments)?.numbers()?[0])
}
