//! Following a program from the first sample to its end, repairing what is found.
//!
//! One thread does all of it, in the process that traces: waits for the program's accesses, looks at the samples every few milliseconds,
//! judges, moves. What happens is told as it happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fieldstone_sharing::Settings;
use serde::{Deserialize, Serialize};

use super::repairer::{Did, Repairer, Undone};
use super::watcher::{Seen, Watcher, now_ns};
use crate::error::Result;

/// Samples a second that a thread runs.
const HERTZ: u32 = 1000;
/// What looking at them may take of a processor.
const SHARE: f64 = 0.03;
/// How often samples are looked at, and lines judged.
const LOOK: Duration = Duration::from_millis(5);
/// The heaviest lines that are judged.
const MOST_LINES: usize = 64;

/// Asks a follower to let go, from another thread or a handler of signals.
pub type Stop = Arc<AtomicBool>;

/// What happened, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Milliseconds since the follower began.
    pub at_ms: f64,
    /// What.
    #[serde(flatten)]
    pub what: Happened,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Happened {
    /// A line is shared falsely.
    Found {
        /// Its address.
        line: u64,
        /// The share of the threads' time that it takes at most.
        share: f64,
    },
    /// A page was moved.
    Moved {
        /// Its address.
        page: u64,
        /// Pages that its bytes are spread over, beside its own.
        views: u32,
        /// Lines that are mended by it.
        lines: Vec<u64>,
    },
    /// A page was left where it is.
    Refused {
        /// Its address.
        page: u64,
        /// Why.
        why: String,
    },
    /// A page was put back.
    Undone {
        /// Its address.
        page: u64,
        /// Why.
        why: String,
    },
    /// An access was led to its new place for the first time.
    Led {
        /// The instruction.
        ip: u64,
        /// The thread.
        thread: u32,
    },
    /// It runs another program now.
    Exec,
    /// It has ended, or was let go; the last event.
    Over(Seen),
}

/// Follows process `pid` until it ends or `stop` is set; then it is as it was. `tell` is called for what happens.
///
/// # Errors
/// Where this user may not look on or may not hold it, with the way out; the process runs on, as it was.
pub fn repair(pid: u32, stop: &Stop, tell: &mut dyn FnMut(Event)) -> Result<()> {
    let mut follow = Follow::begin(pid)?;
    let result = follow.until(stop, tell);
    let let_go = if follow.watcher.seen().ended { Ok(()) } else { follow.repairer.let_go() };
    result?;
    let_go?;
    follow.tell(Happened::Over(follow.watcher.seen()), tell);
    Ok(())
}

struct Follow {
    pid: u32,
    watcher: Watcher,
    repairer: Repairer,
    began: Instant,
    found: Vec<u64>,
}

impl Follow {
    fn begin(pid: u32) -> Result<Self> {
        let watcher = Watcher::open(pid, HERTZ, Settings::default(), SHARE)?;
        Ok(Self { pid, watcher, repairer: Repairer::new(pid)?, began: Instant::now(), found: Vec::new() })
    }

    fn until(&mut self, stop: &Stop, tell: &mut dyn FnMut(Event)) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let mut did = Vec::new();
            let until = Instant::now() + LOOK;
            while let Some(rest) = until.checked_duration_since(Instant::now()) {
                if !self.repairer.serve(rest, &mut did)? && self.watcher.wait(rest)? {
                    return Ok(());
                }
            }
            if self.look(&mut did, tell)? {
                return Ok(());
            }
            let over = did.contains(&Did::Over);
            // Where a clone was, another may come.
            if did.iter().any(|did| matches!(did, Did::Undone { .. } | Did::Over)) {
                self.watcher.forget_code();
            }
            did.into_iter().for_each(|did| self.tell(told(did), tell));
            if over {
                self.watcher = Watcher::open(self.pid, HERTZ, Settings::default(), SHARE)?;
                self.found.clear();
            }
        }
        Ok(())
    }

    /// Takes in samples and judges; whether the program has ended.
    fn look(&mut self, did: &mut Vec<Did>, tell: &mut dyn FnMut(Event)) -> Result<bool> {
        let repairer = &self.repairer;
        if self.watcher.look(&|address| repairer.home(address))?.ended {
            return Ok(true);
        }
        let judged = self.watcher.judged(MOST_LINES);
        for (judged, cost) in judged.iter().filter(|(judged, _)| judged.verdict.is_finding()) {
            let line = judged.line.address;
            if !self.found.contains(&line) {
                self.found.push(line);
                self.tell(Happened::Found { line, share: cost.map_or(0.0, |cost| cost.share.likely) }, tell);
            }
        }
        self.repairer.consider(&judged, now_ns(), did)?;
        Ok(false)
    }

    fn tell(&self, what: Happened, tell: &mut dyn FnMut(Event)) {
        tell(Event { at_ms: self.began.elapsed().as_secs_f64() * 1e3, what });
    }
}

fn told(did: Did) -> Happened {
    match did {
        Did::Moved(plan) => Happened::Moved { page: plan.page, views: plan.views, lines: plan.lines },
        Did::Refused { page, why } => Happened::Refused { page, why },
        Did::Undone { page, why } => Happened::Undone { page, why: words(&why) },
        Did::Led { ip, thread } => Happened::Led { ip, thread },
        Did::Over => Happened::Exec,
    }
}

fn words(why: &Undone) -> String {
    match why {
        Undone::By(why) => why.to_string(),
        Undone::ByHand(a_second) => format!("{a_second} accesses a second had to be redirected one by one"),
        Undone::Changed => "its rules changed".to_owned(),
    }
}
