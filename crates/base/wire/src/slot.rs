//! The state of one injected process, in memory that outlives it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::PlacementReason;

/// Phases in the life of a process.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessPhase {
    /// The slot is claimed; the region is not mapped yet.
    Loading = 0,
    /// The region serves the process.
    Serving = 1,
    /// The process is in `exit` and waits, for a bounded time, for a last sample.
    Leaving = 2,
    /// The supervisor has taken the last sample; the process may exit.
    Sampled = 3,
    /// The agent is inactive: see [`DormancyReason`].
    Dormant = 4,
}

/// Why the agent does not serve a process.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DormancyReason {
    /// `--process` names another program.
    OtherName = 1,
    /// The base page size is not 4 KiB.
    PageSize = 2,
    /// An address or memory sanitizer owns the address space.
    Sanitizer = 3,
    /// libc's entry points are not recognised, or their code is not writable.
    Entries = 4,
    /// No free address range was found.
    NoRange = 5,
}

impl DormancyReason {
    /// The text in a report, or `None` for a code of another version.
    #[must_use]
    pub fn words(code: u32) -> Option<&'static str> {
        Some(match code {
            1 => "another process was named by --process",
            2 => "base pages are not 4 KiB",
            3 => "a sanitizer owns its address space",
            4 => "its libc's entry points are not recognised or not writable",
            5 => "no free address range",
            _ => return None,
        })
    }
}

/// One process of a session. Counters only grow, except [`Self::reserve_left_bytes`].
#[repr(C, align(128))]
#[derive(Debug)]
pub struct ProcessSlot {
    /// The process id in the process's own pid namespace; 0 while the slot is free.
    pub pid: AtomicU32,
    /// The parent's id at the time of the claim.
    pub parent: AtomicU32,
    /// A [`ProcessPhase`].
    pub phase: AtomicU32,
    /// A [`DormancyReason`] when the phase is dormant.
    pub dormant: AtomicU32,
    /// First address of the region.
    pub base: AtomicU64,
    /// First address past the region.
    pub limit: AtomicU64,
    /// Address, in the process, of its [`crate::span::SPANS`] words; 0 while there are none.
    pub spans: AtomicU64,
    /// Bytes of private anonymous read-write memory served from the region, summed over all calls.
    pub served_bytes: AtomicU64,
    /// Number of calls served from the region.
    pub served_calls: AtomicU64,
    /// Calls by [`PlacementReason`] reason.
    pub outside_calls: [AtomicU64; PlacementReason::ALL.len()],
    /// Bytes by [`PlacementReason`] reason.
    pub outside_bytes: [AtomicU64; PlacementReason::ALL.len()],
    /// Bytes that `--reserve` mapped and that are not handed out yet. This counter only shrinks.
    pub reserve_left_bytes: AtomicU64,
    /// Bytes that `--reserve` mapped at the start.
    pub reserve_bytes: AtomicU64,
    /// Bytes of `--reserve` that the kernel refused to map.
    pub reserve_refused_bytes: AtomicU64,
    /// Bytes of the reserve that `--prefault` did not touch, because memory was short.
    pub reserve_untouched_bytes: AtomicU64,
    /// Programs started by exec without the agent, because the agent cannot serve them.
    pub exec_untouched: AtomicU64,
}

impl ProcessSlot {
    /// Counts one call that was served `bytes` bytes from the region.
    pub fn count_served(&self, bytes: usize) {
        self.served_calls.fetch_add(1, Ordering::Relaxed);
        self.served_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts one call of `bytes` bytes under `reason`.
    pub fn count_outside(&self, reason: PlacementReason, bytes: usize) {
        self.outside_calls[reason as usize].fetch_add(1, Ordering::Relaxed);
        self.outside_bytes[reason as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
