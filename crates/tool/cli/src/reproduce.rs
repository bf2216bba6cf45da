//! `fieldstone reproduce`: hands over to `fieldstone-reproduce`, which lies beside this program or in PATH.
//!
//! It is a program of its own so that the peers that it measures against are not linked into the command.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

const PROGRAM: &str = "fieldstone-reproduce";

/// Runs the papers' tables and figures on this machine, beside the published numbers
///
/// Arguments go to `fieldstone-reproduce` as they are: `fieldstone reproduce --help` tells them.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  fieldstone reproduce list
  fieldstone reproduce table2 --quick --html table2.html"
)]
pub(crate) struct Arguments {
    /// `list`, experiments, options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Becomes `fieldstone-reproduce`; comes back only with an error.
pub(crate) fn run(arguments: &Arguments) -> Result<u8> {
    let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.join(PROGRAM)));
    let program = beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(&program).args(&arguments.arguments).exec();
    Err(error).with_context(|| {
        format!(
            "cannot start {}: install it beside `fieldstone` (`make install`), or put it into PATH",
            program.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Whole {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn everything_is_handed_over() {
        let words = ["reproduce", "table2", "--quick", "--help", "--out", "x"];
        let whole = Whole::parse_from(words);
        assert_eq!(whole.arguments.arguments, &words[1..]);
        let whole = Whole::parse_from(["reproduce", "--help"]);
        assert_eq!(whole.arguments.arguments, ["--help"]);
    }
}
