//! `fieldstone run --region`: a program with its memory in a region, unchanged in everything else that can be seen.

use std::process::ExitStatus;

use fieldstone_report::RunStats;
use fieldstone_sys::knob::Restorer;
use fieldstone_sys::process::wait4;
use fieldstone_wire::PageKind;

use crate::agent::AgentFile;
use crate::error::Result;
use crate::launch::{Running, Treatment, Wiring, launch};
use crate::outcome;
use crate::pages::{self, Held};
use crate::program::Program;
use crate::session::RegionOptions;
use crate::sight::Sight;
use crate::signals::Forward;
use crate::watch::Watch;

/// How a run ended.
#[derive(Debug)]
pub struct Finished {
    /// The program's own end.
    pub status: ExitStatus,
    /// What was counted, if it was asked for.
    pub stats: Option<RunStats>,
}

/// Runs `program` in the foreground, until it ends. Signals sent to us go to it.
///
/// # Errors
/// The program cannot carry the agent, cannot be started, or the page kind is not to be had.
pub fn run(program: &Program, options: &RegionOptions, agent: &AgentFile, stats: bool) -> Result<Finished> {
    let _held = hold_pages(options)?;
    let forward = Forward::prepare()?;
    let treatment = Treatment::Region(options.clone(), agent.clone(), stats);
    let running = launch(program, &treatment, Wiring::inherited())?;
    let pid = running.child.id();
    let watch = stats.then(|| Watch::start(pid, running.session.clone()));
    let status = forward.until_end(pid, wait4)?;
    let sight = watch.map(Watch::finish);
    let stats = sight.map(|sight| describe(program, options, &running, &sight, status));
    Ok(Finished { status, stats })
}

/// Without a reserve the pools stay as they are: hugetlb is then what the system's owner set aside.
fn hold_pages(options: &RegionOptions) -> Result<Held> {
    let reserve = match options.pages {
        PageKind::Hugetlb2m => options.reserve_bytes,
        PageKind::Folio64k => 0,
        PageKind::Small4k | PageKind::Thp | PageKind::Hugetlb1g => return Ok(Held::default()),
    };
    if options.pages == PageKind::Hugetlb2m && reserve == 0 {
        return Ok(Held::default());
    }
    pages::hold(&Restorer::start()?, options.pages, reserve)
}

fn describe(
    program: &Program,
    options: &RegionOptions,
    running: &Running,
    sight: &Sight,
    status: ExitStatus,
) -> RunStats {
    let primary = sight.primary(options.process.as_deref()).or_else(|| sight.primary(None));
    let session = running.session.as_deref();
    RunStats {
        schema: RunStats::SCHEMA.to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: program.words(),
        page_kind: options.pages.name().to_owned(),
        primary_pid: primary.unwrap_or(running.child.id()),
        primary_name: primary.and_then(|pid| sight.name(pid)).unwrap_or_default().to_owned(),
        outcome: outcome::words(status),
        processes: session.map(|session| sight.processes(session, primary)).unwrap_or_default(),
    }
}
