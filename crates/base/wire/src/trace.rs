//! The record of a trace: written by the tracing plugin while the program runs, and read
//! concurrently by the supervisor.
//!
//! ```text
//! Trace   SamplingPlan | doorbell | lane 0 | lane 1 | ... one memfd, sparse: unused lanes are free
//! Lane    owner | batch 0 | batch 1 | ... | batch 3       one for each traced thread
//! Batch   state | phase | ticket | counts | record 0 | record 1 | ...
//! ```
//!
//! A lane has one writer, its thread, and one reader, the supervisor. The writer fills the batches
//! in turn. [`Batch::state`] passes a batch to the reader and back; a side that waits sleeps on it
//! as on a futex. A record is one word:
//!
//! ```text
//!  63 62   61      60       59     58      57 ............ 0
//!  kind    judged  depends  stack  chases  address (user addresses have at most 57 bits)
//! ```
//!
//! `depends` is measured for some accesses only, which `judged` marks. It says that the address was
//! loaded from memory shortly before, so the access could not start earlier. The instruction's own
//! evidence is in each record. An access relative to the stack pointer never depends; an
//! instruction that loads into a register of its own address chases pointers.
//!
//! An event takes [`EVENT_WORDS`] records: the first, of kind [`RecordKind::Event`], says which;
//! the others are its raw operands. Events are stored among the accesses in program order, so the
//! reader knows the mapping that an access hits.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// Capacity in threads. Further threads are not recorded; [`Trace::threads_without_lane`] counts
/// them.
pub const LANES: usize = 256;
/// Batches of a lane.
pub const BATCHES: usize = 4;
/// Records of a batch: 128 KiB.
pub const RECORDS: usize = 16 << 10;
/// Size in bytes of a program's path; a longer path is truncated.
pub const PATH_BYTES: usize = 256;
/// Records that one event takes, the first included.
pub const EVENT_WORDS: usize = 5;

const KIND_SHIFT: u32 = 62;
const DEPENDENCE_KNOWN: u64 = 1 << 61;
const DEPENDS: u64 = 1 << 60;
/// Flag of an access relative to the stack pointer.
pub const STACK: u64 = 1 << 59;
/// Flag of an access that loads into a register of its own address.
pub const CHASES: u64 = 1 << 58;
const ADDRESS: u64 = (1 << 58) - 1;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum RecordKind {
    /// Data read or written.
    Data = 0,
    /// An instruction fetch from another page than the one before.
    Fetch = 1,
    /// The first word of an event.
    Event = 2,
}

/// One word of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Record(pub u64);

impl Record {
    /// A data access to `address`.
    #[must_use]
    pub const fn data(address: u64) -> Self {
        Self(address & ADDRESS)
    }

    /// The same access with [`STACK`] and [`CHASES`] set as in `signs`.
    #[must_use]
    pub const fn with(self, signs: u64) -> Self {
        Self(self.0 | signs)
    }

    /// Whether one of the flags in `signs` is set.
    #[must_use]
    pub const fn has(self, signs: u64) -> bool {
        self.0 & signs != 0
    }

    /// An instruction fetch from `address`.
    #[must_use]
    pub const fn fetch(address: u64) -> Self {
        Self(address & ADDRESS | (RecordKind::Fetch as u64) << KIND_SHIFT)
    }

    /// The first word of an event; its operands follow.
    #[must_use]
    pub const fn event(event: MemoryEvent) -> Self {
        Self(event as u64 | (RecordKind::Event as u64) << KIND_SHIFT)
    }

    /// The same access with its measured dependence.
    #[must_use]
    pub const fn with_dependence(self, depends: bool) -> Self {
        Self(self.0 | DEPENDENCE_KNOWN | if depends { DEPENDS } else { 0 })
    }

    /// Whether the address was loaded from memory shortly before; `None` if that was not measured.
    #[must_use]
    pub const fn depends(self) -> Option<bool> {
        if self.0 & DEPENDENCE_KNOWN == 0 { None } else { Some(self.0 & DEPENDS != 0) }
    }

    /// The kind, or `None` for an unknown code.
    #[must_use]
    pub const fn kind(self) -> Option<RecordKind> {
        match self.0 >> KIND_SHIFT {
            0 => Some(RecordKind::Data),
            1 => Some(RecordKind::Fetch),
            2 => Some(RecordKind::Event),
            _ => None,
        }
    }

    /// The address of an access.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0 & ADDRESS
    }
}

/// A change of the program's memory. Operands are listed in order; others are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum MemoryEvent {
    /// address, bytes, 1 if private anonymous read-write memory: mapped, replacing older mappings.
    Map = 1,
    /// address, bytes: unmapped.
    Unmap = 2,
    /// address, bytes, site: allocated by an allocator of the program. Sites are numbers in the
    /// sites record.
    Alloc = 3,
    /// address: freed.
    Free = 4,
    /// from, bytes, to, bytes there: moved or resized by mremap.
    Move = 5,
    /// address, bytes, site: mapped by the program's own call of mmap. Follows its
    /// [`MemoryEvent::Map`].
    MapSite = 6,
}

impl MemoryEvent {
    /// The event with this code.
    #[must_use]
    pub const fn from_code(code: u64) -> Option<Self> {
        match code {
            1 => Some(Self::Map),
            2 => Some(Self::Unmap),
            3 => Some(Self::Alloc),
            4 => Some(Self::Free),
            5 => Some(Self::Move),
            6 => Some(Self::MapSite),
            _ => None,
        }
    }
}

/// The sampling plan of the plugin.
///
/// ```text
/// |<-------------------- period -------------------->|
/// | warm-up | counted |           passing            | warm-up | counted | ...
/// |<----- burst ----->|
/// ```
/// The length of a run is unknown in advance. So bursts and periods start short and grow with the
/// number of bursts. A short run then has enough bursts, a long run has not too many, and its
/// bursts are long enough to measure a large TLB. Where a thread walks more than elsewhere, the
/// reader raises the density ([`Lane::density`]): the gap between two bursts is divided by it. A
/// burst represents the accesses nearest to it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SamplingPlan {
    /// Accesses recorded in a row, warm-up included, in each of the first [`Self::FIRST_BURSTS`]
    /// bursts; 0 records all.
    pub burst: u64,
    /// Upper bound of the burst length, in accesses.
    pub longest_burst: u64,
    /// Of `burst`, the first accesses that only warm the model up; longer bursts keep the
    /// proportion.
    pub warm_up: u64,
    /// Accesses from the start of one burst to the start of the next, for the first
    /// [`Self::FIRST_BURSTS`] bursts.
    pub period: u64,
    /// Upper bound of the period in accesses; at least `period`.
    pub longest: u64,
    /// The largest density: at this value bursts follow each other without a gap. 0 or 1 disables
    /// it.
    pub density: u64,
}

impl SamplingPlan {
    /// Bursts of a thread that have the first period. Each further half as many doubles it.
    pub const FIRST_BURSTS: u64 = 64;

    /// Accesses of burst number `burst` of a thread, from 0: those that warm up, and those that
    /// count.
    #[must_use]
    pub const fn burst_of(&self, burst: u64) -> (u64, u64) {
        let growth = growth(self.burst, self.longest_burst, burst);
        (self.warm_up.saturating_mul(growth), self.burst.saturating_sub(self.warm_up).saturating_mul(growth))
    }

    /// Accesses from the start of burst number `burst` of a thread to the start of the next, at
    /// density 1.
    #[must_use]
    pub const fn period_of(&self, burst: u64) -> u64 {
        self.period.saturating_mul(growth(self.period, self.longest, burst))
    }
}

/// Growth factor of burst number `burst`, when the first bursts have `first` accesses and none has
/// more than `longest`.
const fn growth(first: u64, longest: u64, burst: u64) -> u64 {
    let most = if first == 0 || longest < first { 1 } else { longest / first };
    let doublings = (burst / (SamplingPlan::FIRST_BURSTS / 2)).saturating_sub(1);
    // The shift is bounded beyond any real run.
    let growth = 1_u64 << if doublings < 40 { doublings } else { 40 };
    if growth < most { growth } else { most }
}

/// The owner of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum BatchState {
    /// The thread may fill it.
    Free = 0,
    /// The supervisor may read it.
    Full = 1,
}

/// The role of the accesses in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum BurstPhase {
    /// They count.
    Counted = 0,
    /// They warm the model up and do not count.
    Warming = 1,
    /// They passed unrecorded between two bursts; the batch holds events only.
    Passing = 2,
}

impl BurstPhase {
    /// The phase with this number.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Counted),
            1 => Some(Self::Warming),
            2 => Some(Self::Passing),
            _ => None,
        }
    }
}

/// Records of one thread, in order.
#[repr(C)]
#[derive(Debug)]
pub struct Batch {
    /// A [`BatchState`].
    pub state: AtomicU32,
    /// A [`BurstPhase`].
    pub phase: AtomicU32,
    /// Sequence number of the batch among those of all threads.
    pub ticket: AtomicU64,
    /// Number of records.
    pub filled: AtomicU64,
    /// Accesses that the records represent. An access to the same page as the one before is
    /// counted, not recorded.
    pub accesses: AtomicU64,
    /// Instructions executed meanwhile.
    pub instructions: AtomicU64,
    /// The records.
    pub records: [AtomicU64; RECORDS],
}

/// The records of one thread.
#[repr(C)]
#[derive(Debug)]
pub struct Lane {
    /// Process id; 0 while the lane is free. Claimed by compare-exchange, released by the
    /// supervisor once the lane is empty.
    pub process: AtomicU32,
    /// Thread id.
    pub thread: AtomicU32,
    /// The parent process if this process was forked, else 0.
    pub parent: AtomicU32,
    /// Non-zero once the thread has exited and its last batch is full.
    pub left: AtomicU32,
    /// Divisor of the gap between two bursts; set by the supervisor. 0 means 1.
    pub density: AtomicU32,
    /// The batches.
    pub batches: [Batch; BATCHES],
}

/// The shared record of one traced run.
#[repr(C)]
#[derive(Debug)]
pub struct Trace {
    /// [`crate::MAGIC`], written last.
    pub magic: u64,
    /// [`BUILD`] of the writer.
    pub build: u64,
    /// The sampling plan.
    pub plan: SamplingPlan,
    /// The process that reads the trace.
    pub reader: u32,
    /// Incremented, and woken as a futex, each time a batch becomes full.
    pub doorbell: AtomicU32,
    /// Full batches so far: the next [`Batch::ticket`].
    pub tickets: AtomicU64,
    /// Non-zero once the reader has ended: threads then record nothing and never wait.
    pub closed: AtomicU32,
    /// Threads without a lane: all lanes were in use, or the thread's number was too large.
    pub threads_without_lane: AtomicU32,
    /// Bytes for which huge pages may still be requested.
    pub huge_left: AtomicU64,
    /// Programs started by exec: they run without the plugin.
    pub execs: AtomicU32,
    /// The path of the last such program, zero-terminated.
    pub program: [AtomicU8; PATH_BYTES],
    /// Processes created by fork.
    pub forks: AtomicU32,
    /// Blocks of code translated outside any file: generated by the program.
    pub generated: AtomicU32,
    /// Non-zero once the site recorder has started: allocations are announced.
    pub sites: AtomicU32,
    /// One lane for each thread.
    pub lanes: [Lane; LANES],
}

/// Identifies the build: both sides refuse a trace of another build.
pub const BUILD: u64 = crate::BUILD.rotate_left(17) ^ size_of::<Trace>() as u64;
