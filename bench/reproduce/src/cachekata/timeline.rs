//! Figure 6.1: a repaired run over time, with the events of the repair and the speed of the
//! program.
//!
//! ```text
//! the program       --progress: "at 5123.456789: 1200000 done", by CLOCK_MONOTONIC, from the start of its threads
//! attach --repair   --events: a line per event with milliseconds since its start; read here, by the same clock
//! ```
//! A line is read some time after it is written. The line with the smallest delay gives the start
//! of the repairer.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::time::ClockId;

use crate::experiment::{Cell, MeasuredValue, Quantity, Row};
use crate::provenance::seconds;
use crate::sibling_programs::{Missing, end_with_parent, fieldstone, last_message, no_fieldstone, outcome, traceable};
use crate::trial::Trial;

use super::program::{Form, LINEAR_REGRESSION, SharingProgram, memory_bytes};
use super::run::{self, Event, TimedRun};
use super::sized_program::{SizedProgram, in_parallel, repaired_in_parallel};

const TABLE: &str = "Figure 6.1: linear regression -O0, two threads under repair, by time since their start";
const MOMENTS: &str = "Figure 6.1: times of events";

const SPEED: &str = "speed, relative to padded by hand";
const FIRST_FOUND: &str = "first line found";
const FIRST_MOVED: &str = "first page moved";
const LAST_REDIRECTED: &str = "last access redirected";
/// The saved names of events, and their rows.
const COUNTED: [(&str, &str); 4] = [
    ("found", "lines found"),
    ("moved", "pages moved"),
    ("led", "accesses redirected"),
    ("undone", "pages moved back"),
];

const THREADS: u64 = 2;
/// Records per thread. A round over them takes a few milliseconds, and the program prints its
/// progress between rounds.
const RECORDS: u64 = 100_000;
const PROGRESS: [&str; 2] = ["--progress", "5"];

const BIN_S: f64 = 0.02;
/// Consecutive intervals by their starts; the last one ends with the run.
const BINS: [&str; 16] = [
    "0 ms",
    "20 ms",
    "40 ms",
    "60 ms",
    "80 ms",
    "100 ms",
    "120 ms",
    "140 ms",
    "160 ms",
    "180 ms",
    "200 ms",
    "220 ms",
    "240 ms",
    "260 ms",
    "280 ms",
    "300 ms on",
];

/// One cell, whose run fills all columns.
pub(super) fn cells() -> Vec<Cell> {
    let by_time = |shows, name: &str| BINS.map(|bin| Row::new(shows, TABLE, name).in_column(bin));
    let counted = COUNTED.iter().flat_map(|(_, row)| by_time(Quantity::Count, row));
    let moment = |name| Row::new(Quantity::Nanoseconds, MOMENTS, name);
    let moments =
        [moment(FIRST_FOUND), moment(FIRST_MOVED).with_paper("cachekata/first-rules"), moment(LAST_REDIRECTED)];
    let rows = by_time(Quantity::Share, SPEED).into_iter().chain(counted).chain(moments).collect();
    let id = format!("cachekata/timeline/{}", LINEAR_REGRESSION.id);
    vec![Cell::new(id, LINEAR_REGRESSION.column, memory_bytes(THREADS), rows, |trial| outcome(measure(trial)))]
}

fn measure(trial: &Trial) -> Result<Vec<MeasuredValue>> {
    let program = SharingProgram { size: Some(("--points", RECORDS)), ..LINEAR_REGRESSION };
    let sized = SizedProgram::new(trial, program, THREADS)?;
    let arguments = |form| sized.arguments(form).into_iter().chain(PROGRESS.map(str::to_owned)).collect::<Vec<_>>();
    let by_hand = in_parallel(THREADS, || run::plain(&sized.file, &arguments(Form::Padded)))?;
    let by_hand = Progress::read(&by_hand.errors)?;
    let repaired = repaired_in_parallel(THREADS, || run_with_repairer(&sized, &arguments(Form::Repaired)))?;
    Ok(figures(&by_hand, &Progress::read(&repaired.errors)?, &repaired.events))
}

/// The number of finished operations over time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Progress {
    /// `CLOCK_MONOTONIC` at the start of the threads, in seconds.
    began_s: f64,
    /// Seconds since then, and number of operations.
    printed: Vec<(f64, f64)>,
}

impl Progress {
    /// Reads the progress from a program's standard error.
    ///
    /// # Errors
    /// If it has too few lines.
    pub(super) fn read(errors: &str) -> Result<Self> {
        let place = |line: &str| {
            let (at_s, done) = line.strip_prefix("at ")?.strip_suffix(" done")?.split_once(": ")?;
            Some((at_s.parse::<f64>().ok()?, done.parse::<f64>().ok()?))
        };
        let mut printed: Vec<(f64, f64)> = errors.lines().filter_map(place).collect();
        // The last line is printed some time after the end.
        printed.pop();
        ensure!(printed.len() > 1, "the program printed no progress: {}", errors.trim());
        let began_s = printed[0].0;
        printed.iter_mut().for_each(|(at_s, _)| *at_s -= began_s);
        Ok(Self { began_s, printed })
    }

    /// The time of the last line.
    fn end_s(&self) -> f64 {
        self.printed.last().map_or(0.0, |(at_s, _)| *at_s)
    }

    /// Operations per second between two times; `None` if the program did not run all that time.
    pub(super) fn rate(&self, from_s: f64, to_s: f64) -> Option<f64> {
        (from_s < to_s).then_some(())?;
        Some((self.done(to_s)? - self.done(from_s)?) / (to_s - from_s))
    }

    /// Number of operations until a time, interpolated between two lines.
    fn done(&self, at_s: f64) -> Option<f64> {
        let after = self.printed.iter().position(|(printed_s, _)| *printed_s >= at_s)?;
        let (next_s, next) = self.printed[after];
        let (last_s, last) = self.printed[after.saturating_sub(1)];
        let part = if next_s > last_s { (at_s - last_s) / (next_s - last_s) } else { 1.0 };
        Some(last + part * (next - last))
    }
}

/// The values of the rows. The times of the events are by `CLOCK_MONOTONIC`.
pub(super) fn figures(by_hand: &Progress, repaired: &Progress, events: &[Event]) -> Vec<MeasuredValue> {
    let mut all = Vec::new();
    for (at, bin) in BINS.iter().enumerate() {
        let from_s = at as f64 * BIN_S;
        let is_last = at + 1 == BINS.len();
        let to_s = if is_last { repaired.end_s() } else { from_s + BIN_S };
        let speed = repaired.rate(from_s, to_s).zip(by_hand.rate(0.0, by_hand.end_s()));
        all.extend(speed.map(|(rate, of)| MeasuredValue::of(format!("{SPEED}: {bin}"), rate / of)));
        let is_in = |at_s: f64| from_s <= at_s && (is_last || at_s < to_s);
        all.extend(COUNTED.map(|(event, row)| {
            let count = moments(events, event, repaired.began_s).filter(|&at_s| is_in(at_s)).count();
            MeasuredValue::of(format!("{row}: {bin}"), count as f64)
        }));
    }
    let first = |event| moments(events, event, repaired.began_s).reduce(f64::min);
    let last = |event| moments(events, event, repaired.began_s).reduce(f64::max);
    let times = [(FIRST_FOUND, first("found")), (FIRST_MOVED, first("moved")), (LAST_REDIRECTED, last("led"))];
    all.extend(times.into_iter().filter_map(|(row, at_s)| Some(MeasuredValue::of(row, at_s? * 1e9))));
    all
}

/// Seconds from the start of the threads to each event of a kind.
fn moments<'a>(events: &'a [Event], name: &'a str, began_s: f64) -> impl Iterator<Item = f64> + 'a {
    events.iter().filter(move |event| event.kind == name).map(move |event| event.at_ms * 1e-3 - began_s)
}

/// Runs the program with a repairer. The times of the events are by `CLOCK_MONOTONIC`.
fn run_with_repairer(sized: &SizedProgram, arguments: &[String]) -> Result<TimedRun> {
    let [program_errors, repairer_errors] = ["program", "repair"].map(|name| sized.folder.path().join(name));
    let mut command = Command::new(&sized.file);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&program_errors)?);
    let mut program =
        traceable(&mut command).spawn().with_context(|| format!("cannot start {}", sized.file.display()))?;
    let events = repair(program.id(), &repairer_errors);
    if events.is_err() {
        // Fails if the program has ended already.
        let _ = program.kill();
    }
    let status = program.wait()?;
    let events = events?;
    let errors = fs::read_to_string(&program_errors)?;
    ensure!(status.success(), "{} under repair: {}; {status}", sized.file.display(), errors.trim());
    run::parsed(errors, events)
}

/// Repairs a process until it has ended. Returns the events.
fn repair(pid: u32, errors: &Path) -> Result<Vec<Event>> {
    let mut command = Command::new(fieldstone());
    command.args(["attach", "--events", "--repair", &pid.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(errors)?);
    let mut child = end_with_parent(&mut command).spawn().map_err(|error| no_fieldstone(&error))?;
    let output = child.stdout.take().context("the repairer has no output")?;
    let mut received = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        let at_ms = seconds(ClockId::Monotonic) * 1e3;
        let event: Event = serde_json::from_str(&line).with_context(|| format!("cannot parse the event {line}"))?;
        received.push((at_ms, event));
    }
    if !child.wait()?.success() {
        let errors = fs::read_to_string(errors)?;
        return Err(Missing(format!("not repaired: {}", last_message(&errors))).into());
    }
    Ok(with_clock_times(received))
}

/// Converts the times of events from those since the start of the repairer to those of the clock by
/// which they were received.
pub(super) fn with_clock_times(received: Vec<(f64, Event)>) -> Vec<Event> {
    let began_ms = received.iter().map(|(at_ms, event)| at_ms - event.at_ms).fold(f64::INFINITY, f64::min);
    received.into_iter().map(|(_, event)| Event { at_ms: began_ms + event.at_ms, ..event }).collect()
}
