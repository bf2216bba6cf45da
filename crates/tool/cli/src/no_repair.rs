//! The options and calls of `repair` on other architectures than x86-64: a repair rewrites x86-64
//! code.

use std::ffi::OsString;
use std::path::Path;

use anyhow::bail;
use clap::Args;
use fieldstone_report::reports::repair::RepairReport;

/// No option.
#[derive(Debug, Args)]
pub(crate) struct Options {}

/// Any words, to report that the command does not work here.
#[derive(Debug, Args)]
pub(crate) struct OldArguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

pub(crate) fn run_old_form(arguments: &OldArguments) -> anyhow::Result<u8> {
    bail!("cannot repair {:?}: a repair rewrites x86-64 code only", arguments.words)
}

/// Fails.
pub(crate) fn run(pid: u32, _: &Options, _: Option<&Path>) -> anyhow::Result<u8> {
    bail!("cannot repair process {pid}: --repair rewrites x86-64 code only")
}

/// Fails.
pub(crate) fn read_saved(_: serde_json::Value, file: &Path) -> anyhow::Result<(String, RepairReport)> {
    bail!("cannot print {}: it holds a repair, which needs x86-64", file.display())
}

/// False: there is no watchdog.
pub(crate) fn run_as_watchdog() -> bool {
    false
}
