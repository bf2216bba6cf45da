//! The record by which paged processes exchange pages with the `fieldstone` command, which stores
//! them on a server.
//!
//! ```text
//! PageExchange   magic | build | requests | process 0: channel 0, channel 1 | process 1: ...
//! process:  IDLE ─→ writes the request ─→ REQUESTED ─→ waits ─────────────→ ANSWERED ─→ IDLE
//! command:                                └─→ SERVED ─→ writes the answer ───┘
//! ```
//! `requests` is a futex that each request increments; `state` is one of its channel.
//!
//! Invariants: a channel's other fields belong to the process while it is `IDLE` or `ANSWERED`, and
//! to the command while it is `SERVED`. A process that waits no longer takes a request back
//! (`REQUESTED` to `IDLE`); once it is served, the process leaves the channel until it is answered.

use core::mem::size_of;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize};

use crate::paging::PROCESSES;
use crate::{MAGIC, Mismatch};

/// Pages of a request at most.
pub const EXCHANGE_PAGES: usize = 32;
/// Channels of a process: requests that it has at one time.
pub const CHANNELS: usize = 2;
/// Identifies the build: both sides refuse a record of another build.
pub const BUILD: u64 = crate::BUILD.rotate_left(41) ^ size_of::<PageExchange>() as u64;

const PAGE: usize = 4096;
/// Words of a page.
const WORDS: usize = PAGE / 8;

/// Nobody uses the channel.
pub const IDLE: u32 = 0;
/// The process has written a request.
pub const REQUESTED: u32 = 1;
/// The command works on it.
pub const SERVED: u32 = 2;
/// The command has written the answer.
pub const ANSWERED: u32 = 3;

/// What a process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Bring pages back.
    Read = 0,
    /// Store pages.
    Write = 1,
}

/// One request at a time.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Channel {
    /// [`IDLE`] and so on; a futex.
    pub state: AtomicU32,
    /// An [`Operation`].
    operation: AtomicU32,
    /// The number of pages of the request, then of the answer: the first ones.
    count: AtomicUsize,
    /// Why not one page was read or written; 0 if at least one was.
    errno: AtomicI32,
    /// The number of each page.
    numbers: [AtomicU32; EXCHANGE_PAGES],
    pages: [[AtomicU64; WORDS]; EXCHANGE_PAGES],
}

impl Channel {
    /// Changes the state; whether it was `from`.
    pub fn advance(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, AcqRel, Acquire).is_ok()
    }

    /// Writes what a request is about. Its pages, if any, are written before.
    pub fn request(&self, operation: Operation, numbers: &[u32]) {
        debug_assert!(numbers.len() <= EXCHANGE_PAGES);
        self.operation.store(operation as u32, Relaxed);
        self.count.store(numbers.len(), Relaxed);
        self.numbers.iter().zip(numbers).for_each(|(place, &number)| place.store(number, Relaxed));
        self.state.store(REQUESTED, Release);
    }

    /// The operation, and how many pages it is about.
    #[must_use]
    pub fn requested(&self) -> (Operation, usize) {
        let is_write = self.operation.load(Relaxed) == Operation::Write as u32;
        (if is_write { Operation::Write } else { Operation::Read }, self.count())
    }

    /// The numbers of the pages.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.numbers[..self.count()].iter().map(|number| number.load(Relaxed))
    }

    /// The answer: how many pages were read or written, or an errno.
    ///
    /// # Errors
    /// Why not one page was.
    pub fn answered(&self) -> Result<usize, i32> {
        match self.errno.load(Relaxed) {
            0 => Ok(self.count()),
            errno => Err(errno),
        }
    }

    fn count(&self) -> usize {
        self.count.load(Relaxed).min(EXCHANGE_PAGES)
    }

    /// Writes the answer: how many pages were read or written, or an errno.
    pub fn answer(&self, result: Result<usize, i32>) {
        self.count.store(result.unwrap_or(0), Relaxed);
        self.errno.store(result.err().unwrap_or(0), Relaxed);
        self.state.store(ANSWERED, Release);
    }

    /// Writes a page of the request or of the answer.
    pub fn write_page(&self, index: usize, page: &[u8; PAGE]) {
        let words = self.pages[index].iter().zip(page.as_chunks().0);
        words.for_each(|(word, &bytes)| word.store(u64::from_le_bytes(bytes), Relaxed));
    }

    /// Reads a page of the request or of the answer.
    pub fn read_page(&self, index: usize, page: &mut [u8; PAGE]) {
        let words = self.pages[index].iter().zip(page.as_chunks_mut().0);
        words.for_each(|(word, bytes)| *bytes = word.load(Relaxed).to_le_bytes());
    }
}

/// The record of one run.
#[repr(C)]
#[derive(Debug)]
pub struct PageExchange {
    /// [`MAGIC`], written last.
    pub magic: u64,
    /// [`BUILD`] of the writer.
    pub build: u64,
    /// How many requests were made; a futex.
    pub requests: AtomicU32,
    /// The channels of each process of the session.
    pub processes: [[Channel; CHANNELS]; PROCESSES],
}

impl PageExchange {
    /// Checks that this build wrote the record.
    ///
    /// # Errors
    /// [`Mismatch`] when the magic or the build differs.
    pub fn check(&self) -> Result<(), Mismatch> {
        if self.magic == MAGIC && self.build == BUILD { Ok(()) } else { Err(Mismatch) }
    }
}
