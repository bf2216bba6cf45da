//! `fieldstone run --resident`: starts a program with a bound on its resident memory.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::bail;
use clap::Args;
use fieldstone_launch::launch::Injection;
use fieldstone_launch::run::run_injected;
use fieldstone_launch::shared_record::SharedRecord;
use fieldstone_launch::{AgentFile, Program};
use fieldstone_wire::paging::{DIRECTORY_BYTES, PAGING_VARIABLE, PagingConfig, PagingSession};

use super::exit_like;
use crate::output::message;
use crate::size;

/// The paging agent, a shared library; empty in a cross build without a linker.
const AGENT: &[u8] = include_bytes!(env!("PAGING_AGENT"));

/// The options of `--resident`.
#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct Arguments {
    /// Bound the resident private memory of the program, like 256M; what is above is compressed, or
    /// written to a file
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    resident: Option<u64>,
}

impl Arguments {
    /// Whether a bound is requested.
    pub(super) fn is_given(&self) -> bool {
        self.resident.is_some()
    }
}

/// Runs a program with a bound.
pub(super) fn run(arguments: &super::Arguments) -> anyhow::Result<u8> {
    let program = Program::find(&arguments.command)?;
    program.check_guardable()?;
    let Some(bound) = arguments.paged.resident else { bail!("cannot run: no bound is given") };
    let directory = std::env::temp_dir();
    let record = SharedRecord::<PagingSession>::create_with(|session| {
        session.config = PagingConfig {
            bound_bytes: bound,
            lz4_bytes: bound / 4,
            directory: path_bytes(&directory),
        };
    })?;
    let variable = OsString::from(format!("{}={}", PAGING_VARIABLE.to_string_lossy(), record.path()));
    let agent = AgentFile::install("paging", AGENT)?;
    let injection = Injection { library: agent.path().to_owned(), variable };
    let status = run_injected(&program, injection)?;
    if arguments.stats.is_some() {
        for process in record.record().claimed_processes() {
            message(format_args!("{:#?} {:?}", process.counters, process.unpaged.load(Relaxed)));
        }
    }
    exit_like(status, Ok(()))
}

fn path_bytes(path: &PathBuf) -> [u8; DIRECTORY_BYTES] {
    let mut bytes = [0; DIRECTORY_BYTES];
    let path = path.as_os_str().as_encoded_bytes();
    if path.len() < DIRECTORY_BYTES {
        bytes[..path.len()].copy_from_slice(path);
    }
    bytes
}
