//! Repair of false sharing in a running process: the repairer of `attach --repair` and of `run
//! --repair`, and its report. `event_text` describes its events.
//!
//! ```text
//!   run --repair ── starts ──> attach --repair PID --events
//!        ^                          │ a line of JSON for each event
//!        └──── saves and prints <───┘
//! ```

mod event_text;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread::spawn;

use clap::Args;
use fieldstone_launch::signals::termination_flag;
use fieldstone_repair::{
    EventNames, RepairEvent, RepairOptions, RepairStats, SamplingStats, TimedEvent, check_repair, is_watchdog, repair,
    run_watchdog,
};
use fieldstone_report::quantity::plural;
use fieldstone_report::reports::{self, repair::RepairReport};
use fieldstone_report::{Error, saved};
use fieldstone_sharing::requests::{self, RuleRequest};
use fieldstone_sys::limits::raise_descriptors;
use fieldstone_sys::process::{comm, has_ended};
use fieldstone_sys::scheduling;

use self::event_text::NO_SAMPLE;
pub(crate) use self::event_text::describe;
use crate::output::{message, renamed};
use crate::stats_file::StatsOutput;
use crate::target_process::{check_exists, command_line};
use crate::text_file;

/// Events that may wait for the reader of standard output. Further events are dropped: the repair
/// must not wait.
const MAX_UNREAD: usize = 1 << 16;

/// The options of a repair. On the command line they need the argument `repair`, a process.
#[derive(Debug, Args)]
#[group(id = "repair_options")]
pub(crate) struct Options {
    /// With --repair: print each event as a line of JSON
    #[arg(long, requires = "repair")]
    events: bool,
    /// With --repair: also apply the rules in FILE
    #[arg(long, value_name = "FILE", requires = "repair")]
    rules: Option<PathBuf>,
    /// With --repair: also gather what a thread uses on several lines of a page on as few lines as
    /// possible
    #[arg(long, requires = "repair")]
    consolidate: bool,
}

/// Repair false sharing in a running process: the old form of `attach --repair`
#[derive(Debug, Args)]
pub(crate) struct OldArguments {
    /// The process
    #[arg(id = "repair", long = "pid", value_name = "PID")]
    pid: u32,
    #[command(flatten)]
    options: Options,
}

pub(crate) fn run_old_form(arguments: &OldArguments) -> anyhow::Result<u8> {
    renamed("repair --pid", "attach --repair");
    run(arguments.pid, &arguments.options, None)
}

/// Runs the watchdog of a repair if this process was started as one; returns whether it was.
pub(crate) fn run_as_watchdog() -> bool {
    let is_one = is_watchdog();
    if is_one {
        run_watchdog();
    }
    is_one
}

/// The rules of a file; none without a file.
pub(crate) fn read_rules(file: Option<&Path>) -> anyhow::Result<Vec<RuleRequest>> {
    let Some(file) = file else { return Ok(Vec::new()) };
    Ok(requests::parse(&file.to_string_lossy(), &text_file::read(file)?)?)
}

/// Repairs process `pid` until it ends or SIGINT or SIGTERM arrives, prints the events, and writes
/// the statistics to `stats`. Returns the exit code.
pub(crate) fn run(pid: u32, options: &Options, stats: Option<&Path>) -> anyhow::Result<u8> {
    // The sampler opens a descriptor for each thread and processor. Below that limit fewer threads
    // are sampled.
    let _ = raise_descriptors();
    let rules = read_rules(options.rules.as_deref())?;
    let manner = RepairOptions { rules, consolidated: options.consolidate, ..RepairOptions::default() };
    // With --events the reader is the parent of the program. A program that has ended is no error
    // there.
    if !options.events {
        check_exists("repair", pid)?;
    }
    let mut output = StatsOutput::open(stats)?;
    let stop = termination_flag()?;
    if !options.events {
        check_repair(pid)?;
        message(format_args!(
            "process {pid} ({}) is sampled for false sharing, and what is found is repaired; Ctrl-C or SIGTERM restores all pages and exits",
            comm(pid).unwrap_or_default()
        ));
    }
    let command = command_line(pid);
    // The channel is unbounded: a bounded one touches its whole buffer at the start, which delays
    // the first repair.
    let (sender, events) = channel();
    let unread = Arc::new(AtomicUsize::new(0));
    let (waiting, as_json, keeps) = (Arc::clone(&unread), options.events, output.is_given());
    let printer = spawn(move || {
        let (mut names, mut kept) = (EventNames::new(pid), Vec::new());
        let printed = events.into_iter().try_for_each(|mut event| {
            waiting.fetch_sub(1, Relaxed);
            names.add_to(&mut event);
            let printed = print_event(&event, as_json);
            kept.extend(keeps.then_some(event));
            printed
        });
        (printed, kept)
    });
    // The program's threads wait for this thread while they keep all processors busy. Without the
    // permission for a higher priority they wait longer. The printer started before: it does not
    // get the priority.
    let _ = scheduling::raise_priority();
    let mut dropped = 0_u64;
    let repaired = repair(pid, &manner, &stop, &mut |event| {
        if unread.fetch_add(1, Relaxed) >= MAX_UNREAD {
            unread.fetch_sub(1, Relaxed);
            dropped += 1;
        } else if sender.send(event).is_err() {
            // The reader closed standard output: the repair ends too.
            stop.store(true, Relaxed);
        }
    });
    drop(sender);
    // The channel is closed and holds at most `MAX_UNREAD` events, so the printer ends. A reader of
    // standard output that does not read delays it, as it delays any program.
    let (printed, events) = printer.join().unwrap_or((Ok(()), Vec::new()));
    if dropped > 0 {
        message(format_args!("{} dropped: the reader of standard output is too slow", plural(dropped, "event")));
    }
    let stats = attached_stats(pid, command, events, repaired.is_ok());
    let written = output.write(&stats, || reports::repair::document(&report(&stats)));
    // With --events the reader is the parent of the program and knows of its end.
    if !(options.events && has_ended(pid)) {
        repaired?;
    }
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => written.map(|()| 0),
    }
}

/// The statistics of a repair of a process that this command did not start.
fn attached_stats(pid: u32, command: Vec<String>, mut events: Vec<TimedEvent>, has_worked: bool) -> RepairStats {
    let sampling = SamplingStats::take_from(&mut events);
    RepairStats {
        schema: RepairStats::SCHEMA.to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command,
        pid,
        outcome: if sampling.ended { "ended" } else { "not ended" }.to_owned(),
        repairer: if has_worked { "exit 0" } else { "exit 2" }.to_owned(),
        sampling,
        events,
    }
}

fn print_event(event: &TimedEvent, as_json: bool) -> io::Result<()> {
    let mut output = io::stdout().lock();
    if as_json {
        serde_json::to_writer(&mut output, event)?;
        return writeln!(output);
    }
    writeln!(output, "{}", describe(event))
}

/// Reads the saved repair of `file`; returns it as JSON and as a report.
pub(crate) fn read_saved(saved: serde_json::Value, file: &Path) -> anyhow::Result<(String, RepairReport)> {
    let stats: RepairStats = serde_json::from_value(saved).map_err(|source| Error::Malformed {
        path: file.to_owned(),
        schema: RepairStats::SCHEMA.to_owned(),
        source,
    })?;
    Ok((saved::to_json(&stats)?, report(&stats)))
}

/// The report of a repair.
pub(crate) fn report(stats: &RepairStats) -> RepairReport {
    let count = |is: fn(&RepairEvent) -> bool| stats.events.iter().filter(|event| is(&event.kind)).count().to_string();
    let facts = [
        ("process", stats.pid.to_string()),
        ("outcome of the program", stats.outcome.clone()),
        ("outcome of the repairer", stats.repairer.clone()),
        ("pages moved", count(|what| matches!(what, RepairEvent::PageMoved { .. }))),
        ("pages restored before the end", count(|what| matches!(what, RepairEvent::PageRestored { .. }))),
        ("accesses and loops redirected", count(|what| matches!(what, RepairEvent::AccessRedirected { .. }))),
        ("samples", format!("{} of {} analysed", stats.sampling.analysed, stats.sampling.samples)),
        ("samples while only one thread was running", stats.sampling.single_threaded.to_string()),
    ];
    let nothing = why_no_repair(stats).map(|why| ("nothing was repaired", why));
    let facts = facts.into_iter().chain(nothing).map(|(what, value)| (what.to_owned(), value)).collect();
    RepairReport { title: stats.command.join(" "), facts, events: stats.events.iter().map(describe).collect() }
}

/// Whether a repairer with this outcome worked until the end of the program. It is killed if the
/// program ends first.
fn has_worked(outcome: &str) -> bool {
    outcome == "exit 0" || outcome.starts_with("signal ")
}

/// Why no page was moved. `None` if a page was moved, or if the repairer failed.
fn why_no_repair(stats: &RepairStats) -> Option<String> {
    let count = |is: fn(&RepairEvent) -> bool| stats.events.iter().filter(|event| is(&event.kind)).count() as u64;
    let seen = &stats.sampling;
    let has_moved = count(|what| matches!(what, RepairEvent::PageMoved { .. })) > 0;
    if has_moved || *seen == SamplingStats::default() && !has_worked(&stats.repairer) {
        return None;
    }
    let found = count(|what| matches!(what, RepairEvent::LineFound { .. }));
    Some(if found > 0 {
        format!("false sharing was found on {}; the events say why it was not repaired", plural(found, "line"))
    } else if seen.samples == 0 {
        NO_SAMPLE.to_owned()
    } else if seen.single_threaded > 0 {
        format!(
            "no false sharing was found. Only one thread was running in {} of {}, and false sharing shows only \
             while threads run at the same time: retry with more idle processors, or with a longer run",
            seen.single_threaded,
            plural(seen.samples, "sample")
        )
    } else {
        "no false sharing was found; `fieldstone sharing -- PROGRAM` reports which lines threads share, and how"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(samples: u64, alone: u64, events: Vec<RepairEvent>) -> RepairStats {
        let seen = SamplingStats {
            samples,
            analysed: samples - alone,
            single_threaded: alone,
            ended: true,
            ..SamplingStats::default()
        };
        let events = events.into_iter().map(|what| TimedEvent::new(1.0, what)).collect();
        RepairStats { sampling: seen, events, ..RepairStats::default() }
    }

    #[test]
    fn a_repair_without_a_moved_page_reports_the_reason() {
        let found = RepairEvent::LineFound { line: 64, share: 0.5 };
        for (stats, part) in [
            (stats(134, 126, vec![]), "Only one thread was running in 126 of 134 samples"),
            (stats(134, 126, vec![found.clone()]), "found on 1 line; the events"),
            (stats(9, 0, vec![]), "fieldstone sharing -- PROGRAM"),
            (stats(0, 0, vec![]), "no sample was taken"),
        ] {
            let why = why_no_repair(&stats).unwrap();
            assert!(why.contains(part), "{why}");
            assert!(report(&stats).facts.contains(&("nothing was repaired".to_owned(), why)), "{part}");
        }
        let moved = RepairEvent::PageMoved { page: 4096, views: 2, lines: vec![64] };
        assert_eq!(why_no_repair(&stats(134, 126, vec![found, moved])), None);
        assert_eq!(why_no_repair(&RepairStats::default()), None, "the error of the repairer is the reason");
        let ended_at_once = RepairStats { repairer: "exit 0".to_owned(), ..RepairStats::default() };
        assert_eq!(why_no_repair(&ended_at_once).as_deref(), Some(NO_SAMPLE));
    }
}
