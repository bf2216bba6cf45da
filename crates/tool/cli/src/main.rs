//! The `fieldstone` command: reads the command line, calls the library that does the work, prints.

#![forbid(unsafe_code)]

mod also;
mod doctor;
mod input;
mod manual;
mod output;
mod profile;
#[cfg(target_arch = "x86_64")]
mod repair;
mod report;
mod reproduce;
mod run;
#[cfg(target_arch = "x86_64")]
mod sharing;
mod size;
mod tlb;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// What virtual memory costs a program, and giving it back.
#[derive(Debug, Parser)]
#[command(
    name = "fieldstone",
    version,
    after_help = "\
Start here:
  fieldstone doctor                    what this machine allows
  fieldstone profile -- PROGRAM        what its page size costs a program
  fieldstone run --region -- PROGRAM   giving it back
  fieldstone sharing -- PROGRAM        which cache lines its threads fight for
  fieldstone run --repair -- PROGRAM   parting them while it runs

Exit code: 0 fine, 1 a finding, 2 an error; `run` ends as the program ended."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Tells what this machine, its kernel and this user allow, and what each command can do here
    Doctor {
        /// What is printed
        #[arg(long, value_enum, default_value_t)]
        format: doctor::Format,
    },
    Profile(profile::Arguments),
    Run(run::Arguments),
    #[cfg(target_arch = "x86_64")]
    Repair(repair::Arguments),
    #[cfg(target_arch = "x86_64")]
    Sharing(sharing::Arguments),
    Report(report::Arguments),
    Diff(report::DiffArguments),
    Reproduce(reproduce::Arguments),
    Tlb(tlb::Arguments),
    Man(manual::ManArguments),
    Completions(manual::CompletionArguments),
}

fn main() -> ExitCode {
    #[cfg(target_arch = "x86_64")]
    if fieldstone_supervise::sharing::is_watchdog() {
        fieldstone_supervise::sharing::run_watchdog();
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => error.exit(),
        Err(help) => return ended(output::printed(help.print()).map(|()| 0)),
    };
    let outcome = match arguments.command {
        Command::Doctor { format } => doctor::run(format),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        #[cfg(target_arch = "x86_64")]
        Command::Repair(arguments) => repair::run(&arguments),
        #[cfg(target_arch = "x86_64")]
        Command::Sharing(arguments) => sharing::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Diff(arguments) => report::diff(&arguments),
        Command::Reproduce(arguments) => reproduce::run(&arguments),
        Command::Tlb(arguments) => tlb::run(&arguments),
        Command::Man(arguments) => manual::man(&arguments, Arguments::command()),
        Command::Completions(arguments) => manual::completions(&arguments, Arguments::command()),
    };
    ended(outcome)
}

/// The exit code. An error is printed first.
fn ended(outcome: anyhow::Result<u8>) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::tell(fieldstone_report::error::with_causes(error.as_ref()));
            ExitCode::from(2)
        }
    }
}
