//! Who allocated what: the record that the site recorder fills inside the traced program.
//!
//! It is one memfd, shared by the program, its forked children and us. A site is a stack of return addresses, and its
//! number is its place in the table; number 0 is no site. Allocations get into the trace by way of the [`mailbox`].
//!
//! ```text
//! Sites   magic | build | counts | module 0 | module 1 | ... | site 0 (never used) | site 1 | ... | site 16383
//! Module  base, range and path of a file that frames lie in
//! Site    hash | depth | allocations | bytes | frame 0 (called the allocator) ... frame 11 | the module of each | places
//! ```
//!
//! In a real run, where nobody reads the mailbox, each site keeps a few of the [places](Place) that its bytes were given out at:
//! whoever looks at the process finds on what pages they lie.
//!
//! Nothing is ever moved or freed, and whoever writes claims first, so both sides read without locks.

#![allow(clippy::cast_possible_truncation, reason = "places in tables shorter than any of these types can count")]

use core::ffi::CStr;
use core::mem::size_of;
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use crate::Mismatch;

mod mailbox;

pub use mailbox::{CACHE_BYTES, CACHES, LETTERS, Letter, MAILBOX, MAILBOX_BYTES, MARK, Message, OURS, RECORD};

/// The environment variable that leads the recorder to its record; its value is a path.
pub const SITES_VARIABLE: &CStr = c"FIELDSTONE_SITES";

/// Sites that can be told apart, the one that is never used included.
pub const SITES: usize = 16 << 10;
/// Return addresses of a site; the outermost ones of a deeper stack are left out.
pub const FRAMES: usize = 12;
/// Files that frames can lie in.
pub const MODULES: usize = 1024;
/// Places that a site keeps: a share that is told from them is off by an eighth, as a rule.
pub const PLACES: usize = 16;
/// Room for a module's path; what is longer is cut off.
pub const PATH_BYTES: usize = 480;
/// A frame outside every file: code that the program wrote itself.
pub const NO_MODULE: u16 = u16::MAX;

/// Identifies the build: both sides refuse a record of another one.
pub const BUILD: u64 = crate::BUILD.rotate_left(29) ^ size_of::<Sites>() as u64;

/// Why something about an allocation is not known. The number is its place in [`Sites::lost`].
#[repr(usize)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Announced without a site: the table of sites is full.
    TableFull = 0,
    /// Not announced: made while the same thread was in the recorder, by the unwinder or a signal handler.
    Nested,
    /// Not announced: there were more threads than letters.
    Letterless,
    /// Not announced: the mailbox could not be mapped.
    NoMailbox,
}

/// Reasons of [`Lost`].
pub const LOSSES: usize = 4;

/// A file that frames lie in.
#[repr(C)]
#[derive(Debug)]
pub struct Module {
    /// Added to the addresses in the file.
    pub base: AtomicU64,
    /// First address of its segments.
    pub start: AtomicU64,
    /// First address past them.
    pub end: AtomicU64,
    /// Length of the path.
    pub path_bytes: AtomicU32,
    /// Non-zero once all of it is written.
    pub ready: AtomicU32,
    path: [AtomicU8; PATH_BYTES],
}

impl Module {
    /// Its path as the program's loader knows it; empty until it is written.
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
    /// Blocks given out.
    pub allocations: AtomicU64,
    /// Bytes asked for in all.
    pub bytes: AtomicU64,
    frames: [AtomicU64; FRAMES],
    modules: [AtomicU16; FRAMES],
    /// Which of the site's bytes is the next whose place is kept; all ones while somebody keeps one.
    due: AtomicU64,
    places: [AtomicU64; PLACES],
}

impl Site {
    /// Its frames, innermost first, and the number of each one's module or [`NO_MODULE`]. A frame is the address behind the
    /// call, so the call itself ends one byte before. Empty until it is written.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = (u64, u16)> {
        let depth = self.depth.load(Acquire) as usize;
        let both = self.frames.iter().zip(&self.modules).take(depth.min(FRAMES));
        both.map(|(frame, module)| (frame.load(Relaxed), module.load(Relaxed)))
    }

    /// Counts a block; which of all bytes that the site has given out are its own.
    pub fn count(&self, bytes: u64) -> Range<u64> {
        self.allocations.fetch_add(1, Relaxed);
        let first = self.bytes.fetch_add(bytes, Relaxed);
        first..first.saturating_add(bytes)
    }

    /// Keeps places of the block at `address`, whose bytes were counted as `bytes`, so that each place that is kept is at any
    /// time that of one byte of all so far, all equally likely: a large block counts as much as many small ones of its length
    /// together. `process` is asked for only where a place is kept.
    ///
    /// Costs one comparison for nearly every block: of n bytes, about 16 ln n are kept at some time. A thread that finds another
    /// one at it goes on, and the site's next block stands in for the one that was due.
    pub fn sample(&self, address: u64, bytes: &Range<u64>, process: impl Fn() -> u32) {
        let mut due = self.due.load(Relaxed);
        while due < bytes.end && self.due.compare_exchange(due, BUSY, Acquire, Relaxed).is_ok() {
            let byte = due.max(bytes.start);
            let (place, next) = draw(self.hash.load(Relaxed), byte);
            let kept = Place { address: address.wrapping_add(byte - bytes.start), process: process() };
            self.places[place].store(kept.word(), Relaxed);
            self.due.store(next, Release);
            due = next;
        }
    }

    /// The places that are kept.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        self.places.iter().map(|word| word.load(Relaxed)).filter(|&word| word != 0).map(Place::read)
    }

    fn write(&self, frames: &[u64], modules: [u16; FRAMES]) {
        for (word, &frame) in self.frames.iter().zip(frames) {
            word.store(frame, Relaxed);
        }
        for (word, module) in self.modules.iter().zip(modules) {
            word.store(module, Relaxed);
        }
        // Not more than FRAMES, so it fits.
        self.depth.store(frames.len() as u32, Release);
    }
}

/// Where a byte lay when it was given out. It may have been freed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// An address in its page of 4 KiB; the page's first, once it was kept.
    pub address: u64,
    /// The process, by the number that it knows itself by.
    pub process: u32,
}

/// Bits of a process's number: the kernel gives none of more.
const PROCESS_BITS: u32 = 22;
const PAGE_SHIFT: u32 = 12;

impl Place {
    /// `page number | process`: user addresses have 47 bits, so that both fit.
    const fn word(self) -> u64 {
        self.address >> PAGE_SHIFT << PROCESS_BITS | self.process as u64 & ((1 << PROCESS_BITS) - 1)
    }

    const fn read(word: u64) -> Self {
        Self { address: word >> PROCESS_BITS << PAGE_SHIFT, process: word as u32 & ((1 << PROCESS_BITS) - 1) }
    }
}

/// Somebody keeps a place of the site.
const BUSY: u64 = u64::MAX;

/// Which place the byte of this number takes, and the number of the next byte that takes one.
///
/// After t bytes, a place changes next at byte t / u, u even between 0 and 1: so it holds each of n bytes with probability 1 / n,
/// whatever n. All places at once have the largest of as many u, and the place that changes is any of them.
fn draw(seed: u64, byte: u64) -> (usize, u64) {
    let drawn = |number: u64| scattered(seed ^ scattered(byte).wrapping_add(number.wrapping_mul(ODD)));
    let largest = (1..=PLACES as u64).map(|number| drawn(number) >> 32).max().unwrap_or(0) + 1;
    let next = ((u128::from(byte) + 1) << 32) / u128::from(largest);
    (drawn(0) as usize % PLACES, u64::try_from(next).unwrap_or(BUSY))
}

/// The mixing of splitmix64 (Steele and others, OOPSLA 2014).
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
    /// Processes that took the record up, forked children not among them.
    pub programs: AtomicU32,
    /// Sites in use.
    pub count: AtomicU32,
    /// Modules claimed; may pass [`MODULES`].
    pub module_count: AtomicU32,
    /// In a real run whose sites keep [places](Place): bytes of the pages that it asked for. Else 0.
    pub wanted_page_bytes: AtomicU32,
    /// By [`Lost`].
    pub lost: [AtomicU64; LOSSES],
    /// What frames lie in.
    pub modules: [Module; MODULES],
    /// By number.
    pub entries: [Site; SITES],
}

impl Sites {
    /// Whether this build wrote the record.
    ///
    /// # Errors
    /// [`Mismatch`] where the first words differ.
    pub fn check(&self) -> Result<(), Mismatch> {
        if self.magic == crate::MAGIC && self.build == BUILD { Ok(()) } else { Err(Mismatch) }
    }

    /// Counts something that is not known.
    pub fn lose(&self, why: Lost) {
        self.lost[why as usize].fetch_add(1, Relaxed);
    }

    /// The site of this number; `None` for 0 and for numbers that no site has.
    #[must_use]
    pub fn site(&self, number: u32) -> Option<&Site> {
        let site = self.entries.get(number as usize).filter(|_| number != 0)?;
        (site.depth.load(Acquire) != 0).then_some(site)
    }

    /// All sites, with their numbers.
    pub fn sites(&self) -> impl Iterator<Item = (u32, &Site)> {
        (1..SITES as u32).filter_map(|number| Some((number, self.site(number)?)))
    }

    /// The number of the site with these frames, at most [`FRAMES`] of them; 0 when the table is full. `modules` is asked
    /// for a new site only.
    ///
    /// A site is known by the hash of its frames alone: of 16 K stacks, two share all 64 bits in one run of 100 milliards,
    /// and nobody ever waits for a writer that may have died.
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

    /// The module of this number.
    #[must_use]
    pub fn module(&self, number: u16) -> Option<&Module> {
        self.modules.get(usize::from(number)).filter(|module| module.ready.load(Acquire) != 0)
    }

    /// The number of the module with this base and path, entered if it is new; [`NO_MODULE`] when the table is full. Two
    /// threads that enter it at once enter it twice.
    pub fn intern_module(&self, base: u64, range: Range<u64>, path: &[u8]) -> u16 {
        let claimed = (self.module_count.load(Acquire) as usize).min(MODULES);
        if let Some(known) = self.modules[..claimed].iter().position(|module| module.is(base, path)) {
            return known as u16;
        }
        // The count may pass the table's end, never by so much that it begins anew: it stops moving there.
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

/// 2^64 by the golden ratio.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes the frames, order and number included; never 0, which marks a free site.
fn hash(frames: &[u64]) -> u64 {
    let mixed = frames.iter().fold(frames.len() as u64, |hash, &frame| {
        let mixed = (hash ^ frame).wrapping_mul(ODD);
        mixed ^ mixed >> 32
    });
    mixed.wrapping_mul(ODD).max(1)
}

#[cfg(test)]
mod tests;
