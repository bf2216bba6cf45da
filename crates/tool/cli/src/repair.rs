//! Repair of false sharing in a running process: the repairer of `attach --repair` and of `run
//! --repair`, and its events.
//!
//! ```text
//!   run --repair ── starts ──> attach --repair PID --events
//!        ^                          │ a line of JSON for each event
//!        └──── saves and prints <───┘
//! ```

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread::spawn;

use anyhow::{Context, bail};
use clap::Args;
use fieldstone_launch::signals::termination_flag;
use fieldstone_repair::{
    RepairEvent, RepairOptions, RepairStats, SamplingStats, TimedEvent, VariableNames, check_repair, is_watchdog,
    repair, run_watchdog,
};
use fieldstone_report::quantity::plural;
use fieldstone_report::reports::repair::RepairReport;
use fieldstone_report::{Error, saved};
use fieldstone_sharing::requests::{self, RuleRequest};
use fieldstone_sys::limits::raise_descriptors;
use fieldstone_sys::process::{comm, has_ended};
use fieldstone_sys::scheduling;
use fieldstone_wire::Remedy;

use crate::output::{message, renamed, write_stderr};
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
    run(arguments.pid, &arguments.options)
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
    requests::parse(&text_file::read(file)?).with_context(|| file.display().to_string())
}

/// Repairs process `pid` until it ends or SIGINT or SIGTERM arrives, and prints the events. Returns
/// the exit code.
pub(crate) fn run(pid: u32, options: &Options) -> anyhow::Result<u8> {
    // The program's threads wait for this thread while they keep all processors busy. Without the
    // permission for a higher priority they wait longer.
    let _ = scheduling::raise_priority();
    // The sampler opens a descriptor for each thread and processor. Below that limit fewer threads
    // are sampled.
    let _ = raise_descriptors();
    let rules = read_rules(options.rules.as_deref())?;
    let manner = RepairOptions { rules, consolidated: options.consolidate, ..RepairOptions::default() };
    // With --events the reader is the parent of the program. A program that has ended is no error
    // there.
    if !options.events && has_ended(pid) {
        bail!("cannot repair process {pid}: there is no process {pid}{}", Remedy(Some("ps -e")));
    }
    let stop = termination_flag()?;
    let as_json = options.events;
    if !as_json {
        check_repair(pid)?;
        message(format_args!(
            "process {pid} ({}) is sampled for false sharing, and what is found is repaired; Ctrl-C or SIGTERM restores all pages and exits",
            comm(pid).unwrap_or_default()
        ));
    }
    // The channel is unbounded: a bounded one touches its whole buffer at the start, which delays
    // the first repair.
    let (sender, events) = channel();
    let unread = Arc::new(AtomicUsize::new(0));
    let waiting = Arc::clone(&unread);
    let mut names = VariableNames::new(pid);
    let print_next = move |mut event| {
        waiting.fetch_sub(1, Relaxed);
        names.add_to(&mut event);
        print_event(&event, as_json)
    };
    let printer = spawn(move || events.into_iter().try_for_each(print_next));
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
    let failed = printer.join().unwrap_or(Ok(())).err();
    if dropped > 0 {
        write_stderr(&format!(
            "fieldstone: {} dropped: the reader of standard output is too slow\n",
            plural(dropped, "event")
        ));
    }
    // With --events the reader is the parent of the program and knows of its end.
    if !(options.events && has_ended(pid)) {
        repaired?;
    }
    match failed {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(0),
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

const fn access_verb(read: bool, write: bool) -> &'static str {
    match (read, write) {
        (true, true) => "reads and writes",
        (false, true) => "writes",
        _ => "reads",
    }
}

/// An event as one line of text, starting with its time in milliseconds.
pub(crate) fn describe(event: &TimedEvent) -> String {
    let of = match event.variables.join(", ") {
        names if names.is_empty() => names,
        names => format!(" of {names}"),
    };
    let text = match &event.kind {
        RepairEvent::LineFound { line, share } => {
            format!("line {line:#x}{of}: false sharing, {:.0} % of the threads' time at most", share * 100.0)
        }
        RepairEvent::PageMoved { page, lines, .. } if lines.is_empty() => {
            format!("page {page:#x}: moved by a rule")
        }
        RepairEvent::PageMoved { page, views, lines } => {
            let (lines, pages) = (plural(lines.len() as u64, "line"), plural((*views).into(), "page"));
            format!("page {page:#x}{of}: {lines} separated, over {pages}")
        }
        RepairEvent::PageRefused { page, why } => format!("page {page:#x}{of} is not moved: {why}"),
        RepairEvent::RuleRefused { page, why } => {
            format!("page {page:#x}, named by a rule, is not moved: {why}")
        }
        RepairEvent::LineLeft { line, why } => format!("line {line:#x}{of} is not repaired: {why}"),
        RepairEvent::PageRestored { page, why } => format!("page {page:#x}{of} is restored: {why}"),
        RepairEvent::AccessRedirected { ip, thread } => {
            format!("thread {thread}: the access at {ip:#x} is redirected")
        }
        RepairEvent::WatchedAccess { rule, thread, address, bytes, read, write, ip, code } => {
            let verb = access_verb(*read, *write);
            let code = code.as_ref().map(|code| format!(", {code}")).unwrap_or_default();
            format!("{rule}: thread {thread} {verb} {bytes} bytes at {address:#x}, by the access at {ip:#x}{code}")
        }
        RepairEvent::AccessCount { rule, thread, ip, code, reads, writes } => {
            let code = code.as_ref().map(|code| format!(", {code}")).unwrap_or_default();
            format!("{rule}: thread {thread}, {reads} reads and {writes} writes by the access at {ip:#x}{code}")
        }
        RepairEvent::SymbolMissing { rule } => {
            format!("{rule}: no loaded file has a variable of this name and size; the search is repeated")
        }
        RepairEvent::Exec => "the process executes another program: the repair starts again".to_owned(),
        RepairEvent::SessionEnd(seen) => summarize(seen),
    };
    format!("{:>9.1} ms  {text}", event.at_ms)
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

/// The end of the process, and the number of samples analysed until then.
fn summarize(seen: &SamplingStats) -> String {
    let end = if seen.ended { "the program has ended" } else { "everything is restored, and the program continues" };
    if seen.samples == 0 {
        return format!("{end}; {NO_SAMPLE}");
    }
    let alone = match seen.single_threaded {
        0 => String::new(),
        alone => format!(", {alone} skipped because only one thread was running"),
    };
    let blind = match seen.without_access {
        0 => String::new(),
        blind => format!(" ({blind} of them without a memory access)"),
    };
    format!("{end}; {}: {} analysed{blind}{alone}", plural(seen.samples, "sample"), seen.analysed)
}

/// Why nothing was repaired if there was no sample.
const NO_SAMPLE: &str = "no sample was taken: the program slept all the time or ended too soon";

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

    #[test]
    fn an_event_on_a_page_names_its_variables() {
        let event = TimedEvent::new(1.0, RepairEvent::PageMoved { page: 4096, views: 2, lines: vec![4096] });
        assert!(describe(&event).ends_with("page 0x1000: 1 line separated, over 2 pages"));
        let event = TimedEvent { variables: vec!["counters+0x40".to_owned(), "other".to_owned()], ..event };
        assert!(describe(&event).ends_with("page 0x1000 of counters+0x40, other: 1 line separated, over 2 pages"));
    }

    #[test]
    fn the_summary_counts_analysed_and_skipped_samples() {
        let seen = SamplingStats {
            samples: 134,
            analysed: 8,
            single_threaded: 126,
            without_access: 1,
            ended: true,
            ..SamplingStats::default()
        };
        assert_eq!(
            summarize(&seen),
            "the program has ended; 134 samples: 8 analysed (1 of them without a memory access), \
             126 skipped because only one thread was running"
        );
    }
}
