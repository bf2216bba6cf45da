//! The `fieldstone` command: parses the command line, calls the library for each subcommand, prints
//! the result.
//!
//! | file | content |
//! |---|---|
//! | `run`, `profile`, `report`, `sharing` | the command of this name |
//! | `attach`, `doctor`, `tlb`, `reproduce` | the command of this name |
//! | `store` | checks, measures, prints and fills the file of a store |
//! | `repair` | repairs of `run --repair` and `attach --repair`; prints their events |
//! | `manual` | man pages and shell completions |
//! | `output` | results to standard output, messages to standard error |
//! | `target_process` | the running process that a command is given |
//! | `also`, `size`, `interval` | parse `--also`, sizes such as `64M`, and intervals such as `1s` |
//! | `stats_file` | the output of `--stats`; files that are opened before a run |
//! | `text_file` | reads files that a user writes by hand |

#![forbid(unsafe_code)]

mod also;
mod attach;
#[cfg(test)]
mod command_line_tests;
mod doctor;
mod interval;
mod manual;
mod output;
mod profile;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_repair.rs")]
mod repair;
mod report;
mod reproduce;
mod run;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_sharing.rs")]
mod sharing;
mod size;
mod stats_file;
mod store;
mod target_process;
mod text_file;
mod tlb;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Measure and reduce the cost of virtual memory for Linux programs.
#[derive(Debug, Parser)]
#[command(
    name = "fieldstone",
    version,
    after_help = "\
Start here:
  fieldstone doctor                    check what this machine allows
  fieldstone profile -- PROGRAM        measure what 4 KiB pages cost a program
  fieldstone run --region -- PROGRAM   run it on huge pages
  fieldstone sharing -- PROGRAM        find false sharing between its threads
  fieldstone run --repair -- PROGRAM   repair false sharing while it runs
  fieldstone run --guard -- PROGRAM    find memory errors of its heap

Exit code: 0 success, 1 a finding, 2 an error. `run` returns the exit code or the signal of the program."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Doctor(doctor::Arguments),
    Profile(profile::Arguments),
    Run(run::Arguments),
    Attach(attach::Arguments),
    #[command(hide = true)]
    Repair(repair::OldArguments),
    Sharing(sharing::Arguments),
    Report(report::Arguments),
    Diff(report::DiffArguments),
    Reproduce(reproduce::Arguments),
    Store(store::Arguments),
    Tlb(tlb::Arguments),
    Man(manual::ManArguments),
    Completions(manual::CompletionArguments),
}

fn main() -> ExitCode {
    if repair::run_as_watchdog() {
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => error.exit(),
        Err(help) => return exit_code(output::flush_stdout(help.print()).map(|()| 0)),
    };
    let outcome = match arguments.command {
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Attach(arguments) => attach::run(&arguments),
        Command::Repair(arguments) => repair::run_old_form(&arguments),
        Command::Sharing(arguments) => sharing::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Diff(arguments) => report::diff(&arguments),
        Command::Reproduce(arguments) => reproduce::run(&arguments),
        Command::Store(arguments) => store::run(&arguments),
        Command::Tlb(arguments) => tlb::run(&arguments),
        Command::Man(arguments) => manual::man(&arguments, Arguments::command()),
        Command::Completions(arguments) => manual::completions(&arguments, Arguments::command()),
    };
    exit_code(outcome)
}

/// The exit code of a subcommand. An error is printed to standard error and becomes 2.
fn exit_code(outcome: anyhow::Result<u8>) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::message(fieldstone_report::error::with_causes(error.as_ref()));
            ExitCode::from(2)
        }
    }
}
