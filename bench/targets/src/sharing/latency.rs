//! Measures the time from the first contention to the last redirected loop.
//!
//! ```text
//!   program   ──┬─ starts ── … ── last thread starts: first contention ── … ─────────────── ends
//!   repairer  ──┴── starts ── samples ── events, one line each with the repairer's time in ms ──→ read, with our time
//! ```
//! Like `run --repair`: starts the program, and `fieldstone attach --repair --events` in parallel.
//! The start of the repairer is thus included if the threads contend from the start.
//!
//! The program prints the start of its threads in `CLOCK_MONOTONIC`. Events have times since the
//! start of the repairer. Each line is read some time after it is written, so the smallest
//! difference gives the start of the repairer.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command, Stdio};
use std::thread::spawn;
use std::time::{Duration, Instant};

use anyhow::Context;
use fieldstone_launch::Program;
use fieldstone_launch::launch::{ChildOptions, Treatment, launch};
use fieldstone_repair::TimedEvent;
use fieldstone_stats::Estimate;
use rustix::time::{ClockId, clock_gettime};

use super::comparisons::WorkSize;
use super::program_run::{Programs, RUN_TIME_LIMIT, WorkloadRun, arguments, wait};
use super::repair_record::complete_at_ms;
use super::rounds::run_rounds;
use crate::cell::GoalCell;
use crate::goals::Goal;

/// A program whose threads contend in one loop from start to end, so that no late access needs a
/// redirection.
pub(super) struct LatencyCase {
    name: &'static str,
    program: &'static str,
    arguments: &'static str,
    size: WorkSize,
}

const ITERATIONS: WorkSize = WorkSize { option: "--iterations", number: 200_000_000 };

pub(super) const CASES: [LatencyCase; 3] = [
    LatencyCase { name: "counters -O0", program: "sharing/counters-O0", arguments: "--pin", size: ITERATIONS },
    LatencyCase { name: "counters -O2", program: "sharing/counters-O2", arguments: "--pin", size: ITERATIONS },
    // Its threads start some time after the repairer.
    LatencyCase {
        name: "linear_regression -O0",
        program: "sharing/linear_regression-O0",
        arguments: "--pin --shift 16",
        size: WorkSize { option: "--points", number: 100_000_000 },
    },
];

impl LatencyCase {
    pub(super) fn measure(&self, programs: &Programs, goal: Goal, limit: Duration) -> anyhow::Result<GoalCell> {
        if let Some(why) = programs.missing_reason(self.program) {
            return Ok(GoalCell::skipped_case(goal, self.name, &why));
        }
        let measure_round = |_| self.measure_round(programs).map(Some);
        let values =
            run_rounds(goal.limit, limit, measure_round).with_context(|| format!("{} {}", goal.name, self.name))?;
        let worst = values.iter().copied().fold(0.0, f64::max);
        let note = format!("the median; the worst was {worst:.0}");
        let mut cell = GoalCell::measured(goal, self.name, Estimate::of_median(&values), &note);
        cell.samples = vec![(self.name.to_owned(), values)];
        Ok(cell)
    }

    /// The time in milliseconds; infinite without a repair.
    fn measure_round(&self, programs: &Programs) -> anyhow::Result<f64> {
        let command: Vec<OsString> = std::iter::once(programs.path(self.program).into_os_string())
            .chain(arguments(self.arguments, self.size).into_iter().map(OsString::from))
            .collect();
        let (output, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let (stdout, stderr) = (output.try_clone()?.into(), errors.try_clone()?.into());
        let wiring = ChildOptions { stdin: Stdio::null(), stdout, stderr, own_group: true, keeps_closed: false };
        let since = Instant::now();
        let mut program = launch(&Program::find(&command)?, &Treatment::Traceable, wiring)?.child;
        let pid = program.id();
        let mut repairer = Command::new(programs.path("fieldstone"))
            .args(["attach", "--events", "--repair", &pid.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let lines = repairer.stdout.take().context("it was piped")?;
        let reader = spawn(move || read_events(lines));
        let status = wait(&mut program, RUN_TIME_LIMIT)?;
        let run = WorkloadRun::read(status, since.elapsed().as_secs_f64(), output, errors)?;
        wait(&mut repairer, RUN_TIME_LIMIT)?;
        // Terminates: the repairer has ended, which closed the other end.
        let events = reader.join().unwrap_or_default();
        let run = run.successful(self.program)?;
        let began_s = run.began_s.context("the program does not print the start of its threads")?;
        Ok(milliseconds(&events, pid, began_s, run.threads_s()))
    }
}

/// The time when an event was read, in seconds, and the event.
type ReceivedEvent = (f64, TimedEvent);

fn read_events(lines: ChildStdout) -> Vec<ReceivedEvent> {
    let lines = BufReader::new(lines).lines().map_while(Result::ok).map(|line| (now_s(), line));
    lines.filter_map(|(at_s, line)| Some((at_s, serde_json::from_str(&line).ok()?))).collect()
}

/// `CLOCK_MONOTONIC` in seconds.
fn now_s() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

fn milliseconds(timed: &[ReceivedEvent], first_thread: u32, began_s: f64, threads_s: f64) -> f64 {
    let repairer_began_s = timed.iter().map(|(at_s, event)| at_s - event.at_ms * 1e-3).min_by(f64::total_cmp);
    let events: Vec<TimedEvent> = timed.iter().map(|(_, event)| event.clone()).collect();
    match (repairer_began_s, complete_at_ms(&events, first_thread, threads_s)) {
        (Some(repairer_began_s), Some(complete_ms)) => (repairer_began_s - began_s) * 1e3 + complete_ms,
        _ => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::super::comparisons::tests::check_options;
    use super::*;
    use fieldstone_repair::RepairEvent;

    #[test]
    fn programs_know_their_options() {
        CASES.iter().for_each(|case| check_options(case.program, &[case.arguments, case.size.option]));
    }

    #[test]
    fn both_clocks_are_aligned() {
        let moved = RepairEvent::PageMoved { page: 0x7000, views: 1, lines: vec![0x7000] };
        let led = RepairEvent::AccessRedirected { ip: 1, thread: 8, code: None };
        // The repairer started at 100.005. The first line was read after 3 ms, the others at once.
        let events = [
            (100.038, TimedEvent::new(30.0, moved)),
            (100.037, TimedEvent::new(32.0, led)),
            (100.305, TimedEvent::new(300.0, RepairEvent::AccessRedirected { ip: 2, thread: 7, code: None })),
        ];
        let found = milliseconds(&events, 7, 100.0, 1.0);
        assert!((found - 37.0).abs() < 1e-6, "{found}");
        assert_eq!(milliseconds(&events[1..], 7, 100.0, 1.0), f64::INFINITY, "nothing was moved");
        assert_eq!(milliseconds(&[], 7, 100.0, 1.0), f64::INFINITY);
    }
}
