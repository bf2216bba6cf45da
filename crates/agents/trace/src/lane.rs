//! A thread's lane in the shared record: batches that are filled in turn and handed over.

#![allow(unsafe_code, reason = "a lane is a place in the shared record")]

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use fieldstone_wire::trace::{BATCHES, Batch, EVENT_WORDS, Event, Lane, Phase, RECORDS, Record, Standing};

use crate::trace::{sleep_while, trace, wake};

/// The lane of one thread, and how far it has come in it.
#[derive(Debug)]
pub(crate) struct Writer {
    lane: &'static Lane,
    at: usize,
    filled: usize,
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
            trace.laneless.fetch_add(1, Relaxed);
            return None;
        };
        // SAFETY: both calls only tell a number.
        let thread = unsafe { libc::gettid() }.cast_unsigned();
        lane.thread.store(thread, Relaxed);
        lane.parent.store(std::os::unix::process::parent_id(), Relaxed);
        Some(Self { lane, at: 0, filled: 0 })
    }

    fn batch(&self) -> &'static Batch {
        &self.lane.batches[self.at]
    }

    /// Writes one record. True when the batch is full and has to be handed over.
    #[inline]
    pub(crate) fn push(&mut self, record: Record) -> bool {
        let batch = self.batch();
        batch.records[self.filled].store(record.0, Relaxed);
        self.filled += 1;
        // A reader that finds the process dead takes what is there.
        batch.filled.store(self.filled as u64, Release);
        self.filled >= RECORDS - 2 * EVENT_WORDS
    }

    /// Writes an event. True as for [`Self::push`].
    pub(crate) fn push_event(&mut self, event: Event, operands: [u64; EVENT_WORDS - 1]) -> bool {
        let mut full = self.push(Record::event(event));
        for operand in operands {
            full |= self.push(Record(operand));
        }
        full
    }

    /// Hands the batch over, and waits until the next one is free.
    pub(crate) fn hand_over(&mut self, phase: Phase, accesses: u64, instructions: u64) {
        let trace = trace();
        let batch = self.batch();
        batch.accesses.store(accesses, Relaxed);
        batch.instructions.store(instructions, Relaxed);
        batch.phase.store(phase as u32, Relaxed);
        batch.filled.store(self.filled as u64, Relaxed);
        batch.ticket.store(trace.tickets.fetch_add(1, AcqRel), Relaxed);
        batch.state.store(Standing::Full as u32, Release);
        trace.doorbell.fetch_add(1, AcqRel);
        wake(&trace.doorbell);
        self.at = (self.at + 1) % BATCHES;
        self.filled = 0;
        let next = self.batch();
        while next.state.load(Acquire) == Standing::Full as u32 && trace.closed.load(Relaxed) == 0 {
            sleep_while(&next.state, Standing::Full as u32);
        }
    }

    /// Leaves the lane to the reader, who gives it back once it has read it. The last batch was handed over.
    pub(crate) fn leave(self) {
        self.lane.left.store(1, Release);
        trace().doorbell.fetch_add(1, AcqRel);
        wake(&trace().doorbell);
    }
}
