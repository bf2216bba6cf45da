//! The record of `run --guard`: settings, counters of each process, and a mailbox for findings.
//!
//! ```text
//! GuardSession   magic | build | GuardConfig | attention | receiver | claimed | process 0 | ... | cell 0 | ...
//! FindingCell    state | turn | what happened | stack | where allocated | where freed
//!
//!   agent                                        supervisor
//!   claim a cell, fill it, state = WAITING  ──→  waits on `attention`
//!   waits on `state`, at most 10 s               reads the cell and /proc/PID/maps, prints
//!   goes on                                 ←──  state = ANSWERED
//! ```
//! A finding holds raw addresses. The supervisor names them while the process waits, so that its
//! files are still mapped. Without an answer, the agent prints the finding itself.
//!
//! Invariants: no entry is moved or freed. A writer claims a cell before it writes, and the reader
//! reads it in state [`CellState::Waiting`] only. So both sides work without locks.

use core::ffi::CStr;
use core::mem::size_of;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::{MAGIC, Mismatch, ProcessName};

mod finding;

pub use finding::{Access, CODE_BYTES, CellState, FRAMES, FindingCell, Place, Stack};

/// The environment variable whose value is the path of the record.
pub const GUARD_VARIABLE: &CStr = c"FIELDSTONE_GUARD";

/// Capacity in processes. Later processes are guarded, but their counters are not reported.
pub const PROCESSES: usize = 1024;
/// Findings that can wait at one time. Further findings are printed by the process itself.
pub const CELLS: usize = 16;
/// The bit that the kernel sets in [`GuardSession::receiver`] when that thread ends:
/// `FUTEX_OWNER_DIED`.
const OWNER_DIED: u32 = 1 << 30;
/// Identifies the build: both sides refuse a record of another build.
pub const BUILD: u64 = crate::BUILD.rotate_left(17) ^ size_of::<GuardSession>() as u64;

/// Which allocations are guarded.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// The first of each site, then fewer and fewer, within a budget of time.
    Budget = 0,
    /// Every allocation, up to the memory limit.
    All = 1,
    /// The first of each site, then one in [`GuardConfig::interval`].
    Fixed = 2,
}

/// The user's settings.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GuardConfig {
    /// A [`Sampling`].
    pub sampling: u32,
    /// The largest number of allocations of a site per guarded one.
    pub interval: u32,
    /// Allocations of each site that are guarded before the gaps grow.
    pub first: u32,
    /// A `fieldstone_guard::Side`.
    pub side: u32,
    /// Non-zero: a process continues after a finding.
    pub keep_going: u32,
    /// Bytes that guarded objects, freed ones and their records may take in each process.
    pub memory_bytes: u64,
}

/// Why an allocation was not guarded. The number is the index in [`GuardProcess::unguarded`].
#[repr(usize)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnguardedReason {
    /// The site's turn had not come.
    NotSampled = 0,
    /// The budget of time was used up.
    TimeBudget,
    /// The memory limit was reached, or the object was too large.
    Memory,
    /// Made while the thread was inside the agent: by a signal handler.
    Nested,
}

impl UnguardedReason {
    /// All reasons, by number.
    pub const ALL: [Self; 4] = [Self::NotSampled, Self::TimeBudget, Self::Memory, Self::Nested];

    /// The text in a report.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::NotSampled => "not sampled",
            Self::TimeBudget => "time budget used up",
            Self::Memory => "memory limit reached",
            Self::Nested => "made by a signal handler inside the agent",
        }
    }
}

/// One process of a session. Counters only grow, except the bytes in use.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct GuardProcess {
    /// The process id in the process's own pid namespace; 0 while the entry is free.
    pub pid: AtomicU32,
    /// The name of the program.
    pub name: ProcessName,
    /// Findings so far, those that were not reported again included.
    pub findings: AtomicU32,
    /// Allocations so far. A thread counts its own in batches.
    pub allocations: AtomicU64,
    /// Guarded ones among them.
    pub guarded: AtomicU64,
    /// Allocation sites.
    pub sites: AtomicU64,
    /// Allocations that were due to be guarded and were not, by [`UnguardedReason`].
    pub unguarded: [AtomicU64; UnguardedReason::ALL.len()],
    /// Bytes of guarded objects, freed ones and their records.
    pub memory_bytes: AtomicU64,
    /// The largest value of it.
    pub peak_bytes: AtomicU64,
    /// Bytes of address space reserved for guarded objects; 0 if none could be reserved.
    pub reserved_bytes: AtomicU64,
}

/// The shared record of one run.
#[repr(C)]
#[derive(Debug)]
pub struct GuardSession {
    /// [`MAGIC`], written last.
    pub magic: u64,
    /// [`BUILD`] of the writer.
    pub build: u64,
    /// The settings.
    pub config: GuardConfig,
    /// Incremented, and woken as a futex, with each finding.
    pub attention: AtomicU32,
    /// The thread that receives findings: its number, and a bit after its end.
    pub receiver: AtomicU32,
    /// Entries of processes claimed so far; may exceed [`PROCESSES`].
    pub claimed: AtomicU32,
    /// One entry for each process.
    pub processes: [GuardProcess; PROCESSES],
    /// The mailbox.
    pub cells: [FindingCell; CELLS],
}

impl GuardSession {
    /// Checks that this build wrote the record.
    ///
    /// # Errors
    /// [`Mismatch`] when the magic or the build differs.
    pub fn check(&self) -> Result<(), Mismatch> {
        if self.magic == MAGIC && self.build == BUILD { Ok(()) } else { Err(Mismatch) }
    }

    /// Whether the thread that receives findings has ended: none is answered any more.
    pub fn has_ended(&self) -> bool {
        self.receiver.load(Acquire) & OWNER_DIED != 0
    }

    /// Claims the next entry for process `pid`, or `None` when all are taken.
    pub fn claim_process(&self, pid: u32) -> Option<&GuardProcess> {
        let next = self.claimed.fetch_add(1, AcqRel);
        self.processes.get(next as usize).inspect(|process| process.pid.store(pid, Release))
    }

    /// The claimed entries, in the order of their claims.
    pub fn claimed_processes(&self) -> impl Iterator<Item = &GuardProcess> {
        let claimed = self.claimed.load(Acquire) as usize;
        self.processes[..claimed.min(PROCESSES)].iter().filter(|process| process.pid.load(Acquire) != 0)
    }
}
