//! The record of `run --resident`: settings, and counters of each process.
//!
//! ```text
//! PagingSession   magic | build | PagingConfig | claimed | process 0 | process 1 | ...
//! ```
//! Invariants: no entry is moved or freed. Each process changes its own entry only.

use core::ffi::CStr;
use core::mem::size_of;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::{MAGIC, Mismatch, ProcessName};

/// The environment variable whose value is the path of the record.
pub const PAGING_VARIABLE: &CStr = c"FIELDSTONE_PAGING";

/// Capacity in processes. Later processes are not paged.
pub const PROCESSES: usize = 256;
/// Stores of a process.
pub const STORES: usize = 6;
/// The index of the store of pages compressed by lz4.
pub const LZ4: usize = 0;
/// The index of the store of pages in a file.
pub const FILE: usize = 1;
/// The index of the store of pages on a server.
pub const REDIS: usize = 2;
/// The index of the store of pages compressed by zstd.
pub const ZSTD: usize = 3;
/// The index of the store of pages in an object store.
pub const OBJECTS: usize = 4;
/// The names of the stores of `run --resident`, by their index.
pub const STORE_NAMES: [&str; 5] = ["lz4", "file", "redis", "zstd", "opendal"];
/// No store, in [`PagingConfig::order`].
pub const NO_STORE: u8 = u8::MAX;
/// The longest directory of a file of pages, with its final zero.
pub const DIRECTORY_BYTES: usize = 1024;
/// The longest path of a shared record, with its final zero.
pub const RECORD_BYTES: usize = 64;
/// Identifies the build: both sides refuse a record of another build.
pub const BUILD: u64 = crate::BUILD.rotate_left(29) ^ size_of::<PagingSession>() as u64;

/// The user's settings.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PagingConfig {
    /// Bytes of private memory that may be resident, of all processes together.
    pub bound_bytes: u64,
    /// Bytes that pages compressed by lz4 may take; 0 without that store.
    pub lz4_bytes: u64,
    /// Bytes that pages compressed by zstd may take; 0 without that store.
    pub zstd_bytes: u64,
    /// The directory of the file of pages, a C string; empty without that store.
    pub directory: [u8; DIRECTORY_BYTES],
    /// The path of the [`PageExchange`](crate::page_exchange::PageExchange), a C string; empty without
    /// a server.
    pub exchange: [u8; RECORD_BYTES],
    /// Milliseconds that a process waits for the command's answer.
    pub exchange_timeout_ms: u32,
    /// The order in which the stores are tried: their indexes, then [`NO_STORE`].
    pub order: [u8; STORES],
}

impl PagingConfig {
    /// The directory of the file of pages.
    #[must_use]
    pub fn directory(&self) -> Option<&CStr> {
        path(&self.directory)
    }

    /// The path of the exchange.
    #[must_use]
    pub fn exchange(&self) -> Option<&CStr> {
        path(&self.exchange)
    }

    /// The index of the store whose pages the command keeps: [`REDIS`] or [`OBJECTS`].
    #[must_use]
    pub fn exchanged_store(&self) -> usize {
        if self.order.map(usize::from).contains(&OBJECTS) { OBJECTS } else { REDIS }
    }
}

fn path(bytes: &[u8]) -> Option<&CStr> {
    CStr::from_bytes_until_nul(bytes).ok().filter(|path| !path.is_empty())
}

/// Counts of a pager. All zeros at the start.
#[repr(C)]
#[derive(Debug, Default)]
pub struct PagingCounters {
    /// Pages of paged memory that are resident.
    pub resident: AtomicU64,
    /// The largest value of it.
    pub peak_resident: AtomicU64,
    /// The largest value that the pager allows: the bound without memory that is not paged.
    pub bound: AtomicU64,
    /// Pages that left memory.
    pub evicted: AtomicU64,
    /// Pages among them that contained zeros only and are stored nowhere.
    pub evicted_zero: AtomicU64,
    /// Pages among them that had not changed since they came back, and were still stored.
    pub evicted_unchanged: AtomicU64,
    /// Faults that were served.
    pub faults: AtomicU64,
    /// Faults among them at pages that were stored nowhere: first accesses, or pages of zeros.
    pub first_accesses: AtomicU64,
    /// Pages that came back from each store.
    pub loaded: [AtomicU64; STORES],
    /// Time to bring them back, in nanoseconds.
    pub load_ns: [AtomicU64; STORES],
    /// Pages that could not leave memory: locked, pinned, shared with a child, or not writable.
    pub unmovable: AtomicU64,
    /// Pages that no store took.
    pub refused: AtomicU64,
    /// Pages that were damaged or could not be read.
    pub lost: AtomicU64,
    /// Bytes that the pages take in each store.
    pub store_bytes: [AtomicU64; STORES],
    /// Forked children that got all stored pages at once.
    pub children: AtomicU64,
}

impl PagingCounters {
    /// All zeros.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            resident: AtomicU64::new(0),
            peak_resident: AtomicU64::new(0),
            bound: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            evicted_zero: AtomicU64::new(0),
            evicted_unchanged: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            first_accesses: AtomicU64::new(0),
            loaded: [const { AtomicU64::new(0) }; STORES],
            load_ns: [const { AtomicU64::new(0) }; STORES],
            unmovable: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            store_bytes: [const { AtomicU64::new(0) }; STORES],
            children: AtomicU64::new(0),
        }
    }
}

/// Instructions that a process records at most.
pub const FAULT_SITES: usize = 256;
/// Places that are tried for an instruction.
const TRIES: usize = 8;

/// Instructions that waited for pages, of a part of the faults. All zeros at the start; one thread
/// counts.
#[repr(C)]
#[derive(Debug)]
pub struct FaultSites {
    /// The addresses of instructions; 0 for none.
    addresses: [AtomicU64; FAULT_SITES],
    counts: [AtomicU64; FAULT_SITES],
    /// Faults of instructions for which there was no place.
    pub others: AtomicU64,
}

impl FaultSites {
    /// Counts a fault of the instruction at an address.
    pub fn count(&self, address: u64) {
        let first = (address.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize;
        for place in (first..first + TRIES).map(|place| place % FAULT_SITES) {
            let known = self.addresses[place].load(Acquire);
            if known == 0 {
                self.addresses[place].store(address, Release);
            }
            if known == 0 || known == address {
                self.counts[place].fetch_add(1, Release);
                return;
            }
        }
        self.others.fetch_add(1, Release);
    }

    /// The instructions, and how often each was counted.
    pub fn counted(&self) -> impl Iterator<Item = (u64, u64)> {
        let pairs = self.addresses.iter().zip(&self.counts);
        pairs.map(|(address, count)| (address.load(Acquire), count.load(Acquire))).filter(|&(address, _)| address != 0)
    }
}

/// Whether the memory of a process counts towards the bound of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It does not yet.
    Starting = 0,
    /// It does. The process has locked the byte of the record with its index.
    Running = 1,
    /// It has ended.
    Ended = 2,
}

/// One process of a session.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct PagingProcess {
    /// The process id in the process's own pid namespace; 0 while the entry is free.
    pub pid: AtomicU32,
    /// The errno for which the process is not paged; 0 if it is.
    pub refused_errno: AtomicU32,
    /// A [`ProcessState`].
    pub state: AtomicU32,
    /// The name of the program.
    pub name: ProcessName,
    /// Private memory that is not paged, in pages.
    pub unpaged: AtomicU64,
    /// What the pager did.
    pub counters: PagingCounters,
    /// Where the program waited for pages.
    pub sites: FaultSites,
}

/// The shared record of one run.
#[repr(C)]
#[derive(Debug)]
pub struct PagingSession {
    /// [`MAGIC`], written last.
    pub magic: u64,
    /// [`BUILD`] of the writer.
    pub build: u64,
    /// The settings.
    pub config: PagingConfig,
    /// Entries claimed so far; may exceed [`PROCESSES`].
    claimed: AtomicU32,
    /// One entry for each process.
    pub processes: [PagingProcess; PROCESSES],
}

impl PagingSession {
    /// Checks that this build wrote the record.
    ///
    /// # Errors
    /// [`Mismatch`] when the magic or the build differs.
    pub fn check(&self) -> Result<(), Mismatch> {
        if self.magic == MAGIC && self.build == BUILD { Ok(()) } else { Err(Mismatch) }
    }

    /// Claims the next entry for process `pid`, or `None` when all are taken.
    pub fn claim_process(&self, pid: u32) -> Option<&PagingProcess> {
        let next = self.claimed.fetch_add(1, AcqRel);
        self.processes.get(next as usize).inspect(|process| process.pid.store(pid, Release))
    }

    /// The index of an entry.
    #[must_use]
    pub fn index_of(&self, process: &PagingProcess) -> Option<usize> {
        self.processes.iter().position(|entry| core::ptr::eq(entry, process))
    }

    /// The number of claimed entries.
    #[must_use]
    pub fn claimed(&self) -> usize {
        (self.claimed.load(Acquire) as usize).min(PROCESSES)
    }

    /// The claimed entries, in the order of their claims.
    pub fn claimed_processes(&self) -> impl Iterator<Item = &PagingProcess> {
        self.processes[..self.claimed()].iter().filter(|process| process.pid.load(Acquire) != 0)
    }
}
