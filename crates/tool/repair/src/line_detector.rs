//! Detects falsely shared lines: samples a program, adds up the accesses of each thread to each
//! cache line, and judges the lines.
//!
//! ```text
//!   Sampler ─→ SampleBudget, Concurrency ─→ SampledCode ─→ accesses ─→ Lines ─→ judged lines
//!          └─→ HardwareSamples ───────────────┘     └────→ loop counters ─→ Progress
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `pause` | when sampling pauses |
//! | `tracked_lines` | which lines are remembered, and a bound of their cost |
//! | `stats` | the counts of samples |

mod pause;
mod stats;
mod tracked_lines;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use fieldstone_remap::Process;
use fieldstone_remap::space::mappings;
use fieldstone_rewrite::LoopCounter;
use fieldstone_sharing::rules::PAGE_BYTES;
use fieldstone_sharing::{
    CounterValue, JudgedLine, LineCost, LineTable, LineUse, LoopProgress, SampledAccess, Settings, Verdict,
};
use fieldstone_sys::process::ProcessMemory;
use fieldstone_sys::sampling::{Sample, Sampler};

use crate::budget::SampleBudget;
use crate::concurrency::Concurrency;
use crate::error::Result;
use crate::hardware_samples::HardwareSamples;
use crate::sampled_code::{SampledCode, with_memory};
use fieldstone_launch::clock::{now_ns, thread_cpu_ns};

pub use self::stats::SamplingStats;
use self::tracked_lines::TrackedLine;

/// Samples a process and accumulates its accesses per line.
#[derive(Debug)]
pub(crate) struct LineDetector {
    pid: u32,
    sampler: Sampler,
    /// Number of threads at the last call of [`Self::has_new_threads`].
    threads: u64,
    /// The threads at the start of a pause; `None` while samples are taken.
    threads_at_pause: Option<BTreeSet<u32>>,
    memory: ProcessMemory,
    /// An address that is mapped during the whole life of the program, and not mapped in another
    /// program.
    anchor: Option<u64>,
    code: SampledCode,
    hardware: HardwareSamples,
    lines: LineTable,
    /// Decides which samples are skipped as single-threaded; `None` if all are analysed.
    concurrency: Option<Concurrency>,
    budget: SampleBudget,
    stats: SamplingStats,
    samples: Vec<Sample>,
    /// Time of the last analysis.
    analysed_ns: u64,
    /// Threads that have ended. Their accesses are removed after their lines have been judged.
    ended: Vec<u32>,
    /// Lines with accesses since the last judgement.
    accessed: BTreeSet<u64>,
    tracked: HashMap<u64, TrackedLine>,
    /// Whether an instruction reads and writes tracked lines.
    kinds: HashMap<u64, (bool, bool)>,
    /// Progress of the threads; `None` if it is not measured.
    progress: Option<LoopProgress>,
}

impl LineDetector {
    /// Starts to sample process `pid`, `hertz` times per second of thread time. The analysis takes
    /// about `share` of one processor.
    ///
    /// # Errors
    /// Where this user may not sample the process, with the remedy.
    pub(crate) fn open(pid: u32, hertz: u32, settings: Settings, share: f64) -> Result<Self> {
        let (sampler, memory) = (Sampler::open(pid, hertz)?, ProcessMemory::open(pid)?);
        Ok(Self {
            pid,
            memory,
            anchor: anchor(pid),
            sampler,
            threads: 0,
            threads_at_pause: None,
            code: SampledCode::default(),
            hardware: HardwareSamples::default(),
            lines: LineTable::new(settings)?,
            concurrency: None,
            budget: SampleBudget::new(share, settings.window_ns),
            stats: SamplingStats::default(),
            samples: Vec::new(),
            analysed_ns: now_ns(),
            ended: Vec::new(),
            accessed: BTreeSet::new(),
            tracked: HashMap::new(),
            kinds: HashMap::new(),
            progress: None,
        })
    }

    /// Skips samples of a thread that runs alone.
    #[must_use]
    pub(crate) fn concurrent_only(self) -> Self {
        let concurrency = Concurrency::new(self.hertz(), self.lines.settings().window_ns);
        Self { concurrency: Some(concurrency), ..self }
    }

    /// Measures the progress of the threads.
    #[must_use]
    pub(crate) fn with_progress(self) -> Self {
        Self { progress: Some(LoopProgress::default()), ..self }
    }

    /// Progress of the threads. `None` without [`Self::with_progress`].
    #[must_use]
    pub(crate) const fn progress(&self) -> Option<&LoopProgress> {
        self.progress.as_ref()
    }

    /// Analyses the samples since the last call. Threads that had ended at the last call are
    /// removed. `process` is the sampled process while pages are moved: accesses are counted at the
    /// addresses that the program uses.
    ///
    /// # Errors
    /// Where sampling fails although the program runs.
    pub(crate) fn analyse(&mut self, process: Option<&Process>) -> Result<SamplingStats> {
        for thread in std::mem::take(&mut self.ended) {
            self.lines.forget(thread);
            self.progress.iter_mut().for_each(|progress| progress.forget(thread));
        }
        let mut samples = std::mem::take(&mut self.samples);
        samples.clear();
        let drained = self.sampler.drain(&mut samples)?;
        self.stats.samples += samples.len() as u64;
        self.stats.lost += drained.lost;
        self.stats.unusable += drained.unusable;
        self.stats.throttled += drained.throttled;
        self.stats.ended |= drained.ended;
        // An execve(2) of a traced process is reported by ptrace. A process that ends has no memory
        // and no anchor.
        if process.is_none()
            && !self.stats.ended
            && self.is_another_program()
            && let Some(anchor) = anchor(self.pid)
        {
            self.restart(anchor)?;
            samples.clear();
            self.sampler.drain_hardware_samples(&mut Vec::new());
        }
        self.record_hardware_samples(process);
        let began = thread_cpu_ns();
        for sample in &samples {
            self.progress.iter_mut().for_each(|progress| progress.count_sample(sample.tid));
            let is_alone =
                self.concurrency.as_mut().is_some_and(|concurrency| !concurrency.record(sample.tid, sample.time_ns));
            if !self.budget.accepts(sample.tid, sample.time_ns) {
                continue;
            }
            if is_alone {
                self.stats.single_threaded += 1;
                self.lines.record_elsewhere(1.0, sample.time_ns);
            } else {
                self.count(sample, process);
            }
        }
        let now = now_ns();
        self.budget.charge(thread_cpu_ns() - began, now - self.analysed_ns);
        self.analysed_ns = now;
        self.samples = samples;
        self.ended = drained.exited;
        Ok(self.stats)
    }

    fn record_hardware_samples(&mut self, process: Option<&Process>) {
        let mut samples = Vec::new();
        self.sampler.drain_hardware_samples(&mut samples);
        self.stats.hardware_records += samples.len() as u64;
        for sample in samples {
            let original = |address| process.map_or(address, |process| process.seen_at(address));
            self.hardware.record(&sample, |address| line_of(&self.lines, original(address)));
            sample.jumps.iter().for_each(|&(from, to)| self.code.record_jump(from, to));
        }
    }

    /// Whether the process runs another program than at the last analysis.
    #[must_use]
    pub(crate) fn is_another_program(&self) -> bool {
        let is_unmapped = |at: u64| self.memory.read(at, &mut [0]) == 0;
        self.anchor.is_some_and(is_unmapped)
    }

    /// Removes all data of the program that ran before.
    fn restart(&mut self, anchor: u64) -> Result<()> {
        self.memory = ProcessMemory::open(self.pid)?;
        self.anchor = Some(anchor);
        self.lines = LineTable::new(*self.lines.settings())?;
        self.progress = self.progress.take().map(|_| LoopProgress::default());
        self.code.clear();
        self.hardware = HardwareSamples::default();
        self.accessed.clear();
        self.tracked.clear();
        self.kinds.clear();
        self.ended.clear();
        self.stats.execs += 1;
        Ok(())
    }

    /// Counts the accesses of a sample's lap. The weight of the sample, 1, is divided equally among
    /// them.
    fn count(&mut self, sample: &Sample, process: Option<&Process>) {
        self.stats.analysed += 1;
        let original = |address| process.map_or(address, |process| process.seen_at(address));
        let (accesses, counters) = with_memory(process, &self.memory, |memory| {
            let recorded_address = |ip| self.hardware.address(sample.tid, ip, sample.time_ns);
            let accesses = self.code.accesses(memory, &sample.registers, &recorded_address);
            let needs_counters = self.progress.is_some() && !accesses.is_empty();
            let counters = needs_counters.then(|| self.code.counters(memory, &sample.registers));
            (accesses, counters.unwrap_or_default())
        });
        if accesses.is_empty() {
            self.stats.without_access += 1;
            self.lines.record_elsewhere(1.0, sample.time_ns);
            return;
        }
        let weight = 1.0 / accesses.len() as f64;
        let mut lines: Vec<u64> = accesses.iter().map(|access| self.line_of(original(access.address))).collect();
        lines.sort_unstable();
        lines.dedup();
        self.record_progress(sample, process, &counters, &lines);
        self.record_laps(sample, &lines);
        self.accessed.extend(lines);
        for access in accesses {
            let address = original(access.address);
            if self.tracked.contains_key(&self.line_of(address)) {
                let (reads, writes) = self.kinds.entry(access.ip).or_default();
                *reads |= access.read;
                *writes |= access.write;
            }
            self.stats.accesses += 1;
            self.lines.record(&SampledAccess {
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

    /// Records the values of the loop counters of a sample whose lap accesses these lines.
    fn record_progress(
        &mut self,
        sample: &Sample,
        process: Option<&Process>,
        counters: &[(LoopCounter, u64)],
        lines: &[u64],
    ) {
        let Some(progress) = &mut self.progress else { return };
        for &(counter, value) in counters {
            let original_ip = process.map_or(counter.ip, |process| process.original(counter.ip));
            let mark = CounterValue {
                thread: sample.tid,
                counter: original_ip,
                value,
                step: counter.step,
                bytes: counter.bytes,
                is_late: counter.is_in_memory(),
                at_ns: sample.time_ns,
            };
            progress.record(&mark, lines);
        }
    }

    /// Judges the lines with new accesses by several threads, the `most` heaviest ones, and all
    /// other lines of the pages of findings. Each has an upper bound of its cost; `None` if there
    /// are too few samples. Lines that are not private are tracked from now on.
    #[must_use]
    pub(crate) fn judge_lines(&mut self, most: usize) -> Vec<(JudgedLine, Option<LineCost>)> {
        let now = now_ns();
        let all = self.lines.total(now);
        let accessed = std::mem::take(&mut self.accessed).into_iter();
        let shared = accessed.filter(|&line| self.lines.threads_at(line) > 1);
        let mut shared: Vec<LineUse> = shared.filter_map(|line| self.lines.line(line, now)).collect();
        shared.sort_by(|one, other| other.weight.total_cmp(&one.weight));
        shared.truncate(most);
        let mut judged: Vec<JudgedLine> = shared.into_iter().map(JudgedLine::new).collect();
        judged.extend(self.neighbours_of_findings(&judged, now));
        for judged in judged.iter().filter(|judged| !matches!(judged.verdict, Verdict::Private)) {
            self.track(judged.line.address);
        }
        let cost = |judged: &JudgedLine| self.max_cost(judged.line.address).or_else(|| LineCost::of(&judged.line, all));
        judged.into_iter().map(|judged| (cost(&judged), judged)).map(|(cost, judged)| (judged, cost)).collect()
    }

    /// The other lines of the findings' pages, and the last line before each page: a plan is made
    /// for a whole page.
    fn neighbours_of_findings(&self, judged: &[JudgedLine], now: u64) -> Vec<JudgedLine> {
        let known: BTreeSet<u64> = judged.iter().map(|judged| judged.line.address).collect();
        let findings = judged.iter().filter(|judged| judged.verdict.is_finding());
        let pages: BTreeSet<u64> = findings.map(|judged| judged.line.address / PAGE_BYTES).collect();
        let unit = self.lines.settings().unit_bytes();
        let first = |page: u64| (page * PAGE_BYTES).saturating_sub(unit.into());
        let lines = |page: u64| (first(page)..(page + 1) * PAGE_BYTES).step_by(unit as usize);
        let others: BTreeSet<u64> = pages.into_iter().flat_map(lines).filter(|line| !known.contains(line)).collect();
        others.into_iter().filter_map(|line| self.lines.line(line, now)).map(JudgedLine::new).collect()
    }

    fn line_of(&self, address: u64) -> u64 {
        line_of(&self.lines, address)
    }

    /// Whether the instruction at `ip` reads and writes a tracked line.
    #[must_use]
    pub(crate) fn reads_and_writes(&self, ip: u64) -> (bool, bool) {
        self.kinds.get(&ip).copied().unwrap_or_default()
    }

    /// Waits for `timeout` or until the program ends; returns whether it has ended.
    ///
    /// # Errors
    /// The errno of poll(2).
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<bool> {
        self.stats.ended |= self.sampler.wait(timeout)?;
        Ok(self.stats.ended)
    }

    /// Removes decoded code. To be called when code of the program was changed.
    pub(crate) fn clear_code(&mut self) {
        self.code.clear();
    }

    /// Counts since the detector was opened.
    #[must_use]
    pub(crate) const fn stats(&self) -> SamplingStats {
        self.stats
    }

    /// Samples per second of thread time.
    #[must_use]
    pub(crate) const fn hertz(&self) -> u32 {
        self.sampler.hertz()
    }

    /// The clock and the hardware events that give samples, such as `perf's software clock, IBS`.
    #[must_use]
    pub(crate) fn means(&self) -> String {
        let events = self.sampler.hardware_sources();
        let events: Vec<String> = events.iter().map(|event| format!(", {event}")).collect();
        format!("{}{}", self.sampler.method(), events.concat())
    }

    /// Number of sampled loads that found the line modified in the cache of another processor; 0
    /// without hardware samples.
    #[must_use]
    pub(crate) fn contended(&self, line: u64) -> u64 {
        self.hardware.contended(line)
    }
}

/// The address of the line, or of the pair of lines, that contains `address`.
fn line_of(lines: &LineTable, address: u64) -> u64 {
    address - address % u64::from(lines.settings().unit_bytes())
}

/// The address of the vDSO, which a program keeps until it ends, or else of any readable memory.
fn anchor(pid: u32) -> Option<u64> {
    let table = mappings(pid).ok()?;
    let readable = || table.iter().filter(|mapping| mapping.permissions.read);
    let found = readable().find(|mapping| mapping.name == "[vdso]").or_else(|| readable().next());
    found.map(|mapping| mapping.start)
}
