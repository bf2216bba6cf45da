//! `fieldstone attach --huge`: puts the memory of a running process on huge pages from outside.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use fieldstone_launch::collapse::collapse;
use fieldstone_launch::error::Error;
use fieldstone_launch::signals::Interrupt;
use fieldstone_report::{Collapse, CollapsedProcess, reports, text};
use fieldstone_sys::collapse::CollapseTarget;
use fieldstone_sys::process;
use fieldstone_wire::Remedy;
use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{message, print, style};
use crate::stats_file::StatsOutput;
use crate::target_process::check_exists;

/// A collapse that takes longer than this shows a progress bar.
const BAR_DELAY: Duration = Duration::from_secs(1);

/// Collapses the memory of process `pid`, and prints the result or writes it to `stats`. Descendants
/// are included if `with_children`. With `--stats -` the text goes to standard error.
pub(crate) fn run(pid: u32, with_children: bool, stats: Option<&Path>) -> anyhow::Result<u8> {
    check_exists("collapse", pid)?;
    let target = &CollapseTarget::open(pid)?;
    let mut output = StatsOutput::open(stats)?;
    let interrupt = Interrupt::listen_attached()?;
    let mut processes = vec![collapse_process(target, &interrupt)?];
    let mut descendants = process::descendants(target.pid()).unwrap_or_default();
    if !with_children {
        report_skipped(descendants.len());
        descendants.clear();
    }
    for child in descendants {
        if interrupt.check().is_err() {
            break;
        }
        // A descendant may end meanwhile, or belong to another user.
        match CollapseTarget::open(child).map_err(Error::from).and_then(|target| collapse_process(&target, &interrupt))
        {
            Ok(entry) => processes.push(entry),
            Err(Error::Linux(fieldstone_sys::Error::NoSuchProcess { .. })) => {}
            Err(other) => message(format_args!("without process {child}: {other}")),
        }
    }
    let result =
        Collapse { schema: Collapse::SCHEMA.into(), tool_version: env!("CARGO_PKG_VERSION").into(), processes };
    let document = || reports::collapse::document(&result);
    if !matches!(output, StatsOutput::Text) {
        print(&text::render(&document(), style()))?;
    }
    output.write(&result, document)?;
    Ok(interrupt.shell_code().unwrap_or(0))
}

/// Prints how many descendants are not included.
fn report_skipped(processes: usize) {
    const INCLUDE: Remedy<&str> = Remedy(Some("--children"));
    match processes {
        0 => {}
        1 => message(format_args!("one child process is not included{INCLUDE}")),
        many => message(format_args!("{many} descendants are not included{INCLUDE}")),
    }
}

/// Collapses one process, with a progress bar on a terminal.
fn collapse_process(target: &CollapseTarget, interrupt: &Interrupt) -> Result<CollapsedProcess, Error> {
    let name = process::comm(target.pid())?;
    let began = Instant::now();
    let mut progress = CollapseProgress { began, bar: None };
    let done = collapse(target, |position, all| {
        progress.update(position, all);
        interrupt.check().is_ok()
    })?;
    progress.end();
    Ok(done.record(target.pid(), name, began.elapsed()))
}

/// A progress bar that appears after [`BAR_DELAY`], on a terminal only.
struct CollapseProgress {
    began: Instant,
    bar: Option<ProgressBar>,
}

impl CollapseProgress {
    fn update(&mut self, position: u64, all: u64) {
        if self.bar.is_none() && self.began.elapsed() > BAR_DELAY && std::io::stderr().is_terminal() {
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
