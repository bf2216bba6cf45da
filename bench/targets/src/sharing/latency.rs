//! From the first contention to the last loop led away.
//!
//! ```text
//!   program   ──┬─ starts ── … ── last thread begins: first contention ── … ─────────────── ends
//!   repairer  ──┴── starts ── samples ── events, a line each, at so many ms of its own clock ──→ we, at so much of ours
//! ```
//! As `run --repair` does it: the program is started, and `fieldstone repair --events` beside it; so what the repairer takes to start is
//! in it, where the threads fight from the beginning. The program tells when its threads begin, by `CLOCK_MONOTONIC`. The events tell
//! times since the repairer began; a line is read a moment after it was written, so the shortest of these ways tells when it began.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command, Stdio};
use std::thread::spawn;
use std::time::{Duration, Instant};

use anyhow::Context;
use fieldstone_launch::Program;
use fieldstone_launch::launch::{Treatment, Wiring, launch};
use fieldstone_repair::Event;
use fieldstone_stats::Estimate;
use rustix::time::{ClockId, clock_gettime};

use super::contests::Size;
use super::repair::complete_at_ms;
use super::rounds::settle;
use super::workload::{HANGS, Place, Run, arguments, wait};
use crate::cell::Cell;
use crate::goals::Goal;

/// A program whose threads fight in one loop from their beginning to their end: no access comes late that has to be led away.
pub(super) struct Part {
    name: &'static str,
    program: &'static str,
    words: &'static str,
    size: Size,
}

const ITERATIONS: Size = Size { option: "--iterations", number: 200_000_000 };

pub(super) const PARTS: [Part; 3] = [
    Part { name: "counters -O0", program: "sharing/counters-O0", words: "--pin", size: ITERATIONS },
    Part { name: "counters -O2", program: "sharing/counters-O2", words: "--pin", size: ITERATIONS },
    // Its threads begin when the repairer has been there for a while.
    Part {
        name: "linear_regression -O0",
        program: "sharing/linear_regression-O0",
        words: "--pin --shift 16",
        size: Size { option: "--points", number: 100_000_000 },
    },
];

impl Part {
    pub(super) fn measure(&self, place: &Place, goal: Goal, limit: Duration) -> anyhow::Result<Cell> {
        if let Some(why) = place.lacks(self.program) {
            return Ok(Cell::skipped_part(goal, self.name, &why));
        }
        let once = |_| self.once(place).map(Some);
        let values = settle(goal.limit, limit, once).with_context(|| format!("{} {}", goal.name, self.name))?;
        let worst = values.iter().copied().fold(0.0, f64::max);
        let note = format!("the median; the worst was {worst:.0}");
        let mut cell = Cell::measured(goal, self.name, Estimate::of_median(&values), &note);
        cell.samples = vec![(self.name.to_owned(), values)];
        Ok(cell)
    }

    /// Milliseconds; endless where nothing was repaired.
    fn once(&self, place: &Place) -> anyhow::Result<f64> {
        let command: Vec<OsString> = std::iter::once(place.path(self.program).into_os_string())
            .chain(arguments(self.words, self.size).into_iter().map(OsString::from))
            .collect();
        let (output, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let (stdout, stderr) = (output.try_clone()?.into(), errors.try_clone()?.into());
        let wiring = Wiring { stdin: Stdio::null(), stdout, stderr, own_group: true, keeps_closed: false };
        let since = Instant::now();
        let mut program = launch(&Program::find(&command)?, &Treatment::Traceable, wiring)?.child;
        let pid = program.id();
        let mut repairer = Command::new(place.path("fieldstone"))
            .args(["attach", "--events", "--repair", &pid.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let lines = repairer.stdout.take().context("it was piped")?;
        let listener = spawn(move || hear(lines));
        let status = wait(&mut program, HANGS)?;
        let run = Run::read(status, since.elapsed().as_secs_f64(), output, errors)?;
        wait(&mut repairer, HANGS)?;
        // It ends with the repairer, which holds the other end.
        let heard = listener.join().unwrap_or_default();
        let run = run.successful(self.program)?;
        let began_s = run.began_s.context("it does not tell when its threads began")?;
        Ok(milliseconds(&heard, pid, began_s, run.threads_s()))
    }
}

/// An event, and when it was heard of, in seconds.
type Heard = (f64, Event);

fn hear(lines: ChildStdout) -> Vec<Heard> {
    let lines = BufReader::new(lines).lines().map_while(Result::ok).map(|line| (now_s(), line));
    lines.filter_map(|(at_s, line)| Some((at_s, serde_json::from_str(&line).ok()?))).collect()
}

/// `CLOCK_MONOTONIC`.
fn now_s() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

fn milliseconds(heard: &[Heard], first_thread: u32, began_s: f64, threads_s: f64) -> f64 {
    let repairer_began_s = heard.iter().map(|(at_s, event)| at_s - event.at_ms * 1e-3).min_by(f64::total_cmp);
    let events: Vec<Event> = heard.iter().map(|(_, event)| event.clone()).collect();
    match (repairer_began_s, complete_at_ms(&events, first_thread, threads_s)) {
        (Some(repairer_began_s), Some(complete_ms)) => (repairer_began_s - began_s) * 1e3 + complete_ms,
        _ => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::super::contests::tests::check_words;
    use super::*;
    use fieldstone_repair::Happened;

    #[test]
    fn the_programs_know_their_words() {
        PARTS.iter().for_each(|part| check_words(part.program, &[part.words, part.size.option]));
    }

    #[test]
    fn both_clocks_are_brought_together() {
        let moved = Happened::Moved { page: 0x7000, views: 1, lines: vec![0x7000] };
        let led = Happened::Led { ip: 1, thread: 8 };
        // The repairer began at 100.005; the first line was 3 ms on its way, the others took no time.
        let heard = [
            (100.038, Event { at_ms: 30.0, what: moved }),
            (100.037, Event { at_ms: 32.0, what: led }),
            (100.305, Event { at_ms: 300.0, what: Happened::Led { ip: 2, thread: 7 } }),
        ];
        let found = milliseconds(&heard, 7, 100.0, 1.0);
        assert!((found - 37.0).abs() < 1e-6, "{found}");
        assert_eq!(milliseconds(&heard[1..], 7, 100.0, 1.0), f64::INFINITY, "nothing was moved");
        assert_eq!(milliseconds(&[], 7, 100.0, 1.0), f64::INFINITY);
    }
}
