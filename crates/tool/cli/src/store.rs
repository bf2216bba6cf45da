//! `fieldstone store`: checks, measures, prints and fills the file of a store.
//!
//! | file | content |
//! |---|---|
//! | `check`, `stat`, `dump`, `load` | the command of this name |
//! | `findings` | the text and the JSON of what a check has found |
//! | `record` | an entry as a line of text, and back |

mod check;
mod dump;
mod findings;
mod load;
mod record;
mod stat;

use std::path::Path;

use anyhow::anyhow;
use clap::{Args, Subcommand, ValueEnum};
use fieldstone_store::Error;
use fieldstone_wire::{Cause, Remedy};

/// Check, measure, print and fill the file of a store
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone store check app.store
  fieldstone store dump old.store | fieldstone store load new.store

Exit code: 0 success, 1 a finding, 2 an error. No program may have the store open. `check`, `stat` and `dump` do not \
change the file.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Check(check::Arguments),
    Stat(stat::Arguments),
    Dump(dump::Arguments),
    Load(load::Arguments),
}

/// The format on standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Lines of text
    #[default]
    Text,
    /// JSON
    Json,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    match &arguments.action {
        Action::Check(arguments) => check::run(arguments),
        Action::Stat(arguments) => stat::run(arguments),
        Action::Dump(arguments) => dump::run(arguments),
        Action::Load(arguments) => load::run(arguments),
    }
}

/// The message of a failed operation on a store.
fn failed(operation: &str, file: &Path, error: &Error) -> anyhow::Error {
    let message = error.message();
    anyhow!("cannot {operation} {}: {}{}", file.display(), Cause(message), Remedy(error.remedy()))
}
