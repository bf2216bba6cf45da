//! The `fieldstone` command: reads the command line, calls the library that does the work, prints.

#![forbid(unsafe_code)]

mod run;
mod size;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What virtual memory costs a program, and giving it back.
#[derive(Debug, Parser)]
#[command(name = "fieldstone", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Run(arguments) => run::run(&arguments),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("fieldstone: {error:#}");
            ExitCode::from(2)
        }
    }
}
