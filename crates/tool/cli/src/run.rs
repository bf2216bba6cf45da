//! `fieldstone run`: starts a program with its memory in a region (`--region`), repairs its false
//! sharing (`--repair`), guards its heap objects (`--guard`), or bounds its resident memory
//! (`--resident`).
//!
//! | file | what it decides or does |
//! |---|---|
//! | `guarded` | `--guard`: its options; what it cannot be combined with |
//! | `paged` | `--resident`: its options; what it cannot be combined with |
//! | `page_stores` | the stores of `--page-store` |
//! | `page_server`, `remote_pages` | keep the pages of `--resident` on a Redis server or in an object store |
//! | `paging_samples` | memory over time, and waiting functions, of `--resident` |
//! | `repaired` | `--repair` |

mod guarded;
mod page_server;
mod page_stores;
mod paged;
mod paging_samples;
mod remote_pages;
#[cfg_attr(not(target_arch = "x86_64"), path = "run/not_repaired.rs")]
mod repaired;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::bail;
use clap::{ArgGroup, Args};
use fieldstone_launch::launch::Injection;
use fieldstone_launch::program::PlacementMethod;
use fieldstone_launch::run::{run as run_program, run_from_outside, run_injected};
use fieldstone_launch::{AgentFile, Program, RegionOptions, outcome};
use fieldstone_report::error::with_causes;
use fieldstone_report::{GuardStats, PagingStats, reports};
use fieldstone_sys::huge_pages::{pool, pool_pages_path};
use fieldstone_sys::signals::with_all_blocked;
use fieldstone_wire::{Mixture, PageKind, Remedy};

use crate::also;
use crate::attach::huge;
use crate::interval;
use crate::output::{message, renamed};
use crate::size;
use crate::stats_file::StatsOutput;

/// Run a program on huge pages, repair its false sharing, find its memory errors, or bound its memory
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("region_options").args(["pages", "reserve", "prefault", "process", "also"]).multiple(true).requires("region"),
    override_usage = "\
fieldstone run --region [OPTIONS] [--] <PROGRAM>...
       fieldstone run --repair [OPTIONS] [--] <PROGRAM>...
       fieldstone run --guard[=all|1/N] [OPTIONS] [--] <PROGRAM>...
       fieldstone run --resident <SIZE> [OPTIONS] [--] <PROGRAM>...",
    after_help = "\
Examples:
  fieldstone run --region -- redis-server --save ''
  fieldstone run --region --pages hugetlb --reserve 4G \\
      --stats stats.json -- ./solver input
  fieldstone run --region --also stacks,globals -- ./simulation
  fieldstone run --repair -- ./linear_regression points
  fieldstone run --guard=all -- ./server
  fieldstone run --resident 2G --stats - -- ./job

The program keeps its output, signals and environment, and fieldstone returns its exit code or signal. With --region, \
a program that cannot load an agent (statically linked, or another C library) gets transparent huge pages from \
outside as it grows.

With --repair, the program is sampled from outside. A page with false sharing is moved so that the bytes of each \
thread lie on cache lines of their own, and the accessing loops are redirected. The results stay the same. Processes \
that the program starts are not repaired.

With --guard, heap objects are put beside guard pages. An access past the end of an object, before its start or after \
its free is reported with three stacks, and the program ends as by a fault. Without a value, a sample of the objects \
of each allocation site is guarded, at a cost of 2 to 6 % of processor time. --region and --guard can be combined.

With --resident, pages above the bound are compressed, written to a file without a name, or kept on a Redis server, \
and come back at their next access. The results stay the same. --resident can be combined with --region on ordinary \
pages, and with --guard.

For a running process use `fieldstone attach`."
)]
pub(crate) struct Arguments {
    /// Serve the private anonymous memory of the program (malloc, mmap, brk) from one primary
    /// region
    #[arg(long, conflicts_with_all = ["rules", "consolidate"])]
    region: bool,
    /// Find cache lines with false sharing and separate their bytes while the program runs
    #[arg(long, conflicts_with_all = ["region", "pid", "pages", "reserve", "prefault", "process", "also"])]
    repair: bool,
    /// With --repair: also apply the rules in FILE (see `fieldstone attach --help`)
    #[arg(long, value_name = "FILE", requires = "repair")]
    rules: Option<PathBuf>,
    /// With --repair: also gather what a thread uses on several lines of a page on as few lines as
    /// possible
    #[arg(long, requires = "repair")]
    consolidate: bool,
    /// The old form of `attach --huge`
    #[arg(long, value_name = "PID", hide = true, conflicts_with_all = ["region", "guard", "resident", "reserve", "prefault", "process", "also", "command"])]
    pid: Option<u32>,
    /// The old form of `attach --huge --children`
    #[arg(long, requires = "pid", hide = true, conflicts_with_all = ["region", "repair", "guard", "resident"])]
    children: bool,
    /// With --region: set the page kind: thp, hugetlb, hugetlb-1g, folio-64k or 4k; thp:25% puts a
    /// quarter on huge pages
    #[arg(long, value_name = "KIND", default_value = "thp")]
    pages: Mixture,
    /// With --region: map the first SIZE bytes of the region at the start, like 512M or 4G
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "0")]
    reserve: u64,
    /// With --region: touch memory when it is mapped; default: when it is first used
    #[arg(long)]
    prefault: bool,
    /// With --region: serve only processes whose program file is called NAME, at any depth of the
    /// process tree; default: all
    #[arg(long, value_name = "NAME")]
    process: Option<String>,
    #[command(flatten)]
    also: also::Arguments,
    #[command(flatten)]
    guard: guarded::Arguments,
    #[command(flatten)]
    paged: paged::Arguments,
    /// Write statistics to FILE as JSON, or with `-` as text to standard error: memory served and
    /// its page kinds, repairs, or guarded allocations
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// With --stats and --guard or --resident: also write the statistics so far at each INTERVAL, like
    /// 1s; FILE then has one JSON object a line
    #[arg(long, value_name = "INTERVAL", requires = "stats", value_parser = interval::parse, conflicts_with_all = ["region", "repair", "pid"])]
    stats_every: Option<Duration>,
    /// The program and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "pid",
        value_name = "PROGRAM"
    )]
    command: Vec<OsString>,
}

/// The region agent, a shared library; empty in a cross build without a linker.
const AGENT: &[u8] = include_bytes!(env!("REGION_AGENT"));

/// Writes the region agent to a file that the dynamic loader can load.
pub(crate) fn place_agent() -> anyhow::Result<AgentFile> {
    if AGENT.is_empty() {
        let remedy = Remedy(Some("cargo build on this architecture"));
        bail!("cannot load the region agent: this command was built without it{remedy}");
    }
    Ok(AgentFile::install("region", AGENT)?)
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    if let Some(pid) = arguments.pid {
        renamed("run --pid", "attach --huge");
        if arguments.pages != PageKind::Thp.into() {
            let remedy = Remedy(Some(format_args!("fieldstone attach --huge {pid}")));
            bail!(
                "cannot put a running process on {} pages: only --pages thp works from outside{remedy}",
                arguments.pages
            );
        }
        return huge::run(pid, arguments.children, arguments.stats.as_deref());
    }
    if arguments.repair {
        arguments.guard.check_without_repair()?;
        arguments.paged.check_without_repair()?;
        return repaired::run(arguments);
    }
    if arguments.region {
        return run_in_region(arguments);
    }
    if arguments.guard.is_given() || arguments.paged.bound().is_some() {
        return run_without_region(arguments);
    }
    bail!(no_mode(&arguments.command));
}

/// Runs a program with guarded objects, with a bound on its resident memory, or both.
fn run_without_region(arguments: &Arguments) -> anyhow::Result<u8> {
    let program = Program::find(&arguments.command)?;
    let mut output = StatsOutput::open(arguments.stats.as_deref())?;
    let guard = arguments.guard.start(&program, arguments.paged.bound())?;
    let bound = arguments.paged.start(&program, output.is_given())?;
    let injected = injections(guard.as_ref(), bound.as_ref());
    let status = match arguments.stats_every {
        None => run_injected(&program, injected)?,
        Some(interval) => {
            output = output.repeated();
            let write = || {
                let running = || "running".to_owned();
                let paged = bound.as_ref().map(|bound| bound.counts(&program, running()));
                let guarded = guard.as_ref().map(|guard| guard.counts(&program, running()));
                write_counts(&mut output, paged, guarded)
            };
            repeat_during(interval, write, || run_injected(&program, injected))?
        }
    };
    let (guarded, has_findings) = guard.map(|guard| guard.finish(&program, outcome::describe(status))).unzip();
    let paged = bound.map(|bound| bound.finish(&program, outcome::describe(status)));
    let written = write_counts(&mut output, paged, guarded);
    Ok(exit_like(status, written)?.max(u8::from(has_findings == Some(true))))
}

/// Calls `write` at each interval while `work` runs, in a thread of its own, until one call fails.
fn repeat_during<T>(
    interval: Duration,
    mut write: impl FnMut() -> anyhow::Result<()> + Send,
    work: impl FnOnce() -> T,
) -> T {
    let (stop, stopped) = channel::<()>();
    thread::scope(|scope| {
        let repeat = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(interval) {
                if let Err(error) = write() {
                    return message(with_causes(error.as_ref()));
                }
            }
        };
        // The program's signals are for the main thread.
        let started =
            with_all_blocked(|| thread::Builder::new().name("statistics".to_owned()).spawn_scoped(scope, repeat));
        if let Err(error) = started {
            message(format_args!("the statistics are written at the end only: {error}"));
        }
        let result = work();
        drop(stop);
        result
    })
}

/// Writes the counts of a bound, of guards, or of both.
fn write_counts(
    output: &mut StatsOutput,
    paged: Option<PagingStats>,
    guarded: Option<GuardStats>,
) -> anyhow::Result<()> {
    match (paged, guarded) {
        (Some(stats), guard) => {
            let stats = PagingStats { guard, ..stats };
            output.write(&stats, || reports::paging::document(&stats))
        }
        (None, Some(stats)) => output.write(&stats, || reports::heap_errors::stats_document(&stats)),
        (None, None) => Ok(()),
    }
}

/// What loads the agents of `--guard` and `--resident`. The paging agent comes last: it uses the
/// functions of libc, and asks the other agents for memory that must stay resident.
fn injections(guard: Option<&guarded::Guard>, bound: Option<&paged::Bound>) -> Vec<Injection> {
    let guard = guard.map(guarded::Guard::injection);
    guard.into_iter().chain(bound.map(paged::Bound::injection)).collect()
}

/// Runs a program with its memory in a region, and with what `--guard` and `--resident` add.
fn run_in_region(arguments: &Arguments) -> anyhow::Result<u8> {
    if arguments.reserve > 0 && arguments.pages.kind() == PageKind::Hugetlb1g {
        bail!(
            "cannot combine --reserve with pages of 1 GiB: the kernel reserves those{}",
            Remedy(Some("echo 2 | sudo tee /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"))
        );
    }
    arguments.paged.check_pages(arguments.pages.kind())?;
    let program = Program::find(&arguments.command)?;
    let way = program.placement_method()?;
    let options = RegionOptions {
        pages: arguments.pages,
        reserve_bytes: arguments.reserve,
        prefault: arguments.prefault,
        process: arguments.process.clone(),
        also: arguments.also.chosen(),
    };
    let mut output = StatsOutput::open(arguments.stats.as_deref())?;
    let guard = arguments.guard.start(&program, arguments.paged.bound())?;
    let bound = arguments.paged.start(&program, output.is_given())?;
    let mut finished = match &way {
        PlacementMethod::Agent => {
            warn_of_empty_pool(arguments);
            let added = injections(guard.as_ref(), bound.as_ref());
            run_program(&program, &options, &place_agent()?, output.is_given(), added)?
        }
        PlacementMethod::Outside { file, property: what } => {
            check_from_outside(arguments, file, what)?;
            run_from_outside(&program, output.is_given())?
        }
    };
    finished.notes.iter().for_each(message);
    let (guarded, has_findings) = guard.map(|guard| guard.finish(&program, String::new())).unzip();
    if let Some(stats) = &mut finished.stats {
        stats.guard = guarded;
        stats.paging = bound.map(|bound| bound.finish(&program, outcome::describe(finished.status)));
    }
    let written = match &finished.stats {
        Some(stats) => output.write(stats, || reports::run::document(stats)),
        None => Ok(()),
    };
    Ok(exit_like(finished.status, written)?.max(u8::from(has_findings == Some(true))))
}

/// The error for a command line without a mode. A misspelt option is parsed as the name of the
/// program.
fn no_mode(command: &[OsString]) -> String {
    const MODES: Remedy<&str> = Remedy(Some(
        "`fieldstone run --region -- PROGRAM`, with --repair, --guard or --resident SIZE instead of --region",
    ));
    let first = command.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    if first.starts_with('-') {
        return format!("cannot run {first}: it is no option of `fieldstone run`{MODES}");
    }
    format!("cannot run {first}: no mode is given{MODES}")
}

/// Warns before the program starts that it will run on other pages than requested.
fn warn_of_empty_pool(arguments: &Arguments) {
    let kind = arguments.pages.kind();
    let pooled = matches!(kind, PageKind::Hugetlb2m | PageKind::Hugetlb1g);
    let free = pool(kind.page_bytes()).map_or(0, |pool| pool.available());
    if pooled && free == 0 && arguments.reserve == 0 {
        let knob = pool_pages_path(kind.page_bytes());
        let for_the_run = if kind == PageKind::Hugetlb2m { ", or --reserve SIZE as root" } else { "" };
        message(format_args!(
            "the pool of {kind} pages is empty: the program runs on transparent pages{}",
            Remedy(Some(format_args!("echo N | sudo tee {}{for_the_run}", knob.display())))
        ));
    }
}

/// Checks that the options work without an agent: only transparent pages, and no region.
fn check_from_outside(arguments: &Arguments, file: &Path, what: &str) -> anyhow::Result<()> {
    let file = file.display();
    let refused = agent_only(arguments);
    if !refused.is_empty() {
        let command: Vec<_> = arguments.command.iter().map(|word| word.to_string_lossy()).collect();
        bail!(
            "cannot run {file} with {}: it is {what} and loads no agent, so only transparent huge pages work{}",
            refused.join(", "),
            Remedy(Some(format_args!("fieldstone run --region --pages thp -- {}", command.join(" "))))
        );
    }
    message(format_args!("{file} is {what}: its memory is put on transparent huge pages from outside as it grows"));
    Ok(())
}

/// The given options that only work with an agent.
fn agent_only(arguments: &Arguments) -> Vec<String> {
    let kind = (arguments.pages != PageKind::Thp.into()).then(|| format!("--pages {}", arguments.pages));
    let others = [
        (arguments.reserve > 0, "--reserve"),
        (arguments.prefault, "--prefault"),
        (!arguments.also.is_empty(), "--also"),
        (arguments.process.is_some(), "--process"),
    ];
    kind.into_iter().chain(others.into_iter().filter(|other| other.0).map(|other| other.1.to_owned())).collect()
}

/// Returns the exit code of the program, or ends by its signal. An error in `written` is returned
/// only if the program succeeded; otherwise it is printed.
fn exit_like(status: ExitStatus, written: anyhow::Result<()>) -> anyhow::Result<u8> {
    match written {
        Err(error) if !status.success() => message(with_causes(error.as_ref())),
        other => other?,
    }
    outcome::raise_signal_of(status)?;
    Ok(outcome::shell_code(status))
}
