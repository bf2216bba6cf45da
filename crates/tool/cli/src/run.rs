//! `fieldstone run`: a program on larger pages (`--region`, `--pid`), or with its false sharing repaired (`--repair`).

mod running;

#[cfg(target_arch = "x86_64")]
use std::ffi::OsStr;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::{Context, bail};
use clap::Args;
use fieldstone_report::error::with_causes;
use fieldstone_report::{RunStats, reports, saved, text};
use fieldstone_supervise::program::Way;
use fieldstone_supervise::run::{run as run_program, run_from_outside};
#[cfg(target_arch = "x86_64")]
use fieldstone_supervise::sharing::{self, Event, RepairStats, Seen};
use fieldstone_supervise::{AgentFile, Program, RegionOptions, outcome};
use fieldstone_sys::collapse::Target;
use fieldstone_sys::huge_pages::{pool, pool_pages_path};
use fieldstone_wire::{Mixture, PageKind};

use crate::also;
use crate::output::{style_of, talk, tell};
#[cfg(target_arch = "x86_64")]
use crate::repair;
use crate::size;

/// Runs an unchanged program on larger pages, or repairs its false sharing as it runs
#[derive(Debug, Args)]
#[command(
    override_usage = "\
fieldstone run --region [OPTIONS] [--] <PROGRAM>...
       fieldstone run --repair [OPTIONS] [--] <PROGRAM>...
       fieldstone run --pid <PID> [--children] [--stats <FILE>]",
    after_help = "\
Examples:
  fieldstone run --region -- redis-server --save ''
  fieldstone run --region --pages hugetlb --reserve 4G --stats stats.json -- ./solver input
  fieldstone run --region --also stacks,globals -- ./simulation
  fieldstone run --repair -- ./linear_regression points
  sudo fieldstone run --pid 4242

The program's exit code, output, signals and environment are its own; fieldstone ends as the program ended. A program \
that can carry no agent (statically linked, another C library) is put on transparent huge pages from outside as it grows.

With --repair, the program is sampled from outside; where threads are seen to fight for a cache line with different bytes of it, the page is moved and \
the loops are led to where each thread's bytes have a line of their own. Results stay the same. It works for one process: not for what that starts.

With --pid, the private read-write memory that the process has *now* is put on transparent huge pages, and what came of it \
is printed; memory that it maps later is not included. The process runs on, and keeps them when fieldstone has ended. \
Ctrl-C stops between two pages."
)]
pub(crate) struct Arguments {
    /// Give the program's private anonymous memory (malloc, mmap, brk) from one primary region
    #[arg(long)]
    region: bool,
    /// Find cache lines that threads fight for with different bytes, and part the bytes while the program runs
    #[arg(long, conflicts_with_all = ["region", "pid", "pages", "reserve", "prefault", "process", "also"])]
    repair: bool,
    /// With --repair: do what this file of rules asks for, too (see `fieldstone repair --help`)
    #[arg(long, value_name = "FILE", requires = "repair")]
    rules: Option<PathBuf>,
    /// With --repair: bring what a thread uses on several lines of a page together on as few as can be, too
    #[arg(long, requires = "repair")]
    consolidate: bool,
    /// With --repair: see `fieldstone repair`
    #[arg(long, requires = "repair", hide = true)]
    ladder: bool,
    /// Put the memory of a process that already runs on huge pages, from outside
    #[arg(long, value_name = "PID", conflicts_with_all = ["region", "reserve", "prefault", "process", "also", "command"])]
    pid: Option<u32>,
    /// With --pid: that of its children and theirs too
    #[arg(long, requires = "pid")]
    children: bool,
    /// Pages of the region: thp, hugetlb, folio-64k, 4k or hugetlb-1g; thp:25% for a mosaic, of which a quarter is huge
    #[arg(long, value_name = "KIND", default_value = "thp")]
    pages: Mixture,
    /// Map the first SIZE bytes of the region at the start, like 512M or 4G
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "0")]
    reserve: u64,
    /// Touch memory when it is mapped instead of when it is used
    #[arg(long)]
    prefault: bool,
    /// Serve only processes whose program file is called NAME, wherever they are in the tree
    #[arg(long, value_name = "NAME")]
    process: Option<String>,
    #[command(flatten)]
    also: also::Arguments,
    /// Write what the region served, and the pages really got, or what was repaired, to FILE as JSON (`-` for people, on standard error)
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// The program and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "pid",
        value_name = "PROGRAM"
    )]
    command: Vec<OsString>,
}

/// The agent that this command carries.
const AGENT: &[u8] = include_bytes!(env!("REGION_AGENT"));

/// Puts the agent where the loader finds it.
pub(crate) fn place_agent() -> anyhow::Result<AgentFile> {
    if AGENT.is_empty() {
        bail!("this command was built without a region agent; build it on the machine's own kind");
    }
    Ok(AgentFile::place("region", AGENT)?)
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    if let Some(pid) = arguments.pid {
        if arguments.pages != PageKind::Thp.into() {
            bail!("a process that already runs can have transparent pages only: --pages thp");
        }
        return running::run(&Target::open(pid)?, arguments.children, stats_file(arguments)?);
    }
    if arguments.repair {
        return repaired(arguments);
    }
    if !arguments.region {
        bail!(no_mode(&arguments.command));
    }
    if arguments.reserve > 0 && arguments.pages.kind() == PageKind::Hugetlb1g {
        bail!(
            "--reserve goes with the other page kinds; pages of 1 GiB are set aside by the kernel: \
               `echo 2 | sudo tee /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages`"
        );
    }
    let program = Program::find(&arguments.command)?;
    let way = program.way()?;
    let options = RegionOptions {
        pages: arguments.pages,
        reserve_bytes: arguments.reserve,
        prefault: arguments.prefault,
        process: arguments.process.clone(),
        also: arguments.also.chosen(),
    };
    let file = stats_file(arguments)?;
    let finished = match &way {
        Way::Agent => {
            warn_of_empty_pool(arguments);
            run_program(&program, &options, &place_agent()?, arguments.stats.is_some())?
        }
        Way::Outside { file, what } => {
            check_from_outside(arguments, file, what)?;
            run_from_outside(&program, arguments.stats.is_some())?
        }
    };
    finished.notes.iter().for_each(tell);
    let written = finished.stats.as_ref().map_or(Ok(()), |stats| write_stats(stats, file));
    end_alike(finished.status, written)
}

/// What is wrong with a command line that names no mode; a misspelt option counts as the program's name.
fn no_mode(command: &[OsString]) -> String {
    const MODES: &str =
        "try: `fieldstone run --region -- PROGRAM`, `fieldstone run --repair -- PROGRAM` or `fieldstone run --pid PID`";
    let first = command.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    if first.starts_with('-') {
        return format!("cannot run {first}: it is no option of `fieldstone run`, whose --help lists them\n{MODES}");
    }
    format!("cannot run {first}: no mode is given, one of --region, --repair and --pid\n{MODES}")
}

/// A program whose false sharing is repaired as it runs.
#[cfg(not(target_arch = "x86_64"))]
fn repaired(_: &Arguments) -> anyhow::Result<u8> {
    bail!("--repair rewrites code of x86-64 only: run it on such a machine")
}

/// A program whose false sharing is repaired as it runs.
#[cfg(target_arch = "x86_64")]
fn repaired(arguments: &Arguments) -> anyhow::Result<u8> {
    let program = Program::find(&arguments.command)?;
    // Before the program starts: what is wrong in it.
    repair::rules(arguments.rules.as_deref())?;
    let file = stats_file(arguments)?;
    let command = std::env::current_exe().context("this command's own file")?;
    let mut words = vec![OsStr::new("repair"), OsStr::new("--events")];
    words.extend(arguments.rules.iter().flat_map(|file| [OsStr::new("--rules"), file.as_os_str()]));
    words.extend(arguments.consolidate.then_some(OsStr::new("--consolidate")));
    words.extend(arguments.ladder.then_some(OsStr::new("--ladder")));
    words.push(OsStr::new("--pid"));
    let (status, stats) = sharing::run(&program, command.as_os_str(), &words, complain)?;
    let written = file.map(|(path, mut file)| write_json(&path, &mut file, &stats));
    if written.is_none() {
        tell_repair(&stats, arguments.stats.is_some());
    }
    end_alike(status, written.unwrap_or(Ok(())))
}

#[cfg(target_arch = "x86_64")]
fn complain(error: &fieldstone_supervise::Error) {
    use fieldstone_supervise::Error::{RepairUnavailable, RepairerDied};
    match error {
        RepairerDied { .. } => tell(error),
        RepairUnavailable { .. } => tell(format_args!("the program runs, and nothing in it is repaired: {error}")),
        _ => tell(format_args!("{error}; the program runs unrepaired")),
    }
}

/// What the rules ask to be told; and all that was done, where that is asked for.
#[cfg(target_arch = "x86_64")]
fn tell_repair(stats: &RepairStats, is_all: bool) {
    let is_told = |event: &&Event| is_all || event.what.is_asked_for();
    stats.events.iter().filter(is_told).for_each(|event| talk(&format!("{}\n", repair::words(event))));
    // Who could not look has told why.
    if is_all && stats.seen != Seen::default() {
        talk(&format!("{}\n", repair::looked(&Seen { ended: true, ..stats.seen })));
        if let Some(why) = repair::why_nothing(stats) {
            talk(&format!("nothing was parted: {why}\n"));
        }
    }
}

/// One line before the program starts: it will run, but not as asked.
fn warn_of_empty_pool(arguments: &Arguments) {
    let kind = arguments.pages.kind();
    let pooled = matches!(kind, PageKind::Hugetlb2m | PageKind::Hugetlb1g);
    let free = pool(kind.page_bytes()).map_or(0, |pool| pool.available());
    if pooled && free == 0 && arguments.reserve == 0 {
        let knob = pool_pages_path(kind.page_bytes());
        let for_the_run =
            if kind == PageKind::Hugetlb2m { ", `--reserve SIZE` does so for the run, as root" } else { "" };
        tell(format_args!(
            "the pool of {kind} pages is empty: the program runs on transparent pages; \
             `echo N | sudo tee {}` fills it{for_the_run}",
            knob.display()
        ));
    }
}

/// From outside, transparent pages are all there is, and nothing is placed.
fn check_from_outside(arguments: &Arguments, file: &Path, what: &str) -> anyhow::Result<()> {
    let file = file.display();
    let refused = agent_only(arguments);
    if !refused.is_empty() {
        let command: Vec<_> = arguments.command.iter().map(|word| word.to_string_lossy()).collect();
        bail!(
            "cannot run {file} with {}: it is {what} and carries no agent. From outside it can have transparent huge pages\n\
             try: fieldstone run --region --pages thp -- {}",
            refused.join(", "),
            command.join(" ")
        );
    }
    tell(format_args!("{file} is {what}: its memory is put on transparent huge pages from outside, as it grows"));
    Ok(())
}

/// The options that only the agent can serve.
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

/// Opened before anything else is done: a path that cannot be written must not cost a run. What it holds stays until it is written.
fn stats_file(arguments: &Arguments) -> anyhow::Result<Option<(PathBuf, fs::File)>> {
    arguments.stats.as_deref().filter(|path| *path != Path::new("-")).map(create).transpose()
}

fn create(path: &Path) -> anyhow::Result<(PathBuf, fs::File)> {
    let file = fs::File::options().write(true).create(true).truncate(false).open(path);
    let file = file.with_context(|| format!("cannot write the statistics to {}", path.display()))?;
    Ok((path.to_owned(), file))
}

fn write_stats(stats: &RunStats, file: Option<(PathBuf, fs::File)>) -> anyhow::Result<()> {
    let Some((path, mut file)) = file else {
        talk(&text::render(&reports::run::document(stats), style_of(io::stderr())));
        return Ok(());
    };
    write_json(&path, &mut file, stats)
}

fn write_json(path: &Path, file: &mut fs::File, data: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = saved::to_json(data)?;
    // A pipe or a terminal has no length.
    let emptied = if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) };
    let written = emptied.and_then(|()| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write the statistics to {}", path.display()))
}

/// Ends as the program ended: its exit code, or its signal. That statistics were not `written` is an end of its own only where the
/// program ended well.
fn end_alike(status: ExitStatus, written: anyhow::Result<()>) -> anyhow::Result<u8> {
    match written {
        Err(error) if !status.success() => tell(with_causes(error.as_ref())),
        other => other?,
    }
    outcome::end_by_signal_of(status)?;
    Ok(outcome::shell_code(status))
}
