//! The record of one run: the configuration, and a slot for each process.

use core::ffi::CStr;
use core::fmt;
use core::mem::size_of;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::{PageKind, ProcessSlot};

/// The environment variable whose value is the path of the session.
pub const SESSION_VARIABLE: &CStr = c"FIELDSTONE_SESSION";

/// "fieldsto" in the byte order of the machine: the first word of every session.
pub const MAGIC: u64 = 0x6669_656c_6473_746f;

/// Capacity in processes. Later processes are served, but counted in [`Session::claimed`] alone.
pub const SLOTS: usize = 1024;

/// Size in bytes of the name given by `--process`, its terminating zero included.
pub const NAME_BYTES: usize = 64;

/// Identifies the build: both sides refuse a session of another build.
pub const BUILD: u64 = fnv1a(env!("CARGO_PKG_VERSION").as_bytes()) ^ (size_of::<Session>() as u64) << 32;

const fn fnv1a(text: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < text.len() {
        hash = (hash ^ text[at] as u64).wrapping_mul(0x100_0000_01b3);
        at += 1;
    }
    hash
}

/// The user's settings for the region.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// A [`PageKind`].
    pub page_kind: u32,
    /// Non-zero: touch memory when it is mapped, not at its first use.
    pub prefault: u32,
    /// Non-zero: a reader waits on [`Session::attention`], so an exiting process may wait to be
    /// sampled.
    pub watched: u32,
    /// Other memory to place on the requested pages: [`Config::STACKS`], [`Config::GLOBALS`],
    /// [`Config::HINTED`], [`Config::DISABLED`].
    pub also: u32,
    /// Bytes to map at the start of each served process.
    pub reserve_bytes: u64,
    /// Which chunks of the region have such pages: the bound of [`crate::mosaic::is_huge`], or
    /// [`crate::mosaic::ALL`] for every chunk.
    pub mosaic_bound: u64,
    /// The name of the only process to serve, zero-terminated; empty to serve every process.
    pub process: [u8; NAME_BYTES],
}

impl Config {
    /// The bit of [`Config::also`] for stacks: those of threads in the region, the first one in
    /// place.
    pub const STACKS: u32 = 1;
    /// The bit of [`Config::also`] for data segments, in place.
    pub const GLOBALS: u32 = 2;
    /// The bit of [`Config::also`] for memory with an address hint: placed in the region
    /// regardless.
    pub const HINTED: u32 = 4;
    /// The bit of [`Config::also`] that re-enables transparent huge pages for a program that
    /// disabled them for itself.
    pub const DISABLED: u32 = 8;

    /// The page kind, or `None` for a code of another version.
    #[must_use]
    pub fn page_kind(&self) -> Option<PageKind> {
        PageKind::from_code(self.page_kind)
    }

    /// The name of the only process to serve, or `None` for all.
    #[must_use]
    pub fn process(&self) -> Option<&[u8]> {
        let end = self.process.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES);
        (end > 0).then(|| &self.process[..end])
    }
}

/// The shared record of one run.
#[repr(C)]
#[derive(Debug)]
pub struct Session {
    /// [`MAGIC`], written last.
    pub magic: u64,
    /// [`BUILD`] of the writer.
    pub build: u64,
    /// The settings.
    pub config: Config,
    /// Incremented, and woken as a futex, each time a process asks to be sampled.
    pub attention: AtomicU32,
    /// Slots claimed so far; may exceed [`SLOTS`].
    pub claimed: AtomicU32,
    /// One slot for each process.
    pub slots: [ProcessSlot; SLOTS],
}

/// The session belongs to another build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch;

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the session belongs to another build of fieldstone")
    }
}

impl Session {
    /// Checks that this build wrote the session.
    ///
    /// # Errors
    /// [`Mismatch`] when the magic or the build differs.
    pub fn check(&self) -> Result<(), Mismatch> {
        if self.magic == MAGIC && self.build == BUILD { Ok(()) } else { Err(Mismatch) }
    }

    /// Claims the next slot, or `None` when all are taken.
    pub fn claim(&self) -> Option<&ProcessSlot> {
        let next = self.claimed.fetch_add(1, Ordering::AcqRel);
        self.slots.get(next as usize)
    }

    /// The claimed slots, in the order of their claims.
    pub fn claimed_slots(&self) -> impl Iterator<Item = &ProcessSlot> {
        let claimed = self.claimed.load(Ordering::Acquire) as usize;
        self.slots[..claimed.min(SLOTS)].iter().filter(|slot| slot.pid.load(Ordering::Acquire) != 0)
    }
}
