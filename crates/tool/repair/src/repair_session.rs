//! A repair session: one thread samples, judges, moves pages and serves the program, from the start
//! to the end of the repair.
//!
//! ```text
//!   a round:  update the requests of rules ─→ serve the program for 5 ms (12 ms in a pause)
//!             ─→ analyse samples, judge lines, move pages ─→ report events ─→ pause sampling?
//! ```
//! The thread traces the program, so it must be the one that serves it. Events are reported as they
//! happen.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fieldstone_remap::Process;
use fieldstone_sharing::requests::RuleRequest;
use fieldstone_sharing::{JudgedLine, LineCost, Settings, Verdict};
use fieldstone_sys::process::has_ended;

use crate::error::Result;
use crate::event::{RepairEvent, TimedEvent};
use crate::line_detector::LineDetector;
use crate::repair_lock::RepairLock;
use crate::repairer::{Repairer, costs_enough, is_worth_repair};
use crate::rule_accesses::RuleAccesses;
use crate::tuning::{
    ANALYSES_BETWEEN_PAUSES, FIRST_PAUSE, MAX_PAUSE, MAX_SUSPECTS, MISSING_SYMBOL_DELAY, PAUSED_INTERVAL,
    QUIET_ANALYSES, REPAIR_CPU_SHARE, REPAIR_HERTZ, REPAIR_INTERVAL, REPAIR_MAX_LINES,
};
use fieldstone_launch::clock::now_ns;

/// Set by another thread or a signal handler to end a session.
pub type StopFlag = Arc<AtomicBool>;

/// How a process is repaired.
#[derive(Clone, Debug, Default)]
pub struct RepairOptions {
    /// Bytes to isolate or to watch, in addition to what the detector finds.
    pub rules: Vec<RuleRequest>,
    /// Whether a thread's data on several lines of a page is packed on as few lines as possible.
    pub consolidated: bool,
    /// Whether accesses are redirected by ladders, without clones of loops. Slower; for comparison
    /// with the thesis.
    pub uses_ladders: bool,
}

/// Repairs process `pid` until it ends or `stop` is set, then restores all pages. `report` gets
/// each event. Threads of the program wait for the calling thread, which should have
/// [priority](fieldstone_sys::scheduling::raise_priority).
///
/// # Errors
/// Where this user may not sample or trace the process, with the remedy. The process continues
/// without repair.
pub fn repair(pid: u32, options: &RepairOptions, stop: &StopFlag, report: &mut dyn FnMut(TimedEvent)) -> Result<()> {
    let mut session = match RepairSession::begin(pid, options) {
        // The process ended before it could be sampled.
        Err(_) if has_ended(pid) => return Ok(()),
        begun => begun?,
    };
    let result = session.run(stop, report);
    let missing = session.rules.take_missing();
    session.report_all(&missing, report);
    session.report_counts(report);
    session.report_inseparable(report);
    let released = if session.detector.stats().ended { Ok(()) } else { session.repairer.release() };
    // Errors of a process that has ended are caused by its end.
    if !has_ended(pid) {
        result?;
        released?;
    }
    session.report(RepairEvent::SessionEnd(session.detector.stats()), report);
    Ok(())
}

/// What a round has produced.
#[derive(Debug, Default)]
struct RepairRound {
    events: Vec<RepairEvent>,
    /// Whether a thread accessed bytes that rules watch.
    has_accesses: bool,
    /// Whether the traced process has ended, or runs another program.
    is_over: bool,
}

impl RepairRound {
    /// Whether anything has happened, so that sampling must not pause.
    const fn has_news(&self) -> bool {
        !self.events.is_empty() || self.has_accesses || self.is_over
    }

    /// Whether code of the program has changed, so that decoded code is stale.
    fn has_new_code(&self) -> bool {
        self.is_over || self.events.iter().any(|event| matches!(event, RepairEvent::PageRestored { .. }))
    }
}

#[derive(Debug)]
struct RepairSession {
    pid: u32,
    detector: LineDetector,
    repairer: Repairer,
    rules: RuleAccesses,
    began: Instant,
    /// Lines that were reported as found.
    found: Vec<u64>,
    /// Analyses in a row without news.
    quiet_analyses: u32,
    /// End of the pause; `None` while samples are taken.
    paused_until: Option<Instant>,
    next_pause: Duration,
    /// Addresses of known suspects, each with whether it was a finding.
    suspects: HashSet<(u64, bool)>,
    _lock: RepairLock,
}

impl RepairSession {
    fn begin(pid: u32, options: &RepairOptions) -> Result<Self> {
        // Without userfaultfd no page can be moved, and samples would cost time without use.
        Process::check_userfault(pid)?;
        let lock = RepairLock::take(pid)?;
        // Before sampling: the program may wait at pages that a killed repairer has left behind.
        let repairer = Repairer::new(pid, options.consolidated)?.with_ladders(options.uses_ladders);
        let detector = open_detector(pid)?;
        Ok(Self {
            pid,
            detector,
            repairer,
            rules: RuleAccesses::new(pid, options.rules.clone())?,
            began: Instant::now(),
            found: Vec::new(),
            quiet_analyses: 0,
            paused_until: None,
            next_pause: FIRST_PAUSE,
            suspects: HashSet::new(),
            _lock: lock,
        })
    }

    /// Runs rounds until the process has ended or `stop` is set.
    fn run(&mut self, stop: &StopFlag, report: &mut dyn FnMut(TimedEvent)) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let mut round = RepairRound::default();
            self.update_requests(&mut round, report)?;
            let mut ended = self.serve(&mut round, report)?;
            let reported = round.events.len();
            if !ended {
                // After an exec, the samples belong to the program before.
                ended = if round.is_over { self.has_ended()? } else { self.analyse(&mut round, report)? };
            }
            self.report_all(&round.events[reported..], report);
            let is_new = self.detector.has_new_threads() || round.has_news();
            if is_new || self.repairer.is_comparing() {
                self.reset_pauses();
                self.resume()?;
            } else {
                self.count_quiet_analysis();
            }
            if round.has_new_code() {
                self.detector.clear_code();
            }
            if ended {
                return Ok(());
            }
            if round.is_over {
                self.report(RepairEvent::Exec, report);
                self.restart(report)?;
                self.detector = open_detector(self.pid)?;
            }
        }
        Ok(())
    }

    /// Analyses the last samples; returns whether the process has ended, and not only its program
    /// by an exec.
    fn has_ended(&mut self) -> Result<bool> {
        let has_ended = has_ended(self.pid);
        Ok(self.detector.analyse(None)?.ended || has_ended)
    }

    /// Removes all data of the program that ran before, and reports its last events.
    fn restart(&mut self, report: &mut dyn FnMut(TimedEvent)) -> Result<()> {
        self.report_counts(report);
        self.report_inseparable(report);
        self.repairer.restart();
        self.rules.restart()?;
        self.found.clear();
        self.suspects.clear();
        self.paused_until = None;
        self.reset_pauses();
        Ok(())
    }

    /// Serves the program until the next analysis is due, and reports events at once; returns
    /// whether the process has ended.
    fn serve(&mut self, round: &mut RepairRound, report: &mut dyn FnMut(TimedEvent)) -> Result<bool> {
        self.report_all(&round.events, report);
        // A process with one thread leaves processor time for short intervals, so its new threads
        // are sampled sooner.
        let is_short = self.paused_until.is_none() || self.detector.is_single_threaded();
        let until = Instant::now() + if is_short { REPAIR_INTERVAL } else { PAUSED_INTERVAL };
        while let Some(rest) = until.checked_duration_since(Instant::now()) {
            let before = round.events.len();
            let served = self.repairer.serve(rest, &mut self.rules, &mut round.events)?;
            round.has_accesses |= served.has_accesses;
            round.is_over |= served.is_over;
            self.report_all(&round.events[before..], report);
            if !served.is_attached && self.detector.wait(rest)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes the next pause a first one.
    const fn reset_pauses(&mut self) {
        (self.quiet_analyses, self.next_pause) = (0, FIRST_PAUSE);
    }

    /// Counts an analysis without news, and pauses sampling after enough of them.
    fn count_quiet_analysis(&mut self) {
        self.quiet_analyses += 1;
        if self.quiet_analyses < QUIET_ANALYSES || self.paused_until.is_some() {
            return;
        }
        if self.detector.pause() {
            self.paused_until = Some(Instant::now() + self.next_pause);
            self.next_pause = (self.next_pause * 2).min(MAX_PAUSE);
        } else {
            self.quiet_analyses = 0;
        }
    }

    fn resume(&mut self) -> Result<()> {
        self.paused_until = None;
        self.detector.resume()
    }

    /// Analyses samples, judges lines and repairs them; returns whether the process has ended. In a
    /// pause only trials are ended.
    fn analyse(&mut self, round: &mut RepairRound, report: &mut dyn FnMut(TimedEvent)) -> Result<bool> {
        if let Some(until) = self.paused_until {
            let is_another = self.repairer.process().is_none() && self.detector.is_another_program();
            if Instant::now() < until && !is_another {
                // A moved page can begin to cost more than it gains.
                self.repairer.update(&[], None, now_ns(), &mut round.events)?;
                return Ok(false);
            }
            self.quiet_analyses = QUIET_ANALYSES - ANALYSES_BETWEEN_PAUSES;
            self.resume()?;
        }
        let execs = self.detector.stats().execs;
        let stats = self.detector.analyse(self.repairer.process())?;
        if stats.ended {
            return Ok(true);
        }
        if stats.execs > execs {
            self.restart(report)?;
            self.report(RepairEvent::Exec, report);
            return Ok(false);
        }
        let judged = self.detector.judge_lines(REPAIR_MAX_LINES);
        if self.has_new_suspect(&judged) {
            self.reset_pauses();
        }
        for (judged, cost) in judged.iter().filter(|(judged, cost)| is_worth_repair(judged, cost.as_ref())) {
            let line = judged.line.address;
            // Accesses are counted at their original addresses, so a line that a rule has separated
            // still looks contended.
            if !self.repairer.is_separated_by_request(line) && !self.found.contains(&line) {
                self.found.push(line);
                let share = cost.map_or(0.0, |cost| cost.share.likely);
                self.report(RepairEvent::LineFound { line, share }, report);
            }
        }
        self.repairer.update(&judged, self.detector.progress(), now_ns(), &mut round.events)?;
        Ok(false)
    }

    /// Whether a line is a finding, or undecided, for the first time.
    fn has_new_suspect(&mut self, judged: &[(JudgedLine, Option<LineCost>)]) -> bool {
        if self.suspects.len() >= MAX_SUSPECTS {
            self.suspects.clear();
        }
        let mut is_new = false;
        for (judged, _) in judged.iter().filter(|(_, cost)| costs_enough(cost.as_ref())) {
            let is_finding = judged.verdict.is_finding();
            if is_finding || matches!(judged.verdict, Verdict::Undecided) {
                is_new |= self.suspects.insert((judged.line.address, is_finding));
            }
        }
        is_new
    }

    /// Passes changed requests to the repairer, and reports missing symbols once their delay is
    /// over.
    fn update_requests(&mut self, round: &mut RepairRound, report: &mut dyn FnMut(TimedEvent)) -> Result<()> {
        if let Some(pages) = self.rules.changed_pages(now_ns(), self.repairer.process()) {
            self.repairer.set_requests(pages, &mut round.events)?;
        }
        if self.began.elapsed() > MISSING_SYMBOL_DELAY {
            let missing = self.rules.take_missing();
            self.report_all(&missing, report);
        }
        Ok(())
    }

    fn report(&self, kind: RepairEvent, report: &mut dyn FnMut(TimedEvent)) {
        report(TimedEvent::new(self.began.elapsed().as_secs_f64() * 1e3, kind));
    }

    fn report_all(&self, events: &[RepairEvent], report: &mut dyn FnMut(TimedEvent)) {
        events.iter().for_each(|event| self.report(event.clone(), report));
    }

    fn report_counts(&mut self, report: &mut dyn FnMut(TimedEvent)) {
        let counts = self.rules.take_counts();
        self.report_all(&counts, report);
    }

    fn report_inseparable(&mut self, report: &mut dyn FnMut(TimedEvent)) {
        for (line, why) in self.repairer.take_inseparable() {
            self.report(RepairEvent::LineLeft { line, why: why.words() }, report);
        }
    }
}

/// Opens the detector of a repair: samples of concurrent threads, with their progress.
fn open_detector(pid: u32) -> Result<LineDetector> {
    let detector = LineDetector::open(pid, REPAIR_HERTZ, Settings::default(), REPAIR_CPU_SHARE)?;
    Ok(detector.concurrent_only().with_progress())
}
