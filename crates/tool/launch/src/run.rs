//! `fieldstone run`: runs a program with its memory in a region, or with a preloaded library,
//! otherwise unchanged.

use std::process::ExitStatus;

use fieldstone_report::{ProcessStats, RunStats};
use fieldstone_sys::collapse::is_permitted;
use fieldstone_sys::knob::Restorer;
use fieldstone_wire::{Mixture, PageKind, Remedy};

use crate::agent::AgentFile;
use crate::collapse::TreeCollapser;
use crate::error::{Error, Result};
use crate::launch::{Injection, Treatment};
use crate::memory_history::notes;
use crate::memory_monitor::MemoryMonitor;
use crate::outcome;
use crate::pages::{self, PageReservation};
use crate::program::Program;
use crate::session::RegionOptions;
use crate::signals::SignalForwarder;

/// The result of a run.
#[derive(Debug)]
pub struct RunResult {
    /// The program's exit status.
    pub status: ExitStatus,
    /// Statistics, if they were requested.
    pub stats: Option<RunStats>,
    /// Notes for the user, printed also without statistics; one or two lines each.
    pub notes: Vec<String>,
}

/// Runs `program` with preloaded libraries in the foreground until it ends. Signals to this process
/// are forwarded to it.
///
/// # Errors
/// The program cannot be started.
pub fn run_injected(program: &Program, injections: Vec<Injection>) -> Result<ExitStatus> {
    let mut forwarder = SignalForwarder::prepare()?;
    let running = forwarder.launch(program, &Treatment::Injected(injections))?;
    forwarder.wait_for_exit(running.child.id())
}

/// Runs `program` in the foreground until it ends, with `last` preloaded too. Signals to this process
/// are forwarded to it.
///
/// # Errors
/// The program cannot carry the agent, cannot be started, or the page kind is not available.
pub fn run(
    program: &Program,
    options: &RegionOptions,
    agent: &AgentFile,
    stats: bool,
    last: Vec<Injection>,
) -> Result<RunResult> {
    let reservation = reserve_pages(options)?;
    let mut forwarder = SignalForwarder::prepare()?;
    let treatment =
        Treatment::Region { options: options.clone(), agent: agent.clone(), watched: stats, injection: None, last };
    let running = forwarder.launch(program, &treatment)?;
    let pid = running.child.id();
    let monitor = stats.then(|| MemoryMonitor::start(pid, running.session.clone()));
    let status = forwarder.wait_for_exit(pid)?;
    let stats = monitor.map(|monitor| {
        let history = monitor.finish();
        let primary = history.primary(options.process.as_deref()).or_else(|| history.primary(None)).unwrap_or(pid);
        let processes =
            running.session.as_deref().map(|session| history.processes(session, Some(primary))).unwrap_or_default();
        let name = history.name(primary).map_or_else(|| program.name(), str::to_owned);
        describe(program, options.pages, status, (primary, name), processes)
    });
    let shortfall = reservation.shortfall().map(str::to_owned);
    let notes = match running.session.as_deref() {
        Some(session) => notes(session, options.process.as_deref(), shortfall),
        None => shortfall.into_iter().collect(),
    };
    Ok(RunResult { status, stats, notes })
}

/// Runs a program that cannot carry the agent, in the foreground until it ends. Meanwhile the
/// growing memory of it and its children is collapsed into transparent huge pages. With `stats`,
/// the result lists the memory that stayed on small pages.
///
/// # Errors
/// The program cannot be started, or this user may not collapse another process's memory.
pub fn run_from_outside(program: &Program, stats: bool) -> Result<RunResult> {
    if !is_permitted() {
        let remedy = Remedy(Some("the same command with sudo"));
        let why = format!("the program cannot carry the agent, and from outside this takes CAP_SYS_NICE{remedy}");
        return Err(Error::PageKind { kind: PageKind::Thp.name(), why });
    }
    let mut forwarder = SignalForwarder::prepare()?;
    let running = forwarder.launch(program, &Treatment::Untouched)?;
    let pid = running.child.id();
    let collapser = TreeCollapser::start(pid);
    let status = forwarder.wait_for_exit(pid)?;
    let processes = collapser.finish();
    let primary = processes.iter().find(|process| process.primary);
    let primary = primary.map_or_else(|| (pid, program.name()), |process| (process.pid, process.name.clone()));
    let stats = stats.then(|| describe(program, PageKind::Thp.into(), status, primary, processes));
    Ok(RunResult { status, stats, notes: Vec::new() })
}

/// Without `reserve_bytes` the pools are unchanged: the program uses the pages that the
/// administrator has reserved.
fn reserve_pages(options: &RegionOptions) -> Result<PageReservation> {
    let kind = options.pages.kind();
    let reserve = match kind {
        PageKind::Hugetlb2m => options.reserve_bytes,
        PageKind::Folio64k => 0,
        PageKind::Small4k | PageKind::Thp | PageKind::Hugetlb1g => return Ok(PageReservation::default()),
    };
    if kind == PageKind::Hugetlb2m && reserve == 0 {
        return Ok(PageReservation::default());
    }
    pages::reserve(&Restorer::start()?, kind, reserve)
}

fn describe(
    program: &Program,
    pages: Mixture,
    status: ExitStatus,
    primary: (u32, String),
    processes: Vec<ProcessStats>,
) -> RunStats {
    RunStats {
        schema: RunStats::SCHEMA.to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: program.command_line(),
        page_kind: pages.to_string(),
        primary_pid: primary.0,
        primary_name: primary.1,
        outcome: outcome::describe(status),
        processes,
        guard: None,
        paging: None,
    }
}
