//! Samples of a running program, added up to what its threads do in which cache lines.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::metadata;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use fieldstone_remap::space::mappings;
use fieldstone_remap::{Memory, Process};
use fieldstone_rewrite::{Counter, Registers};
use fieldstone_sharing::rules::PAGE_BYTES;
use fieldstone_sharing::{Access, Cost, Judged, Line, Lines, Mark, Progress, Settings, Verdict};
use fieldstone_sys::process::threads;
use fieldstone_sys::sampling::{Sample, Sampler};
use serde::{Deserialize, Serialize};

use super::around::{Around, of_sample, with_memory};
use super::budget::Budget;
use super::company::Company;
use super::heard::Heard;
use crate::error::Result;
use fieldstone_launch::clock::{now_ns, thread_cpu_ns};

/// Samples that tell what a line costs.
const ENOUGH: u64 = 20;
/// Samples that are kept of a watched line.
const MOST_KEPT: usize = 8;

/// What was seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seen {
    /// Samples that were taken.
    pub samples: u64,
    /// Those that were walked.
    pub walked: u64,
    /// Those that were not, since their threads ran alone.
    pub alone: u64,
    /// Those of the walked that showed no access.
    pub blind: u64,
    /// Accesses that the others showed.
    pub accesses: u64,
    /// Samples that found no room in the kernel's buffers.
    pub lost: u64,
    /// Accesses and jumps that the processors told beside, where they do.
    pub told: u64,
    /// Samples that were no 64-bit code's.
    pub unusable: u64,
    /// Times that the kernel held samples back, since they came too fast.
    pub throttled: u64,
    /// Times that no samples were taken for a while, since nothing happened.
    pub pauses: u64,
    /// Programs that took the place of the first one, by exec.
    pub execs: u64,
    /// Whether the program has ended.
    pub ended: bool,
}

/// What is kept of a line once it is worth it.
#[derive(Debug)]
struct Watched {
    /// The last samples whose laps came by it, with their threads.
    last: VecDeque<(u32, Registers)>,
    /// Samples whose laps came by it, and all that were looked at, since it is watched.
    laps: u64,
    all: u64,
}

/// Looks on while a program runs.
#[derive(Debug)]
pub struct Watcher {
    pid: u32,
    sampler: Sampler,
    /// How many threads the process had when that was asked last; and which, when a pause began.
    threads: u64,
    known: Option<BTreeSet<u32>>,
    memory: Memory,
    /// Where the program has memory as long as it lives: another one has other memory.
    anchor: Option<u64>,
    around: Around,
    heard: Heard,
    lines: Lines,
    /// Whose samples are not looked at, where that is asked for.
    company: Option<Company>,
    budget: Budget,
    seen: Seen,
    samples: Vec<Sample>,
    looked_ns: u64,
    /// Threads that have ended, and are forgotten when their lines have been judged.
    ended: Vec<u32>,
    /// Lines that were seen since they were judged.
    touched: BTreeSet<u64>,
    /// Lines that are watched.
    watched: HashMap<u64, Watched>,
    /// Whether the instructions that touch them read and write.
    kinds: HashMap<u64, (bool, bool)>,
    /// How fast the threads get on, where that is asked for.
    progress: Option<Progress>,
}

impl Watcher {
    /// Samples process `pid` from now on, `hertz` times a second that a thread runs. Looking at the samples takes no more than about
    /// `share` of a processor.
    ///
    /// # Errors
    /// Where this user may not, with the way out.
    pub fn open(pid: u32, hertz: u32, settings: Settings, share: f64) -> Result<Self> {
        let (sampler, memory) = (Sampler::open(pid, hertz)?, Memory::open(pid)?);
        Ok(Self {
            pid,
            memory,
            anchor: anchor(pid),
            sampler,
            threads: 0,
            known: None,
            around: Around::default(),
            heard: Heard::default(),
            lines: Lines::new(settings)?,
            company: None,
            budget: Budget::of(share, settings.window_ns),
            seen: Seen::default(),
            samples: Vec::new(),
            looked_ns: now_ns(),
            ended: Vec::new(),
            touched: BTreeSet::new(),
            watched: HashMap::new(),
            kinds: HashMap::new(),
            progress: None,
        })
    }

    /// Leaves out what a thread does while it runs alone.
    #[must_use]
    pub fn without_loners(self) -> Self {
        let company = Company::of(self.hertz(), self.lines.settings().window_ns);
        Self { company: Some(company), ..self }
    }

    /// Looks how fast the threads get on, too.
    #[must_use]
    pub fn with_progress(self) -> Self {
        Self { progress: Some(Progress::default()), ..self }
    }

    /// How fast they get on: nothing, where that was not asked for.
    #[must_use]
    pub const fn progress(&self) -> Option<&Progress> {
        self.progress.as_ref()
    }

    /// Takes in the samples since the last look; threads that had ended then are forgotten now. `process` is the one that is watched, where
    /// pages of it are moved: bytes are counted where it thinks that they are.
    ///
    /// # Errors
    /// Where sampling has broken down while the program lives.
    pub fn look(&mut self, process: Option<&Process>) -> Result<Seen> {
        for thread in std::mem::take(&mut self.ended) {
            self.lines.forget(thread);
            self.progress.iter_mut().for_each(|progress| progress.forget(thread));
        }
        let mut samples = std::mem::take(&mut self.samples);
        samples.clear();
        let drained = self.sampler.drain(&mut samples)?;
        self.seen.samples += samples.len() as u64;
        self.seen.lost += drained.lost;
        self.seen.unusable += drained.unusable;
        self.seen.throttled += drained.throttled;
        self.seen.ended |= drained.ended;
        // Who holds it is told of an exec. What ends has no memory either, but no other one.
        if process.is_none()
            && !self.seen.ended
            && self.is_another_program()
            && let Some(anchor) = anchor(self.pid)
        {
            self.begin_anew(anchor)?;
            samples.clear();
            self.sampler.drain_hardware_samples(&mut Vec::new());
        }
        self.hear(process);
        let began = thread_cpu_ns();
        for sample in &samples {
            self.progress.iter_mut().for_each(|progress| progress.pass(sample.tid));
            let is_alone = self.company.as_mut().is_some_and(|company| !company.has(sample.tid, sample.time_ns));
            if !self.budget.takes(sample.tid, sample.time_ns) {
                continue;
            }
            if is_alone {
                self.seen.alone += 1;
                self.lines.record_elsewhere(1.0, sample.time_ns);
            } else {
                self.count(sample, process);
            }
        }
        let now = now_ns();
        self.budget.settle(thread_cpu_ns() - began, now - self.looked_ns);
        self.looked_ns = now;
        self.samples = samples;
        self.ended = drained.exited;
        Ok(self.seen)
    }

    /// Takes in what the processors tell.
    fn hear(&mut self, process: Option<&Process>) {
        let mut told = Vec::new();
        self.sampler.drain_hardware_samples(&mut told);
        self.seen.told += told.len() as u64;
        for told in told {
            let home = |address| process.map_or(address, |process| process.seen_at(address));
            self.heard.hear(&told, |address| line_of(&self.lines, home(address)));
            told.jumps.iter().for_each(|&(from, to)| self.around.saw_jump(from, to));
        }
    }

    /// Whether another program runs in the process than that of the last look.
    #[must_use]
    pub fn is_another_program(&self) -> bool {
        let is_gone = |at: u64| fieldstone_rewrite::Memory::read(&self.memory, at, &mut [0]) == 0;
        self.anchor.is_some_and(is_gone)
    }

    /// Forgets what the program did that ran here before.
    fn begin_anew(&mut self, anchor: u64) -> Result<()> {
        self.memory = Memory::open(self.pid)?;
        self.anchor = Some(anchor);
        self.lines = Lines::new(*self.lines.settings())?;
        self.progress = self.progress.take().map(|_| Progress::default());
        self.around.forget();
        self.heard = Heard::default();
        self.touched.clear();
        self.watched.clear();
        self.kinds.clear();
        self.ended.clear();
        self.seen.execs += 1;
        Ok(())
    }

    /// Each access of a lap stands for as much of the sample.
    fn count(&mut self, sample: &Sample, process: Option<&Process>) {
        self.seen.walked += 1;
        let home = |address| process.map_or(address, |process| process.seen_at(address));
        let (accesses, counters) = with_memory(process, &self.memory, |memory| {
            let told = |ip| self.heard.address(sample.tid, ip, sample.time_ns);
            let accesses = self.around.accesses(memory, &sample.registers, &told);
            let is_asked = self.progress.is_some() && !accesses.is_empty();
            let counters = is_asked.then(|| self.around.counters(memory, &sample.registers));
            (accesses, counters.unwrap_or_default())
        });
        if accesses.is_empty() {
            self.seen.blind += 1;
            self.lines.record_elsewhere(1.0, sample.time_ns);
            return;
        }
        let weight = 1.0 / accesses.len() as f64;
        let mut lines: Vec<u64> = accesses.iter().map(|access| self.line_of(home(access.address))).collect();
        lines.sort_unstable();
        lines.dedup();
        self.note_progress(sample, process, &counters, &lines);
        self.note_laps(sample, &lines);
        self.touched.extend(lines);
        for access in accesses {
            let address = home(access.address);
            if self.watched.contains_key(&self.line_of(address)) {
                let (reads, writes) = self.kinds.entry(access.ip).or_default();
                *reads |= access.read;
                *writes |= access.write;
            }
            self.seen.accesses += 1;
            self.lines.record(&Access {
                address,
                bytes: access.bytes,
                write: access.write,
                atomic: access.is_atomic,
                bitwise: access.is_bitwise,
                thread: sample.tid,
                site: access.ip,
                weight,
                at_ns: sample.time_ns,
                cpu: sample.cpu,
            });
        }
    }

    /// Where the counters of its loops are, which come by these lines.
    fn note_progress(
        &mut self,
        sample: &Sample,
        process: Option<&Process>,
        counters: &[(Counter, u64)],
        lines: &[u64],
    ) {
        let Some(progress) = &mut self.progress else { return };
        for &(counter, value) in counters {
            let own = process.map_or(counter.ip, |process| process.original(counter.ip));
            let mark = Mark {
                thread: sample.tid,
                counter: own,
                value,
                step: counter.step,
                bytes: counter.bytes,
                is_late: counter.is_in_memory(),
                at_ns: sample.time_ns,
            };
            progress.see(&mark, lines);
        }
    }

    /// The heaviest lines that several threads came by, of those that were seen since the last call: judged, with what each costs at most; and all
    /// other lines of the pages of findings. Those that several threads use are watched from now on.
    #[must_use]
    pub fn judged(&mut self, most: usize) -> Vec<(Judged, Option<Cost>)> {
        let now = now_ns();
        let all = self.lines.total(now);
        let touched = std::mem::take(&mut self.touched).into_iter();
        let met = touched.filter(|&line| self.lines.threads_at(line) > 1);
        let mut met: Vec<Line> = met.filter_map(|line| self.lines.line(line, now)).collect();
        met.sort_by(|one, other| other.weight.total_cmp(&one.weight));
        met.truncate(most);
        let mut judged: Vec<Judged> = met.into_iter().map(Judged::new).collect();
        judged.extend(self.beside_findings(&judged, now));
        for judged in judged.iter().filter(|judged| !matches!(judged.verdict, Verdict::Private)) {
            self.watch(judged.line.address);
        }
        let cost = |judged: &Judged| self.cost_at_most(judged.line.address).or_else(|| Cost::of(&judged.line, all));
        judged.into_iter().map(|judged| (cost(&judged), judged)).map(|(cost, judged)| (judged, cost)).collect()
    }

    /// The other lines of findings' pages, and the one before each page: rules are made for whole pages.
    fn beside_findings(&self, judged: &[Judged], now: u64) -> Vec<Judged> {
        let known: BTreeSet<u64> = judged.iter().map(|judged| judged.line.address).collect();
        let findings = judged.iter().filter(|judged| judged.verdict.is_finding());
        let pages: BTreeSet<u64> = findings.map(|judged| judged.line.address / PAGE_BYTES).collect();
        let unit = self.lines.settings().unit_bytes();
        let first = |page: u64| (page * PAGE_BYTES).saturating_sub(unit.into());
        let lines = |page: u64| (first(page)..(page + 1) * PAGE_BYTES).step_by(unit as usize);
        let others: BTreeSet<u64> = pages.into_iter().flat_map(lines).filter(|line| !known.contains(line)).collect();
        others.into_iter().filter_map(|line| self.lines.line(line, now)).map(Judged::new).collect()
    }

    /// Each watched line that a lap comes by, once.
    fn note_laps(&mut self, sample: &Sample, lines: &[u64]) {
        for line in lines {
            if let Some(watched) = self.watched.get_mut(line) {
                watched.laps += 1;
                watched.last.truncate(MOST_KEPT - 1);
                watched.last.push_front((sample.tid, of_sample(&sample.registers)));
            }
        }
    }

    fn line_of(&self, address: u64) -> u64 {
        line_of(&self.lines, address)
    }

    /// From now on, keeps the last samples that showed an access to the line at this address, and counts them.
    fn watch(&mut self, line: u64) {
        let all = self.looked_at();
        self.watched.entry(line).or_insert_with(|| Watched { last: VecDeque::new(), laps: 0, all });
    }

    /// What a watched line costs at most: the share of the time that was spent in code that comes by it. None for a line that is not
    /// watched, and with too few samples.
    #[must_use]
    pub fn cost_at_most(&self, line: u64) -> Option<Cost> {
        let watched = self.watched.get(&line)?;
        let all = self.looked_at() - watched.all;
        Cost::new(watched.laps as f64, all as f64).filter(|_| all >= ENOUGH)
    }

    /// Samples of which it is known what they stand for.
    const fn looked_at(&self) -> u64 {
        self.seen.walked + self.seen.alone
    }

    /// Threads that came by a watched line, with the registers that they had somewhere in the loop around the access.
    pub fn samples_of(&self, line: u64) -> impl Iterator<Item = &(u32, Registers)> {
        self.watched.get(&line).into_iter().flat_map(|watched| &watched.last)
    }

    /// Whether the instruction at `ip` reads and writes a watched line.
    #[must_use]
    pub fn reads_and_writes(&self, ip: u64) -> (bool, bool) {
        self.kinds.get(&ip).copied().unwrap_or_default()
    }

    /// Waits for so long, or until the program ends; whether it has.
    ///
    /// # Errors
    /// As poll(2).
    pub fn wait(&mut self, so_long: Duration) -> Result<bool> {
        self.seen.ended |= self.sampler.wait(so_long)?;
        Ok(self.seen.ended)
    }

    /// Takes no samples until it is to resume; whether it can.
    pub fn pause(&mut self) -> bool {
        if self.known.is_none()
            && let Ok(known) = threads(self.pid)
            && self.sampler.pause().unwrap_or(false)
        {
            self.known = Some(known.into_iter().collect());
            self.seen.pauses += 1;
        }
        self.known.is_some()
    }

    /// Takes samples again; of a process that is about to end there are none.
    ///
    /// # Errors
    /// As [`Watcher::open`].
    pub fn resume(&mut self) -> Result<()> {
        if self.known.is_none() {
            return Ok(());
        }
        match self.sampler.resume() {
            Err(fieldstone_sys::Error::NoSuchProcess { .. }) => {}
            resumed => {
                resumed?;
                self.known = None;
                self.progress.iter_mut().for_each(Progress::rest);
            }
        }
        Ok(())
    }

    /// Whether the process has threads that it had not when that was asked last, or when a pause began; also before one of them was seen.
    pub fn has_new_threads(&mut self) -> bool {
        let before = std::mem::replace(&mut self.threads, how_many_threads(self.pid));
        // As many may be others. There are few where there are pauses.
        let is_new =
            |known: &BTreeSet<u32>| threads(self.pid).is_ok_and(|now| now.iter().any(|tid| !known.contains(tid)));
        before < self.threads || self.known.as_ref().is_some_and(is_new)
    }

    /// Whether the process had one thread when that was asked last.
    #[must_use]
    pub const fn is_alone(&self) -> bool {
        self.threads <= 1
    }

    /// Code of the program was changed.
    pub fn forget_code(&mut self) {
        self.around.forget();
    }

    /// What was seen so far.
    #[must_use]
    pub const fn seen(&self) -> Seen {
        self.seen
    }

    /// Samples a second that a thread runs.
    #[must_use]
    pub const fn hertz(&self) -> u32 {
        self.sampler.hertz()
    }

    /// How it samples: the clock's means, and what the processors tell by.
    #[must_use]
    pub fn means(&self) -> String {
        let told_by = self.sampler.hardware_sources();
        let words: Vec<String> = told_by.iter().map(|by| format!(", {by}")).collect();
        format!("{}{}", self.sampler.method(), words.concat())
    }

    /// Loads of a line that found it modified in another processor's cache, as far as the processors told; none where they tell nothing.
    #[must_use]
    pub fn contended(&self, line: u64) -> u64 {
        self.heard.contended(line)
    }
}

/// The line that an address is on, or the pair of lines where they are counted so.
fn line_of(lines: &Lines, address: u64) -> u64 {
    address - address % u64::from(lines.settings().unit_bytes())
}

/// By the links of their directory, which are two more: told without a list. None where the process is gone.
fn how_many_threads(pid: u32) -> u64 {
    metadata(format!("/proc/{pid}/task")).map_or(0, |list| list.nlink().saturating_sub(2))
}

/// The first page of the kernel's own code in the program, which it keeps, or of any memory that can be read.
fn anchor(pid: u32) -> Option<u64> {
    let table = mappings(pid).ok()?;
    let readable = || table.iter().filter(|mapping| mapping.permissions.starts_with('r'));
    let found = readable().find(|mapping| mapping.name == "[vdso]").or_else(|| readable().next());
    found.map(|mapping| mapping.range.start)
}
