//! Reads the rings of [`super::perf`] and removes duplicate samples.
//!
//! The kernel is a ring's only writer, this process its only reader. The kernel publishes
//! `data_head` after the record's bytes (loaded with acquire); the reader publishes `data_tail`
//! after reading them (stored with release). Records may wrap at the ring's end. The library's
//! `Sampler` implements this.
//!
//! A thread created during the listing has two sets of events: inherited ones and its own. An
//! event's id identifies the thread it was opened for; inherited copies keep the id. So each
//! thread's samples are taken from one origin only: its own events, else the first origin seen. An
//! exited thread's number may be reused by a thread of another origin. So exits are recorded too,
//! and all records are processed in order of time.

use std::collections::HashMap;

use perf_event::data::{self, Record, SampleRegsAbi};
use perf_event::{Counter, Sampler};

use super::perf::{self, EventBuilder};
use crate::Result;
use crate::process::threads;
use crate::sampling::{Drained, MAX_PAUSED_EVENTS, Sample, SampledRegisters};

/// A type that sample records are converted to.
pub(super) trait Sampled: Send + Sized {
    /// `None` if a needed field is missing.
    fn of(record: &data::Sample<'_>) -> Option<Self>;

    /// The thread id.
    fn tid(&self) -> u32;
}

impl Sampled for Sample {
    /// Needs registers of 64-bit code.
    fn of(record: &data::Sample<'_>) -> Option<Self> {
        let words = record.regs_user().filter(|words| words.abi == SampleRegsAbi::ABI_64)?;
        let registers = SampledRegisters { rip: record.ip()?, ..SampledRegisters::from_perf(&words.regs)? };
        Some(Self { tid: record.tid()?, time_ns: record.time()?, cpu: record.cpu()?, registers })
    }

    fn tid(&self) -> u32 {
        self.tid
    }
}

/// Open events; none during a pause.
#[derive(Default)]
pub(super) struct Open {
    pub(super) rings: Vec<Sampler>,
    /// Events without a ring of their own: they sample while they are open.
    #[expect(dead_code, reason = "kept open")]
    pub(super) others: Vec<Counter>,
}

/// The events of a process, of one kind.
pub(super) struct Rings<S> {
    pid: u32,
    kinds: Vec<EventBuilder>,
    open: Open,
    origins: Origins,
    /// Counts of the last drain before a pause, and of the pause.
    early: Drained,
    /// Empty between two drains.
    records: Vec<(u64, RecordPart<S>)>,
}

/// The relevant part of a ring's record.
enum RecordPart<S> {
    Sample { event: u64, sample: S },
    Exit { tid: u32 },
}

impl<S: Sampled> Rings<S> {
    /// `threads` maps each event to the thread it was opened for. Resuming reopens the same kinds.
    pub(super) fn new(pid: u32, kinds: Vec<EventBuilder>, open: Open, threads: HashMap<u64, u32>) -> Self {
        let early = Drained::default();
        Self { pid, kinds, open, origins: Origins::new(threads), early, records: Vec::new() }
    }

    /// As [`crate::sampling::SampleSource::drain`].
    pub(super) fn drain(&mut self, samples: &mut Vec<S>) -> Result<Drained> {
        let mut drained = std::mem::take(&mut self.early);
        for ring in &mut self.open.rings {
            while let Some(record) = ring.next_record() {
                match record.parse_record() {
                    Ok(record) => take(self.pid, &record, &mut self.records, &mut drained),
                    // A sample without registers is shorter than the parser expects.
                    Err(_) => drained.unusable += 1,
                }
            }
        }
        self.records.sort_by_key(|(time, _)| *time);
        for (_, entry) in self.records.drain(..) {
            match entry {
                RecordPart::Sample { event, sample } if self.origins.is_first(event, sample.tid()) => {
                    samples.push(sample)
                }
                RecordPart::Sample { .. } => {}
                RecordPart::Exit { tid } if self.origins.end(tid) => drained.exited.push(tid),
                RecordPart::Exit { .. } => {}
            }
        }
        Ok(drained)
    }

    /// As [`crate::sampling::SampleSource::pause`].
    pub(super) fn pause(&mut self) -> Result<bool> {
        if threads(self.pid)?.len() * self.open.rings.len() > MAX_PAUSED_EVENTS {
            return Ok(false);
        }
        self.early = self.drain(&mut Vec::new())?;
        self.open = Open::default();
        Ok(true)
    }

    /// As [`crate::sampling::SampleSource::resume`].
    pub(super) fn resume(&mut self) -> Result<()> {
        if self.open.rings.is_empty() {
            let new = perf::open(self.pid, &self.kinds, perf::RING_BYTES)?;
            let before = std::mem::replace(self, new);
            self.early = before.early;
            // Threads that exited during the pause had no exit record.
            self.early.exited.extend(before.origins.missing_in(&self.origins));
        }
        Ok(())
    }
}

fn take<S: Sampled>(pid: u32, record: &Record<'_>, records: &mut Vec<(u64, RecordPart<S>)>, drained: &mut Drained) {
    match record {
        // Before Linux 5.13 child processes inherit the events too.
        Record::Sample(sample) if sample.pid() == Some(pid) => match (sample.id(), sample.time(), S::of(sample)) {
            (Some(event), Some(time), Some(sample)) => records.push((time, RecordPart::Sample { event, sample })),
            _ => drained.unusable += 1,
        },
        Record::Exit(exit) if exit.pid == pid => records.push((exit.time, RecordPart::Exit { tid: exit.tid })),
        Record::Lost(lost) => drained.lost += lost.lost,
        Record::LostSamples(lost) => drained.lost += lost.lost,
        Record::Throttle(_) => drained.throttled += 1,
        _ => {}
    }
}

/// The origin of each thread's samples.
struct Origins {
    /// The thread that an event was opened for.
    threads: HashMap<u64, u32>,
    /// The origin of each living thread.
    of: HashMap<u32, u32>,
}

impl Origins {
    fn new(threads: HashMap<u64, u32>) -> Self {
        let of = threads.values().map(|&tid| (tid, tid)).collect();
        Self { threads, of }
    }

    /// Whether this event is of the thread's origin.
    fn is_first(&mut self, event: u64, tid: u32) -> bool {
        self.threads.get(&event).is_some_and(|&origin| *self.of.entry(tid).or_insert(origin) == origin)
    }

    /// The threads that `others` does not contain.
    fn missing_in<'a>(&'a self, others: &'a Self) -> impl Iterator<Item = u32> + 'a {
        self.of.keys().copied().filter(|tid| !others.of.contains_key(tid))
    }

    /// Removes a thread; returns whether it was known.
    fn end(&mut self, tid: u32) -> bool {
        self.of.remove(&tid).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_two_sets_of_events_is_sampled_once() {
        // Events 10 and 11 belong to thread 1, 20 to thread 2, which 1 created during the listing.
        let mut origins = Origins::new(HashMap::from([(10, 1), (11, 1), (20, 2)]));
        assert!(origins.is_first(10, 1) && origins.is_first(11, 1), "each CPU has an event of its own");
        assert!(origins.is_first(20, 2) && !origins.is_first(10, 2), "its own events, not the inherited");
        // Thread 2 creates thread 3, which inherits both sets.
        assert!(origins.is_first(11, 3) && origins.is_first(10, 3) && !origins.is_first(20, 3));
        assert!(!origins.is_first(99, 3), "an unknown event");
    }

    #[test]
    fn a_reused_number_may_have_another_origin() {
        let mut origins = Origins::new(HashMap::from([(10, 1), (20, 2)]));
        assert!(!origins.is_first(10, 2));
        assert!(origins.end(2) && !origins.end(2), "reported once");
        assert!(origins.is_first(10, 2), "a new thread 2, created by 1");
    }
}
