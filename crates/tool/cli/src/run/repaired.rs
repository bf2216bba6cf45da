//! `fieldstone run --repair`: starts a program and the repairer of its false sharing.

use std::ffi::OsStr;
use std::io;

use anyhow::Context;
use fieldstone_launch::Program;
use fieldstone_repair::{self as sharing, RepairStats};
use fieldstone_report::{reports, text};

use super::{Arguments, exit_like};
use crate::output::{message, style_of, write_stderr};
use crate::repair;
use crate::stats_file::{open_stats_file, write_json};

/// Runs a program and repairs its false sharing.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let program = Program::find(&arguments.command)?;
    // The repairer reads the rules too. Errors in them are reported before the program starts.
    repair::read_rules(arguments.rules.as_deref())?;
    let file = open_stats_file(arguments.stats.as_deref())?;
    let command = std::env::current_exe().context("cannot find the file of this command")?;
    let mut words = vec![OsStr::new("attach"), OsStr::new("--events")];
    words.extend(arguments.rules.iter().flat_map(|file| [OsStr::new("--rules"), file.as_os_str()]));
    words.extend(arguments.consolidate.then_some(OsStr::new("--consolidate")));
    words.push(OsStr::new("--repair"));
    let (status, stats) = sharing::run_repaired(&program, command.as_os_str(), &words, report_no_repair)?;
    let written = file.map(|(path, mut file)| write_json(&path, &mut file, &stats));
    if written.is_none() {
        print_repair(&stats, arguments.stats.is_some());
    }
    exit_like(status, written.unwrap_or(Ok(())))
}

/// Reports that the program runs without a repair.
fn report_no_repair(error: &fieldstone_repair::Error) {
    use fieldstone_repair::Error::RepairerDied;
    match error {
        RepairerDied { .. } => message(error),
        _ => message(format_args!("the program runs without a repair: {error}")),
    }
}

/// Prints the events that rules request; with `--stats -`, the whole report.
fn print_repair(stats: &RepairStats, is_all: bool) {
    if is_all {
        let report = reports::repair::document(&repair::report(stats));
        return write_stderr(&text::render(&report, style_of(io::stderr())));
    }
    let requested = stats.events.iter().filter(|event| event.kind.is_requested());
    requested.for_each(|event| write_stderr(&format!("{}\n", repair::describe(event))));
}
