//! What the tracer's process tells us: a ring in memory that both share, one writer, one reader, no locks.
//!
//! ```text
//! Lane   phase | errno | head | tail | lost | entry 0 ... entry 4095
//!        tracer writes phase, errno, head, lost and the entries; we write tail
//!
//!        tail ........ head           entries between them are ours to read, all others the tracer's to write
//! ```
//!
//! Counts only grow; an entry's place is its count modulo the length. The memory is anonymous and shared, so it is there before
//! the fork and belongs to both afterwards, whoever ends first.
#![allow(unsafe_code, reason = "memory that two processes share is reached through raw pointers")]

use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::Sample;

/// Entries: 40 seconds of one thread's samples at 100 Hz.
const ENTRIES: usize = 4096;

/// How far the tracer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Phase {
    /// It is attaching.
    Starting = 0,
    /// It samples.
    Running = 1,
    /// It may not trace the process; the errno says why.
    Refused = 2,
    /// The process has ended.
    Ended = 3,
}

/// An entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told {
    /// A thread was stopped and looked at.
    Sample(Sample),
    /// A thread has ended.
    Exit(u32),
}

/// The shared record. All zeroes are an empty one.
#[repr(C)]
struct Record {
    phase: AtomicU32,
    errno: AtomicU32,
    head: AtomicU64,
    tail: AtomicU64,
    lost: AtomicU64,
    entries: [UnsafeCell<MaybeUninit<Told>>; ENTRIES],
}

/// One mapping of it. After a fork each process has one.
pub(super) struct Lane(NonNull<Record>);

// SAFETY: the mapping is not bound to a thread, and each entry is used by one side at a time, as head and tail say.
unsafe impl Send for Lane {}

impl Lane {
    /// Maps an empty one.
    pub(super) fn map() -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is named, so nothing that exists is touched.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), size_of::<Record>(), access, MapFlags::SHARED) }?;
        NonNull::new(start.cast()).map(Self).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
    }

    fn record(&self) -> &Record {
        // SAFETY: mapped as long as this lives, page-aligned, zeroed by the kernel, which is a valid record; all of it is
        // atomics and cells.
        unsafe { self.0.as_ref() }
    }

    /// How far the tracer is.
    pub(super) fn phase(&self) -> Phase {
        match self.record().phase.load(Acquire) {
            1 => Phase::Running,
            2 => Phase::Refused,
            3 => Phase::Ended,
            _ => Phase::Starting,
        }
    }

    /// The tracer's word on how far it is, with an errno for [`Phase::Refused`].
    pub(super) fn enter(&self, phase: Phase, errno: i32) {
        self.record().errno.store(errno.unsigned_abs(), Relaxed);
        self.record().phase.store(phase as u32, Release);
    }

    /// Why it was refused.
    pub(super) fn refusal(&self) -> io::Error {
        io::Error::from_raw_os_error(i32::try_from(self.record().errno.load(Relaxed)).unwrap_or(libc::EIO))
    }

    /// Samples that found no room so far.
    pub(super) fn lost(&self) -> u64 {
        self.record().lost.load(Relaxed)
    }

    /// Writes an entry, or counts it where there is no room. Only the tracer calls it.
    pub(super) fn push(&self, told: Told) {
        let record = self.record();
        let (head, tail) = (record.head.load(Relaxed), record.tail.load(Acquire));
        let Some(entry) = place(record, head).filter(|_| head.wrapping_sub(tail) < ENTRIES as u64) else {
            record.lost.fetch_add(1, Relaxed);
            return;
        };
        // SAFETY: past the head and less than a round from the tail: the reader does not look at it before the head has
        // moved, and has done with its former contents, as the tail told (acquire).
        unsafe { (*entry.get()).write(told) };
        record.head.store(head + 1, Release);
    }

    /// Takes the oldest entry. Only we call it.
    pub(super) fn pop(&mut self) -> Option<Told> {
        let record = self.record();
        let tail = record.tail.load(Relaxed);
        if record.head.load(Acquire) == tail {
            return None;
        }
        // SAFETY: before the head, so it was written (acquire) and is not written again before the tail has moved.
        let told = unsafe { (*place(record, tail)?.get()).assume_init_read() };
        record.tail.store(tail + 1, Release);
        Some(told)
    }
}

fn place(record: &Record, count: u64) -> Option<&UnsafeCell<MaybeUninit<Told>>> {
    record.entries.get(usize::try_from(count % ENTRIES as u64).ok()?)
}

impl Drop for Lane {
    fn drop(&mut self) {
        // SAFETY: this process's own mapping, of that length, that nothing refers into any more. A failure leaves it mapped.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<Record>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exits(lane: &mut Lane) -> Vec<u32> {
        std::iter::from_fn(|| lane.pop())
            .map(|told| match told {
                Told::Exit(tid) => tid,
                Told::Sample(sample) => panic!("{sample:?}"),
            })
            .collect()
    }

    #[test]
    fn entries_come_out_in_order_and_round_the_end() {
        let mut lane = Lane::map().unwrap();
        assert!(lane.pop().is_none());
        for round in 0..5 {
            let first = round * 3000;
            (first..first + 3000).for_each(|tid| lane.push(Told::Exit(tid)));
            assert_eq!(exits(&mut lane), (first..first + 3000).collect::<Vec<_>>());
        }
        assert_eq!(lane.lost(), 0);
    }

    #[test]
    fn a_full_lane_keeps_what_it_has_and_counts_the_rest() {
        let mut lane = Lane::map().unwrap();
        (0..5000).for_each(|tid| lane.push(Told::Exit(tid)));
        assert_eq!(lane.lost(), 5000 - 4096);
        assert_eq!(exits(&mut lane), (0..4096).collect::<Vec<_>>());
        lane.push(Told::Exit(7));
        assert_eq!(exits(&mut lane), [7]);
    }

    #[test]
    fn a_writer_beside_us_is_read_as_it_wrote() {
        let lane = Lane::map().unwrap();
        // The same memory, as a forked process has it; unmapped by one of the two only.
        let twin = std::mem::ManuallyDrop::new(Lane(lane.0));
        let writer = std::thread::spawn(move || {
            for tid in 0..100_000 {
                while twin.record().head.load(Relaxed) - twin.record().tail.load(Acquire) == ENTRIES as u64 {
                    std::thread::yield_now();
                }
                twin.push(Told::Exit(tid));
            }
        });
        let mut lane = lane;
        let mut expected = 0;
        while expected < 100_000 {
            for tid in exits(&mut lane) {
                assert_eq!(tid, expected);
                expected += 1;
            }
        }
        writer.join().unwrap();
    }

    #[test]
    fn a_refusal_carries_its_errno() {
        let lane = Lane::map().unwrap();
        assert_eq!(lane.phase(), Phase::Starting);
        lane.enter(Phase::Refused, libc::EPERM);
        assert_eq!(lane.phase(), Phase::Refused);
        assert_eq!(lane.refusal().raw_os_error(), Some(libc::EPERM));
    }
}
