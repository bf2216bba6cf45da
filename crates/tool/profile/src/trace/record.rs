//! Read the shared record of a trace: all batches of all threads, in the order of submission.
//!
//! ```text
//! lane 0   [batch][batch]...   a lane per thread; a batch is Free ─ thread fills ─→ Full ─ read ─→ Free
//! lane 1   [batch][batch]...   ticket: the order of submission over all lanes
//! ```
//! An unused lane takes no memory. A thread waits while its next batch is full, so a trace of any
//! length needs constant memory. An exiting thread releases its lane; the reader reclaims the lanes
//! of killed processes.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use fieldstone_launch::shared_record::SharedRecord;
use fieldstone_sys::limits::free_memory_bytes;
use fieldstone_sys::{Error as SysError, process};
use fieldstone_wire::trace::{
    BATCHES, Batch, BatchState, BurstPhase, LANES, Lane, RECORDS, Record, SamplingPlan, Trace,
};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use rustix::thread::futex;

use crate::error::Result;

/// The part of free memory for which huge pages may be requested; programs may use little of what
/// they map.
const HUGE_PAGE_DIVISOR: u64 = 2;
/// Minimum interval between two scans for killed processes.
const RECLAIM_INTERVAL: Duration = Duration::from_millis(10);
/// A scan takes at most this part of the time, as a divisor.
const RECLAIM_DIVISOR: u32 = 20;

/// A trace that this process created.
#[derive(Debug)]
pub struct SharedTrace(SharedRecord<Trace>);

impl SharedTrace {
    /// Creates an empty trace.
    ///
    /// # Errors
    /// [`Error::Launch`](crate::Error::Launch) without memory or a descriptor.
    pub fn create(plan: SamplingPlan) -> Result<Self> {
        let shared = SharedRecord::create_with(|trace: &mut Trace| {
            trace.plan = plan;
            trace.reader = std::process::id();
            *trace.huge_left.get_mut() = free_memory_bytes() / HUGE_PAGE_DIVISOR;
        })?;
        Ok(Self(shared))
    }

    /// Path of the last program that replaced a traced one by exec; `None` if there was none.
    #[must_use]
    pub fn last_program(&self) -> Option<String> {
        let bytes = self.record().program.iter().map(|byte| byte.load(Relaxed));
        let path: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
        (!path.is_empty()).then(|| String::from_utf8_lossy(&path).into_owned())
    }

    /// Stops the recording and wakes all waiting threads.
    pub fn close(&self) {
        let record = self.record();
        record.closed.store(1, Release);
        for state in record.lanes.iter().flat_map(|lane| &lane.batches).map(|batch| &batch.state) {
            let _ = futex::wake(state, futex::Flags::empty(), 1);
        }
        self.wake_reader();
    }

    /// Wakes the reader.
    pub fn wake_reader(&self) {
        self.record().doorbell.fetch_add(1, AcqRel);
        let _ = futex::wake(&self.record().doorbell, futex::Flags::empty(), 1);
    }
}

impl Deref for SharedTrace {
    type Target = SharedRecord<Trace>;

    fn deref(&self) -> &SharedRecord<Trace> {
        &self.0
    }
}

/// A thread of the traced program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadOrigin {
    /// The lane; it belongs to one thread at a time.
    pub lane: usize,
    /// The process number.
    pub process: u32,
    /// The number of the parent process.
    pub parent: u32,
    /// The thread number.
    pub thread: u32,
}

/// A batch as submitted by a thread.
#[derive(Debug, Default)]
pub struct DecodedBatch {
    /// The purpose of the accesses; `None` if the code is invalid.
    pub phase: Option<BurstPhase>,
    /// Number of accesses that the records represent.
    pub accesses: u64,
    /// Number of instructions executed with them.
    pub instructions: u64,
    /// The records.
    pub records: Vec<Record>,
}

/// A consumer of batches.
pub trait BatchConsumer {
    /// Processes a batch. Returns the factor, at least 1, by which the gap before the thread's next
    /// burst shrinks.
    fn consume(&mut self, origin: ThreadOrigin, decoded: &DecodedBatch) -> u64;
    /// The thread has ended; another may get its lane.
    fn end_thread(&mut self, origin: ThreadOrigin);
}

/// The reader of a trace.
#[derive(Debug)]
pub struct TraceReader<'a> {
    trace: &'a SharedTrace,
    /// Index of each lane's next batch.
    next: [usize; LANES],
    decoded: DecodedBatch,
    /// Time of the next scan for killed processes.
    next_reclaim: Instant,
}

impl<'a> TraceReader<'a> {
    /// Creates the reader; there must be only one per trace.
    #[must_use]
    pub fn new(trace: &'a SharedTrace) -> Self {
        let decoded = DecodedBatch { records: Vec::with_capacity(RECORDS), ..DecodedBatch::default() };
        Self { trace, next: [0; LANES], decoded, next_reclaim: Instant::now() }
    }

    /// Reads the available batches in the order of submission, or waits up to `timeout` for one.
    pub fn read(&mut self, consumer: &mut impl BatchConsumer, timeout: Duration) {
        let record = self.trace.record();
        let seen = record.doorbell.load(Acquire);
        let count = self.read_ready(consumer);
        let began = Instant::now();
        if began >= self.next_reclaim {
            self.reclaim(consumer);
            self.next_reclaim = Instant::now() + RECLAIM_INTERVAL.max(began.elapsed() * RECLAIM_DIVISOR);
        }
        if count == 0 {
            let timeout = futex::Timespec::try_from(timeout).ok();
            let _ = futex::wait(&record.doorbell, futex::Flags::empty(), seen, timeout.as_ref());
        }
    }

    /// Reads at most [`LANES`] batches and releases the lanes of threads that have ended. Returns
    /// the number of batches.
    fn read_ready(&mut self, consumer: &mut impl BatchConsumer) -> usize {
        let mut count = 0;
        while let Some(lane) = self.first_ready().filter(|_| count < LANES) {
            self.read_batch(lane, consumer);
            count += 1;
        }
        for (lane, found) in self.trace.record().lanes.iter().enumerate() {
            if found.left.load(Acquire) != 0 && !is_full(self.batch(lane)) {
                self.release_lane(lane, found, consumer);
            }
        }
        count
    }

    /// The lane with the lowest ticket among the full next batches.
    fn first_ready(&self) -> Option<usize> {
        let lanes = self.trace.record().lanes.iter().enumerate();
        let taken = lanes.filter(|(_, lane)| lane.process.load(Relaxed) != 0).map(|(number, _)| number);
        let ready = taken.filter(|&lane| is_full(self.batch(lane)));
        ready.min_by_key(|&lane| self.batch(lane).ticket.load(Relaxed))
    }

    /// Reclaims the lanes of killed processes.
    pub(super) fn reclaim(&mut self, consumer: &mut impl BatchConsumer) {
        let lanes = &self.trace.record().lanes;
        let mut known: HashMap<u32, bool> = HashMap::new();
        let mut exited_owner = |lane: &Lane| {
            let process = lane.process.load(Acquire);
            let gone = process != 0 && *known.entry(process).or_insert_with(|| has_exited(process));
            gone.then_some(process)
        };
        let dead: Vec<(usize, u32)> =
            lanes.iter().enumerate().filter_map(|(number, lane)| Some((number, exited_owner(lane)?))).collect();
        for (lane, process) in dead {
            let found = &lanes[lane];
            // Its submitted batches keep their place in the order.
            while found.process.load(Acquire) == process && is_full(self.batch(lane)) {
                self.read_ready(consumer);
            }
            if found.process.load(Acquire) == process {
                self.read_unfinished(lane, found, consumer);
            }
        }
    }

    /// Reads the unfinished batches of killed threads. Call it after the program has ended.
    pub fn read_remaining(&mut self, consumer: &mut impl BatchConsumer) {
        while self.read_ready(consumer) > 0 {}
        for (lane, found) in self.trace.record().lanes.iter().enumerate() {
            if found.process.load(Acquire) != 0 {
                self.read_unfinished(lane, found, consumer);
            }
        }
    }

    /// Reads the last batch of a lane, which was not submitted. It has records but no counts. Its
    /// phase is only known if there are no bursts.
    fn read_unfinished(&mut self, lane: usize, found: &Lane, consumer: &mut impl BatchConsumer) {
        let batch = self.batch(lane);
        let phase = if self.trace.record().plan.burst == 0 { BurstPhase::Counted } else { BurstPhase::Warming };
        batch.phase.store(phase as u32, Relaxed);
        batch.accesses.store(0, Relaxed);
        batch.instructions.store(0, Relaxed);
        self.read_batch(lane, consumer);
        self.release_lane(lane, found, consumer);
    }

    fn batch(&self, lane: usize) -> &'a Batch {
        &self.trace.record().lanes[lane].batches[self.next[lane]]
    }

    fn read_batch(&mut self, lane: usize, consumer: &mut impl BatchConsumer) {
        let batch = self.batch(lane);
        // Another process writes `filled`, so it may be out of range.
        let filled = usize::try_from(batch.filled.load(Acquire)).map_or(RECORDS, |filled| filled.min(RECORDS));
        self.decoded.phase = BurstPhase::from_code(batch.phase.load(Relaxed));
        self.decoded.accesses = batch.accesses.load(Relaxed);
        self.decoded.instructions = batch.instructions.load(Relaxed);
        self.decoded.records.clear();
        self.decoded.records.extend(batch.records[..filled].iter().map(|record| Record(record.load(Relaxed))));
        batch.filled.store(0, Relaxed);
        batch.state.store(BatchState::Free as u32, Release);
        let _ = futex::wake(&batch.state, futex::Flags::empty(), 1);
        self.next[lane] = (self.next[lane] + 1) % BATCHES;
        let found = &self.trace.record().lanes[lane];
        let density = consumer.consume(origin(lane, found), &self.decoded);
        found.density.store(u32::try_from(density).unwrap_or(u32::MAX), Relaxed);
    }

    fn release_lane(&mut self, lane: usize, found: &Lane, consumer: &mut impl BatchConsumer) {
        consumer.end_thread(origin(lane, found));
        self.next[lane] = 0;
        found.left.store(0, Relaxed);
        found.density.store(0, Relaxed);
        found.process.store(0, Release);
    }
}

fn is_full(batch: &Batch) -> bool {
    batch.state.load(Acquire) == BatchState::Full as u32
}

/// Whether a process is gone, or a zombie without threads. A missing `/proc` entry does not
/// suffice: a mount option may hide the processes of other users.
fn has_exited(process: u32) -> bool {
    match process::stat(process) {
        Ok(stat) => stat.state.has_ended() && stat.threads <= 1,
        Err(SysError::NoSuchProcess { .. }) => {
            let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
            pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
        }
        Err(_) => false,
    }
}

fn origin(lane: usize, found: &Lane) -> ThreadOrigin {
    ThreadOrigin {
        lane,
        process: found.process.load(Relaxed),
        parent: found.parent.load(Relaxed),
        thread: found.thread.load(Relaxed),
    }
}
