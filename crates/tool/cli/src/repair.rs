//! `fieldstone repair`: false sharing in a process that already runs, found and mended while it goes on.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread::spawn;

use anyhow::{Context, bail};
use clap::Args;
use fieldstone_report::quantity::plural;
use fieldstone_report::reports::repair::RepairReport;
use fieldstone_sharing::requests::{self, Request};
use fieldstone_supervise::sharing::{Event, Happened, Manner, RepairStats, Seen, check_repair, repair};
use fieldstone_supervise::signals::asked_to_end;
use fieldstone_sys::limits::raise_descriptors;
use fieldstone_sys::process::has_ended;
use fieldstone_sys::turns;

use crate::input;
use crate::output::{talk, tell_at_terminal};

/// Events that wait to be read. The program does not wait for their reader.
const MOST_UNREAD: usize = 1 << 16;

/// Finds false sharing in a process that already runs, and parts the bytes that fight
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone repair --pid 4242
  fieldstone repair --pid 4242 --events | jq .
  fieldstone repair --pid 4242 --rules rules

A file of rules has a line for each: what is done, where, with how many bytes.
  isolate  stats+64      8      on lines of their own, whatever is seen of them
  count    libq.so:head  8      how often each thread touches them, with which instructions; told at the end
  log      0x7f10a0      4096   each access, as it happens
  trace    queue         16     the same, with function, file and line
A place is an address, or a global variable by its symbol. What is watched costs some ten microseconds an access.

The process goes on as before, with the same results. Ctrl-C puts everything back and lets go of it; so does SIGTERM.")]
pub(crate) struct Arguments {
    /// The process
    #[arg(long, value_name = "PID")]
    pid: u32,
    /// Print what happens as JSON, a line for each event
    #[arg(long)]
    events: bool,
    /// Do what this file of rules asks for, too
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Bring what a thread uses on several lines of a page together on as few as can be, too
    #[arg(long)]
    consolidate: bool,
    /// Lead each access to a ladder of questions and no loop to a clone: slower, for `fieldstone reproduce cachekata`
    #[arg(long, hide = true)]
    ladder: bool,
}

/// The rules of a file.
pub(crate) fn rules(file: Option<&Path>) -> anyhow::Result<Vec<Request>> {
    let Some(file) = file else { return Ok(Vec::new()) };
    requests::parse(&input::read(file)?).with_context(|| file.display().to_string())
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    // The program's threads wait for this one, while they have all processors busy. Where it may not, they wait longer.
    let _ = turns::come_first();
    // An event for each thread and processor, and no program is started from here. Where that is not allowed, fewer threads can be looked at.
    let _ = raise_descriptors();
    let rules = rules(arguments.rules.as_deref())?;
    let manner = Manner { rules, consolidated: arguments.consolidate, by_ladders: arguments.ladder };
    // Who reads the events has started the program: if it has ended, that is no mistake.
    if !arguments.events && has_ended(arguments.pid) {
        bail!("there is no process {}: it has ended, or there never was one", arguments.pid);
    }
    let stop = asked_to_end()?;
    let as_json = arguments.events;
    if !as_json {
        check_repair(arguments.pid)?;
        tell_at_terminal(format_args!(
            "process {} is sampled, and false sharing in it is repaired; Ctrl-C puts everything back and ends this",
            arguments.pid
        ));
    }
    // A queue with a limit of its own would be touched whole before anything is looked at, while the program's threads fight.
    let (told, events) = channel();
    let unread = Arc::new(AtomicUsize::new(0));
    let waiting = Arc::clone(&unread);
    let tell_next = move |event| {
        waiting.fetch_sub(1, Relaxed);
        tell(&event, as_json)
    };
    let teller = spawn(move || events.into_iter().try_for_each(tell_next));
    let mut lost = 0_u64;
    let repaired = repair(arguments.pid, &manner, &stop, &mut |event| {
        if unread.fetch_add(1, Relaxed) >= MOST_UNREAD {
            unread.fetch_sub(1, Relaxed);
            lost += 1;
        } else if told.send(event).is_err() {
            // Nobody listens: then nobody wants it mended.
            stop.store(true, Relaxed);
        }
    });
    drop(told);
    // It ends: the channel is closed, and at most `MOST_UNREAD` events are left. A reader of the output that stops reading holds it
    // up, as with any program.
    let broken = teller.join().unwrap_or(Ok(())).err();
    if lost > 0 {
        talk(&format!("fieldstone: {} not told, since nobody read what was told before\n", plural(lost, "event")));
    }
    // Who reads the events has started the program, and knows that it has ended.
    if !(arguments.events && has_ended(arguments.pid)) {
        repaired?;
    }
    match broken {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(0),
    }
}

fn tell(event: &Event, as_json: bool) -> io::Result<()> {
    let mut output = io::stdout().lock();
    if as_json {
        serde_json::to_writer(&mut output, event)?;
        return writeln!(output);
    }
    writeln!(output, "{}", words(event))
}

const fn kind(read: bool, write: bool) -> &'static str {
    match (read, write) {
        (true, true) => "reads and writes",
        (false, true) => "writes",
        _ => "reads",
    }
}

/// An event in a line.
pub(crate) fn words(event: &Event) -> String {
    let words = match &event.what {
        Happened::Found { line, share } => {
            format!("line {line:#x}: false sharing, {:.0} % of the threads' time at most", share * 100.0)
        }
        Happened::Moved { page, lines, .. } if lines.is_empty() => format!("page {page:#x}: moved, as is asked for"),
        Happened::Moved { page, views, lines } => {
            let (lines, pages) = (plural(lines.len() as u64, "line"), plural((*views).into(), "page"));
            format!("page {page:#x}: {lines} parted, over {pages}")
        }
        Happened::Refused { page, why } => format!("page {page:#x} stays as it is: {why}"),
        Happened::Denied { page, why } => format!("page {page:#x}, which a rule is about, stays as it is: {why}"),
        Happened::Left { line, why } => format!("line {line:#x} stays as it is: {why}"),
        Happened::Undone { page, why } => format!("page {page:#x} is back where it was: {why}"),
        Happened::Led { ip, thread } => format!("thread {thread}: the access at {ip:#x} leads to its new place"),
        Happened::Touched { rule, thread, address, bytes, read, write, ip, code } => {
            let how = kind(*read, *write);
            let code = code.as_ref().map(|code| format!(", {code}")).unwrap_or_default();
            format!("{rule}: thread {thread} {how} {bytes} bytes at {address:#x}, by the access at {ip:#x}{code}")
        }
        Happened::Counted { rule, thread, ip, code, reads, writes } => {
            let code = code.as_ref().map(|code| format!(", {code}")).unwrap_or_default();
            format!(
                "{rule}: thread {thread}, {reads} times read and {writes} times written by the access at {ip:#x}{code}"
            )
        }
        Happened::Missing { rule } => {
            format!(
                "{rule}: no file that the program has loaded has a variable of this name with so many bytes; it is looked for again"
            )
        }
        Happened::Exec => "another program runs in it now: all begins anew".to_owned(),
        Happened::Over(seen) => looked(seen),
    };
    format!("{:>9.1} ms  {words}", event.at_ms)
}

/// A saved repair, to be shown.
pub(crate) fn report(stats: &RepairStats) -> RepairReport {
    let count = |is: fn(&Happened) -> bool| stats.events.iter().filter(|event| is(&event.what)).count().to_string();
    let facts = [
        ("process", stats.pid.to_string()),
        ("outcome of the program", stats.outcome.clone()),
        ("outcome of the repairer", stats.repairer.clone()),
        ("pages moved", count(|what| matches!(what, Happened::Moved { .. }))),
        ("pages put back before the end", count(|what| matches!(what, Happened::Undone { .. }))),
        ("accesses and loops redirected", count(|what| matches!(what, Happened::Led { .. }))),
        ("samples", format!("{} of {} analysed", stats.seen.walked, stats.seen.samples)),
        ("samples while only one thread was running", stats.seen.alone.to_string()),
    ];
    let nothing = why_nothing(stats).map(|why| ("nothing was parted", why));
    let facts = facts.into_iter().chain(nothing).map(|(what, value)| (what.to_owned(), value)).collect();
    RepairReport { title: stats.command.join(" "), facts, events: stats.events.iter().map(words).collect() }
}

/// How the process ended, and how many samples were analysed until then.
pub(crate) fn looked(seen: &Seen) -> String {
    let end = if seen.ended { "the program has ended" } else { "all is as it was, and the program goes on" };
    if seen.samples == 0 {
        return format!("{end}; {NO_SAMPLE}");
    }
    let alone = match seen.alone {
        0 => String::new(),
        alone => format!(", {alone} skipped because only one thread was running"),
    };
    let blind = match seen.blind {
        0 => String::new(),
        blind => format!(" ({blind} of them without a memory access)"),
    };
    format!("{end}; {}: {} analysed{blind}{alone}", plural(seen.samples, "sample"), seen.walked)
}

/// The reason where no sample was taken.
const NO_SAMPLE: &str = "no sample was taken: it slept all the time, or ended too soon";

/// Why no page was moved; `None` if one was, or if there was no repairer.
pub(crate) fn why_nothing(stats: &RepairStats) -> Option<String> {
    let happened = |is: fn(&Happened) -> bool| stats.events.iter().filter(|event| is(&event.what)).count() as u64;
    let seen = &stats.seen;
    if *seen == Seen::default() || happened(|what| matches!(what, Happened::Moved { .. })) > 0 {
        return None;
    }
    let found = happened(|what| matches!(what, Happened::Found { .. }));
    Some(if found > 0 {
        format!("false sharing was found on {}, and the events tell why it stays", plural(found, "line"))
    } else if seen.samples == 0 {
        NO_SAMPLE.to_owned()
    } else if seen.alone > 0 {
        format!(
            "no false sharing was seen. Only one thread was running in {} of {}, and threads fight for a line only while \
             they run at the same time: try again when other programs leave it more processors, or with a longer run",
            seen.alone,
            plural(seen.samples, "sample")
        )
    } else {
        "no false sharing was seen; `fieldstone sharing -- PROGRAM` reports which lines threads share, and how"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(samples: u64, alone: u64, events: Vec<Happened>) -> RepairStats {
        let seen = Seen { samples, walked: samples - alone, alone, ended: true, ..Seen::default() };
        let events = events.into_iter().map(|what| Event { at_ms: 1.0, what }).collect();
        RepairStats { seen, events, ..RepairStats::default() }
    }

    #[test]
    fn nothing_parted_has_its_reason_in_words_and_in_the_report() {
        let found = Happened::Found { line: 64, share: 0.5 };
        for (stats, part) in [
            (stats(134, 126, vec![]), "Only one thread was running in 126 of 134 samples"),
            (stats(134, 126, vec![found.clone()]), "found on 1 line, and"),
            (stats(9, 0, vec![]), "fieldstone sharing -- PROGRAM"),
            (stats(0, 0, vec![]), "no sample was taken"),
        ] {
            let why = why_nothing(&stats).unwrap();
            assert!(why.contains(part), "{why}");
            assert!(report(&stats).facts.contains(&("nothing was parted".to_owned(), why)), "{part}");
        }
        let moved = Happened::Moved { page: 4096, views: 2, lines: vec![64] };
        assert_eq!(why_nothing(&stats(134, 126, vec![found, moved])), None);
        assert_eq!(why_nothing(&RepairStats::default()), None, "the repairer's own error is the reason");
    }

    #[test]
    fn samples_are_summed_up_with_what_became_of_them() {
        let seen = Seen { samples: 134, walked: 8, alone: 126, blind: 1, ended: true, ..Seen::default() };
        assert_eq!(
            looked(&seen),
            "the program has ended; 134 samples: 8 analysed (1 of them without a memory access), \
             126 skipped because only one thread was running"
        );
    }
}
