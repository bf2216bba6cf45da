//! A thread's lane in the shared record: batches that are filled in turn and handed over.

#![allow(unsafe_code, reason = "a lane is a place in the shared record")]

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use fieldstone_wire::trace::{BATCHES, Batch, BatchState, BurstPhase, EVENT_WORDS, Lane, MemoryEvent, Record};

use crate::chain::{self, LOOK_BACK};
use crate::marker::Run;
use crate::trace::{guest_base, sleep_while, trace, wake};

/// One in so many records is judged. A prime, so that a program's own rhythm does not choose.
const EACH: usize = 509;
/// Records that [`Cursor::push`] may write after a look at [`Cursor::is_full`].
const UNASKED: usize = 2;

/// Lanes that this process has.
static LANES: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Whether it was told that the calling thread cannot be traced.
    static TOLD: Cell<bool> = const { Cell::new(false) };
}

/// Tells that the calling thread cannot be traced; once, however often it asks.
pub(crate) fn tell_laneless() {
    if !TOLD.replace(true) {
        trace().threads_without_lane.fetch_add(1, Relaxed);
    }
}

/// Whether other threads of this process are traced too.
pub(crate) fn are_several() -> bool {
    LANES.load(Relaxed) > 1
}

/// Whether the reader's number means the reader here: not in a namespace of its own.
static READER_IN_SIGHT: AtomicBool = AtomicBool::new(true);

/// A fork's child begins without a lane.
pub(crate) fn forget_in_child() {
    LANES.store(0, Relaxed);
    TOLD.set(false);
    // Its parent has a number wherever both are in one namespace.
    if std::os::unix::process::parent_id() == 0 {
        READER_IN_SIGHT.store(false, Relaxed);
    }
}

/// Whether the reader was killed: it could close nothing then, and who waits for it would wait for ever.
fn reader_is_gone(reader: u32) -> bool {
    // SAFETY: signal 0 is none: it only asks.
    let refused = || unsafe { libc::kill(reader.cast_signed(), 0) } != 0;
    let absent = || std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    READER_IN_SIGHT.load(Relaxed) && refused() && absent()
}

/// Where the next record goes.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Cursor {
    next: *const AtomicU64,
    /// At or behind it the writer wants to be asked first.
    limit: *const AtomicU64,
}

impl Cursor {
    /// Nowhere: always full.
    pub(crate) const NOWHERE: Self = Self { next: ptr::null(), limit: ptr::null() };

    /// Whether the writer has to be asked before a record is written.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.next >= self.limit
    }

    /// Writes one record, with one before it where the order needs that.
    ///
    /// # Safety
    /// Once after a look that found it not full.
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, order: Option<Record>, record: Record) {
        let mut next = self.next;
        // SAFETY: a limit lies [`UNASKED`] records from the end of its batch, which is never unmapped.
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

/// The lane of one thread, and how far it has come in it.
#[derive(Debug)]
pub(crate) struct Writer {
    lane: &'static Lane,
    at: usize,
    /// What lies before it in the batch are events, and the accesses before those.
    fresh: usize,
}

impl Writer {
    /// Takes a free lane. None if there is none, or nobody reads any more.
    pub(crate) fn claim() -> Option<Self> {
        let trace = trace();
        if trace.closed.load(Relaxed) != 0 {
            return None;
        }
        let process = std::process::id();
        let free = |lane: &&'static Lane| lane.process.compare_exchange(0, process, AcqRel, Relaxed).is_ok();
        let Some(lane) = trace.lanes.iter().find(free) else {
            tell_laneless();
            return None;
        };
        LANES.fetch_add(1, Relaxed);
        // SAFETY: both calls only tell a number.
        let thread = unsafe { libc::gettid() }.cast_unsigned();
        lane.thread.store(thread, Relaxed);
        lane.parent.store(std::os::unix::process::parent_id(), Relaxed);
        Some(Self { lane, at: 0, fresh: 0 })
    }

    /// How many times less than planned is to pass between two bursts.
    pub(crate) fn density(&self) -> u64 {
        u64::from(self.lane.density.load(Relaxed)).max(1)
    }

    fn batch(&self) -> &'static Batch {
        &self.lane.batches[self.at]
    }

    /// The start of the batch that is being filled.
    pub(crate) fn start(&self) -> Cursor {
        self.from(0, EACH)
    }

    /// Goes on at `place`, and is to ask at `limit`, or at the end of the batch.
    fn from(&self, place: usize, limit: usize) -> Cursor {
        let records = self.batch().records.as_ptr_range();
        let last = self.batch().records.len() - UNASKED;
        Cursor { next: records.start.wrapping_add(place), limit: records.start.wrapping_add(last.min(limit)) }
    }

    fn place(&self, record: *const AtomicU64) -> usize {
        (record.addr() - self.batch().records.as_ptr().addr()) / size_of::<AtomicU64>()
    }

    /// The cursor has come to its limit: judges the record before it. False when the batch is full and has to be handed over.
    ///
    /// Where two records were written at once the limit may lie between them. The one before it is there for the order alone, then, and
    /// tells nothing; if the second were judged in its stead, those that come in twos would count twice.
    pub(crate) fn go_on(&mut self, cursor: &mut Cursor) -> bool {
        let (place, limit) = (self.place(cursor.next), self.place(cursor.limit));
        let records = &self.batch().records;
        if let Some(last) = limit.checked_sub(1).filter(|&last| last >= self.fresh && place == limit) {
            let read = |at: usize| Record(records[at].load(Relaxed));
            let before = (self.fresh.max(last.saturating_sub(LOOK_BACK))..last).rev().map(read);
            if let Some(depends) = chain::judge(read(last), before, guest_base()) {
                records[last].store(read(last).with_dependence(depends).0, Relaxed);
            }
        }
        self.publish(place);
        if place + UNASKED >= records.len() {
            return false;
        }
        // From limit to limit, and not from where it stopped: else it might stop at the same record of a loop each time.
        *cursor = self.from(place, limit + EACH);
        true
    }

    /// A reader that finds the process dead takes what was published.
    fn publish(&self, place: usize) {
        self.batch().filled.store(place as u64, Release);
    }

    /// Writes an event. False when the batch has no room for it and has to be handed over first.
    pub(crate) fn push_event(
        &mut self,
        cursor: &mut Cursor,
        event: MemoryEvent,
        operands: [u64; EVENT_WORDS - 1],
    ) -> bool {
        let place = self.place(cursor.next);
        let Some(room) = self.batch().records.get(place..place + EVENT_WORDS) else { return false };
        let words = [Record::event(event).0].into_iter().chain(operands);
        room.iter().zip(words).for_each(|(record, word)| record.store(word, Relaxed));
        self.fresh = place + EVENT_WORDS;
        self.publish(self.fresh);
        *cursor = self.from(self.fresh, self.fresh + EACH);
        true
    }

    /// Hands the batch over, and waits until the next one is free.
    pub(crate) fn hand_over(&mut self, cursor: &mut Cursor, phase: BurstPhase, run: Run) {
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
        self.fresh = 0;
        let next = self.batch();
        // It ends: the reader takes the batch, closes the record, or is found gone within a second.
        while next.state.load(Acquire) == BatchState::Full as u32 && trace.closed.load(Relaxed) == 0 {
            sleep_while(&next.state, BatchState::Full as u32);
            if reader_is_gone(trace.reader) {
                trace.closed.store(1, Relaxed);
            }
        }
        *cursor = self.start();
    }

    /// Leaves the lane to the reader, who gives it back once it has read it. The last batch was handed over.
    pub(crate) fn leave(self) {
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

    /// A writer of a lane of its own, that nobody reads.
    fn writer() -> Writer {
        // SAFETY: a lane is made of integers, for all of which zeros will do.
        let lane: Box<Lane> = unsafe { Box::new_zeroed().assume_init() };
        Writer { lane: Box::leak(lane), at: 0, fresh: 0 }
    }

    /// A batch full of what a loop writes: how many records of each of its steps are judged. Each step says which it is by its address.
    fn judged(steps: &[(bool, u64)]) -> Vec<usize> {
        let mut writer = writer();
        let mut cursor = writer.start();
        for &(in_two, place) in steps.iter().cycle() {
            let order = in_two.then(|| Record::data(0x1000));
            // SAFETY: it was not full, or has gone on.
            unsafe { cursor.push(order, Record::data(place).with(CHASES)) };
            if cursor.is_full() && !writer.go_on(&mut cursor) {
                break;
            }
        }
        let records: Vec<Record> = writer.batch().records.iter().map(|record| Record(record.load(Relaxed))).collect();
        let judged = |&(_, place): &(bool, u64)| {
            records.iter().filter(|record| record.address() == place && record.depends() == Some(true)).count()
        };
        steps.iter().map(judged).collect()
    }

    #[test]
    fn each_step_of_a_loop_is_judged_as_often() {
        for steps in [
            &[(true, 0x2008), (false, 0x3008)][..],
            &[(true, 0x2008), (true, 0x3008)],
            &[(true, 0x2008), (false, 0x3008), (false, 0x4008)],
        ] {
            let found = judged(steps);
            let [least, most] = [found.iter().min(), found.iter().max()].map(|found| *found.unwrap());
            assert!(least > 0 && most <= least + 2, "{steps:?}: {found:?}");
        }
    }

    #[test]
    fn records_in_twos_are_judged_half_as_often_as_single_ones() {
        let [single, twos] = [false, true].map(|in_two| judged(&[(in_two, 0x2008)])[0]);
        assert!(single > 25 && single.abs_diff(2 * twos) <= 2, "{single} {twos}");
    }
}
