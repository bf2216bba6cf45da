//! `fieldstone sharing` on other architectures than x86-64.

use std::ffi::OsString;

use anyhow::bail;
use clap::Args;

/// Find false sharing between the threads of a program: on x86-64 only
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct Arguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    bail!("cannot sample {:?}: `fieldstone sharing` reads x86-64 code only", arguments.words)
}
