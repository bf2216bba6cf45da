//! What one injected process tells of itself, in memory that outlives it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::Outside;

/// Where a process is in its life, as the agent says it.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The slot is claimed, the region not yet in place.
    Loading = 0,
    /// The region serves the process.
    Serving = 1,
    /// The process is leaving by `exit` and waits, for a bounded time, to be sampled a last time.
    Leaving = 2,
    /// The supervisor has taken its last sample; the process may go.
    Sampled = 3,
    /// The agent looks on: see [`Dormant`].
    Dormant = 4,
}

/// Why the agent leaves a process's memory alone.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dormant {
    /// `--process` names another program.
    OtherName = 1,
    /// Base pages are not 4 KiB.
    PageSize = 2,
    /// An address or memory sanitizer owns the address space.
    Sanitizer = 3,
    /// libc's entries do not look as expected, or their code may not be written.
    Entries = 4,
    /// No free address range was found.
    NoRange = 5,
}

impl Dormant {
    /// The words in a report, or `None` for a number of another version.
    #[must_use]
    pub fn words(code: u32) -> Option<&'static str> {
        Some(match code {
            1 => "another process was named by --process",
            2 => "base pages are not 4 KiB",
            3 => "a sanitizer owns its address space",
            4 => "its libc's entries are not understood or may not be written",
            5 => "no free address range",
            _ => return None,
        })
    }
}

/// One process of a session. Counters grow, but for the one that says otherwise.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct ProcessSlot {
    /// The process id as the process sees it, zero while the slot is unclaimed.
    pub pid: AtomicU32,
    /// The parent's id at the time of the claim.
    pub parent: AtomicU32,
    /// A [`Phase`].
    pub phase: AtomicU32,
    /// A [`Dormant`] when the phase is dormant.
    pub dormant: AtomicU32,
    /// First address of the region.
    pub base: AtomicU64,
    /// First address past the region.
    pub limit: AtomicU64,
    /// Address, in the process, of its [`crate::span::SPANS`] words; zero while there are none.
    pub spans: AtomicU64,
    /// Bytes of private anonymous read-write memory given from the region, summed over all calls.
    pub served_bytes: AtomicU64,
    /// Calls that gave them.
    pub served_calls: AtomicU64,
    /// Calls by [`Outside`] reason.
    pub outside_calls: [AtomicU64; Outside::ALL.len()],
    /// Bytes by [`Outside`] reason.
    pub outside_bytes: [AtomicU64; Outside::ALL.len()],
    /// Bytes that `--reserve` mapped and that were not given yet. It only shrinks.
    pub reserve_left_bytes: AtomicU64,
    /// Bytes that `--reserve` mapped at the start.
    pub reserve_bytes: AtomicU64,
    /// Bytes of `--reserve` that the kernel refused to map.
    pub reserve_refused_bytes: AtomicU64,
    /// Bytes of the reserve that `--prefault` asks for and that were not touched, for there is not enough memory.
    pub reserve_untouched_bytes: AtomicU64,
    /// Programs started by exec without the agent, since it could not serve them.
    pub exec_untouched: AtomicU64,
}

impl ProcessSlot {
    /// Counts `bytes` given from the region by one call.
    pub fn served(&self, bytes: usize) {
        self.served_calls.fetch_add(1, Ordering::Relaxed);
        self.served_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts `bytes` under `reason`.
    pub fn outside(&self, reason: Outside, bytes: usize) {
        self.outside_calls[reason as usize].fetch_add(1, Ordering::Relaxed);
        self.outside_bytes[reason as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
