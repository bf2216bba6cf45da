//! How an allocation gets into the trace, in its right place between its thread's accesses.
//!
//! The mailbox is plain private memory of the program, at an address that everybody knows. Whoever sees every store of the
//! program (the tracing plugin) watches for the one to a letter's bell. Each thread has a letter of its own, as long as a
//! cache line:
//!
//! ```text
//! MAILBOX              + 1 MiB                + 16 MiB                                  + 528 MiB
//! | letter 0 | ... 16383 | the record, shared   | what each thread has cached: 32 KiB for a letter |
//!
//! letter  bell | address | bytes | site | owner | busy | cache | turn   eight words
//! ```
//!
//! The thread writes address, bytes and site, and last the bell, which says what has happened: see [`Message`]. Whoever
//! watches reads the first four words there and then, in the thread that has just stored, so nobody overwrites them. All of
//! [`OURS`] is the recorder's memory: accesses to it, and those of the code that [`Message::Here`] names, are not the
//! program's.
//!
//! A block's [`Message::Free`] comes before the allocator gets it back, its [`Message::Alloc`] after the allocator has
//! given it, so that two threads never announce one address in the wrong order. What a signal handler does while it
//! interrupts the recorder is not announced, but counted ([`super::Lost::Nested`]): an allocation at an address that is
//! still held means that the free was missed. A [`Message::Map`] comes after the system call that it is about, which the
//! watcher has seen by itself: the letter only adds who called.

#![allow(unsafe_code, reason = "one store, behind a mark that only assembly can place")]

use core::mem::size_of;
use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::{SITES, Sites};

/// Where the mailbox lies in the program.
pub const MAILBOX: u64 = 0x1f5d_0000_0000;
/// Letters in it.
pub const LETTERS: usize = 16 << 10;
/// All of it.
pub const MAILBOX_BYTES: usize = LETTERS * size_of::<Letter>();
/// Where the record is mapped in the program.
pub const RECORD: u64 = MAILBOX + (1 << 20);
/// Where the threads' caches begin.
pub const CACHES: u64 = MAILBOX + (16 << 20);
/// A thread's cache.
pub const CACHE_BYTES: usize = 32 << 10;
/// Every address that the recorder maps anything at.
pub const OURS: Range<u64> = MAILBOX..CACHES + (LETTERS * CACHE_BYTES) as u64;

const _: () = assert!(MAILBOX_BYTES as u64 == RECORD - MAILBOX, "the letters fill the mailbox");
const _: () = assert!(size_of::<Sites>() as u64 <= CACHES - RECORD, "the record fits before the caches");

/// The instruction that stands before the store to a bell: one that does nothing, with a number that no compiler writes. Who
/// translates the program's code finds the store by it, and need not compare every address with [`MAILBOX`].
pub const MARK: [u8; 8] = [0x0f, 0x1f, 0x84, 0x00, 0x5d, 0x11, 0x5e, 0x00];
#[cfg(target_arch = "x86_64")]
const MARK_NUMBER: i32 = 0x005e_115d;

/// Where one thread announces what it allocates.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Letter {
    /// Which [`Message`]; stored last, and watched.
    pub bell: AtomicU64,
    /// Its address.
    pub address: AtomicU64,
    /// Its bytes.
    pub bytes: AtomicU64,
    /// Its site.
    pub site: AtomicU64,
    /// The thread pointer of the thread whose letter this is; 0 while it is nobody's. Taken by compare-exchange, never
    /// given back: the next thread with the same thread pointer takes the letter over.
    pub owner: AtomicU64,
    /// Non-zero while the thread is in the recorder.
    pub busy: AtomicU64,
    /// Where the thread's cache is mapped; 0 while it is not, all ones when there was no memory for it.
    pub cache: AtomicU64,
    /// Counts what was put into the cache.
    pub turn: AtomicU64,
}

impl Letter {
    /// Announces `message`.
    pub fn ring(&self, message: Message) {
        let (bell, words) = message.words();
        self.address.store(words[0], Relaxed);
        self.bytes.store(words[1], Relaxed);
        self.site.store(words[2], Relaxed);
        self.store_bell(bell);
    }

    /// The store that is watched, behind its [`MARK`].
    #[cfg(target_arch = "x86_64")]
    fn store_bell(&self, bell: u64) {
        let place = self.bell.as_ptr();
        // SAFETY: the place is an atomic word of ours, and a plain store of this machine is one with release ordering.
        unsafe {
            core::arch::asm!(
                // Both in one aligned piece of 16 bytes, so that no page's end, where translation ends too, is between.
                ".p2align 4",
                "nop dword ptr [rax + rax + {mark}]",
                "mov qword ptr [{place}], {bell}",
                mark = const MARK_NUMBER,
                place = in(reg) place,
                bell = in(reg) bell,
                options(nostack, preserves_flags),
            );
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn store_bell(&self, bell: u64) {
        self.bell.store(bell, core::sync::atomic::Ordering::Release);
    }
}

/// What a letter says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The recorder is at work; its code lies here.
    Here {
        /// Its first address.
        address: u64,
        /// Its length.
        bytes: u64,
    },
    /// What the thread does from now on is the recorder's (it unwinds the stack), until its next message.
    Quiet,
    /// An allocator gave out a block.
    Alloc {
        /// The block.
        address: u64,
        /// What was asked for.
        bytes: u64,
        /// The number of its site; 0 if it has none.
        site: u32,
    },
    /// A block goes back.
    Free {
        /// The block.
        address: u64,
    },
    /// The program itself mapped private anonymous memory. That it is unmapped or moved is seen as a system call.
    Map {
        /// Where it begins.
        address: u64,
        /// What was asked for.
        bytes: u64,
        /// The number of its site; 0 if it has none.
        site: u32,
    },
}

impl Message {
    const fn words(self) -> (u64, [u64; 3]) {
        match self {
            Self::Here { address, bytes } => (1, [address, bytes, 0]),
            Self::Quiet => (2, [0; 3]),
            Self::Alloc { address, bytes, site } => (3, [address, bytes, site as u64]),
            Self::Free { address } => (4, [address, 0, 0]),
            Self::Map { address, bytes, site } => (5, [address, bytes, site as u64]),
        }
    }

    /// Reads the first four words of a letter whose bell has been rung; `None` for words that no version of ours writes.
    #[must_use]
    pub const fn read([bell, address, bytes, site]: [u64; 4]) -> Option<Self> {
        // A number that no table has is as good as none.
        let site = if site < SITES as u64 { site as u32 } else { 0 };
        match bell {
            1 => Some(Self::Here { address, bytes }),
            2 => Some(Self::Quiet),
            3 => Some(Self::Alloc { address, bytes, site }),
            4 => Some(Self::Free { address }),
            5 => Some(Self::Map { address, bytes, site }),
            _ => None,
        }
    }

    /// Whether a store to `address` rings a bell.
    #[must_use]
    pub const fn is_bell(address: u64) -> bool {
        address.wrapping_sub(MAILBOX) < MAILBOX_BYTES as u64 && address.is_multiple_of(size_of::<Letter>() as u64)
    }
}
