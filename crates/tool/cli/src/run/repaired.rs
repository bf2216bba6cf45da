//! `fieldstone run --repair`: starts a program and the repairer of its false sharing.

use std::ffi::OsStr;

use anyhow::Context;
use fieldstone_launch::Program;
use fieldstone_repair::{self as sharing, RepairStats};
use fieldstone_report::reports;

use super::{Arguments, exit_like};
use crate::output::{message, write_stderr};
use crate::repair;
use crate::stats_file::StatsOutput;

/// Runs a program and repairs its false sharing.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let program = Program::find(&arguments.command)?;
    // The repairer reads the rules too. Errors in them are reported before the program starts.
    repair::read_rules(arguments.rules.as_deref())?;
    let mut output = StatsOutput::open(arguments.stats.as_deref())?;
    let command = std::env::current_exe().context("cannot find the file of this command")?;
    let mut words = vec![OsStr::new("attach"), OsStr::new("--events")];
    words.extend(arguments.rules.iter().flat_map(|file| [OsStr::new("--rules"), file.as_os_str()]));
    words.extend(arguments.consolidate.then_some(OsStr::new("--consolidate")));
    words.push(OsStr::new("--repair"));
    let (status, stats) = sharing::run_repaired(&program, command.as_os_str(), &words, report_no_repair)?;
    if !output.is_given() {
        print_requested(&stats);
    }
    let written = output.write(&stats, || reports::repair::document(&repair::report(&stats)));
    exit_like(status, written)
}

/// Reports that the program runs without a repair.
fn report_no_repair(error: &fieldstone_repair::Error) {
    use fieldstone_repair::Error::RepairerDied;
    match error {
        RepairerDied { .. } => message(error),
        _ => message(format_args!("the program runs without a repair: {error}")),
    }
}

/// Prints the events that rules request.
fn print_requested(stats: &RepairStats) {
    let requested = stats.events.iter().filter(|event| event.kind.is_requested());
    requested.for_each(|event| write_stderr(&format!("{}\n", repair::describe(event))));
}
