//! Mailboxes: how an allocation gets into the trace, in order among its thread's accesses.
//!
//! The mailboxes are private memory of the program at a fixed address. The tracing plugin sees
//! every store of the program and watches for stores to a mailbox's doorbell. Each thread has one
//! mailbox, as long as a cache line:
//!
//! ```text
//! MAILBOXES_ADDRESS    + 1 MiB                + 16 MiB                     + 528 MiB
//! | mailbox 0 | ... 16383 | the record, shared   | caches: 32 KiB a mailbox   |
//!
//! Mailbox  doorbell | address | bytes | site | owner | busy | cache | turn      eight words
//! ```
//!
//! The thread writes address, bytes and site, and then the doorbell with the code of a
//! [`Announcement`]. The plugin reads the first four words immediately, in the thread that has just
//! stored, so no other thread overwrites them. All of [`RECORDER_RANGE`] is the recorder's memory.
//! Accesses to it, and accesses by the code that [`Announcement::Here`] names, are not the
//! program's.
//!
//! Order: [`Announcement::Free`] precedes the call of the allocator's free, and
//! [`Announcement::Alloc`] follows the allocator's return. So two threads never announce one
//! address in the wrong order. Calls by a signal handler that interrupts the recorder are counted
//! ([`super::LossReason::Nested`]), not announced. An allocation at an address that is still
//! allocated means that the free was missed. A [`Announcement::Map`] follows its system call, which
//! the plugin has already seen: it adds only the caller.

#![allow(unsafe_code, reason = "one store, behind a mark that only assembly can place")]

#[cfg_attr(not(target_arch = "x86_64"), path = "mailbox/unmarked_doorbell.rs")]
mod doorbell;

use core::mem::size_of;
use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::{SITES, Sites};

/// Address of the mailboxes in the program.
pub const MAILBOXES_ADDRESS: u64 = 0x1f5d_0000_0000;
/// Number of mailboxes.
pub const MAILBOXES: usize = 16 << 10;
/// Size of all mailboxes in bytes.
pub const MAILBOXES_BYTES: usize = MAILBOXES * size_of::<Mailbox>();
/// Address at which the record is mapped in the program.
pub const RECORD_ADDRESS: u64 = MAILBOXES_ADDRESS + (1 << 20);
/// Address of the threads' caches.
pub const CACHES_ADDRESS: u64 = MAILBOXES_ADDRESS + (16 << 20);
/// Size of a thread's cache in bytes.
pub const CACHE_BYTES: usize = 32 << 10;
/// Every address at which the recorder maps memory.
pub const RECORDER_RANGE: Range<u64> = MAILBOXES_ADDRESS..CACHES_ADDRESS + (MAILBOXES * CACHE_BYTES) as u64;

const _: () = assert!(MAILBOXES_BYTES as u64 == RECORD_ADDRESS - MAILBOXES_ADDRESS, "the letters fill the mailbox");
const _: () =
    assert!(size_of::<Sites>() as u64 <= CACHES_ADDRESS - RECORD_ADDRESS, "the record fits before the caches");

/// The instruction before the store to a doorbell: a multi-byte NOP with a displacement that no
/// compiler emits. The plugin finds the store by it and need not compare every address.
pub const DOORBELL_MARK: [u8; 8] = [0x0f, 0x1f, 0x84, 0x00, 0x5d, 0x11, 0x5e, 0x00];

/// The words in which one thread announces its allocations.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Mailbox {
    /// The code of a [`Announcement`]; stored last, and watched.
    pub doorbell: AtomicU64,
    /// Address of the block.
    pub address: AtomicU64,
    /// Length of the block in bytes.
    pub bytes: AtomicU64,
    /// Number of the block's site.
    pub site: AtomicU64,
    /// The owning thread's thread pointer; 0 while the mailbox is free. Claimed by compare-exchange
    /// and never released: the next thread with the same thread pointer reuses the mailbox.
    pub owner: AtomicU64,
    /// Non-zero while the thread is in the recorder.
    pub busy: AtomicU64,
    /// Address of the thread's cache; 0 while unmapped, all ones when there was no memory for it.
    pub cache: AtomicU64,
    /// Number of entries written to the cache.
    pub turn: AtomicU64,
}

impl Mailbox {
    /// Announces `message`.
    pub fn announce(&self, message: Announcement) {
        let (code, words) = message.words();
        self.address.store(words[0], Relaxed);
        self.bytes.store(words[1], Relaxed);
        self.site.store(words[2], Relaxed);
        // The watched store, last.
        doorbell::store(&self.doorbell, code);
    }
}

/// An announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// The recorder is active; its code is at this address.
    Here {
        /// First address of the code.
        address: u64,
        /// Length of the code in bytes.
        bytes: u64,
    },
    /// The thread runs the recorder (it unwinds the stack) until its next message.
    Quiet,
    /// An allocator returned a block.
    Alloc {
        /// Address of the block.
        address: u64,
        /// Requested bytes.
        bytes: u64,
        /// Number of the site; 0 if unknown.
        site: u32,
    },
    /// A block is freed.
    Free {
        /// Address of the block.
        address: u64,
    },
    /// The program mapped private anonymous memory by a call of its own. The plugin sees munmap and
    /// mremap as system calls.
    Map {
        /// First address.
        address: u64,
        /// Requested bytes.
        bytes: u64,
        /// Number of the site; 0 if unknown.
        site: u32,
    },
}

impl Announcement {
    const fn words(self) -> (u64, [u64; 3]) {
        match self {
            Self::Here { address, bytes } => (1, [address, bytes, 0]),
            Self::Quiet => (2, [0; 3]),
            Self::Alloc { address, bytes, site } => (3, [address, bytes, site as u64]),
            Self::Free { address } => (4, [address, 0, 0]),
            Self::Map { address, bytes, site } => (5, [address, bytes, site as u64]),
        }
    }

    /// Parses the first four words of a mailbox after its doorbell was stored; `None` for an
    /// unknown code.
    #[must_use]
    pub const fn read([doorbell, address, bytes, site]: [u64; 4]) -> Option<Self> {
        // A site number beyond the table means no site.
        let site = if site < SITES as u64 { site as u32 } else { 0 };
        match doorbell {
            1 => Some(Self::Here { address, bytes }),
            2 => Some(Self::Quiet),
            3 => Some(Self::Alloc { address, bytes, site }),
            4 => Some(Self::Free { address }),
            5 => Some(Self::Map { address, bytes, site }),
            _ => None,
        }
    }

    /// Whether `address` is a doorbell.
    #[must_use]
    pub const fn is_doorbell(address: u64) -> bool {
        address.wrapping_sub(MAILBOXES_ADDRESS) < MAILBOXES_BYTES as u64
            && address.is_multiple_of(size_of::<Mailbox>() as u64)
    }
}
