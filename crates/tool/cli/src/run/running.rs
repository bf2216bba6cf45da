//! `fieldstone run --pid`: the memory of a process that already runs, put on huge pages.

use std::fs;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fieldstone_report::{Collapse, CollapsedProcess, reports, text};
use fieldstone_supervise::collapse::collapse;
use fieldstone_supervise::error::Error;
use fieldstone_supervise::signals::Interrupt;
use fieldstone_sys::collapse::Target;
use fieldstone_sys::process;
use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{print, style, tell};

/// What takes longer shows how far it has come.
const PATIENCE: Duration = Duration::from_secs(1);

/// Collapses a process, with `children` those below it too, and prints what came of it.
pub(super) fn run(target: &Target, children: bool, stats: Option<(PathBuf, fs::File)>) -> anyhow::Result<u8> {
    let interrupt = Interrupt::attached()?;
    let mut processes = vec![one(target, &interrupt)?];
    let mut below = process::descendants(target.pid()).unwrap_or_default();
    if !children {
        tell_left_alone(below.len());
        below.clear();
    }
    for child in below {
        if interrupt.check().is_err() {
            break;
        }
        // Children come and go, and some may be another user's.
        match Target::open(child).map_err(Error::from).and_then(|target| one(&target, &interrupt)) {
            Ok(entry) => processes.push(entry),
            Err(Error::Linux(fieldstone_sys::Error::NoSuchProcess { .. })) => {}
            Err(other) => tell(format_args!("without process {child}: {other}")),
        }
    }
    let done = Collapse { schema: Collapse::SCHEMA.into(), tool_version: env!("CARGO_PKG_VERSION").into(), processes };
    print(&text::render(&reports::collapse::document(&done), style()))?;
    if let Some((path, mut file)) = stats {
        super::write_json(&path, &mut file, &done)?;
    }
    Ok(interrupt.shell_code().unwrap_or(0))
}

/// Says how many processes `--children` would have taken along.
fn tell_left_alone(processes: usize) {
    match processes {
        0 => {}
        1 => tell("one process below it is left alone: --children takes it along"),
        many => tell(format_args!("{many} processes below it are left alone: --children takes them along")),
    }
}

/// One process, collapsed.
fn one(target: &Target, interrupt: &Interrupt) -> Result<CollapsedProcess, Error> {
    let name = process::comm(target.pid())?;
    let began = Instant::now();
    let mut progress = Progress { began, bar: None };
    let done = collapse(target, |position, all| {
        progress.tell(position, all);
        interrupt.check().is_ok()
    })?;
    progress.end();
    Ok(done.record(target.pid(), name, began.elapsed()))
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
