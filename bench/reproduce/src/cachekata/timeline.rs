//! Figure 6.1: a repaired run by time. What the repair did and when, and how fast the program went.
//!
//! ```text
//! the program     --progress: "at 5123.456789: 1200000 done", CLOCK_MONOTONIC, from the moment when its threads begin
//! repair --pid    --events: a line for each event with milliseconds since it began; heard here, by the same clock
//! ```
//! A line cannot be read before it was printed: the one with the least delay shows when the repairer began.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::time::ClockId;

use crate::beside::{Missing, complaint, ends_with_us, fieldstone, no_fieldstone, outcome, traceable};
use crate::experiment::{Cell, Figure, Row, Shows};
use crate::provenance::seconds;
use crate::trial::Trial;

use super::program::{Form, LINEAR_REGRESSION, Program, memory_bytes};
use super::race::{Race, at_once, repaired_at_once};
use super::run::{self, Event, Ran};

const TABLE: &str = "Figure 6.1: linear regression -O0, two threads, under repair, by time since they began";
const MOMENTS: &str = "Figure 6.1: what happened when";

const SPEED: &str = "records a second, of those padded by hand";
const FIRST_FOUND: &str = "first line found";
const FIRST_MOVED: &str = "first page moved";
const LAST_LED: &str = "last access led to its new place";
/// Events by their names, and as rows.
const COUNTED: [(&str, &str); 4] = [
    ("found", "lines found"),
    ("moved", "pages moved"),
    ("led", "accesses led to their new place"),
    ("undone", "pages put back"),
];

const THREADS: u64 = 2;
/// Of each thread: little enough to print its progress between two rounds every few milliseconds.
const RECORDS: u64 = 100_000;
const PROGRESS: [&str; 2] = ["--progress", "5"];

const BIN_S: f64 = 0.02;
/// Each begins where the one before ends; the last goes on to the end.
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

/// One cell: a run fills all columns.
pub(super) fn cells() -> Vec<Cell> {
    let by_time = |shows, name: &str| BINS.map(|bin| Row::showing(shows, TABLE, name).in_column(bin));
    let counted = COUNTED.iter().flat_map(|(_, row)| by_time(Shows::Count, row));
    let moment = |name| Row::showing(Shows::Nanoseconds, MOMENTS, name);
    let moments = [moment(FIRST_FOUND), moment(FIRST_MOVED).with_paper("cachekata/first-rules"), moment(LAST_LED)];
    vec![Cell {
        id: format!("cachekata/timeline/{}", LINEAR_REGRESSION.id),
        column: LINEAR_REGRESSION.column.to_owned(),
        memory_bytes: memory_bytes(THREADS),
        rows: by_time(Shows::Share, SPEED).into_iter().chain(counted).chain(moments).collect(),
        measure: Box::new(|trial| outcome(measure(trial))),
    }]
}

fn measure(trial: &Trial) -> Result<Vec<Figure>> {
    let program = Program { size: Some(("--points", RECORDS)), ..LINEAR_REGRESSION };
    let race = Race::new(trial, program, THREADS)?;
    let arguments = |form| race.arguments(form).into_iter().chain(PROGRESS.map(str::to_owned)).collect::<Vec<_>>();
    let by_hand = at_once(THREADS, || run::plain(&race.file, &arguments(Form::Apart)))?;
    let by_hand = Progress::read(&by_hand.words)?;
    let repaired = repaired_at_once(THREADS, || watched(&race, &arguments(Form::Repaired)))?;
    Ok(figures(&by_hand, &Progress::read(&repaired.words)?, &repaired.events))
}

/// How much was done by when.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Progress {
    /// `CLOCK_MONOTONIC` at the threads' beginning, in seconds.
    began_s: f64,
    /// Seconds since then, and operations.
    printed: Vec<(f64, f64)>,
}

impl Progress {
    /// Of what a program said on standard error.
    ///
    /// # Errors
    /// When it printed too few lines.
    pub(super) fn read(words: &str) -> Result<Self> {
        let place = |line: &str| {
            let (at_s, done) = line.strip_prefix("at ")?.strip_suffix(" done")?.split_once(": ")?;
            Some((at_s.parse::<f64>().ok()?, done.parse::<f64>().ok()?))
        };
        let mut printed: Vec<(f64, f64)> = words.lines().filter_map(place).collect();
        // The last line is printed some time after the end.
        printed.pop();
        ensure!(printed.len() > 1, "the program printed no progress: {}", words.trim());
        let began_s = printed[0].0;
        printed.iter_mut().for_each(|(at_s, _)| *at_s -= began_s);
        Ok(Self { began_s, printed })
    }

    /// The time of the last line.
    fn end_s(&self) -> f64 {
        self.printed.last().map_or(0.0, |(at_s, _)| *at_s)
    }

    /// Operations a second between two times; none where it was not running all the time.
    pub(super) fn rate(&self, from_s: f64, to_s: f64) -> Option<f64> {
        (from_s < to_s).then_some(())?;
        Some((self.done(to_s)? - self.done(from_s)?) / (to_s - from_s))
    }

    /// Operations until then, interpolated between two lines.
    fn done(&self, at_s: f64) -> Option<f64> {
        let behind = self.printed.iter().position(|(printed_s, _)| *printed_s >= at_s)?;
        let (next_s, next) = self.printed[behind];
        let (last_s, last) = self.printed[behind.saturating_sub(1)];
        let part = if next_s > last_s { (at_s - last_s) / (next_s - last_s) } else { 1.0 };
        Some(last + part * (next - last))
    }
}

/// What fills the rows. The events' times are those of the clock.
pub(super) fn figures(by_hand: &Progress, repaired: &Progress, events: &[Event]) -> Vec<Figure> {
    let mut all = Vec::new();
    for (at, bin) in BINS.iter().enumerate() {
        let from_s = at as f64 * BIN_S;
        let is_last = at + 1 == BINS.len();
        let to_s = if is_last { repaired.end_s() } else { from_s + BIN_S };
        let speed = repaired.rate(from_s, to_s).zip(by_hand.rate(0.0, by_hand.end_s()));
        all.extend(speed.map(|(rate, of)| Figure::of(format!("{SPEED}: {bin}"), rate / of)));
        let is_in = |at_s: f64| from_s <= at_s && (is_last || at_s < to_s);
        all.extend(COUNTED.map(|(event, row)| {
            let count = moments(events, event, repaired.began_s).filter(|&at_s| is_in(at_s)).count();
            Figure::of(format!("{row}: {bin}"), count as f64)
        }));
    }
    let first = |event| moments(events, event, repaired.began_s).reduce(f64::min);
    let last = |event| moments(events, event, repaired.began_s).reduce(f64::max);
    let whens = [(FIRST_FOUND, first("found")), (FIRST_MOVED, first("moved")), (LAST_LED, last("led"))];
    all.extend(whens.into_iter().filter_map(|(row, at_s)| Some(Figure::of(row, at_s? * 1e9))));
    all
}

/// Seconds from the threads' beginning to each event of a name.
fn moments<'a>(events: &'a [Event], name: &'a str, began_s: f64) -> impl Iterator<Item = f64> + 'a {
    events.iter().filter(move |event| event.what == name).map(move |event| event.at_ms * 1e-3 - began_s)
}

/// Starts the program and a repairer beside it: what the program said, and what happened when, by the clock.
fn watched(race: &Race, arguments: &[String]) -> Result<Ran> {
    let [said, complained] = ["program", "repair"].map(|name| race.folder.path().join(name));
    let mut command = Command::new(&race.file);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said)?);
    let mut program =
        traceable(&mut command).spawn().with_context(|| format!("cannot start {}", race.file.display()))?;
    let events = listened(program.id(), &complained);
    if events.is_err() {
        // It may have ended by itself.
        let _ = program.kill();
    }
    let status = program.wait()?;
    let events = events?;
    let words = fs::read_to_string(&said)?;
    ensure!(status.success(), "{} under repair: {}; {status}", race.file.display(), words.trim());
    run::parsed(words, events)
}

/// Listens to a repairer until the process has ended.
fn listened(pid: u32, complained: &Path) -> Result<Vec<Event>> {
    let mut command = Command::new(fieldstone());
    command.args(["attach", "--events", "--repair", &pid.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(complained)?);
    let mut child = ends_with_us(&mut command).spawn().map_err(|error| no_fieldstone(&error))?;
    let output = child.stdout.take().context("the repairer has no output")?;
    let mut heard = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        let at_ms = seconds(ClockId::Monotonic) * 1e3;
        let event: Event = serde_json::from_str(&line).with_context(|| format!("no event: {line}"))?;
        heard.push((at_ms, event));
    }
    if !child.wait()?.success() {
        let words = fs::read_to_string(complained)?;
        return Err(Missing(format!("not repaired: {}", complaint(&words))).into());
    }
    Ok(dated(heard))
}

/// Events with the time of the clock by which they were heard, in place of that since the repairer began.
pub(super) fn dated(heard: Vec<(f64, Event)>) -> Vec<Event> {
    let began_ms = heard.iter().map(|(at_ms, event)| at_ms - event.at_ms).fold(f64::INFINITY, f64::min);
    heard.into_iter().map(|(_, event)| Event { at_ms: began_ms + event.at_ms, ..event }).collect()
}
