//! Allocation sites: the record that the site recorder fills inside a program.
//!
//! The record is one memfd, shared by the program, its forked children and the supervisor. A site
//! is a stack of return addresses. Its number is its index in the table; number 0 means no site.
//! The [`mailbox`] adds allocations to the trace.
//!
//! ```text
//! Sites   magic | build | counts | module 0 | ... | site 0 (unused) | site 1 | ... | site 16383
//! Module  base, range and path of a file that contains frames
//! Site    hash | depth | allocations | bytes | frame 0 (called the allocator) ...
//!         frame 11 | modules | sampled addresses
//! ```
//!
//! Without a tracer no process reads the mailboxes. Each site then keeps a sample of the
//! [addresses](SampledAddress) at which its bytes were allocated. The supervisor looks up the page
//! kind of each.
//!
//! Invariants: no entry is moved or freed, and a writer claims an entry before it writes. So both
//! sides read without locks.

#![allow(clippy::cast_possible_truncation, reason = "places in tables shorter than any of these types can count")]

use core::ffi::CStr;
use core::mem::size_of;
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use crate::Mismatch;

mod mailbox;

pub use mailbox::{
    Announcement, CACHE_BYTES, CACHES_ADDRESS, DOORBELL_MARK, MAILBOXES, MAILBOXES_ADDRESS, MAILBOXES_BYTES, Mailbox,
    RECORD_ADDRESS, RECORDER_RANGE,
};

/// The environment variable whose value is the path of the record.
pub const SITES_VARIABLE: &CStr = c"FIELDSTONE_SITES";

/// Capacity in sites, the unused site 0 included.
pub const SITES: usize = 16 << 10;
/// Return addresses per site; a deeper stack loses its outermost frames.
pub const FRAMES: usize = 12;
/// Capacity in files that contain frames.
pub const MODULES: usize = 1024;
/// Sampled addresses per site. A share estimated from them has a standard error of about one
/// eighth.
pub const SAMPLED_ADDRESSES: usize = 16;
/// Size in bytes of a module's path; a longer path is truncated.
pub const PATH_BYTES: usize = 480;
/// The module number of a frame outside every file: code that the program generated.
pub const NO_MODULE: u16 = u16::MAX;

/// Identifies the build: both sides refuse a record of another build.
pub const BUILD: u64 = crate::BUILD.rotate_left(29) ^ size_of::<Sites>() as u64;

/// Why information about an allocation is missing. The number is the index in [`Sites::lost`].
#[repr(usize)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// Announced without a site: the table of sites is full.
    TableFull = 0,
    /// Not announced: made while the same thread was in the recorder, by the unwinder or a signal
    /// handler.
    Nested,
    /// Not announced: there were more threads than mailboxes.
    NoFreeMailbox,
    /// Not announced: the mailboxes could not be mapped.
    MailboxesUnmapped,
}

/// Number of [`LossReason`] reasons.
pub const LOSSES: usize = 4;

/// A file that contains frames.
#[repr(C)]
#[derive(Debug)]
pub struct Module {
    /// Load bias: added to the addresses in the file.
    pub base: AtomicU64,
    /// First address of its segments.
    pub start: AtomicU64,
    /// First address past them.
    pub end: AtomicU64,
    /// Length of the path in bytes.
    pub path_bytes: AtomicU32,
    /// Non-zero once the entry is complete.
    pub ready: AtomicU32,
    path: [AtomicU8; PATH_BYTES],
}

impl Module {
    /// The path as the dynamic loader reports it; empty until it is written.
    pub fn path(&self) -> impl ExactSizeIterator<Item = u8> {
        let bytes = if self.ready.load(Acquire) == 0 { 0 } else { self.path_bytes.load(Relaxed) as usize };
        self.path[..bytes.min(PATH_BYTES)].iter().map(|byte| byte.load(Relaxed))
    }

    fn is(&self, base: u64, path: &[u8]) -> bool {
        let path = &path[..path.len().min(PATH_BYTES)];
        self.ready.load(Acquire) != 0
            && self.base.load(Relaxed) == base
            && self.path().len() == path.len()
            && self.path().eq(path.iter().copied())
    }
}

/// A stack that allocates.
#[repr(C)]
#[derive(Debug)]
pub struct Site {
    hash: AtomicU64,
    depth: AtomicU32,
    /// Blocks allocated.
    pub allocations: AtomicU64,
    /// Total bytes requested.
    pub bytes: AtomicU64,
    frames: [AtomicU64; FRAMES],
    modules: [AtomicU16; FRAMES],
    /// Index of the next byte of the site to sample; all ones while a thread stores a sample.
    due: AtomicU64,
    places: [AtomicU64; SAMPLED_ADDRESSES],
}

impl Site {
    /// The frames, innermost first, each with its module number or [`NO_MODULE`]. A frame is a
    /// return address, so the call ends one byte before it. Empty until the site is written.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = (u64, u16)> {
        let depth = self.depth.load(Acquire) as usize;
        let both = self.frames.iter().zip(&self.modules).take(depth.min(FRAMES));
        both.map(|(frame, module)| (frame.load(Relaxed), module.load(Relaxed)))
    }

    /// Counts a block. Returns the indices of its bytes among all bytes of the site.
    pub fn count(&self, bytes: u64) -> Range<u64> {
        self.allocations.fetch_add(1, Relaxed);
        let first = self.bytes.fetch_add(bytes, Relaxed);
        first..first.saturating_add(bytes)
    }

    /// Samples addresses of the block at `address`, whose bytes have the indices `bytes`.
    ///
    /// Reservoir sampling: at any time each stored address belongs to a uniformly chosen byte of
    /// all bytes so far. A large block therefore weighs as much as many small blocks of the same
    /// total size. `process` is called only when an address is stored.
    ///
    /// Cost: one comparison for nearly every block; of n bytes, about 16 ln n are ever stored. A
    /// thread that finds another thread storing skips the sample; the site's next block replaces
    /// it.
    pub fn sample(&self, address: u64, bytes: &Range<u64>, process: impl Fn() -> u32) {
        let mut due = self.due.load(Relaxed);
        while due < bytes.end && self.due.compare_exchange(due, BUSY, Acquire, Relaxed).is_ok() {
            let byte = due.max(bytes.start);
            let (place, next) = draw(self.hash.load(Relaxed), byte);
            let kept = SampledAddress { address: address.wrapping_add(byte - bytes.start), process: process() };
            self.places[place].store(kept.word(), Relaxed);
            self.due.store(next, Release);
            due = next;
        }
    }

    /// The stored addresses.
    pub fn sampled_addresses(&self) -> impl Iterator<Item = SampledAddress> {
        self.places.iter().map(|word| word.load(Relaxed)).filter(|&word| word != 0).map(SampledAddress::read)
    }

    fn write(&self, frames: &[u64], modules: [u16; FRAMES]) {
        for (word, &frame) in self.frames.iter().zip(frames) {
            word.store(frame, Relaxed);
        }
        for (word, module) in self.modules.iter().zip(modules) {
            word.store(module, Relaxed);
        }
        // At most FRAMES, so the cast is lossless.
        self.depth.store(frames.len() as u32, Release);
    }
}

/// The address of a byte at the time of its allocation. It may have been freed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledAddress {
    /// An address in a 4 KiB page; rounded down to the page once stored.
    pub address: u64,
    /// The process id in the process's own pid namespace.
    pub process: u32,
}

/// Bits of a process id; the kernel assigns none wider.
const PROCESS_BITS: u32 = 22;
const PAGE_SHIFT: u32 = 12;

impl SampledAddress {
    /// `page number | process`: user addresses have 47 bits, so both fit.
    const fn word(self) -> u64 {
        self.address >> PAGE_SHIFT << PROCESS_BITS | self.process as u64 & ((1 << PROCESS_BITS) - 1)
    }

    const fn read(word: u64) -> Self {
        Self { address: word >> PROCESS_BITS << PAGE_SHIFT, process: word as u32 & ((1 << PROCESS_BITS) - 1) }
    }
}

/// Marks a site at which a thread stores a sample.
const BUSY: u64 = u64::MAX;

/// The slot that byte number `byte` replaces, and the number of the next byte to sample.
///
/// After t bytes, a slot is replaced next at byte t / u, with u uniform in (0, 1). So it holds each
/// of n bytes with probability 1 / n for every n. The largest of [`SAMPLED_ADDRESSES`] such u gives
/// the next byte for all slots together, and the replaced slot is uniform.
fn draw(seed: u64, byte: u64) -> (usize, u64) {
    let drawn = |number: u64| scattered(seed ^ scattered(byte).wrapping_add(number.wrapping_mul(ODD)));
    let largest = (1..=SAMPLED_ADDRESSES as u64).map(|number| drawn(number) >> 32).max().unwrap_or(0) + 1;
    let next = ((u128::from(byte) + 1) << 32) / u128::from(largest);
    (drawn(0) as usize % SAMPLED_ADDRESSES, u64::try_from(next).unwrap_or(BUSY))
}

/// The mixer of SplitMix64 (Steele and others, OOPSLA 2014).
const fn scattered(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// The shared record.
#[repr(C)]
#[derive(Debug)]
pub struct Sites {
    /// [`crate::MAGIC`], written last.
    pub magic: u64,
    /// [`BUILD`] of the writer.
    pub build: u64,
    /// Processes that opened the record, without forked children.
    pub programs: AtomicU32,
    /// Sites in use.
    pub count: AtomicU32,
    /// Modules claimed; may exceed [`MODULES`].
    pub module_count: AtomicU32,
    /// Requested page size in bytes when sites keep [addresses](SampledAddress); otherwise 0.
    pub wanted_page_bytes: AtomicU32,
    /// Counts by [`LossReason`].
    pub lost: [AtomicU64; LOSSES],
    /// Files that contain frames.
    pub modules: [Module; MODULES],
    /// Sites by number.
    pub entries: [Site; SITES],
}

impl Sites {
    /// Checks that this build wrote the record.
    ///
    /// # Errors
    /// [`Mismatch`] when the magic or the build differs.
    pub fn check(&self) -> Result<(), Mismatch> {
        if self.magic == crate::MAGIC && self.build == BUILD { Ok(()) } else { Err(Mismatch) }
    }

    /// Counts a loss.
    pub fn count_loss(&self, why: LossReason) {
        self.lost[why as usize].fetch_add(1, Relaxed);
    }

    /// The site with this number; `None` for 0 and for unused numbers.
    #[must_use]
    pub fn site(&self, number: u32) -> Option<&Site> {
        let site = self.entries.get(number as usize).filter(|_| number != 0)?;
        (site.depth.load(Acquire) != 0).then_some(site)
    }

    /// All sites, with their numbers.
    pub fn sites(&self) -> impl Iterator<Item = (u32, &Site)> {
        (1..SITES as u32).filter_map(|number| Some((number, self.site(number)?)))
    }

    /// The number of the site with these frames, at most [`FRAMES`] of them; 0 when the table is
    /// full. `modules` is called only for a new site.
    ///
    /// The hash alone identifies a site. Two of 16 K stacks share all 64 bits in about one run of
    /// 10^11. So no thread ever waits for a writer that may have died.
    pub fn intern(&self, frames: &[u64], modules: impl FnOnce(&[u64]) -> [u16; FRAMES]) -> u32 {
        let frames = &frames[..frames.len().min(FRAMES)];
        let hash = hash(frames);
        let first = hash as usize % (SITES - 1);
        for step in 0..SITES - 1 {
            let number = 1 + (first + step) % (SITES - 1);
            let site = &self.entries[number];
            let mut there = site.hash.load(Acquire);
            if there == 0 {
                match site.hash.compare_exchange(0, hash, AcqRel, Acquire) {
                    Ok(_) => {
                        self.count.fetch_add(1, Relaxed);
                        site.write(frames, modules(frames));
                        return number as u32;
                    }
                    Err(other) => there = other,
                }
            }
            if there == hash {
                return number as u32;
            }
        }
        0
    }

    /// The module with this number, or `None` until it is written.
    #[must_use]
    pub fn module(&self, number: u16) -> Option<&Module> {
        self.modules.get(usize::from(number)).filter(|module| module.ready.load(Acquire) != 0)
    }

    /// The number of the module with this base and path; adds it if it is new. [`NO_MODULE`] when
    /// the table is full. Two threads that add a module concurrently add it twice.
    pub fn intern_module(&self, base: u64, range: Range<u64>, path: &[u8]) -> u16 {
        let claimed = (self.module_count.load(Acquire) as usize).min(MODULES);
        if let Some(known) = self.modules[..claimed].iter().position(|module| module.is(base, path)) {
            return known as u16;
        }
        // Stops counting at the table's end, so the counter cannot wrap around.
        if claimed == MODULES {
            return NO_MODULE;
        }
        let number = self.module_count.fetch_add(1, AcqRel) as usize;
        let Some(module) = self.modules.get(number) else { return NO_MODULE };
        module.base.store(base, Relaxed);
        module.start.store(range.start, Relaxed);
        module.end.store(range.end, Relaxed);
        let bytes = path.len().min(PATH_BYTES);
        for (to, &from) in module.path.iter().zip(&path[..bytes]) {
            to.store(from, Relaxed);
        }
        module.path_bytes.store(bytes as u32, Relaxed);
        module.ready.store(1, Release);
        number as u16
    }
}

/// 2^64 divided by the golden ratio.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes the frames, their order and their number; never 0, which marks a free site.
fn hash(frames: &[u64]) -> u64 {
    let mixed = frames.iter().fold(frames.len() as u64, |hash, &frame| {
        let mixed = (hash ^ frame).wrapping_mul(ODD);
        mixed ^ mixed >> 32
    });
    mixed.wrapping_mul(ODD).max(1)
}

#[cfg(test)]
mod tests;
