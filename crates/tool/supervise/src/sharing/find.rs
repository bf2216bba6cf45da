//! `fieldstone sharing`: looking on until the program ends or the time is over, and telling what was found.
//!
//! What is known of a line goes when its threads end. So each line is judged again and again, and as long as it is a finding its last version
//! stays, with whose memory it was at that time.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitStatus;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::spawn;
use std::time::{Duration, Instant};

use fieldstone_remap::repaired_by;
use fieldstone_report::sharing::{LineReport, MemoryKind, MemoryOwner, SampledThread, Sampling};
use fieldstone_rewrite::Registers;
use fieldstone_sharing::{Judged, Settings, Verdict, rules};
use fieldstone_sys::process::{comm, has_ended};
use fieldstone_sys::turns;

use super::code::Codes;
use super::follow::Stop;
use super::owners::{Owners, met_on};
use super::watcher::{Seen, Watcher};
use crate::error::Result;
use crate::launch::Treatment;
use crate::program::Program;
use crate::signals::Forward;

/// What looking at samples may take of a processor.
const SHARE: f64 = 0.1;
/// How often samples are looked at and lines judged.
const LOOK: Duration = Duration::from_millis(20);
/// A process has given its memory back so long before it has ended, at most.
const LONGEST_END: Duration = Duration::from_millis(100);
/// The heaviest lines that are judged.
const MOST_LINES: usize = 256;
/// What is told takes this share of the threads' time at least, and so many samples.
const LEAST_SHARE: f64 = 0.01;
const LEAST_WEIGHT: f64 = 8.0;
/// Whose memory a line is, and of what type, is asked so often: what the first samples do not show, later ones rarely do.
const MOST_ASKED: u32 = 5;

/// How to look.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Samples a second that a thread runs.
    pub hertz: u32,
    /// How lines are counted.
    pub settings: Settings,
    /// For how long, at most.
    pub duration: Option<Duration>,
}

impl Default for Look {
    /// A thousand samples a second that never fade, to the program's end.
    fn default() -> Self {
        Self { hertz: 1000, settings: Settings { half_life_ns: None, ..Settings::default() }, duration: None }
    }
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Looked {
    /// How it was looked at.
    pub sampling: Sampling,
    /// For how long.
    pub duration_s: f64,
    /// The threads that were seen.
    pub threads: Vec<SampledThread>,
    /// Lines that are shared falsely, the costliest first.
    pub findings: Vec<LineReport>,
    /// Lines that threads meet on otherwise.
    pub others: Vec<LineReport>,
    /// What could not be seen, a sentence each.
    pub unseen: Vec<String>,
}

/// Looks on while process `pid` runs, until it ends, the time is over or `stop` is set.
///
/// # Errors
/// Where this user may not look on, with the way out.
pub fn look_on(pid: u32, look: &Look, stop: &Stop) -> Result<Looked> {
    let watcher = Watcher::open(pid, look.hertz, look.settings, SHARE)?;
    let repairer = repaired_by(pid);
    let mut looked = look_by(watcher, look, &mut Owners::of(pid), stop)?;
    let parted =
        |by| format!("what process {by} has parted already: this one is under repair, which has to end first (Ctrl-C)");
    looked.unseen.extend(repairer.map(parted));
    Ok(looked)
}

/// Runs `program` in the foreground to its end, and looks on until its end, the limit, or a signal that asks the program to end.
///
/// # Errors
/// The program cannot be started, or not be looked at: then it is ended.
pub fn look_on_program(program: &Program, look: &Look) -> Result<(ExitStatus, Looked)> {
    let stop = Stop::default();
    let mut forward = Forward::prepare()?.noting(&stop);
    let mut running = forward.launch(program, &Treatment::Traceable)?;
    let pid = running.child.id();
    let look = *look;
    let looking = match Watcher::open(pid, look.hertz, look.settings, SHARE) {
        Ok(watcher) => spawn(move || look_by(watcher, &look, &mut Owners::of(pid), &stop)),
        // It was over before it could be looked at: nothing was seen of it.
        Err(_) if ends_at_once(pid) => {
            let looked = Looked { unseen: unseen(&Seen::default()), ..Looked::default() };
            return Ok((forward.until_end(pid)?, looked));
        }
        Err(error) => {
            let _ = running.child.kill();
            let _ = running.child.wait();
            return Err(error);
        }
    };
    let status = forward.until_end(pid)?;
    match looking.join() {
        Ok(looked) => Ok((status, looked?)),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Whether a process that cannot be looked at is over, or about to be.
fn ends_at_once(pid: u32) -> bool {
    let began = Instant::now();
    while !has_ended(pid) && began.elapsed() < LONGEST_END {
        turns::nap();
    }
    has_ended(pid)
}

fn look_by(watcher: Watcher, look: &Look, owners: &mut Owners, stop: &Stop) -> Result<Looked> {
    let began = Instant::now();
    let mut looking = Looking {
        watcher,
        codes: Codes::default(),
        lines: BTreeMap::new(),
        threads: BTreeMap::new(),
        asked: BTreeMap::new(),
        apart: BTreeSet::new(),
    };
    let is_over = || look.duration.is_some_and(|limit| began.elapsed() >= limit) || stop.load(Relaxed);
    let mut ended = false;
    while !ended && !is_over() {
        let execs = looking.watcher.seen().execs;
        ended = looking.watcher.wait(LOOK)?;
        ended |= looking.watcher.look(None)?.ended;
        if looking.watcher.seen().execs > execs {
            *owners = Owners::of(owners.pid());
            looking.codes = Codes::default();
        }
        looking.judge(owners, ended);
    }
    Ok(looking.finish(began.elapsed()))
}

struct Looking {
    watcher: Watcher,
    codes: Codes,
    lines: BTreeMap<u64, LineReport>,
    threads: BTreeMap<u32, SampledThread>,
    /// How often it was asked whose memory a line is.
    asked: BTreeMap<u64, u32>,
    /// Lines that several threads were seen at, and not at the same time.
    apart: BTreeSet<u64>,
}

impl Looking {
    fn judge(&mut self, owners: &mut Owners, ended: bool) {
        for (judged, cost) in self.watcher.judged(MOST_LINES) {
            let Some(cost) = cost.filter(|cost| cost.share.likely >= LEAST_SHARE) else { continue };
            let line = judged.line.address;
            if matches!(judged.verdict, Verdict::Private | Verdict::Undecided) {
                let several = judged.line.threads.len() > 1;
                self.apart.extend(several.then_some(line));
                continue;
            }
            if judged.line.weight < LEAST_WEIGHT {
                continue;
            }
            let known = self.lines.get(&line);
            // What it has become, unless a thread that fought has ended since.
            if known.is_some_and(|known| known.judged.verdict.is_finding() && !judged.verdict.is_finding()) {
                continue;
            }
            let mut found = known.cloned().unwrap_or_else(|| LineReport {
                judged: judged.clone(),
                cost,
                places: Vec::new(),
                code: Vec::new(),
                redesign: None,
                refused: None,
                contended: 0,
            });
            (found.judged, found.cost) = (judged, cost);
            if !ended {
                self.ask(&mut found, owners);
            }
            self.lines.insert(line, found);
        }
    }

    /// Whose memory it is, while there is somebody to ask.
    fn ask(&mut self, found: &mut LineReport, owners: &mut Owners) {
        let line = &found.judged.line;
        for thread in &line.threads {
            self.threads.entry(thread.thread).or_insert_with(|| SampledThread {
                tid: thread.thread,
                name: comm(thread.thread).unwrap_or_default(),
                start: None,
            });
        }
        let samples: Vec<(u32, Registers)> = self.watcher.samples_of(line.address).copied().collect();
        samples.iter().for_each(|(thread, registers)| owners.saw(*thread, registers));
        owners.look();
        found.code = self.codes.of(line, owners, &self.watcher);
        let asked = self.asked.entry(line.address).or_default();
        if samples.is_empty() || *asked == MOST_ASKED {
            return;
        }
        *asked += 1;
        if found.places.is_empty() {
            found.places = owners.places(&found.judged);
        }
        let registers: Vec<Registers> = samples.into_iter().map(|(_, registers)| registers).collect();
        for place in found.places.iter_mut().filter(|place| place.object.is_none()) {
            let used = met_on(&found.judged).into_iter().map(|bytes| bytes.start).find(|at| place.has(*at));
            place.object = owners.typed(used.unwrap_or(place.address.max(found.judged.line.address)), &registers);
            narrow(place);
        }
        found.places.dedup_by_key(|place| (place.address, place.bytes, place.name.clone()));
    }

    fn finish(self, duration: Duration) -> Looked {
        let seen = self.watcher.seen();
        let sampling = Sampling {
            means: self.watcher.means(),
            hertz: f64::from(self.watcher.hertz()),
            samples: seen.samples,
            lost: seen.lost,
            accesses: seen.accesses,
            apart: self.apart.iter().filter(|line| !self.lines.contains_key(line)).count() as u64,
        };
        let mut lines: Vec<LineReport> = self.lines.into_values().collect();
        let judged: Vec<Judged> = lines.iter().map(|found| found.judged.clone()).collect();
        let refused = rules::plan(&judged, rules::MOST_VIEWS, |_| false).refused;
        for found in &mut lines {
            // Of all the time, that after its threads had ended too.
            found.cost = self.watcher.cost_at_most(found.judged.line.address).unwrap_or(found.cost);
            found.contended = self.watcher.contended(found.judged.line.address);
            found.redesign = redesign(found, &judged);
            let why = refused.iter().find(|refused| refused.line == found.judged.line.address);
            found.refused = why.map(|refused| refused.why.words());
        }
        lines.sort_by(|one, other| other.cost.share.likely.total_cmp(&one.cost.share.likely));
        let (findings, others) = lines.into_iter().partition(|found| found.judged.verdict.is_finding());
        let threads = self.threads.into_values().collect();
        let unseen = unseen(&seen);
        Looked { sampling, duration_s: duration.as_secs_f64(), threads, findings, others, unseen }
    }
}

/// What could not be seen.
fn unseen(seen: &Seen) -> Vec<String> {
    let mut unseen = Vec::new();
    if seen.samples == 0 && seen.unusable > 0 {
        unseen.push(format!("the whole run: all {} samples are of 32-bit code, which is not decoded", seen.unusable));
    } else if seen.samples == 0 {
        unseen.push(
            "the whole run: no sample was taken, because the program slept all the time or ended too soon. Programs that it starts are \
             not sampled: start one of them instead, or use --pid"
                .to_owned(),
        );
    }
    if seen.throttled > 0 {
        let often = seen.throttled;
        unseen.push(format!("some of the time: the kernel held samples back {often} times: take fewer (--hertz)"));
    }
    if seen.execs > 0 {
        unseen.push("what ran before another program took its place (exec), but for what was found by then".to_owned());
    }
    if seen.lost > 0 {
        unseen.push(format!("{} samples found no room in the kernel's buffers: take fewer (--hertz)", seen.lost));
    }
    if seen.walked < seen.samples / 2 {
        unseen.push(format!("only {} of {} samples were looked at, to stay cheap", seen.walked, seen.samples));
    }
    if seen.blind > seen.walked / 2 {
        unseen.push(format!(
            "{} of {} samples showed no access with a known address: thread-local memory, or code that was not understood",
            seen.blind, seen.walked
        ));
    }
    unseen
}

/// Lets a place be the object that was found in it, where the object is all of it, or where it is a mapping of which nothing else is known.
fn narrow(place: &mut MemoryOwner) {
    let Some(object) = &place.object else { return };
    let bytes = object.stride.saturating_mul(object.elements);
    let has = |at: u64| at.checked_sub(object.address).is_some_and(|offset| offset < bytes);
    if has(place.address) && has((place.address + place.bytes).saturating_sub(1)) {
        (place.address, place.bytes) = (object.address, bytes);
    } else if place.kind == MemoryKind::Mapping {
        place.name = format!("{} in a {}", object.name, place.name);
        (place.address, place.bytes) = (object.address, bytes);
    }
}

/// The layout in which nothing of the line's object fights, seen over all of its lines. Where all threads meet on one member, no layout parts them.
fn redesign(found: &LineReport, judged: &[Judged]) -> Option<fieldstone_sharing::Redesign> {
    let objects = found.places.iter().filter_map(|place| place.object.as_ref());
    let mut redesigns: Vec<_> = objects.filter_map(|object| object.redesign(judged).ok().flatten()).collect();
    let parts = redesigns.iter().position(fieldstone_sharing::Redesign::parts_all);
    if redesigns.is_empty() { None } else { Some(redesigns.swap_remove(parts.unwrap_or(0))) }
}
