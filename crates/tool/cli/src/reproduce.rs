//! `fieldstone reproduce`: executes `fieldstone-reproduce` from the directory of this program or
//! from PATH.
//!
//! It is a separate program so that the libraries that it compares against are not linked into the
//! command.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;
use fieldstone_wire::Remedy;

const PROGRAM: &str = "fieldstone-reproduce";

/// Measure the tables and figures of the papers on this machine and print them beside the published
/// numbers
///
/// All arguments are passed to `fieldstone-reproduce`; `fieldstone reproduce --help` lists them.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  fieldstone reproduce list
  fieldstone reproduce table2 --quick --html table2.html"
)]
pub(crate) struct Arguments {
    /// `list`, or names of experiments, and options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Replaces this process by `fieldstone-reproduce`. Returns only with an error.
pub(crate) fn run(arguments: &Arguments) -> Result<u8> {
    let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join(PROGRAM)));
    let program = beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(&program).args(&arguments.arguments).exec();
    Err(error).with_context(|| {
        format!(
            "cannot start {}{}",
            program.display(),
            Remedy(Some("`make install`, which installs it beside `fieldstone`, or put it into PATH"))
        )
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn all_arguments_are_passed_on() {
        let words = ["reproduce", "table2", "--quick", "--help", "--out", "x"];
        let line = CommandLine::parse_from(words);
        assert_eq!(line.arguments.arguments, &words[1..]);
        let line = CommandLine::parse_from(["reproduce", "--help"]);
        assert_eq!(line.arguments.arguments, ["--help"]);
    }
}
