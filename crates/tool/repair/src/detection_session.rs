//! `fieldstone sharing`: samples a program until it ends or a time limit is over, and decides which
//! judged lines are reported, with the objects on them.
//!
//! The accesses of a thread are removed when it ends. So each line is judged at every analysis.
//! While a line is a finding its last state is kept, with the objects that were there at that time.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitStatus;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::spawn;
use std::time::{Duration, Instant};

use fieldstone_remap::repaired_by;
use fieldstone_report::sharing::{LineReport, MemoryKind, MemoryOwner, SampledThread, Sampling};
use fieldstone_rewrite::Registers;
use fieldstone_sharing::{JudgedLine, Settings, Verdict, redesigns, rules};
use fieldstone_sys::process::{comm, has_ended};
use fieldstone_sys::scheduling;

use crate::error::Result;
use crate::instruction_names::InstructionNames;
use crate::line_detector::{LineDetector, SamplingStats};
use crate::memory_objects::{MemoryObjects, contended_ranges};
use crate::repair_session::StopFlag;
use crate::tuning::{
    DETECT_CPU_SHARE, DETECT_HERTZ, DETECT_INTERVAL, DETECT_MAX_LINES, DETECT_MIN_SHARE, DETECT_MIN_WEIGHT,
    MAX_OBJECT_LOOKUPS, MEMORY_RELEASE_TO_END,
};
use fieldstone_launch::launch::Treatment;
use fieldstone_launch::program::Program;
use fieldstone_launch::signals::SignalForwarder;

/// How a program is sampled.
#[derive(Clone, Copy, Debug)]
pub struct DetectOptions {
    /// Samples per second of thread time.
    pub hertz: u32,
    /// How accesses are counted per line.
    pub settings: Settings,
    /// Time limit; `None` until the program ends.
    pub duration: Option<Duration>,
}

impl Default for DetectOptions {
    /// 1000 samples per second, which do not fade, until the program ends.
    fn default() -> Self {
        Self { hertz: DETECT_HERTZ, settings: Settings { half_life_ns: None, ..Settings::default() }, duration: None }
    }
}

/// The result of a detection.
#[derive(Clone, Debug, Default)]
pub struct Detection {
    /// How the program was sampled.
    pub sampling: Sampling,
    /// Duration of sampling, in seconds.
    pub duration_s: f64,
    /// Threads with accesses to the reported lines.
    pub threads: Vec<SampledThread>,
    /// Lines that are shared falsely, the costliest first.
    pub findings: Vec<LineReport>,
    /// Other lines that several threads use, the costliest first.
    pub others: Vec<LineReport>,
    /// Limits of this run: what was not sampled or not analysed, one text each.
    pub unseen: Vec<String>,
}

/// Samples process `pid` until it ends, the time limit is over or `stop` is set.
///
/// # Errors
/// Where this user may not sample the process, with the remedy.
pub fn detect(pid: u32, options: &DetectOptions, stop: &StopFlag) -> Result<Detection> {
    let detector = LineDetector::open(pid, options.hertz, options.settings, DETECT_CPU_SHARE)?;
    let repairer = repaired_by(pid);
    let mut detection = detect_with(detector, options, &mut MemoryObjects::new(pid), stop)?;
    let separated = |by| {
        format!(
            "lines that process {by} has already separated: this one is under repair. End the repair first (Ctrl-C)"
        )
    };
    detection.unseen.extend(repairer.map(separated));
    Ok(detection)
}

/// Runs `program` in the foreground until it ends. Samples it until its end, the time limit, or a
/// signal that ends the program.
///
/// # Errors
/// Where the program cannot be started. Where it cannot be sampled, it is killed.
pub fn detect_in_program(program: &Program, options: &DetectOptions) -> Result<(ExitStatus, Detection)> {
    let stop = StopFlag::default();
    let mut forward = SignalForwarder::prepare()?.with_ending_flag(&stop);
    let mut running = forward.launch(program, &Treatment::Traceable)?;
    let pid = running.child.id();
    let options = *options;
    let sampling = match LineDetector::open(pid, options.hertz, options.settings, DETECT_CPU_SHARE) {
        Ok(detector) => spawn(move || detect_with(detector, &options, &mut MemoryObjects::new(pid), &stop)),
        // The program ended before it could be sampled.
        Err(_) if ends_soon(pid) => {
            let detection = Detection { unseen: limits(&SamplingStats::default()), ..Detection::default() };
            return Ok((forward.wait_for_exit(pid)?, detection));
        }
        Err(error) => {
            let _ = running.child.kill();
            let _ = running.child.wait();
            return Err(error);
        }
    };
    let status = forward.wait_for_exit(pid)?;
    match sampling.join() {
        Ok(detection) => Ok((status, detection?)),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Whether a process that cannot be sampled has ended, or ends within [`MEMORY_RELEASE_TO_END`].
fn ends_soon(pid: u32) -> bool {
    let began = Instant::now();
    while !has_ended(pid) && began.elapsed() < MEMORY_RELEASE_TO_END {
        scheduling::sleep_briefly();
    }
    has_ended(pid)
}

fn detect_with(
    detector: LineDetector,
    options: &DetectOptions,
    objects: &mut MemoryObjects,
    stop: &StopFlag,
) -> Result<Detection> {
    let began = Instant::now();
    let mut session = DetectionSession {
        detector,
        names: InstructionNames::default(),
        lines: BTreeMap::new(),
        threads: BTreeMap::new(),
        lookups: BTreeMap::new(),
        not_concurrent: BTreeSet::new(),
    };
    let is_over = || options.duration.is_some_and(|limit| began.elapsed() >= limit) || stop.load(Relaxed);
    let mut ended = false;
    while !ended && !is_over() {
        let execs = session.detector.stats().execs;
        ended = session.detector.wait(DETECT_INTERVAL)?;
        ended |= session.detector.analyse(None)?.ended;
        if session.detector.stats().execs > execs {
            *objects = MemoryObjects::new(objects.pid());
            session.names = InstructionNames::default();
        }
        session.judge(objects, ended);
    }
    Ok(session.finish(began.elapsed()))
}

/// Collects the lines for the report.
struct DetectionSession {
    detector: LineDetector,
    names: InstructionNames,
    lines: BTreeMap<u64, LineReport>,
    threads: BTreeMap<u32, SampledThread>,
    /// Number of lookups of the objects on a line.
    lookups: BTreeMap<u64, u32>,
    /// Lines that several threads use, but not at the same time.
    not_concurrent: BTreeSet<u64>,
}

impl DetectionSession {
    /// Judges lines with new accesses and updates those for the report. `ended`: the process has no
    /// memory any more.
    fn judge(&mut self, objects: &mut MemoryObjects, ended: bool) {
        for (judged, cost) in self.detector.judge_lines(DETECT_MAX_LINES) {
            let Some(cost) = cost.filter(|cost| cost.share.likely >= DETECT_MIN_SHARE) else { continue };
            let line = judged.line.address;
            if matches!(judged.verdict, Verdict::Private | Verdict::Undecided) {
                let several = judged.line.threads.len() > 1;
                self.not_concurrent.extend(several.then_some(line));
                continue;
            }
            if judged.line.weight < DETECT_MIN_WEIGHT {
                continue;
            }
            let known = self.lines.get(&line);
            // A finding stays one: the new verdict may lack the accesses of a thread that has
            // ended.
            if known.is_some_and(|known| known.judged.verdict.is_finding() && !judged.verdict.is_finding()) {
                continue;
            }
            let mut found = known.cloned().unwrap_or_else(|| LineReport {
                judged: judged.clone(),
                cost,
                places: Vec::new(),
                code: Vec::new(),
                redesign: None,
                other_redesigns: Vec::new(),
                refused: None,
                contended: 0,
            });
            (found.judged, found.cost) = (judged, cost);
            if !ended {
                self.look_up(&mut found, objects);
            }
            self.lines.insert(line, found);
        }
    }

    /// Looks up the threads, instructions and objects of a line while the process has memory.
    fn look_up(&mut self, found: &mut LineReport, objects: &mut MemoryObjects) {
        let line = &found.judged.line;
        for thread in &line.threads {
            self.threads.entry(thread.thread).or_insert_with(|| SampledThread {
                tid: thread.thread,
                name: comm(thread.thread).unwrap_or_default(),
                start: None,
            });
        }
        let samples: Vec<(u32, Registers)> = self.detector.samples_of(line.address).copied().collect();
        samples.iter().for_each(|(thread, registers)| objects.record_registers(*thread, registers));
        objects.refresh();
        found.code = self.names.heaviest_on(line, objects, &self.detector);
        let lookups = self.lookups.entry(line.address).or_default();
        if samples.is_empty() || *lookups == MAX_OBJECT_LOOKUPS {
            return;
        }
        *lookups += 1;
        if found.places.is_empty() {
            found.places = objects.places(&found.judged);
        }
        let registers: Vec<Registers> = samples.into_iter().map(|(_, registers)| registers).collect();
        for place in found.places.iter_mut().filter(|place| place.object.is_none()) {
            let mut used = contended_ranges(&found.judged).into_iter().map(|bytes| bytes.start);
            let used = used.find(|at| place.has(*at)).unwrap_or(place.address.max(found.judged.line.address));
            place.object = objects.typed(used, &registers);
            narrow(place);
        }
        found.places.dedup_by_key(|place| (place.address, place.bytes, place.name.clone()));
    }

    /// The detection after `duration` of sampling, with final costs and advice.
    fn finish(self, duration: Duration) -> Detection {
        let stats = self.detector.stats();
        let sampling = Sampling {
            means: self.detector.means(),
            hertz: f64::from(self.detector.hertz()),
            samples: stats.samples,
            lost: stats.lost,
            accesses: stats.accesses,
            apart: self.not_concurrent.iter().filter(|line| !self.lines.contains_key(line)).count() as u64,
        };
        let mut lines: Vec<LineReport> = self.lines.into_values().collect();
        let judged: Vec<JudgedLine> = lines.iter().map(|found| found.judged.clone()).collect();
        let refused = rules::plan(&judged, rules::MOST_VIEWS, |_| false).refused;
        for found in &mut lines {
            // The share of the whole run, including the time after the line's threads had ended.
            found.cost = self.detector.max_cost(found.judged.line.address).unwrap_or(found.cost);
            found.contended = self.detector.contended(found.judged.line.address);
            let objects = found.places.iter().filter_map(|place| place.object.as_ref());
            let mut redesigns = redesigns(objects, &found.judged.line, &judged).into_iter();
            (found.redesign, found.other_redesigns) = (redesigns.next(), redesigns.collect());
            let why = refused.iter().find(|refused| refused.line == found.judged.line.address);
            found.refused = why.map(|refused| refused.why.words());
        }
        lines.sort_by(|one, other| other.cost.share.likely.total_cmp(&one.cost.share.likely));
        let (findings, others) = lines.into_iter().partition(|found| found.judged.verdict.is_finding());
        let threads = self.threads.into_values().collect();
        let unseen = limits(&stats);
        Detection { sampling, duration_s: duration.as_secs_f64(), threads, findings, others, unseen }
    }
}

/// The limits of a run with these counts, one text each.
fn limits(stats: &SamplingStats) -> Vec<String> {
    let mut limits = Vec::new();
    if stats.samples == 0 && stats.unusable > 0 {
        limits.push(format!("the whole run: all {} samples are of 32-bit code, which is not decoded", stats.unusable));
    } else if stats.samples == 0 {
        limits.push(
            "the whole run: no sample was taken, because the program slept all the time or ended too soon. Programs that it starts are \
             not sampled: start one of them instead, or use --pid"
                .to_owned(),
        );
    }
    if stats.throttled > 0 {
        let times = stats.throttled;
        limits.push(format!(
            "some of the time: the kernel limited the rate of samples {times} times: lower it (--hertz)"
        ));
    }
    if stats.execs > 0 {
        limits.push("the program that ran before an exec, except for what was found until then".to_owned());
    }
    if stats.lost > 0 {
        limits.push(format!(
            "{} samples were lost, because the kernel's buffers were full: lower the rate (--hertz)",
            stats.lost
        ));
    }
    if stats.analysed < stats.samples / 2 {
        limits.push(format!("only {} of {} samples were analysed, to limit overhead", stats.analysed, stats.samples));
    }
    if stats.without_access > stats.analysed / 2 {
        limits.push(format!(
            "{} of {} samples showed no access with a known address: thread-local memory, or code that cannot be decoded",
            stats.without_access, stats.analysed
        ));
    }
    limits
}

/// Narrows a place to the object in it, if the object covers the place, or if the place is a
/// mapping without another name.
fn narrow(place: &mut MemoryOwner) {
    let Some(object) = &place.object else { return };
    let bytes = object.stride.saturating_mul(object.elements);
    let contains = |at: u64| at.checked_sub(object.address).is_some_and(|offset| offset < bytes);
    if contains(place.address) && contains((place.address + place.bytes).saturating_sub(1)) {
        (place.address, place.bytes) = (object.address, bytes);
    } else if place.kind == MemoryKind::Mapping {
        place.name = format!("{} in a {}", object.name, place.name);
        (place.address, place.bytes) = (object.address, bytes);
    }
}
