//! `fieldstone run --region`: a program with its memory in a region, unchanged in everything else that can be seen.

use std::process::ExitStatus;

use fieldstone_report::{ProcessStats, RunStats};
use fieldstone_sys::collapse::is_permitted;
use fieldstone_sys::knob::Restorer;
use fieldstone_wire::{Mixture, PageKind};

use crate::agent::AgentFile;
use crate::collapse::Follow;
use crate::error::{Error, Result};
use crate::launch::Treatment;
use crate::outcome;
use crate::pages::{self, Held};
use crate::program::Program;
use crate::session::RegionOptions;
use crate::sight::notes;
use crate::signals::Forward;
use crate::watch::Watch;

/// How a run ended.
#[derive(Debug)]
pub struct Finished {
    /// The program's own end.
    pub status: ExitStatus,
    /// What was counted, if it was asked for.
    pub stats: Option<RunStats>,
    /// What the user has to know though no statistics were asked for, one or two lines each.
    pub notes: Vec<String>,
}

/// Runs `program` in the foreground, until it ends. Signals sent to us go to it.
///
/// # Errors
/// The program cannot carry the agent, cannot be started, or the page kind is not to be had.
pub fn run(program: &Program, options: &RegionOptions, agent: &AgentFile, stats: bool) -> Result<Finished> {
    let held = hold_pages(options)?;
    let mut forward = Forward::prepare()?;
    let treatment =
        Treatment::Region { options: options.clone(), agent: agent.clone(), watched: stats, injection: None };
    let running = forward.launch(program, &treatment)?;
    let pid = running.child.id();
    let watch = stats.then(|| Watch::start(pid, running.session.clone()));
    let status = forward.until_end(pid)?;
    let stats = watch.map(|watch| {
        let sight = watch.finish();
        let primary = sight.primary(options.process.as_deref()).or_else(|| sight.primary(None));
        let processes = running.session.as_deref().map(|session| sight.processes(session, primary)).unwrap_or_default();
        let name = primary.and_then(|primary| sight.name(primary)).unwrap_or_default().to_owned();
        describe(program, options.pages, status, (primary.unwrap_or(pid), name), processes)
    });
    let noted = running.session.as_deref().map(|session| notes(session, options.process.as_deref()));
    let shortfall = held.shortfall().map(str::to_owned);
    Ok(Finished { status, stats, notes: shortfall.into_iter().chain(noted.unwrap_or_default()).collect() })
}

/// Runs a program that can carry no agent, in the foreground, until it ends; meanwhile its memory, and its children's, is put on
/// transparent huge pages from outside as it grows. What is left undone when it ends is told by `stats`.
///
/// # Errors
/// The program cannot be started, or this user may not collapse another process's memory.
pub fn run_from_outside(program: &Program, stats: bool) -> Result<Finished> {
    if !is_permitted() {
        let why = "it can carry no agent, and from outside this takes CAP_SYS_NICE; `sudo` has it".to_owned();
        return Err(Error::PageKind { kind: PageKind::Thp.name(), why });
    }
    let mut forward = Forward::prepare()?;
    let running = forward.launch(program, &Treatment::Untouched)?;
    let pid = running.child.id();
    let follow = Follow::start(pid);
    let status = forward.until_end(pid)?;
    let processes = follow.finish();
    let primary = processes.iter().find(|process| process.primary);
    let primary = primary.map_or((pid, String::new()), |process| (process.pid, process.name.clone()));
    let stats = stats.then(|| describe(program, PageKind::Thp.into(), status, primary, processes));
    Ok(Finished { status, stats, notes: Vec::new() })
}

/// Without a reserve the pools stay as they are: hugetlb is then what the system's owner set aside.
fn hold_pages(options: &RegionOptions) -> Result<Held> {
    let kind = options.pages.kind();
    let reserve = match kind {
        PageKind::Hugetlb2m => options.reserve_bytes,
        PageKind::Folio64k => 0,
        PageKind::Small4k | PageKind::Thp | PageKind::Hugetlb1g => return Ok(Held::default()),
    };
    if kind == PageKind::Hugetlb2m && reserve == 0 {
        return Ok(Held::default());
    }
    pages::hold(&Restorer::start()?, kind, reserve)
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
        command: program.words(),
        page_kind: pages.to_string(),
        primary_pid: primary.0,
        primary_name: primary.1,
        outcome: outcome::words(status),
        processes,
    }
}
