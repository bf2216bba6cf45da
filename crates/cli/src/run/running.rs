//! `fieldstone run --pid`: the memory of a process that already runs, put on huge pages.

use std::fs;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fieldstone_report::quantity::{bytes, count, seconds, share};
use fieldstone_supervise::collapse::{Collapsed, Tally, collapse};
use fieldstone_supervise::error::Error;
use fieldstone_supervise::signals::Interrupt;
use fieldstone_sys::collapse::Target;
use fieldstone_sys::process;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

/// The schema of what `--stats` writes.
const SCHEMA: &str = "fieldstone-collapse/1";
/// What takes longer shows how far it has come.
const PATIENCE: Duration = Duration::from_secs(1);
/// What a shell adds to a signal's number.
const BY_SIGNAL: i32 = 128;

/// Collapses process `pid`, with `children` those below it too, and prints what came of it.
pub(super) fn run(pid: u32, children: bool, stats: Option<(PathBuf, fs::File)>) -> anyhow::Result<u8> {
    let interrupt = Interrupt::listen()?;
    let mut all = vec![one(&Target::open(pid)?, &interrupt)?];
    let below = if children { process::descendants(pid).unwrap_or_default() } else { Vec::new() };
    for child in below {
        if interrupt.check().is_err() {
            break;
        }
        // Children come and go, and some may be another user's.
        match Target::open(child).map_err(Error::from).and_then(|target| one(&target, &interrupt)) {
            Ok(entry) => all.push(entry),
            Err(Error::Linux(fieldstone_sys::Error::NoSuchProcess { .. })) => {}
            Err(other) => eprintln!("fieldstone: without process {child}: {other}"),
        }
    }
    println!("Memory that is mapped from now on is not included.");
    if let Some((path, mut file)) = stats {
        let data = json!({"schema": SCHEMA, "tool_version": env!("CARGO_PKG_VERSION"), "processes": all});
        super::write_json(&path, &mut file, &data)?;
    }
    match interrupt.check() {
        Err(Error::Interrupted { number, .. }) => Ok(u8::try_from(BY_SIGNAL + number).unwrap_or(u8::MAX)),
        _ => Ok(0),
    }
}

/// One process: collapsed, printed, and as data.
fn one(target: &Target, interrupt: &Interrupt) -> Result<Value, Error> {
    let name = process::comm(target.pid())?;
    let began = Instant::now();
    let mut progress = Progress { began, bar: None };
    let done = collapse(target, |position, all| {
        progress.tell(position, all);
        interrupt.check().is_ok()
    })?;
    progress.end();
    print!("{}", text(&name, target.pid(), &done, began.elapsed()));
    let mut entry = done.to_json();
    (entry["pid"], entry["name"]) = (target.pid().into(), name.into());
    Ok(entry)
}

/// A bar on a terminal, once it takes a while.
struct Progress {
    began: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    fn tell(&mut self, position: u64, all: u64) {
        if self.bar.is_none() && self.began.elapsed() > PATIENCE && std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(all);
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} huge pages, {eta} left") {
                bar.set_style(style);
            }
            self.bar = Some(bar);
        }
        if let Some(bar) = &self.bar {
            bar.set_position(position);
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn text(name: &str, pid: u32, done: &Collapsed, took: Duration) -> String {
    let moved = done.moved;
    let mut text = format!(
        "{name} ({pid}): {} in {} ranges put on huge pages in {}\n  before  {}\n  after   {}\n",
        bytes(moved.bytes),
        count(moved.ranges),
        seconds(took.as_secs_f64()),
        tally(done.before),
        tally(done.after)
    );
    for (why, left) in &done.left {
        text += &format!("  left    {} in {} ranges: {}\n", bytes(left.bytes), count(left.ranges), why.words());
    }
    if done.ended {
        text += "  The process ended meanwhile.\n";
    } else if done.not_reached > 0 {
        text += &format!("  Stopped: {} ranges were not come to.\n", count(done.not_reached));
    }
    text
}

fn tally(tally: Tally) -> String {
    let part = share(tally.huge_bytes as f64 / tally.resident_bytes.max(1) as f64);
    let (huge, all) = (bytes(tally.huge_bytes), bytes(tally.resident_bytes));
    format!("{huge} of {all} private read-write memory on huge pages ({part})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_supervise::collapse::{Count, Left};

    #[test]
    fn what_was_done_and_what_was_not_is_told() {
        let mut done = Collapsed {
            before: Tally { resident_bytes: 64 << 20, huge_bytes: 0 },
            after: Tally { resident_bytes: 64 << 20, huge_bytes: 48 << 20 },
            moved: Count { ranges: 24, bytes: 48 << 20 },
            not_reached: 3,
            ..Collapsed::default()
        };
        done.left.insert(Left::Sparse, Count { ranges: 2, bytes: 12 << 10 });
        let said = text("server", 42, &done, Duration::from_millis(20));
        for part in [
            "server (42): 48 MiB in 24 ranges",
            "(0.0 %)",
            "(75.0 %)",
            "12 KiB in 2 ranges: less than half",
            "3 ranges were not",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        done.ended = true;
        assert!(text("server", 42, &done, Duration::ZERO).contains("ended meanwhile"));
    }
}
