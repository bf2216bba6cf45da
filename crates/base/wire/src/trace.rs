//! The record of a trace: what the tracing plugin writes while the program runs, and we read beside it.
//!
//! ```text
//! Trace   Plan | doorbell | lane 0 | lane 1 | ...                    one memfd, sparse: lanes nobody uses cost nothing
//! Lane    owner | batch 0 | batch 1 | ... | batch 3         one for each thread being traced
//! Batch   state | phase | ticket | counts | record 0 | record 1 | ...
//! ```
//!
//! A lane has one writer, its thread, and one reader, us. The writer fills batches in turn; [`Batch::state`] hands each
//! over and back, and whoever waits sleeps on it as on a futex. A record is one word:
//!
//! ```text
//!  63 62   61      60       59     58      57 ............ 0
//!  kind    judged  depends  stack  chases  address (user addresses have at most 57 bits)
//! ```
//!
//! Now and then an access is judged: whether its address was read from memory shortly before, so that it could not begin
//! earlier. What its instruction tells of that is in each record: an access relative to the stack pointer never does, one that
//! loads into a register of its own address chases pointers.
//!
//! An event takes [`EVENT_WORDS`] records: the first, of kind [`Kind::Event`], says which, the others are its operands, raw.
//! Events lie between the accesses in the order in which the thread made them, so that the memory that an access hits is
//! known when the access is read.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// Threads that can be traced at once; what more do is neither counted nor recorded, and that they were is told.
pub const LANES: usize = 256;
/// Batches of a lane.
pub const BATCHES: usize = 4;
/// Records of a batch: 128 KiB.
pub const RECORDS: usize = 16 << 10;
/// Room for a program's path; what is longer is cut off.
pub const PATH_BYTES: usize = 256;
/// Records that one event takes, the first included.
pub const EVENT_WORDS: usize = 5;

const KIND_SHIFT: u32 = 62;
const JUDGED: u64 = 1 << 61;
const DEPENDS: u64 = 1 << 60;
/// The sign of an access relative to the stack pointer.
pub const STACK: u64 = 1 << 59;
/// The sign of an access that loads into a register that its own address is made of.
pub const CHASES: u64 = 1 << 58;
const ADDRESS: u64 = (1 << 58) - 1;

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// Data read or written.
    Data = 0,
    /// An instruction fetched from another page than the one before.
    Fetch = 1,
    /// The first word of an event.
    Event = 2,
}

/// One word of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Record(pub u64);

impl Record {
    /// Data at `address`.
    #[must_use]
    pub const fn data(address: u64) -> Self {
        Self(address & ADDRESS)
    }

    /// The same access, with [`STACK`], [`CHASES`] or none.
    #[must_use]
    pub const fn with(self, signs: u64) -> Self {
        Self(self.0 | signs)
    }

    /// Whether it has one of these signs.
    #[must_use]
    pub const fn has(self, signs: u64) -> bool {
        self.0 & signs != 0
    }

    /// An instruction at `address`.
    #[must_use]
    pub const fn fetch(address: u64) -> Self {
        Self(address & ADDRESS | (Kind::Fetch as u64) << KIND_SHIFT)
    }

    /// The first word of an event; its operands follow.
    #[must_use]
    pub const fn event(event: Event) -> Self {
        Self(event as u64 | (Kind::Event as u64) << KIND_SHIFT)
    }

    /// The same access, judged.
    #[must_use]
    pub const fn judged(self, depends: bool) -> Self {
        Self(self.0 | JUDGED | if depends { DEPENDS } else { 0 })
    }

    /// Whether its address was read from memory shortly before, if that was judged.
    #[must_use]
    pub const fn depends(self) -> Option<bool> {
        if self.0 & JUDGED == 0 { None } else { Some(self.0 & DEPENDS != 0) }
    }

    /// What it is about, or `None` for a word that no version of ours writes.
    #[must_use]
    pub const fn kind(self) -> Option<Kind> {
        match self.0 >> KIND_SHIFT {
            0 => Some(Kind::Data),
            1 => Some(Kind::Fetch),
            2 => Some(Kind::Event),
            _ => None,
        }
    }

    /// The address of an access.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0 & ADDRESS
    }
}

/// What happened to the program's memory; the operands are named in order, those not named are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Event {
    /// address, bytes, 1 if private anonymous read-write memory: mapped, in place of whatever was there.
    Map = 1,
    /// address, bytes: no longer mapped.
    Unmap = 2,
    /// address, bytes, site: an allocator of the program gave this out. Sites are numbers of the sites record.
    Alloc = 3,
    /// address: taken back by the allocator.
    Free = 4,
    /// from, bytes, to, bytes there: moved, or made longer or shorter, by mremap.
    Move = 5,
    /// address, bytes, site: the program itself mapped this by a call of mmap at this site. Comes after its [`Event::Map`].
    MapSite = 6,
}

impl Event {
    /// The event with this number.
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

/// What the plugin is asked to do.
///
/// ```text
/// |<-------------------- period -------------------->|
/// | warm-up | counted |           passing            | warm-up | counted | ...
/// |<----- burst ----->|
/// ```
/// How long a run will be nobody knows. So bursts and periods are short at first, and grow with the bursts that there were: a short run
/// has enough of them, a long one not too many, and such as are long enough to tell what a large TLB still holds. Where there are more walks than elsewhere in the thread's run, whoever reads asks for haste
/// ([`Lane::haste`]): what passes between two bursts is then so many times less. A burst counts by the accesses that it is nearest to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Accesses recorded in a row, the warm-up's among them, in each of the first [`Self::EVENLY`] bursts; 0: all of them.
    pub burst: u64,
    /// What they grow to at most.
    pub longest_burst: u64,
    /// Of those in `burst`, the first that only warm the model up; as large a part of longer ones.
    pub warm_up: u64,
    /// Accesses that pass from the start of one burst to the start of the next, for the first [`Self::EVENLY`] bursts.
    pub period: u64,
    /// What they grow to at most; never less than `period`.
    pub longest: u64,
    /// The most haste that is made: with so much, nothing passes between two bursts. 0 or 1: none.
    pub haste: u64,
}

impl Plan {
    /// So many bursts of a thread have the same period; each half as many after them have twice that of those before.
    pub const EVENLY: u64 = 64;

    /// Accesses of burst number `burst` of a thread, from 0, that only warm the model up, and those that count.
    #[must_use]
    pub const fn burst_of(&self, burst: u64) -> (u64, u64) {
        let growth = growth(self.burst, self.longest_burst, burst);
        (self.warm_up.saturating_mul(growth), self.burst.saturating_sub(self.warm_up).saturating_mul(growth))
    }

    /// Accesses from the start of burst number `burst` of a thread to the start of the next, without haste.
    #[must_use]
    pub const fn period_of(&self, burst: u64) -> u64 {
        self.period.saturating_mul(growth(self.period, self.longest, burst))
    }
}

/// How many times as long as the first ones that of burst number `burst` is, where these are of `first` accesses and none is longer than
/// `longest`.
const fn growth(first: u64, longest: u64, burst: u64) -> u64 {
    let most = if first == 0 || longest < first { 1 } else { longest / first };
    let doublings = (burst / (Plan::EVENLY / 2)).saturating_sub(1);
    // Beyond anything that there is.
    let growth = 1_u64 << if doublings < 40 { doublings } else { 40 };
    if growth < most { growth } else { most }
}

/// How a batch stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Standing {
    /// The thread may fill it.
    Free = 0,
    /// We may read it.
    Full = 1,
}

/// What the accesses of a batch are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// They count.
    Counted = 0,
    /// They warm the model up, and do not count.
    Warming = 1,
    /// They passed unrecorded between two bursts; events alone are in the batch.
    Passing = 2,
}

impl Phase {
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
    /// A [`Standing`].
    pub state: AtomicU32,
    /// A [`Phase`].
    pub phase: AtomicU32,
    /// Place in the order in which the batches of all threads were handed over.
    pub ticket: AtomicU64,
    /// Records in it.
    pub filled: AtomicU64,
    /// Accesses that the records stand for: those that hit the page of the access before are counted, not recorded.
    pub accesses: AtomicU64,
    /// Instructions that ran meanwhile.
    pub instructions: AtomicU64,
    /// The records.
    pub records: [AtomicU64; RECORDS],
}

/// What one thread writes.
#[repr(C)]
#[derive(Debug)]
pub struct Lane {
    /// Process number; 0 while the lane is free. Taken by compare-exchange, given back by us once it is empty.
    pub process: AtomicU32,
    /// Thread number.
    pub thread: AtomicU32,
    /// The process that this one was forked from, if it has been.
    pub parent: AtomicU32,
    /// Non-zero once the thread has left and its last batch is handed over.
    pub left: AtomicU32,
    /// How many times less than planned passes between two bursts; set by us. 0: as planned.
    pub haste: AtomicU32,
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
    /// What was asked.
    pub plan: Plan,
    /// The process that reads it.
    pub reader: u32,
    /// Grows, and is woken as a futex, each time a batch is handed over.
    pub doorbell: AtomicU32,
    /// Batches handed over so far: the next [`Batch::ticket`].
    pub tickets: AtomicU64,
    /// Non-zero once nobody reads any more: threads then record nothing and never wait.
    pub closed: AtomicU32,
    /// Threads that found no free lane when they wanted one, or were numbered beyond those that can be told apart.
    pub laneless: AtomicU32,
    /// Bytes for which huge pages may still be asked.
    pub huge_left: AtomicU64,
    /// Programs started by exec: they run without the plugin.
    pub execs: AtomicU32,
    /// The path of the last of these, ended by a zero.
    pub program: [AtomicU8; PATH_BYTES],
    /// Processes begun by fork.
    pub forks: AtomicU32,
    /// Blocks of code translated outside any file: written by the program itself.
    pub generated: AtomicU32,
    /// Non-zero once the site recorder has reported: the program's allocations are seen.
    pub sites: AtomicU32,
    /// One for each thread.
    pub lanes: [Lane; LANES],
}

/// Identifies the build: both sides refuse a trace of another one.
pub const BUILD: u64 = crate::BUILD.rotate_left(17) ^ size_of::<Trace>() as u64;
