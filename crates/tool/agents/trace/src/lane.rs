//! A thread's lane in the shared record: batches that are filled in turn and submitted to the
//! reader.

#![allow(unsafe_code, reason = "writes records through raw pointers into the shared record")]

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use fieldstone_wire::trace::{BATCHES, Batch, BatchState, BurstPhase, EVENT_WORDS, Lane, MemoryEvent, Record};

use crate::dependence::{self, MAX_EARLIER_RECORDS};
use crate::marker::ExecutionCounts;
use crate::trace::{guest_base, sleep_while, trace, wake};

/// One of this many records is checked for dependence. A prime, so that the period of a loop does
/// not select the records.
const CHECK_INTERVAL: usize = 509;
/// Records that [`RecordCursor::push`] may write after one check of [`RecordCursor::is_full`].
const RECORDS_PER_PUSH: usize = 2;

/// Lanes of this process.
static LANES: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Whether the calling thread was counted as not traced.
    static IS_REPORTED: Cell<bool> = const { Cell::new(false) };
}

/// Counts the calling thread as not traced; once, however often it is called.
pub(crate) fn report_no_lane() {
    if !IS_REPORTED.replace(true) {
        trace().threads_without_lane.fetch_add(1, Relaxed);
    }
}

/// Whether other threads of this process are traced too.
pub(crate) fn has_other_threads() -> bool {
    LANES.load(Relaxed) > 1
}

/// Whether the reader's process number is valid here: false in another PID namespace.
static IS_READER_VISIBLE: AtomicBool = AtomicBool::new(true);

/// The child of a fork starts without a lane.
pub(crate) fn reset_in_child() {
    LANES.store(0, Relaxed);
    IS_REPORTED.set(false);
    // The parent has a number if both are in one namespace.
    if std::os::unix::process::parent_id() == 0 {
        IS_READER_VISIBLE.store(false, Relaxed);
    }
}

/// Whether the reader was killed. It could not close the record then, and a thread that waits for
/// it would wait forever.
fn reader_is_gone(reader: u32) -> bool {
    // SAFETY: signal 0 sends nothing; the call only checks that the process exists.
    let refused = || unsafe { libc::kill(reader.cast_signed(), 0) } != 0;
    let absent = || std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    IS_READER_VISIBLE.load(Relaxed) && refused() && absent()
}

/// The position of the next record.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RecordCursor {
    next: *const AtomicU64,
    /// From this position on the writer has to be called first.
    limit: *const AtomicU64,
}

impl RecordCursor {
    /// No position: always full.
    pub(crate) const EMPTY: Self = Self { next: ptr::null(), limit: ptr::null() };

    /// Whether the writer has to be called before the next record.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.next >= self.limit
    }

    /// Writes one record, after an `order` record if there is one.
    ///
    /// # Safety
    /// Only once after each check that [`Self::is_full`] is false.
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, order: Option<Record>, record: Record) {
        let mut next = self.next;
        // SAFETY: a limit is [`RECORDS_PER_PUSH`] records before the end of its batch, which is
        // never unmapped.
        unsafe {
            if let Some(order) = order {
                (*next).store(order.0, Relaxed);
                next = next.add(1);
            }
            (*next).store(record.0, Relaxed);
            self.next = next.add(1);
        }
    }
}

/// The lane of one thread, and its position.
#[derive(Debug)]
pub(crate) struct LaneWriter {
    lane: &'static Lane,
    at: usize,
    /// The position after the last event of the batch; earlier accesses are not considered.
    after_event: usize,
}

impl LaneWriter {
    /// Claims a free lane. `None` if there is none, or if the reader has closed the record.
    pub(crate) fn claim() -> Option<Self> {
        let trace = trace();
        if trace.closed.load(Relaxed) != 0 {
            return None;
        }
        let process = std::process::id();
        let free = |lane: &&'static Lane| lane.process.compare_exchange(0, process, AcqRel, Relaxed).is_ok();
        let Some(lane) = trace.lanes.iter().find(free) else {
            report_no_lane();
            return None;
        };
        LANES.fetch_add(1, Relaxed);
        // SAFETY: `gettid` has no arguments and no precondition.
        let thread = unsafe { libc::gettid() }.cast_unsigned();
        lane.thread.store(thread, Relaxed);
        lane.parent.store(std::os::unix::process::parent_id(), Relaxed);
        Some(Self { lane, at: 0, after_event: 0 })
    }

    /// The factor by which the gap between bursts is shortened.
    pub(crate) fn density(&self) -> u64 {
        u64::from(self.lane.density.load(Relaxed)).max(1)
    }

    fn batch(&self) -> &'static Batch {
        &self.lane.batches[self.at]
    }

    /// The start of the current batch.
    pub(crate) fn start(&self) -> RecordCursor {
        self.cursor_from(0, CHECK_INTERVAL)
    }

    /// A cursor at `place`, with its limit at `limit` or at the end of the batch.
    fn cursor_from(&self, place: usize, limit: usize) -> RecordCursor {
        let records = self.batch().records.as_ptr_range();
        let last = self.batch().records.len() - RECORDS_PER_PUSH;
        RecordCursor { next: records.start.wrapping_add(place), limit: records.start.wrapping_add(last.min(limit)) }
    }

    fn place(&self, record: *const AtomicU64) -> usize {
        (record.addr() - self.batch().records.as_ptr().addr()) / size_of::<AtomicU64>()
    }

    /// The cursor has reached its limit: checks the record before it. False if the batch is full
    /// and has to be submitted.
    ///
    /// The limit may be between two records that were written together. The record before it is
    /// then an order record, which is not checked. Checking the second one instead would count
    /// records written in pairs twice.
    pub(crate) fn handle_limit(&mut self, cursor: &mut RecordCursor) -> bool {
        let (place, limit) = (self.place(cursor.next), self.place(cursor.limit));
        let records = &self.batch().records;
        if let Some(last) = limit.checked_sub(1).filter(|&last| last >= self.after_event && place == limit) {
            let read = |at: usize| Record(records[at].load(Relaxed));
            let before = (self.after_event.max(last.saturating_sub(MAX_EARLIER_RECORDS))..last).rev().map(read);
            if let Some(depends) = dependence::depends(read(last), before, guest_base()) {
                records[last].store(read(last).with_dependence(depends).0, Relaxed);
            }
        }
        self.publish(place);
        if place + RECORDS_PER_PUSH >= records.len() {
            return false;
        }
        // From limit to limit, not from the current position: otherwise each check might hit the
        // same record of a loop.
        *cursor = self.cursor_from(place, limit + CHECK_INTERVAL);
        true
    }

    /// Publishes the batch up to `place`, for a reader that finds the process dead.
    fn publish(&self, place: usize) {
        self.batch().filled.store(place as u64, Release);
    }

    /// Writes an event. False if the batch has no room and has to be submitted first.
    pub(crate) fn push_event(
        &mut self,
        cursor: &mut RecordCursor,
        event: MemoryEvent,
        operands: [u64; EVENT_WORDS - 1],
    ) -> bool {
        let place = self.place(cursor.next);
        let Some(slots) = self.batch().records.get(place..place + EVENT_WORDS) else { return false };
        let words = [Record::event(event).0].into_iter().chain(operands);
        slots.iter().zip(words).for_each(|(record, word)| record.store(word, Relaxed));
        self.after_event = place + EVENT_WORDS;
        self.publish(self.after_event);
        *cursor = self.cursor_from(self.after_event, self.after_event + CHECK_INTERVAL);
        true
    }

    /// Submits the batch, and waits until the next one is free.
    pub(crate) fn submit(&mut self, cursor: &mut RecordCursor, phase: BurstPhase, run: ExecutionCounts) {
        let trace = trace();
        let batch = self.batch();
        batch.accesses.store(run.accesses, Relaxed);
        batch.instructions.store(run.instructions, Relaxed);
        batch.phase.store(phase as u32, Relaxed);
        self.publish(self.place(cursor.next));
        batch.ticket.store(trace.tickets.fetch_add(1, AcqRel), Relaxed);
        batch.state.store(BatchState::Full as u32, Release);
        trace.doorbell.fetch_add(1, AcqRel);
        wake(&trace.doorbell);
        self.at = (self.at + 1) % BATCHES;
        self.after_event = 0;
        let next = self.batch();
        // The wait is bounded: the reader frees the batch or closes the record, or is found dead
        // within a second.
        while next.state.load(Acquire) == BatchState::Full as u32 && trace.closed.load(Relaxed) == 0 {
            sleep_while(&next.state, BatchState::Full as u32);
            if reader_is_gone(trace.reader) {
                trace.closed.store(1, Relaxed);
            }
        }
        *cursor = self.start();
    }

    /// Leaves the lane to the reader, which frees it after reading. The last batch was submitted.
    pub(crate) fn release(self) {
        LANES.fetch_sub(1, Relaxed);
        self.lane.left.store(1, Release);
        trace().doorbell.fetch_add(1, AcqRel);
        wake(&trace().doorbell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_wire::trace::CHASES;

    /// A writer of a separate lane without a reader.
    fn writer() -> LaneWriter {
        // SAFETY: a lane consists of integers, for which zeroes are valid.
        let lane: Box<Lane> = unsafe { Box::new_zeroed().assume_init() };
        LaneWriter { lane: Box::leak(lane), at: 0, after_event: 0 }
    }

    /// Fills a batch with the records of a loop. Returns how often each step, identified by its
    /// address, is checked.
    fn check_counts(steps: &[(bool, u64)]) -> Vec<usize> {
        let mut writer = writer();
        let mut cursor = writer.start();
        for &(is_pair, place) in steps.iter().cycle() {
            let order = is_pair.then(|| Record::data(0x1000));
            // SAFETY: the cursor is not full, or `handle_limit` has advanced it.
            unsafe { cursor.push(order, Record::data(place).with(CHASES)) };
            if cursor.is_full() && !writer.handle_limit(&mut cursor) {
                break;
            }
        }
        let records: Vec<Record> = writer.batch().records.iter().map(|record| Record(record.load(Relaxed))).collect();
        let count_checked = |&(_, place): &(bool, u64)| {
            records.iter().filter(|record| record.address() == place && record.depends() == Some(true)).count()
        };
        steps.iter().map(count_checked).collect()
    }

    #[test]
    fn each_step_of_a_loop_is_checked_equally_often() {
        for steps in [
            &[(true, 0x2008), (false, 0x3008)][..],
            &[(true, 0x2008), (true, 0x3008)],
            &[(true, 0x2008), (false, 0x3008), (false, 0x4008)],
        ] {
            let found = check_counts(steps);
            let [least, most] = [found.iter().min(), found.iter().max()].map(|found| *found.unwrap());
            assert!(least > 0 && most <= least + 2, "{steps:?}: {found:?}");
        }
    }

    #[test]
    fn records_in_pairs_are_checked_half_as_often_as_single_ones() {
        let [single, pairs] = [false, true].map(|is_pair| check_counts(&[(is_pair, 0x2008)])[0]);
        assert!(single > 25 && single.abs_diff(2 * pairs) <= 2, "{single} {pairs}");
    }
}
