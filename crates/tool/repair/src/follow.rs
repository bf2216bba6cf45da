//! Following a program from the first sample to its end, repairing what is found.
//!
//! One thread does all of it, in the process that traces: waits for the program's accesses, looks at the samples every few milliseconds,
//! judges, moves. What happens is told as it happens.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fieldstone_remap::{Process, Touch};
use fieldstone_sharing::requests::{Action, Request};
use fieldstone_sharing::{Cost, Judged, Settings, Verdict};
use fieldstone_sys::process::has_ended;
use serde::{Deserialize, Serialize};

use super::asked::Asked;
use super::code::Codes;
use super::owners::Owners;
use super::repairer::{Did, Repairer, Undone, costs_enough, is_worth_it};
use super::watcher::{Seen, Watcher};
use crate::error::Result;
use fieldstone_launch::clock::now_ns;

/// Samples a second that a thread runs.
const HERTZ: u32 = 1000;
/// What looking at them may take of a processor.
const SHARE: f64 = 0.003;
/// How often samples are looked at, and lines judged.
const LOOK: Duration = Duration::from_millis(5);
/// After so many looks without news the program is left alone: a thousand samples a second cost a thread some 2 % of its time. Then come a few
/// looks, and where they show nothing new it is left alone for twice as long. Whether it has new threads is asked meanwhile.
const CALM: u32 = 10;
const FEW: u32 = 5;
const FIRST_REST: Duration = Duration::from_millis(230);
const LONGEST_REST: Duration = Duration::from_millis(920);
const STEP: Duration = Duration::from_millis(12);
/// Lines that are remembered as nothing new.
const MOST_SUSPECTED: usize = 4096;
/// What a rule is about may be loaded later; it is told as missing after so long.
const PATIENCE: Duration = Duration::from_secs(2);
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
    /// What a rule asks for cannot be done.
    Denied {
        /// The page.
        page: u64,
        /// Why.
        why: String,
    },
    /// A line fights to the end, since its bytes cannot be parted.
    Left {
        /// Its address.
        line: u64,
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
    /// Bytes were touched that a rule watches.
    Touched {
        /// Where the rule says that they are.
        rule: String,
        /// The thread.
        thread: u32,
        /// The address.
        address: u64,
        /// How many bytes.
        bytes: u32,
        /// They were read.
        read: bool,
        /// They were written.
        write: bool,
        /// The instruction.
        ip: u64,
        /// What that is of, where a rule asks for it.
        code: Option<String>,
    },
    /// How often bytes were touched that a rule counts.
    Counted {
        /// Where the rule says that they are.
        rule: String,
        /// The thread.
        thread: u32,
        /// The instruction.
        ip: u64,
        /// What that is of.
        code: Option<String>,
        /// How often it read them.
        reads: u64,
        /// How often it wrote them.
        writes: u64,
    },
    /// A rule is about a variable that is in no file that the program has loaded.
    Missing {
        /// Where the rule says that it is.
        rule: String,
    },
    /// It runs another program now.
    Exec,
    /// It has ended, or was let go; the last event.
    Over(Seen),
}

impl Happened {
    /// Whether a rule asks to be told of it.
    #[must_use]
    pub const fn is_asked_for(&self) -> bool {
        matches!(self, Self::Touched { .. } | Self::Counted { .. } | Self::Missing { .. } | Self::Denied { .. })
    }
}

/// How a process is repaired.
#[derive(Clone, Debug, Default)]
pub struct Manner {
    /// What is asked for, beside what is found.
    pub rules: Vec<Request>,
    /// Whether what a thread has on several lines is brought together on as few as can be.
    pub consolidated: bool,
    /// Whether accesses are led to ladders, and no loop to a clone: slower, to be held against it.
    pub by_ladders: bool,
}

/// Follows process `pid` until it ends or `stop` is set; then it is as it was. `tell` is called for what happens. The program's threads wait for
/// the calling one: it had better [come first](fieldstone_sys::scheduling::raise_priority).
///
/// # Errors
/// Where this user may not look on or may not hold it, with the way out; the process runs on, as it was.
pub fn repair(pid: u32, manner: &Manner, stop: &Stop, tell: &mut dyn FnMut(Event)) -> Result<()> {
    let mut follow = match Follow::begin(pid, manner) {
        // It was over before it could be looked at.
        Err(_) if has_ended(pid) => return Ok(()),
        begun => begun?,
    };
    let result = follow.until(stop, tell);
    follow.tell_missing(tell);
    follow.tell_counts(tell);
    follow.tell_left(tell);
    let let_go = if follow.watcher.seen().ended { Ok(()) } else { follow.repairer.let_go() };
    // What goes wrong since the process is gone is its end.
    if !has_ended(pid) {
        result?;
        let_go?;
    }
    follow.tell(Happened::Over(follow.watcher.seen()), tell);
    Ok(())
}

struct Follow {
    pid: u32,
    rules: Vec<Request>,
    watcher: Watcher,
    repairer: Repairer,
    asked: Asked,
    /// How often each instruction of each thread read and wrote what a rule counts.
    counts: BTreeMap<(String, u32, u64), (u64, u64)>,
    /// Names for instructions, asked for while the program is there.
    owners: Option<Owners>,
    codes: Codes,
    names: BTreeMap<u64, String>,
    began: Instant,
    found: Vec<u64>,
    missed: bool,
    /// Looks since a thread came, a line was suspected for the first time, or something was done.
    calm: u32,
    /// Until when it is left alone, and for how long the next time.
    rests_until: Option<Instant>,
    next_rest: Duration,
    /// Lines by their addresses, and whether they were findings.
    suspected: HashSet<(u64, bool)>,
}

impl Follow {
    fn begin(pid: u32, manner: &Manner) -> Result<Self> {
        // Without it nothing can be moved, and samples would cost time for nothing.
        Process::check_userfault(pid)?;
        // First, since the program may wait for what somebody has left behind.
        let repairer = Repairer::new(pid, manner.consolidated)?.by_ladders(manner.by_ladders);
        let watcher = watch(pid)?;
        Ok(Self {
            pid,
            rules: manner.rules.clone(),
            watcher,
            repairer,
            asked: Asked::of(pid, manner.rules.clone())?,
            counts: BTreeMap::new(),
            owners: None,
            codes: Codes::default(),
            names: BTreeMap::new(),
            began: Instant::now(),
            found: Vec::new(),
            missed: false,
            calm: 0,
            rests_until: None,
            next_rest: FIRST_REST,
            suspected: HashSet::new(),
        })
    }

    fn until(&mut self, stop: &Stop, tell: &mut dyn FnMut(Event)) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let mut did = Vec::new();
            self.ask(&mut did, tell)?;
            let ended = self.serve(&mut did, tell)?;
            let served = did.len();
            let over = did.contains(&Did::Over);
            // What was seen before is of another program then.
            let ended = ended || if over { self.has_ended()? } else { self.look(&mut did, tell)? };
            self.tell_done(&did[served..], tell);
            let is_new = self.watcher.has_new_threads() || !did.is_empty();
            if is_new || self.repairer.is_trying() {
                self.look_closely();
                self.resume()?;
            } else {
                self.rest();
            }
            // Where a clone was, another may come.
            if did.iter().any(|did| matches!(did, Did::Undone { .. } | Did::Over)) {
                self.watcher.forget_code();
            }
            if ended {
                return Ok(());
            }
            if over {
                self.tell(Happened::Exec, tell);
                self.begin_anew(tell)?;
                self.watcher = watch(self.pid)?;
            }
        }
        Ok(())
    }

    /// Takes in the last samples; whether it is the process that is over, and not only its program.
    fn has_ended(&mut self) -> Result<bool> {
        let has_ended = has_ended(self.pid);
        Ok(self.watcher.look(None)?.ended || has_ended)
    }

    /// Another program runs in the process.
    fn begin_anew(&mut self, tell: &mut dyn FnMut(Event)) -> Result<()> {
        self.tell_counts(tell);
        self.tell_left(tell);
        self.repairer.begin_anew();
        self.asked = Asked::of(self.pid, self.rules.clone())?;
        (self.owners, self.codes, self.missed) = (None, Codes::default(), false);
        self.names.clear();
        self.found.clear();
        self.suspected.clear();
        self.rests_until = None;
        self.look_closely();
        Ok(())
    }

    /// Serves the program until it is time to look again, and tells what was done at once; whether it has ended.
    fn serve(&mut self, did: &mut Vec<Did>, tell: &mut dyn FnMut(Event)) -> Result<bool> {
        self.tell_done(did, tell);
        // Threads that begin are looked at at once. One that runs alone leaves room for that beside it.
        let is_short = self.rests_until.is_none() || self.watcher.is_alone();
        let until = Instant::now() + if is_short { LOOK } else { STEP };
        while let Some(rest) = until.checked_duration_since(Instant::now()) {
            let before = did.len();
            let served = self.repairer.serve(rest, did)?;
            self.tell_done(&did[before..], tell);
            if !served && self.watcher.wait(rest)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// There is something new.
    const fn look_closely(&mut self) {
        (self.calm, self.next_rest) = (0, FIRST_REST);
    }

    /// There is nothing new: when that is so for long enough, the program is left alone.
    fn rest(&mut self) {
        self.calm += 1;
        if self.calm < CALM || self.rests_until.is_some() {
            return;
        }
        if self.watcher.pause() {
            self.rests_until = Some(Instant::now() + self.next_rest);
            self.next_rest = (self.next_rest * 2).min(LONGEST_REST);
        } else {
            self.calm = 0;
        }
    }

    fn resume(&mut self) -> Result<()> {
        self.rests_until = None;
        self.watcher.resume()
    }

    /// Takes in samples and judges; whether the program has ended.
    fn look(&mut self, did: &mut Vec<Did>, tell: &mut dyn FnMut(Event)) -> Result<bool> {
        if let Some(until) = self.rests_until {
            let is_another = self.repairer.process().is_none() && self.watcher.is_another_program();
            if Instant::now() < until && !is_another {
                // What is repaired may come to cost more than it saves meanwhile.
                self.repairer.consider(&[], None, now_ns(), did)?;
                return Ok(false);
            }
            self.calm = CALM - FEW;
            self.resume()?;
        }
        let execs = self.watcher.seen().execs;
        let seen = self.watcher.look(self.repairer.process())?;
        if seen.ended {
            return Ok(true);
        }
        if seen.execs > execs {
            self.begin_anew(tell)?;
            self.tell(Happened::Exec, tell);
            return Ok(false);
        }
        let judged = self.watcher.judged(MOST_LINES);
        if self.suspect(&judged) {
            self.look_closely();
        }
        for (judged, cost) in judged.iter().filter(|(judged, cost)| is_worth_it(judged, cost.as_ref())) {
            let line = judged.line.address;
            // Bytes are counted where the program thinks that they are, so what a rule has parted looks as before.
            if !self.repairer.has_parted_as_asked(line) && !self.found.contains(&line) {
                self.found.push(line);
                self.tell(Happened::Found { line, share: cost.map_or(0.0, |cost| cost.share.likely) }, tell);
            }
        }
        self.repairer.consider(&judged, self.watcher.progress(), now_ns(), did)?;
        Ok(false)
    }

    /// Whether there is something new that is a finding, or may turn out to be one.
    fn suspect(&mut self, judged: &[(Judged, Option<Cost>)]) -> bool {
        if self.suspected.len() >= MOST_SUSPECTED {
            self.suspected.clear();
        }
        let mut is_new = false;
        for (judged, _) in judged.iter().filter(|(_, cost)| costs_enough(cost.as_ref())) {
            let is_finding = judged.verdict.is_finding();
            if is_finding || matches!(judged.verdict, Verdict::Undecided) {
                is_new |= self.suspected.insert((judged.line.address, is_finding));
            }
        }
        is_new
    }

    /// Has done what is asked for now.
    fn ask(&mut self, did: &mut Vec<Did>, tell: &mut dyn FnMut(Event)) -> Result<()> {
        if self.asked.look(now_ns(), self.repairer.process()) {
            self.repairer.ask(self.asked.pages(), did)?;
        }
        // A library may still come.
        if self.began.elapsed() > PATIENCE {
            self.tell_missing(tell);
        }
        Ok(())
    }

    /// Tells once of rules that are about nothing.
    fn tell_missing(&mut self, tell: &mut dyn FnMut(Event)) {
        if !std::mem::replace(&mut self.missed, true) {
            let missing: Vec<String> = self.asked.missing().map(|rule| rule.at.to_string()).collect();
            missing.into_iter().for_each(|rule| self.tell(Happened::Missing { rule }, tell));
        }
    }

    fn tell(&self, what: Happened, tell: &mut dyn FnMut(Event)) {
        tell(Event { at_ms: self.began.elapsed().as_secs_f64() * 1e3, what });
    }

    /// All but that the program is over: that is told by who asks whether another one runs there.
    fn tell_done(&mut self, did: &[Did], tell: &mut dyn FnMut(Event)) {
        for did in did {
            let what = match did.clone() {
                Did::Touched(touch) => {
                    self.tell_touch(touch, tell);
                    continue;
                }
                Did::Over => continue,
                Did::Moved(plan) => Happened::Moved { page: plan.page, views: plan.views, lines: plan.lines },
                Did::Refused { page, why } => Happened::Refused { page, why },
                Did::Denied { page, why } => Happened::Denied { page, why },
                Did::Undone { page, why } => Happened::Undone { page, why: words(&why) },
                Did::Led { ip, thread } => Happened::Led { ip, thread },
            };
            self.tell(what, tell);
        }
    }

    fn tell_touch(&mut self, touch: Touch, tell: &mut dyn FnMut(Event)) {
        let Touch { thread, ip, address, bytes, read, write } = touch;
        let rules: Vec<(Action, String)> =
            self.asked.watching(address, bytes).map(|rule| (rule.action, rule.at.to_string())).collect();
        for (action, rule) in rules {
            if action == Action::Count {
                // Its name while the code is there.
                self.name(ip);
                let (reads, writes) = self.counts.entry((rule, thread, ip)).or_default();
                *reads += u64::from(read);
                *writes += u64::from(write);
                continue;
            }
            let code = if action == Action::Trace { self.name(ip) } else { None };
            self.tell(Happened::Touched { rule, thread, address, bytes, read, write, ip, code }, tell);
        }
    }

    fn tell_counts(&mut self, tell: &mut dyn FnMut(Event)) {
        for ((rule, thread, ip), (reads, writes)) in std::mem::take(&mut self.counts) {
            let code = self.names.get(&ip).cloned();
            self.tell(Happened::Counted { rule, thread, ip, code, reads, writes }, tell);
        }
    }

    fn tell_left(&mut self, tell: &mut dyn FnMut(Event)) {
        for (line, why) in self.repairer.take_left() {
            self.tell(Happened::Left { line, why: why.words() }, tell);
        }
    }

    /// Function, file and line of an instruction.
    fn name(&mut self, ip: u64) -> Option<String> {
        if let Some(name) = self.names.get(&ip) {
            return Some(name.clone());
        }
        let owners = self.owners.get_or_insert_with(|| Owners::of(self.pid));
        let code = self.codes.name(ip, owners);
        let place = code.file.map(|file| format!(" ({file}:{})", code.line.unwrap_or(0))).unwrap_or_default();
        let of = if code.function.is_empty() { code.module } else { code.function };
        let name = Some(format!("{of}{place}")).filter(|_| !of.is_empty())?;
        self.names.insert(ip, name.clone());
        Some(name)
    }
}

fn watch(pid: u32) -> Result<Watcher> {
    Ok(Watcher::open(pid, HERTZ, Settings::default(), SHARE)?.without_loners().with_progress())
}

fn words(why: &Undone) -> String {
    match why {
        Undone::NoGain(Some(times)) => format!("the threads ran {times:.2} times as fast as before"),
        Undone::NoGain(None) => {
            "its code is entered and left at each access, and no gain was seen: that can cost more than the line"
                .to_owned()
        }
        Undone::By(why) => why.to_string(),
        Undone::ByHand(a_second) => format!("{a_second} accesses a second had to be redirected one by one"),
        Undone::Changed => "its rules changed".to_owned(),
    }
}
