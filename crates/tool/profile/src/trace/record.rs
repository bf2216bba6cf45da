//! Our end of a trace: the shared record, and its batches in the order in which they were handed over.
//!
//! A lane that no thread uses takes no memory. Threads wait while we read, so the trace may be longer than any memory. A thread
//! gives its lane back when it ends; those of a process that was killed are looked for now and then, and taken back by us.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use fieldstone_sys::limits::free_memory_bytes;
use fieldstone_sys::{Error as SysError, process};
use fieldstone_wire::trace::{BATCHES, Batch, LANES, Lane, Phase, Plan, RECORDS, Record, Standing, Trace};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use rustix::thread::futex;

use crate::error::Result;
use fieldstone_launch::shared::Shared;

/// Huge pages are asked for under one of so many parts of the free memory, since a program may use little of what it maps.
const HUGE_PART: u64 = 2;
/// From one look for killed processes to the next, at least.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
/// A look may take one of so many parts of the time.
const LOOK_SHARE: u32 = 20;

/// A trace that this process made.
#[derive(Debug)]
pub struct SharedTrace(Shared<Trace>);

impl SharedTrace {
    /// Makes a record.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) where there is no memory or no descriptor.
    pub fn create(plan: Plan) -> Result<Self> {
        let made = Shared::make(|trace: &mut Trace| {
            trace.plan = plan;
            trace.reader = std::process::id();
            *trace.huge_left.get_mut() = free_memory_bytes() / HUGE_PART;
        })?;
        Ok(Self(made))
    }

    /// The record.
    #[must_use]
    pub fn record(&self) -> &Trace {
        self.0.record()
    }

    /// The path by which another process of this user opens it.
    #[must_use]
    pub fn path(&self) -> String {
        self.0.path()
    }

    /// The program that was started last, in the place of a traced one.
    #[must_use]
    pub fn last_program(&self) -> Option<String> {
        let bytes = self.record().program.iter().map(|byte| byte.load(Relaxed));
        let path: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
        (!path.is_empty()).then(|| String::from_utf8_lossy(&path).into_owned())
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
    /// A thread handed over a batch. How many times less than planned is to pass before its next burst, as far as is known; 1 at least.
    fn hear(&mut self, origin: Origin, heard: &Heard) -> u64;
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
    /// When killed processes are looked for again.
    next_look: Instant,
}

impl<'a> Reader<'a> {
    /// A reader; there is one for a record.
    #[must_use]
    pub fn new(trace: &'a SharedTrace) -> Self {
        let heard = Heard { records: Vec::with_capacity(RECORDS), ..Heard::default() };
        Self { trace, next: [0; LANES], heard, next_look: Instant::now() }
    }

    /// Reads what there is, in the order in which it was handed over; waits up to `patience` if there is nothing.
    pub fn read(&mut self, listener: &mut impl Listener, patience: Duration) {
        let record = self.trace.record();
        let seen = record.doorbell.load(Acquire);
        let count = self.read_ready(listener);
        let began = Instant::now();
        if began >= self.next_look {
            self.reclaim(listener);
            self.next_look = Instant::now() + BETWEEN_LOOKS.max(began.elapsed() * LOOK_SHARE);
        }
        if count == 0 {
            let timeout = futex::Timespec::try_from(patience).ok();
            let _ = futex::wait(&record.doorbell, futex::Flags::empty(), seen, timeout.as_ref());
        }
    }

    /// Reads batches, at most as many as there are lanes, and takes back the lanes of threads that have left.
    fn read_ready(&mut self, listener: &mut impl Listener) -> usize {
        let mut count = 0;
        while let Some(lane) = self.first_ready().filter(|_| count < LANES) {
            self.take(lane, listener);
            count += 1;
        }
        for (lane, found) in self.trace.record().lanes.iter().enumerate() {
            if found.left.load(Acquire) != 0 && !is_full(self.batch(lane)) {
                self.give_back(lane, found, listener);
            }
        }
        count
    }

    /// The lane whose next batch was handed over before those of all others.
    fn first_ready(&self) -> Option<usize> {
        let lanes = self.trace.record().lanes.iter().enumerate();
        let taken = lanes.filter(|(_, lane)| lane.process.load(Relaxed) != 0).map(|(number, _)| number);
        let ready = taken.filter(|&lane| is_full(self.batch(lane)));
        ready.min_by_key(|&lane| self.batch(lane).ticket.load(Relaxed))
    }

    /// Takes back the lanes of processes that are gone and did not give them back: they were killed.
    pub(super) fn reclaim(&mut self, listener: &mut impl Listener) {
        let lanes = &self.trace.record().lanes;
        let mut known: HashMap<u32, bool> = HashMap::new();
        let mut left_behind = |lane: &Lane| {
            let process = lane.process.load(Acquire);
            let gone = process != 0 && *known.entry(process).or_insert_with(|| is_gone(process));
            gone.then_some(process)
        };
        let dead: Vec<(usize, u32)> =
            lanes.iter().enumerate().filter_map(|(number, lane)| Some((number, left_behind(lane)?))).collect();
        for (lane, process) in dead {
            let found = &lanes[lane];
            // What it still handed over lies between what others did.
            while found.process.load(Acquire) == process && is_full(self.batch(lane)) {
                self.read_ready(listener);
            }
            if found.process.load(Acquire) == process {
                self.take_rest(lane, found, listener);
            }
        }
    }

    /// Reads what threads left behind that were killed. The program has ended.
    pub fn read_rest(&mut self, listener: &mut impl Listener) {
        while self.read_ready(listener) > 0 {}
        for (lane, found) in self.trace.record().lanes.iter().enumerate() {
            if found.process.load(Acquire) != 0 {
                self.take_rest(lane, found, listener);
            }
        }
    }

    /// Reads a batch that was never handed over, the last of its lane. Its counts are unknown, but for the records themselves; its
    /// phase too, unless there is only one.
    fn take_rest(&mut self, lane: usize, found: &Lane, listener: &mut impl Listener) {
        let batch = self.batch(lane);
        let phase = if self.trace.record().plan.burst == 0 { Phase::Counted } else { Phase::Warming };
        batch.phase.store(phase as u32, Relaxed);
        batch.accesses.store(0, Relaxed);
        batch.instructions.store(0, Relaxed);
        self.take(lane, listener);
        self.give_back(lane, found, listener);
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
        let found = &self.trace.record().lanes[lane];
        let haste = listener.hear(origin(lane, found), &self.heard);
        found.haste.store(u32::try_from(haste).unwrap_or(u32::MAX), Relaxed);
    }

    fn give_back(&mut self, lane: usize, found: &Lane, listener: &mut impl Listener) {
        listener.leave(origin(lane, found));
        self.next[lane] = 0;
        found.left.store(0, Relaxed);
        found.haste.store(0, Relaxed);
        found.process.store(0, Release);
    }
}

fn is_full(batch: &Batch) -> bool {
    batch.state.load(Acquire) == Standing::Full as u32
}

/// Whether a process is no more, or a zombie of which no thread is left. That its files cannot be seen is not enough: a mount option
/// hides those of other users.
fn is_gone(process: u32) -> bool {
    match process::stat(process) {
        Ok(stat) => stat.state.ended() && stat.threads <= 1,
        Err(SysError::NoSuchProcess { .. }) => {
            let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
            pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
        }
        Err(_) => false,
    }
}

fn origin(lane: usize, found: &Lane) -> Origin {
    Origin {
        lane,
        process: found.process.load(Relaxed),
        parent: found.parent.load(Relaxed),
        thread: found.thread.load(Relaxed),
    }
}
