//! Our end of a trace: the shared record, and its batches in the order in which they were handed over.
//!
//! A lane that no thread uses takes no memory. Threads wait while we read, so the trace
//! may be longer than any memory.

#![allow(unsafe_code, reason = "vouches for the shape of a trace")]

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::Duration;

use fieldstone_wire::MAGIC;
use fieldstone_wire::trace::{BATCHES, BUILD, Batch, LANES, Lane, Phase, Plan, RECORDS, Record, Standing, Trace};
use rustix::thread::futex;

use crate::error::Result;
use crate::shared::Shared;

/// A trace that this process made.
#[derive(Debug)]
pub struct SharedTrace(Shared<Trace>);

impl SharedTrace {
    /// Makes a record.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) where there is no memory or no descriptor.
    pub fn create(plan: Plan) -> Result<Self> {
        // SAFETY: a trace is made of numbers and atomics, for which zero is a value; the plan, the build and the magic number are
        // not changed again.
        let shared = unsafe {
            Shared::create("fieldstone-trace", |trace: &mut Trace| {
                trace.plan = plan;
                trace.build = BUILD;
                trace.magic = MAGIC;
            })
        };
        shared.map(Self)
    }

    /// The shared record.
    #[must_use]
    pub fn record(&self) -> &Trace {
        self.0.record()
    }

    /// The path by which another process of this user opens it.
    #[must_use]
    pub fn path(&self) -> String {
        self.0.path()
    }

    /// Lets all threads that wait go on, and has them record nothing more.
    pub fn close(&self) {
        let record = self.record();
        record.closed.store(1, Release);
        for state in record.lanes.iter().flat_map(|lane| &lane.batches).map(|batch| &batch.state) {
            let _ = futex::wake(state, futex::Flags::empty(), 1);
        }
        self.ring();
    }

    /// Wakes the reader.
    pub fn ring(&self) {
        self.record().doorbell.fetch_add(1, AcqRel);
        let _ = futex::wake(&self.record().doorbell, futex::Flags::empty(), 1);
    }
}

/// A thread of the traced program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The lane, which no two threads have at one time.
    pub lane: usize,
    /// The process.
    pub process: u32,
    /// The process that started it.
    pub parent: u32,
    /// The thread.
    pub thread: u32,
}

/// What a thread handed over.
#[derive(Debug, Default)]
pub struct Heard {
    /// What the accesses are for.
    pub phase: Option<Phase>,
    /// Accesses that the records stand for.
    pub accesses: u64,
    /// Instructions that ran meanwhile.
    pub instructions: u64,
    /// The records.
    pub records: Vec<Record>,
}

/// What the reader tells.
pub trait Listener {
    /// A thread handed over a batch.
    fn hear(&mut self, origin: Origin, heard: &Heard);
    /// A thread is gone: its lane may be another's next.
    fn leave(&mut self, origin: Origin);
}

/// Reads a record, batch by batch.
#[derive(Debug)]
pub struct Reader<'a> {
    trace: &'a SharedTrace,
    /// The batch of each lane that is read next.
    next: [usize; LANES],
    heard: Heard,
}

impl<'a> Reader<'a> {
    /// A reader; there is one for a record.
    #[must_use]
    pub fn new(trace: &'a SharedTrace) -> Self {
        let heard = Heard { records: Vec::with_capacity(RECORDS), ..Heard::default() };
        Self { trace, next: [0; LANES], heard }
    }

    /// Reads what there is, in the order in which it was handed over; waits up to `patience` if there is nothing.
    pub fn read(&mut self, listener: &mut impl Listener, patience: Duration) {
        let record = self.trace.record();
        let seen = record.doorbell.load(Acquire);
        if self.read_ready(listener) == 0 {
            let timeout = futex::Timespec::try_from(patience).ok();
            let _ = futex::wait(&record.doorbell, futex::Flags::empty(), seen, timeout.as_ref());
        }
    }

    fn read_ready(&mut self, listener: &mut impl Listener) -> usize {
        let lanes = &self.trace.record().lanes;
        let mut ready: VecDeque<_> = (0..LANES).filter(|&lane| is_full(self.batch(lane))).collect();
        ready.make_contiguous().sort_by_key(|&lane| self.batch(lane).ticket.load(Relaxed));
        let count = ready.len();
        for lane in ready {
            self.take(lane, listener);
        }
        for (lane, found) in lanes.iter().enumerate() {
            if found.left.load(Acquire) != 0 && !is_full(self.batch(lane)) {
                self.give_back(lane, found, listener);
            }
        }
        count
    }

    /// Reads what threads left behind that were killed. The program has ended.
    pub fn read_rest(&mut self, listener: &mut impl Listener) {
        while self.read_ready(listener) > 0 {}
        for (lane, found) in self.trace.record().lanes.iter().enumerate() {
            if found.process.load(Acquire) != 0 {
                // Never handed over: its phase and counts are unknown, but for the records themselves.
                let batch = self.batch(lane);
                batch.phase.store(Phase::Warming as u32, Relaxed);
                batch.accesses.store(0, Relaxed);
                batch.instructions.store(0, Relaxed);
                self.take(lane, listener);
                self.give_back(lane, found, listener);
            }
        }
    }

    fn batch(&self, lane: usize) -> &'a Batch {
        &self.trace.record().lanes[lane].batches[self.next[lane]]
    }

    fn take(&mut self, lane: usize, listener: &mut impl Listener) {
        let batch = self.batch(lane);
        // What another process wrote is not trusted with an index.
        let filled = usize::try_from(batch.filled.load(Acquire)).map_or(RECORDS, |filled| filled.min(RECORDS));
        self.heard.phase = Phase::from_code(batch.phase.load(Relaxed));
        self.heard.accesses = batch.accesses.load(Relaxed);
        self.heard.instructions = batch.instructions.load(Relaxed);
        self.heard.records.clear();
        self.heard.records.extend(batch.records[..filled].iter().map(|record| Record(record.load(Relaxed))));
        batch.filled.store(0, Relaxed);
        batch.state.store(Standing::Free as u32, Release);
        let _ = futex::wake(&batch.state, futex::Flags::empty(), 1);
        self.next[lane] = (self.next[lane] + 1) % BATCHES;
        listener.hear(origin(lane, &self.trace.record().lanes[lane]), &self.heard);
    }

    fn give_back(&mut self, lane: usize, found: &Lane, listener: &mut impl Listener) {
        listener.leave(origin(lane, found));
        self.next[lane] = 0;
        found.left.store(0, Relaxed);
        found.process.store(0, Release);
    }
}

fn is_full(batch: &Batch) -> bool {
    batch.state.load(Acquire) == Standing::Full as u32
}

fn origin(lane: usize, found: &Lane) -> Origin {
    Origin {
        lane,
        process: found.process.load(Relaxed),
        parent: found.parent.load(Relaxed),
        thread: found.thread.load(Relaxed),
    }
}
