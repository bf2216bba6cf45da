//! The use of one line, or of one pair of lines: the threads that read and wrote its bytes, with
//! decayed weights.
//!
//! It is a copy out of the table, with the weights at `at_ns`. Verdicts, rules and reports read
//! nothing else.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::bits::Bits;
use crate::windows::Windows;

/// Maximum number of threads per line; a new one replaces the lightest.
pub const MOST_THREADS: usize = 64;

/// The use of one line or one pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LineUse {
    /// Address of its first byte, a multiple of `bytes`.
    pub address: u64,
    /// Bytes of the line or of the pair.
    pub bytes: u32,
    /// Bytes of a cache line.
    pub line_bytes: u32,
    /// Time of the copy, in nanoseconds.
    pub at_ns: u64,
    /// Decayed samples on it.
    pub weight: f64,
    /// Its threads, by number; at most [`MOST_THREADS`].
    pub threads: Vec<ThreadUse>,
}

/// The use of a line by one thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadUse {
    /// The kernel's number.
    pub thread: u32,
    /// Weight of reads, per byte. The bytes of an access share its weight evenly.
    pub read: Vec<f32>,
    /// Weight of writes, per byte.
    pub written: Vec<f32>,
    /// Windows of time in which it was sampled.
    pub windows: Windows,
    /// Flag n: a recent access included byte n and the next one. For the last byte, the next one is
    /// in the next line.
    pub joined: Bits,
    /// Bytes that were recently in an access that begins in the line before.
    #[serde(default)]
    pub began_before: Bits,
    /// Bytes of recent atomic accesses.
    pub atomic: Bits,
    /// Bytes that were recently written by accesses that do not change single bits.
    #[serde(default)]
    pub replaced: Bits,
    /// The heaviest instructions, heaviest first.
    pub sites: Vec<SiteWeight>,
}

/// An instruction, and its samples on a line.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SiteWeight {
    /// Its address.
    pub site: u64,
    /// Upper bound of its weight: an instruction that replaced another one inherits its weight.
    pub weight: f32,
}

impl LineUse {
    /// The address behind its last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes.into())
    }

    /// The addresses of some of its bytes.
    #[must_use]
    pub fn addresses(&self, bytes: Range<u32>) -> Range<u64> {
        self.address + u64::from(bytes.start)..self.address.saturating_add(bytes.end.into())
    }

    /// Whether some of these threads write some of the bytes at these addresses.
    #[must_use]
    pub fn is_written(&self, addresses: &Range<u64>, threads: &[u32]) -> bool {
        let place = |address: u64| usize::try_from(address.saturating_sub(self.address)).unwrap_or(usize::MAX);
        let bytes = place(addresses.start)..place(addresses.end);
        let own = self.threads.iter().filter(|thread| threads.contains(&thread.thread));
        own.flat_map(|thread| thread.written.iter().take(bytes.end).skip(bytes.start)).any(|&weight| weight > 0.0)
    }

    /// Whether recent atomic accesses of some of these threads included some of the bytes at these
    /// addresses.
    #[must_use]
    pub fn is_atomic(&self, addresses: &Range<u64>, threads: &[u32]) -> bool {
        let place = |address: u64| u32::try_from(address.saturating_sub(self.address)).unwrap_or(u32::MAX);
        let bytes = Bits::range(place(addresses.start)..place(addresses.end));
        self.threads.iter().any(|thread| threads.contains(&thread.thread) && !(thread.atomic & bytes).is_empty())
    }

    /// The two lines of a pair; `None` for a line. A finding that neither line shows alone is
    /// caused by the adjacent-line prefetcher.
    #[must_use]
    pub fn halves(&self) -> Option<[Self; 2]> {
        let middle = self.line_bytes;
        (self.bytes > middle).then(|| [self.part(0..middle), self.part(middle..self.bytes)])
    }

    fn part(&self, bytes: Range<u32>) -> Self {
        let threads: Vec<ThreadUse> = self
            .threads
            .iter()
            .map(|thread| thread.part(bytes.clone()))
            .filter(|thread| thread.weight() > 0.0)
            .collect();
        Self {
            address: self.address + u64::from(bytes.start),
            bytes: bytes.end - bytes.start,
            weight: threads.iter().map(ThreadUse::weight).sum(),
            threads,
            ..*self
        }
    }
}

impl ThreadUse {
    /// Its decayed samples on the line.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.read_weight() + self.written_weight()
    }

    /// Its decayed samples of reads.
    #[must_use]
    pub fn read_weight(&self) -> f64 {
        self.read.iter().copied().map(f64::from).sum()
    }

    /// Its decayed samples of writes.
    #[must_use]
    pub fn written_weight(&self) -> f64 {
        self.written.iter().copied().map(f64::from).sum()
    }

    fn part(&self, bytes: Range<u32>) -> Self {
        let indices = bytes.start as usize..bytes.end as usize;
        Self {
            read: self.read[indices.clone()].to_vec(),
            written: self.written[indices].to_vec(),
            joined: self.joined.part(bytes.clone()),
            began_before: self.began_before.part(bytes.clone()),
            atomic: self.atomic.part(bytes.clone()),
            replaced: self.replaced.part(bytes),
            sites: self.sites.clone(),
            ..*self
        }
    }
}
