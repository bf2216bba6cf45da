//! Lua and SQLite with stacks of blocks against plain ones, by each linker that is there.

use std::time::Duration;

use fieldstone_reproduce::Missing;
use fieldstone_reproduce::figure3::{Builds, LINKERS, LUA, Program, SQLITE, has_linker};
use fieldstone_stats::FEWEST_FOR_INTERVAL;

use crate::cell::Cell;
use crate::goals::Goal;
use crate::stacks::{duel_of_builds, pairs};

/// Layouts that the pairs go through: link order alone moves a program by some percent.
const LAYOUTS: usize = 6;

/// Processor time of whole runs, alternately.
pub(crate) fn measure(builds: &Builds, goal: &Goal, limit: Duration, show: &mut dyn FnMut(Cell)) -> anyhow::Result<()> {
    for program in [LUA, SQLITE] {
        for linker in LINKERS {
            if !has_linker(linker) {
                show(Cell::skipped(goal.clone(), &format!("{}: there is no linker {linker}", program.name)));
                continue;
            }
            match hold(builds, goal, &program, linker, limit) {
                Err(error) if error.is::<Missing>() => {
                    show(Cell::skipped(goal.clone(), &error.to_string()));
                    break;
                }
                cell => show(cell?),
            }
        }
    }
    Ok(())
}

fn hold(builds: &Builds, goal: &Goal, program: &Program, linker: &str, limit: Duration) -> anyhow::Result<Cell> {
    let made = pairs(builds, program, linker, LAYOUTS)?;
    let expected = builds.run(program, &made[0].1, true)?.printed;
    let told = (format!("{} by {linker}", program.name), "whole runs, 6 layouts each");
    duel_of_builds(&made, FEWEST_FOR_INTERVAL, goal.clone(), (&told.0, told.1), limit, |file| {
        let ran = builds.run(program, file, true)?;
        anyhow::ensure!(ran.printed == expected, "it printed something else than with a plain stack");
        Ok(ran.seconds)
    })
}
