//! Lua and SQLite with stacks of blocks against contiguous ones, with each installed linker.

use std::time::Duration;

use fieldstone_reproduce::Missing;
use fieldstone_reproduce::figure3::{Builds, LINKERS, LUA, SQLITE, StackProgram, has_linker};
use fieldstone_stats::FEWEST_FOR_INTERVAL;

use crate::cell::GoalCell;
use crate::goals::Goal;
use crate::stacks::{compare_builds, pairs};

/// Number of code layouts: link order alone changes the time by some percent.
const LAYOUTS: usize = 6;

/// Compares the CPU time of whole runs.
pub(crate) fn measure(
    builds: &Builds,
    goal: &Goal,
    limit: Duration,
    show: &mut dyn FnMut(GoalCell),
) -> anyhow::Result<()> {
    for program in [LUA, SQLITE] {
        for linker in LINKERS {
            if !has_linker(linker) {
                show(GoalCell::skipped(goal.clone(), &format!("{}: there is no linker {linker}", program.name)));
                continue;
            }
            match measure_with(builds, goal, &program, linker, limit) {
                Err(error) if error.is::<Missing>() => {
                    show(GoalCell::skipped(goal.clone(), &error.to_string()));
                    break;
                }
                cell => show(cell?),
            }
        }
    }
    Ok(())
}

fn measure_with(
    builds: &Builds,
    goal: &Goal,
    program: &StackProgram,
    linker: &str,
    limit: Duration,
) -> anyhow::Result<GoalCell> {
    let builds_by_layout = pairs(builds, program, linker, LAYOUTS)?;
    let expected = builds.run(program, &builds_by_layout[0].1, true)?.printed;
    let label = (format!("{} by {linker}", program.name), "whole runs, 6 layouts each");
    compare_builds(&builds_by_layout, FEWEST_FOR_INTERVAL, goal.clone(), (&label.0, label.1), limit, |file| {
        let run = builds.run(program, file, true)?;
        anyhow::ensure!(run.printed == expected, "it printed something else than with a plain stack");
        Ok(run.seconds)
    })
}
