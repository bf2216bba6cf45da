//! The address range of the slots, and the memory of their records and stacks.
//!
//! ```text
//! range    inaccessible at first; see `geometry`
//! records  [ Record: class 0 | Record: class 1 | ... ] [ chains of stacks ] [ entries of stacks ]
//! ```
//! Both are reserved without swap space, so only what is used takes memory. If a limit refuses the
//! wanted size, half of it is tried, down to 1 MiB a class. Under `RLIMIT_AS` the range takes at
//! most an eighth of the limit, so that the program keeps the rest.

#![allow(unsafe_code, reason = "maps memory, and divides it into arrays")]

use core::ops::Range;

use crate::error::{Error, Result};
use crate::kernel::{self, Advice, Errno, PAGE};
use crate::slots::geometry::{Geometry, MAX_CLASSES, stride};
use crate::slots::record::Record;
use crate::sync::{AtomicU32, AtomicUsize};

/// The smallest span of a class in bytes.
const MIN_SPAN_SHIFT: u32 = 20;
/// The largest span of a class: its slots have 32-bit numbers.
const MAX_SPAN_SHIFT: u32 = 42;
/// The share of the address space limit that the range takes at most.
const LIMIT_SHARE: usize = 8;
/// log2 of the span of a class in relation to the number of chains of stacks: one chain for each
/// 16 KiB of the memory limit, as the span is four times the limit.
const CHAINS_SHIFT: u32 = 16;
/// log2 of the span of a class in relation to the bytes for stacks: an eighth of the memory limit.
const STACKS_SHIFT: u32 = 5;

/// A mapping of this crate.
#[derive(Debug)]
struct Mapping(Range<usize>);

impl Mapping {
    fn new(bytes: usize, is_accessible: bool) -> core::result::Result<Self, Errno> {
        kernel::map(bytes, is_accessible).map(|start| Self(start..start + bytes))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, and nothing outlives the `Memory` that it is a part of.
        unsafe { kernel::unmap(self.0.clone()) };
    }
}

/// The memory of a [`Slots`](crate::Slots).
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) geometry: Geometry,
    records: Mapping,
    /// The number of the first record of each class; the last entry is the total.
    first_records: [u32; MAX_CLASSES + 1],
    chains: usize,
    words: usize,
    /// Unmapped after the records, which no reader needs then.
    _range: Mapping,
}

impl Memory {
    /// Reserves memory for objects of at most `limit` bytes together.
    pub(crate) fn new(limit: usize) -> Result<Self> {
        let classes = classes(limit);
        // Four times the limit: objects and guards take two, the quarantine takes a part of the rest.
        let wanted = limit.saturating_mul(4).max(1 << MIN_SPAN_SHIFT).checked_next_power_of_two();
        let mut shift = wanted.map_or(MAX_SPAN_SHIFT, usize::ilog2).min(MAX_SPAN_SHIFT);
        let share = kernel::address_space_limit().map_or(usize::MAX, |limit| limit / LIMIT_SHARE);
        loop {
            // The largest slot takes at most half of its class.
            let classes = classes.min(shift - PAGE.ilog2());
            let bytes = (classes as usize) << shift;
            let is_last = shift == MIN_SPAN_SHIFT;
            if bytes <= share || is_last {
                match Self::with_spans(classes, shift) {
                    Ok(memory) => return Ok(memory),
                    Err(errno) if is_last => return Err(Error::Map { bytes, errno }),
                    Err(_) => {}
                }
            }
            shift -= 1;
        }
    }

    fn with_spans(classes: u32, span_shift: u32) -> core::result::Result<Self, Errno> {
        let range = Mapping::new((classes as usize) << span_shift, false)?;
        // SAFETY: the range is new. Kernels without huge pages refuse the advice, which is as good.
        let _ = unsafe { kernel::advise(range.0.clone(), Advice::NoHugePage) };
        let geometry = Geometry { base: range.0.start, span_shift, classes };
        let mut first_records = [0; MAX_CLASSES + 1];
        let mut count = 0;
        for (class, first) in (0..).zip(&mut first_records) {
            *first = count;
            count += if class < classes { geometry.capacity(class) as u32 } else { 0 };
        }
        let chains = 1 << (span_shift - CHAINS_SHIFT);
        let words = ((1 << (span_shift - STACKS_SHIFT)) / size_of::<usize>()).min(u32::MAX as usize);
        let bytes = count as usize * size_of::<Record>() + chains * size_of::<AtomicU32>() + words * size_of::<usize>();
        let records = Mapping::new(bytes.next_multiple_of(PAGE), true)?;
        Ok(Self { geometry, records, first_records, chains, words, _range: range })
    }

    /// An array in the records' mapping.
    fn array<T>(&self, offset: usize, count: usize) -> &[T] {
        let start = core::ptr::with_exposed_provenance(self.records.0.start + offset);
        // SAFETY: `with_spans` mapped room for the three arrays, whose alignments decrease from 8
        // to 4 and back by an even number of chains. Zero is valid for their elements, which are
        // atomics, so that no thread needs an exclusive reference.
        unsafe { core::slice::from_raw_parts(start, count) }
    }

    fn total(&self) -> usize {
        self.first_records.last().map_or(0, |&total| total as usize)
    }

    /// The records of a class.
    pub(crate) fn records(&self, class: u32) -> &[Record] {
        let first = self.first_records.get(class as usize).map_or(0, |&first| first as usize);
        let end = self.first_records.get(class as usize + 1).map_or(first, |&end| end as usize);
        self.array(first * size_of::<Record>(), end - first)
    }

    /// The chains of the stack table.
    pub(crate) fn chains(&self) -> &[AtomicU32] {
        self.array(self.total() * size_of::<Record>(), self.chains)
    }

    /// The entries of the stack table.
    pub(crate) fn words(&self) -> &[AtomicUsize] {
        let chains = self.chains * size_of::<AtomicU32>();
        self.array(self.total() * size_of::<Record>() + chains, self.words)
    }
}

/// The number of classes for objects up to `limit` bytes.
fn classes(limit: usize) -> u32 {
    let largest = (limit / PAGE).max(1).ilog2();
    (largest + 1).min(MAX_CLASSES as u32)
}

/// The bytes in page tables and records that a ready slot takes.
pub(crate) const fn overhead(class: u32) -> usize {
    size_of::<Record>() + stride(class) / PAGE * size_of::<usize>()
}
