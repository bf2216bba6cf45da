//! `fieldstone attach`: puts the memory of a running process on huge pages, or repairs its false
//! sharing.

pub(crate) mod huge;

use std::path::PathBuf;

use anyhow::bail;
use clap::{ArgGroup, Args};
use fieldstone_wire::Remedy;

use crate::repair;

/// Put the memory of a running process on huge pages, or repair its false sharing
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("attach_mode").required(true).args(["huge", "repair", "guard"]),
    override_usage = "\
fieldstone attach --huge <PID> [--children] [--stats <FILE>]
       fieldstone attach --repair <PID> [--rules <FILE>] [--consolidate]
                         [--events] [--stats <FILE>]",
    after_help = "\
Examples:
  sudo fieldstone attach --huge 4242 --children
  fieldstone attach --repair 4242 --rules rules

--huge puts the private read-write memory that the process has now on transparent huge pages and prints the \
result. Memory mapped later is not included. The process keeps the huge pages after fieldstone exits. Ctrl-C stops \
between two pages.

--repair samples the process, finds cache lines with false sharing and separates their bytes. The results of the \
process stay the same. Ctrl-C or SIGTERM restores the memory and detaches.

Each line of a rules file names an operation, a place and a number of bytes:
  isolate  stats+64      8      keep these bytes on cache lines of their own
  count    libq.so:head  8      count accesses by thread and instruction
  log      0x7f10a0      4096   print each access
  trace    queue         16     print each access with function, file and line
A place is an address or the symbol of a global variable. Counts are printed at the end. count, log \
and trace cost about 10 µs an access."
)]
pub(crate) struct Arguments {
    /// Put the private read-write memory that process PID has now on transparent huge pages
    #[arg(long, value_name = "PID", conflicts_with_all = ["events", "rules", "consolidate"])]
    huge: Option<u32>,
    /// Find and repair false sharing in process PID until it ends or fieldstone is stopped
    #[arg(long, value_name = "PID")]
    repair: Option<u32>,
    /// Refused: the objects of a running process have no guards
    #[arg(long, value_name = "PID", hide = true)]
    guard: Option<u32>,
    /// With --huge: include all descendants of the process
    #[arg(long, requires = "huge", conflicts_with = "repair")]
    children: bool,
    /// Also write the result to FILE as JSON, or with `-` as text to standard error
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    #[command(flatten)]
    options: repair::Options,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    if arguments.guard.is_some() {
        bail!(
            "cannot guard a running process: its objects were allocated without guards, and the agent is loaded when \
             a program starts{}",
            Remedy(Some("fieldstone run --guard -- PROGRAM"))
        );
    }
    let stats = arguments.stats.as_deref();
    match (arguments.huge, arguments.repair) {
        (Some(pid), _) => huge::run(pid, arguments.children, stats),
        (None, Some(pid)) => repair::run(pid, &arguments.options, stats),
        (None, None) => bail!("cannot attach: no mode is given{}", Remedy(Some("fieldstone attach --huge PID"))),
    }
}
