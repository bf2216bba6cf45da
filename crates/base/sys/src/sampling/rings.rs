//! Reading the rings of [`super::perf`]: records into samples, each one once.
//!
//! The kernel is the one writer of a ring and we are its one reader. It publishes `data_head` after the record's bytes (we load
//! it with acquire), we publish `data_tail` after we have read them (a store with release); records may wrap at the ring's
//! end. All that is the library's, whose `Sampler` does it.
//!
//! A thread that was made while its process was listed has two sets of events: inherited ones and its own. An event's number
//! says whose it was at first (heirs keep the number), so from each thread only the samples of one line are taken: its own, else
//! that of the first one seen. A thread that ends frees its number for a later one, which may come of another line; so ends are
//! recorded too, and all records are gone through by their time.

use std::collections::HashMap;

use perf_event::data::{self, Record, SampleRegsAbi};
use perf_event::{Counter, Sampler};

use super::perf::Kind;
use super::registers::Registers;
use super::{Drained, MOST_PAUSED, Sample, perf};
use crate::Result;
use crate::process::threads;

/// What a record of a sample is made into.
pub(super) trait Sampled: Send + Sized {
    /// `None` where what it needs is not in it.
    fn of(record: &data::Sample<'_>) -> Option<Self>;

    /// The thread.
    fn tid(&self) -> u32;
}

impl Sampled for Sample {
    /// Needs registers of 64-bit code.
    fn of(record: &data::Sample<'_>) -> Option<Self> {
        let words = record.regs_user().filter(|words| words.abi == SampleRegsAbi::ABI_64)?;
        let registers = Registers { rip: record.ip()?, ..Registers::from_perf(&words.regs)? };
        Some(Self { tid: record.tid()?, time_ns: record.time()?, cpu: record.cpu()?, registers })
    }

    fn tid(&self) -> u32 {
        self.tid
    }
}

/// Open events: nothing while they pause.
#[derive(Default)]
pub(super) struct Open {
    pub(super) rings: Vec<Sampler>,
    /// Events without a ring of their own: they sample as long as they are open.
    #[expect(dead_code, reason = "kept open")]
    pub(super) others: Vec<Counter>,
}

/// The events of a process, of one kind.
pub(super) struct Rings<S> {
    pid: u32,
    kinds: Vec<Kind>,
    open: Open,
    lines: Lines,
    /// What was told before a pause and in it.
    early: Drained,
    /// Empty between two drains.
    records: Vec<(u64, Entry<S>)>,
}

/// A record of a ring, as far as it matters.
enum Entry<S> {
    Sample { event: u64, sample: S },
    Exit { tid: u32 },
}

impl<S: Sampled> Rings<S> {
    /// `threads` tells which thread each event was opened for; after a pause the same kinds are opened anew.
    pub(super) fn new(pid: u32, kinds: Vec<Kind>, open: Open, threads: HashMap<u64, u32>) -> Self {
        let early = Drained::default();
        Self { pid, kinds, open, lines: Lines::new(threads), early, records: Vec::new() }
    }

    /// As [`super::Source::drain`].
    pub(super) fn drain(&mut self, samples: &mut Vec<S>) -> Result<Drained> {
        let mut drained = std::mem::take(&mut self.early);
        for ring in &mut self.open.rings {
            while let Some(record) = ring.next_record() {
                match record.parse_record() {
                    Ok(record) => take(self.pid, &record, &mut self.records, &mut drained),
                    // A sample without registers ends earlier than one that has them.
                    Err(_) => drained.unusable += 1,
                }
            }
        }
        self.records.sort_by_key(|(time, _)| *time);
        for (_, told) in self.records.drain(..) {
            match told {
                Entry::Sample { event, sample } if self.lines.is_first(event, sample.tid()) => samples.push(sample),
                Entry::Sample { .. } => {}
                Entry::Exit { tid } if self.lines.end(tid) => drained.exited.push(tid),
                Entry::Exit { .. } => {}
            }
        }
        Ok(drained)
    }

    /// As [`super::Source::pause`].
    pub(super) fn pause(&mut self) -> Result<bool> {
        if threads(self.pid)?.len() * self.open.rings.len() > MOST_PAUSED {
            return Ok(false);
        }
        self.early = self.drain(&mut Vec::new())?;
        self.open = Open::default();
        Ok(true)
    }

    /// As [`super::Source::resume`].
    pub(super) fn resume(&mut self) -> Result<()> {
        if self.open.rings.is_empty() {
            let new = perf::open(self.pid, &self.kinds, perf::RING_BYTES)?;
            let before = std::mem::replace(self, new);
            self.early = before.early;
            // Nobody told of them.
            self.early.exited.extend(before.lines.missing_in(&self.lines));
        }
        Ok(())
    }
}

fn take<S: Sampled>(pid: u32, record: &Record<'_>, records: &mut Vec<(u64, Entry<S>)>, drained: &mut Drained) {
    match record {
        // A kernel before 5.13 has child processes inherit too.
        Record::Sample(sample) if sample.pid() == Some(pid) => match (sample.id(), sample.time(), S::of(sample)) {
            (Some(event), Some(time), Some(sample)) => records.push((time, Entry::Sample { event, sample })),
            _ => drained.unusable += 1,
        },
        Record::Exit(exit) if exit.pid == pid => records.push((exit.time, Entry::Exit { tid: exit.tid })),
        Record::Lost(lost) => drained.lost += lost.lost,
        Record::LostSamples(lost) => drained.lost += lost.lost,
        Record::Throttle(_) => drained.throttled += 1,
        _ => {}
    }
}

/// From which thread's events each thread's samples are taken.
struct Lines {
    /// The thread that an event was opened for.
    threads: HashMap<u64, u32>,
    /// The line that each living thread is of.
    of: HashMap<u32, u32>,
}

impl Lines {
    fn new(threads: HashMap<u64, u32>) -> Self {
        let of = threads.values().map(|&tid| (tid, tid)).collect();
        Self { threads, of }
    }

    /// Whether this event is the one that speaks for the thread.
    fn is_first(&mut self, event: u64, tid: u32) -> bool {
        self.threads.get(&event).is_some_and(|&line| *self.of.entry(tid).or_insert(line) == line)
    }

    /// The threads that the others do not know.
    fn missing_in<'a>(&'a self, others: &'a Self) -> impl Iterator<Item = u32> + 'a {
        self.of.keys().copied().filter(|tid| !others.of.contains_key(tid))
    }

    /// Forgets a thread; whether it was known.
    fn end(&mut self, tid: u32) -> bool {
        self.of.remove(&tid).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_two_sets_of_events_speaks_once() {
        // Events 10 and 11 are thread 1's, 20 is thread 2's, which 1 made while the list was read.
        let mut lines = Lines::new(HashMap::from([(10, 1), (11, 1), (20, 2)]));
        assert!(lines.is_first(10, 1) && lines.is_first(11, 1), "each CPU has an event of its own");
        assert!(lines.is_first(20, 2) && !lines.is_first(10, 2), "its own before the inherited");
        // Thread 3 is made by 2, and inherits both sets.
        assert!(lines.is_first(11, 3) && lines.is_first(10, 3) && !lines.is_first(20, 3));
        assert!(!lines.is_first(99, 3), "an event that nobody opened");
    }

    #[test]
    fn a_number_used_again_may_be_of_another_line() {
        let mut lines = Lines::new(HashMap::from([(10, 1), (20, 2)]));
        assert!(!lines.is_first(10, 2));
        assert!(lines.end(2) && !lines.end(2), "told once");
        assert!(lines.is_first(10, 2), "a new thread 2, made by 1");
    }
}
