//! `fieldstone run --region`: a program with its memory in one region.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use fieldstone_report::RunStats;
use fieldstone_supervise::run::{Finished, run as run_program};
use fieldstone_supervise::{AgentFile, Program, RegionOptions, outcome};
use fieldstone_sys::huge_pages::{pool, pool_pages_path};
use fieldstone_wire::PageKind;

use crate::size;

/// Runs a program, unchanged, with its memory mended
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone run --region -- redis-server --save ''
  fieldstone run --region --pages hugetlb --reserve 4G --stats stats.json -- ./solver input

The program's exit code, output, signals and environment are its own; fieldstone ends as the program ended.")]
pub(crate) struct Arguments {
    /// Give the program's private anonymous memory (malloc, mmap, brk) from one primary region
    #[arg(long)]
    region: bool,
    /// Pages of the region: thp, hugetlb, folio-64k, 4k or hugetlb-1g
    #[arg(long, value_name = "KIND", default_value = "thp")]
    pages: PageKind,
    /// Map the first SIZE bytes of the region at the start, like 512M or 4G
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "0")]
    reserve: u64,
    /// Touch memory when it is mapped instead of when it is used
    #[arg(long)]
    prefault: bool,
    /// Serve only processes whose program file is called NAME, wherever they are in the tree
    #[arg(long, value_name = "NAME")]
    process: Option<String>,
    /// Write what the region served, and the pages really got, to FILE as JSON (`-` for a table on standard error)
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// The agent that this command carries.
const AGENT: &[u8] = include_bytes!(env!("REGION_AGENT"));

/// Puts the agent where the loader finds it.
pub(crate) fn place_agent() -> anyhow::Result<AgentFile> {
    if AGENT.is_empty() {
        bail!("this command was built without a region agent; build it on the machine's own kind");
    }
    Ok(AgentFile::place(AGENT)?)
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    if !arguments.region {
        bail!("say what to mend: `fieldstone run --region -- PROGRAM`");
    }
    if arguments.reserve > 0 && arguments.pages == PageKind::Hugetlb1g {
        bail!(
            "--reserve goes with the other page kinds; pages of 1 GiB are set aside by the kernel: \
               `echo 2 | sudo tee /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages`"
        );
    }
    let program = Program::find(&arguments.command)?;
    program.check_carries_agent()?;
    let options = RegionOptions {
        pages: arguments.pages,
        reserve_bytes: arguments.reserve,
        prefault: arguments.prefault,
        process: arguments.process.clone(),
    };
    // Opened before the program starts: a path that cannot be written must not cost a run.
    let output = arguments.stats.as_deref().filter(|path| *path != Path::new("-"));
    let file = output.map(create).transpose()?;
    warn_of_empty_pool(arguments);
    let finished = run_program(&program, &options, &place_agent()?, arguments.stats.is_some())?;
    if let Some(stats) = &finished.stats {
        write_stats(stats, file)?;
    }
    end_alike(&finished)
}

/// One line before the program starts: it will run, but not as asked.
fn warn_of_empty_pool(arguments: &Arguments) {
    let kind = arguments.pages;
    let pooled = matches!(kind, PageKind::Hugetlb2m | PageKind::Hugetlb1g);
    let free = pool(kind.page_bytes()).map_or(0, |pool| pool.available());
    if pooled && free == 0 && arguments.reserve == 0 {
        let knob = pool_pages_path(kind.page_bytes());
        eprintln!(
            "fieldstone: the pool of {kind} pages is empty: the program runs on transparent pages; \
             `echo N | sudo tee {}` fills it, `--reserve SIZE` does so for the run",
            knob.display()
        );
    }
}

fn create(path: &Path) -> anyhow::Result<(PathBuf, fs::File)> {
    let file = fs::File::create(path).with_context(|| format!("cannot write the statistics to {}", path.display()))?;
    Ok((path.to_owned(), file))
}

fn write_stats(stats: &RunStats, file: Option<(PathBuf, fs::File)>) -> anyhow::Result<()> {
    let Some((path, mut file)) = file else {
        eprint!("{}", fieldstone_report::text::run(stats, fieldstone_report::text::Style::default()));
        return Ok(());
    };
    let text = serde_json::to_string_pretty(stats)?;
    writeln!(file, "{text}").with_context(|| format!("cannot write the statistics to {}", path.display()))
}

/// Ends as the program ended: its exit code, or its signal.
fn end_alike(finished: &Finished) -> anyhow::Result<u8> {
    outcome::end_by_signal_of(finished.status)?;
    Ok(outcome::shell_code(finished.status))
}
