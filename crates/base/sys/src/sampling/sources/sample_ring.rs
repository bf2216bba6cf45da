//! The ring from the tracer process to this one: shared memory, one writer, one reader, no locks.
//!
//! ```text
//! SharedRing   phase | errno | head | tail | lost | entry 0 ... entry 4095
//!              the tracer writes phase, errno, head, lost and the entries; the reader writes tail
//!
//!              tail ........ head      the reader owns the entries between them, the tracer all others
//! ```
//!
//! Counters only grow; an entry's index is its counter modulo the length. The memory is anonymous
//! and shared: it exists before the fork and belongs to both processes until the last one ends.
#![allow(unsafe_code, reason = "memory that two processes share is reached through raw pointers")]

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::sampling::Sample;

/// Capacity in entries: 40 seconds of one thread's samples at 100 Hz.
const ENTRIES: usize = 4096;

/// The state of the tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum TracerPhase {
    /// It is attaching.
    Starting = 0,
    /// It is sampling.
    Running = 1,
    /// It may not trace the process; the errno is the cause.
    Refused = 2,
    /// The process has ended.
    Ended = 3,
}

/// An entry of the ring.
#[derive(Clone, Copy, Debug)]
pub(super) enum RingEntry {
    /// A thread's sample.
    Sample(Sample),
    /// A thread has exited.
    Exit(u32),
}

/// The shared record. All-zero bytes are an empty one.
#[repr(C)]
struct SharedRing {
    phase: AtomicU32,
    errno: AtomicU32,
    head: AtomicU64,
    tail: AtomicU64,
    lost: AtomicU64,
    entries: [UnsafeCell<MaybeUninit<RingEntry>>; ENTRIES],
}

/// One mapping of the record. After a fork each process has one.
pub(super) struct SampleRing(NonNull<SharedRing>);

// SAFETY: the mapping is not bound to a thread. Head and tail give each entry to one side at a
// time.
unsafe impl Send for SampleRing {}

impl SampleRing {
    /// Maps an empty one.
    pub(super) fn map() -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without a requested address mmap replaces no mapping.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), size_of::<SharedRing>(), access, MapFlags::SHARED) }?;
        NonNull::new(start.cast()).map(Self).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
    }

    fn record(&self) -> &SharedRing {
        // SAFETY: the mapping lives as long as `self`, is page-aligned and was zeroed by the
        // kernel, which is a valid record; both sides access only atomics and cells.
        unsafe { self.0.as_ref() }
    }

    /// The tracer's state.
    pub(super) fn phase(&self) -> TracerPhase {
        match self.record().phase.load(Acquire) {
            1 => TracerPhase::Running,
            2 => TracerPhase::Refused,
            3 => TracerPhase::Ended,
            _ => TracerPhase::Starting,
        }
    }

    /// Sets the tracer's state, with an errno for [`TracerPhase::Refused`].
    pub(super) fn enter(&self, phase: TracerPhase, errno: i32) {
        self.record().errno.store(errno.unsigned_abs(), Relaxed);
        self.record().phase.store(phase as u32, Release);
    }

    /// The cause of a refusal.
    pub(super) fn refusal(&self) -> io::Error {
        io::Error::from_raw_os_error(i32::try_from(self.record().errno.load(Relaxed)).unwrap_or(libc::EIO))
    }

    /// Samples lost so far because the ring was full.
    pub(super) fn lost(&self) -> u64 {
        self.record().lost.load(Relaxed)
    }

    /// Appends an entry, or counts it as lost if the ring is full. Only the tracer calls it.
    pub(super) fn push(&self, value: RingEntry) {
        let record = self.record();
        let (head, tail) = (record.head.load(Relaxed), record.tail.load(Acquire));
        let Some(entry) = place(record, head).filter(|_| head.wrapping_sub(tail) < ENTRIES as u64) else {
            record.lost.fetch_add(1, Relaxed);
            return;
        };
        // SAFETY: the entry is at the head and less than one round from the tail. The reader
        // accesses it only after the head has moved; the acquire load of the tail shows that it has
        // finished with the old entry.
        unsafe { (*entry.get()).write(value) };
        record.head.store(head + 1, Release);
    }

    /// Takes the oldest entry. Only the reader calls it.
    pub(super) fn pop(&mut self) -> Option<RingEntry> {
        let record = self.record();
        let tail = record.tail.load(Relaxed);
        if record.head.load(Acquire) == tail {
            return None;
        }
        // SAFETY: the entry is before the head, so the acquire load shows that it is written; the
        // writer does not reuse it before the tail has moved.
        let entry = unsafe { (*place(record, tail)?.get()).assume_init_read() };
        record.tail.store(tail + 1, Release);
        Some(entry)
    }
}

fn place(record: &SharedRing, count: u64) -> Option<&UnsafeCell<MaybeUninit<RingEntry>>> {
    record.entries.get(usize::try_from(count % ENTRIES as u64).ok()?)
}

impl Drop for SampleRing {
    fn drop(&mut self) {
        // SAFETY: this process's own mapping, of this length, without remaining references. A
        // failure leaves it mapped.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<SharedRing>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exits(ring: &mut SampleRing) -> Vec<u32> {
        std::iter::from_fn(|| ring.pop())
            .map(|entry| match entry {
                RingEntry::Exit(tid) => tid,
                RingEntry::Sample(sample) => panic!("{sample:?}"),
            })
            .collect()
    }

    #[test]
    fn entries_are_read_in_order_across_the_end() {
        let mut ring = SampleRing::map().unwrap();
        assert!(ring.pop().is_none());
        for round in 0..5 {
            let first = round * 3000;
            (first..first + 3000).for_each(|tid| ring.push(RingEntry::Exit(tid)));
            assert_eq!(exits(&mut ring), (first..first + 3000).collect::<Vec<_>>());
        }
        assert_eq!(ring.lost(), 0);
    }

    #[test]
    fn a_full_ring_keeps_its_entries_and_counts_the_rest() {
        let mut ring = SampleRing::map().unwrap();
        (0..5000).for_each(|tid| ring.push(RingEntry::Exit(tid)));
        assert_eq!(ring.lost(), 5000 - 4096);
        assert_eq!(exits(&mut ring), (0..4096).collect::<Vec<_>>());
        ring.push(RingEntry::Exit(7));
        assert_eq!(exits(&mut ring), [7]);
    }

    #[test]
    fn a_concurrent_writer_is_read_in_order() {
        let ring = SampleRing::map().unwrap();
        // The same memory, as in a forked process; only one of the two handles unmaps it.
        let twin = std::mem::ManuallyDrop::new(SampleRing(ring.0));
        let writer = std::thread::spawn(move || {
            for tid in 0..100_000 {
                while twin.record().head.load(Relaxed) - twin.record().tail.load(Acquire) == ENTRIES as u64 {
                    std::thread::yield_now();
                }
                twin.push(RingEntry::Exit(tid));
            }
        });
        let mut ring = ring;
        let mut expected = 0;
        while expected < 100_000 {
            for tid in exits(&mut ring) {
                assert_eq!(tid, expected);
                expected += 1;
            }
        }
        writer.join().unwrap();
    }

    #[test]
    fn a_refusal_carries_its_errno() {
        let ring = SampleRing::map().unwrap();
        assert_eq!(ring.phase(), TracerPhase::Starting);
        ring.enter(TracerPhase::Refused, libc::EPERM);
        assert_eq!(ring.phase(), TracerPhase::Refused);
        assert_eq!(ring.refusal().raw_os_error(), Some(libc::EPERM));
    }
}
