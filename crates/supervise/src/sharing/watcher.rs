//! Samples of a running program, added up to what its threads do in which cache lines.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use fieldstone_remap::{Memory, Process};
use fieldstone_rewrite::Registers;
use fieldstone_sharing::{Access, Cost, Judged, Lines, Settings};
use fieldstone_sys::sampling::{Means, Sample, Sampler};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::around::{Around, of_sample};
use super::budget::Budget;
use crate::error::Result;

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
    /// Those of them that were walked.
    pub walked: u64,
    /// Those of the walked that showed no access.
    pub blind: u64,
    /// Accesses that the others showed.
    pub accesses: u64,
    /// Samples that found no room in the kernel's buffers.
    pub lost: u64,
    /// Whether the program has ended.
    pub ended: bool,
}

/// What is kept of a line once it is worth it.
#[derive(Debug)]
struct Watched {
    /// The last samples whose laps came by it, with their threads.
    last: VecDeque<(u32, Registers)>,
    /// Samples whose laps came by it.
    laps: u64,
}

/// Looks on while a program runs.
#[derive(Debug)]
pub struct Watcher {
    sampler: Sampler,
    memory: Memory,
    around: Around,
    lines: Lines,
    budget: Budget,
    seen: Seen,
    samples: Vec<Sample>,
    looked_ns: u64,
    /// Threads that have ended, and are forgotten when their lines have been judged.
    ended: Vec<u32>,
    /// Lines that are watched.
    watched: HashMap<u64, Watched>,
    /// Whether the instructions that touch them read and write.
    kinds: HashMap<u64, (bool, bool)>,
}

impl Watcher {
    /// Samples process `pid` from now on, `hertz` times a second that a thread runs. Looking at the samples takes no more than about
    /// `share` of a processor.
    ///
    /// # Errors
    /// Where this user may not, with the way out.
    pub fn open(pid: u32, hertz: u32, settings: Settings, share: f64) -> Result<Self> {
        Ok(Self {
            memory: Memory::open(pid)?,
            sampler: Sampler::open(pid, hertz)?,
            around: Around::default(),
            lines: Lines::new(settings)?,
            budget: Budget::of(share),
            seen: Seen::default(),
            samples: Vec::new(),
            looked_ns: now_ns(),
            ended: Vec::new(),
            watched: HashMap::new(),
            kinds: HashMap::new(),
        })
    }

    /// Takes in the samples since the last look; threads that had ended then are forgotten now. `process` is the one that is watched, where
    /// pages of it are moved: bytes are counted where it thinks that they are.
    ///
    /// # Errors
    /// Where sampling has broken down while the program lives.
    pub fn look(&mut self, process: Option<&Process>) -> Result<Seen> {
        std::mem::take(&mut self.ended).into_iter().for_each(|thread| self.lines.forget(thread));
        let mut samples = std::mem::take(&mut self.samples);
        samples.clear();
        let drained = self.sampler.drain(&mut samples)?;
        self.seen.samples += samples.len() as u64;
        self.seen.lost += drained.lost;
        self.seen.ended |= drained.ended;
        let began = processor_ns();
        for sample in &samples {
            if self.budget.takes() {
                self.count(sample, process);
            }
        }
        let now = now_ns();
        self.budget.settle(processor_ns() - began, now - self.looked_ns);
        self.looked_ns = now;
        self.samples = samples;
        self.ended = drained.exited;
        Ok(self.seen)
    }

    /// Each access of a lap stands for as much of the sample.
    fn count(&mut self, sample: &Sample, process: Option<&Process>) {
        self.seen.walked += 1;
        let home = |address| process.map_or(address, |process| process.seen_at(address));
        let accesses = match process.map(Process::as_seen) {
            Some(memory) => self.around.accesses(&memory, &sample.registers),
            None => self.around.accesses(&self.memory, &sample.registers),
        };
        if accesses.is_empty() {
            self.seen.blind += 1;
            self.lines.record_elsewhere(1.0, sample.time_ns);
            return;
        }
        let weight = 1.0 / accesses.len() as f64;
        self.note_laps(sample, accesses.iter().map(|access| home(access.address)));
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
                thread: sample.tid,
                site: access.ip,
                weight,
                at_ns: sample.time_ns,
            });
        }
    }

    /// The heaviest lines as they are now, judged, with what each costs at most.
    #[must_use]
    pub fn judged(&self, most: usize) -> Vec<(Judged, Option<Cost>)> {
        let now = now_ns();
        let all = self.lines.total(now);
        let lines = self.lines.heaviest(most, now).into_iter();
        lines.map(|line| (Cost::of(&line, all), Judged::new(line))).map(|(cost, judged)| (judged, cost)).collect()
    }

    /// Each watched line that a lap comes by, once.
    fn note_laps(&mut self, sample: &Sample, addresses: impl Iterator<Item = u64>) {
        let mut lines: Vec<u64> = addresses.map(|address| self.line_of(address)).collect();
        lines.sort_unstable();
        lines.dedup();
        for line in lines {
            if let Some(watched) = self.watched.get_mut(&line) {
                watched.laps += 1;
                watched.last.truncate(MOST_KEPT - 1);
                watched.last.push_front((sample.tid, of_sample(&sample.registers)));
            }
        }
    }

    fn line_of(&self, address: u64) -> u64 {
        address - address % u64::from(self.lines.settings().unit_bytes())
    }

    /// From now on, keeps the last samples that showed an access to the line at this address, and counts them.
    pub fn watch(&mut self, line: u64) {
        self.watched.entry(line).or_insert_with(|| Watched { last: VecDeque::new(), laps: 0 });
    }

    /// What a watched line costs at most: the share of the time that was spent in code that comes by it. None for a line that is not
    /// watched, and with too few samples.
    #[must_use]
    pub fn cost_at_most(&self, line: u64) -> Option<Cost> {
        let watched = self.watched.get(&line)?;
        let walked = self.seen.walked;
        Cost::new(watched.laps as f64, walked as f64).filter(|_| walked >= ENOUGH)
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
    pub fn wait(&self, so_long: Duration) -> Result<bool> {
        Ok(self.sampler.wait(so_long)?)
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

    /// How it samples.
    #[must_use]
    pub const fn means(&self) -> Means {
        self.sampler.means()
    }
}

/// `CLOCK_MONOTONIC`, as samples have it.
pub(super) fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Processor time of this thread.
pub(super) fn processor_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
