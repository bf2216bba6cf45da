//! The table of lines: sums of sampled accesses per line, thread and byte.
//!
//! ```text
//!   by number ─→ slot: epoch, weight ─→ entry: thread, windows, joined ─→ entry: next thread ─→ …
//!                                        └ bytes: read[0..64], written[0..64]
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `entries` | the use of one line by one thread |
//! | `recent` | flags that expire: which adjacent bytes one access included |
//!
//! Algorithm: weights decay by half-lives ([`crate::decay`]), with one epoch per slot. When the
//! table is full, the lightest quarter of the lines is removed at once, so the cost per access does
//! not depend on the table's size. A remaining line is never lighter than a removed one.
//!
//! Invariants: an ended thread is forgotten, so that it does not seem to contend with its
//! successor. An access across lines counts in full in each of them, since it waits for all of
//! them. So the weights of all lines may exceed the number of samples; the weight of one line does
//! not.
//!
//! Cost: an access takes a hash look-up, a search in at most [`MOST_THREADS`] entries, and one
//! addition per byte. All memory is reserved at the start.

mod entries;
mod recent;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use crate::access::SampledAccess;
use crate::bits::Bits;
use crate::decay::{DecayedSum, HalfLife, MOST_EXPONENT};
use crate::error::Result;
use crate::line_use::{LineUse, MOST_THREADS, ThreadUse};
use crate::settings::Settings;
use entries::{AccessPart, EntryPool, NONE};

/// Average number of entries per line. A line may use more if others use fewer.
const ENTRIES_PER_LINE: usize = 4;
/// Divisor for the share of lines that is removed from a full table.
const EVICTED_DIVISOR: usize = 4;

/// The data of a line beside its entries.
#[derive(Debug, Clone, Copy)]
struct LineSlot {
    /// Its address divided by its size.
    number: u64,
    /// Its first entry.
    first: u32,
    threads: usize,
    /// The epoch of its weights and of those of its entries.
    epoch_ns: u64,
    weight: f64,
}

const EMPTY: LineSlot = LineSlot { number: 0, first: NONE, threads: 0, epoch_ns: 0, weight: 0.0 };

/// Histograms of the lines that a program's threads access.
#[derive(Debug)]
pub struct LineTable {
    settings: Settings,
    half_life: HalfLife,
    by_number: HashMap<u64, u32, BuildHasherDefault<LineHasher>>,
    slots: Vec<LineSlot>,
    free_slots: Vec<u32>,
    entries: EntryPool,
    total: DecayedSum,
    unusable: u64,
    /// Buffer for the search of the lightest lines.
    weighted: Vec<(f64, u32)>,
}

impl LineTable {
    /// An empty table. It reserves all of its memory, about 2 KiB per line; the kernel provides
    /// pages at their first use.
    ///
    /// # Errors
    /// A setting out of its range.
    pub fn new(settings: Settings) -> Result<Self> {
        settings.check()?;
        let most_lines = settings.most_lines as usize;
        Ok(Self {
            settings,
            half_life: HalfLife::new(settings.half_life_ns),
            // Twice the capacity: removed entries count until the map is rehashed.
            by_number: HashMap::with_capacity_and_hasher(most_lines * 2, BuildHasherDefault::default()),
            slots: vec![EMPTY; most_lines],
            free_slots: (0..settings.most_lines).rev().collect(),
            entries: EntryPool::new(most_lines * ENTRIES_PER_LINE + MOST_THREADS, settings.unit_bytes() as usize),
            total: DecayedSum::default(),
            unusable: 0,
            weighted: Vec::with_capacity(most_lines),
        })
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Number of lines or pairs in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// Number of accesses that were not counted: empty, too wide, or without weight.
    #[must_use]
    pub fn unusable(&self) -> u64 {
        self.unusable
    }

    /// All samples, decayed to `now_ns`, including those of removed lines and those on no line.
    #[must_use]
    pub fn total(&self, now_ns: u64) -> f64 {
        self.total.at(now_ns, self.half_life)
    }

    /// Counts an access.
    pub fn record(&mut self, access: &SampledAccess) {
        if !access.is_usable() {
            self.unusable += 1;
            return;
        }
        self.total.add(access.weight, access.at_ns, self.half_life);
        let unit = u64::from(self.settings.unit_bytes());
        let mut start = access.address;
        while start < access.end() {
            let line_start = start / unit * unit;
            let end = access.end().min(line_start.saturating_add(unit));
            let in_line = |address: u64| u32::try_from(address - line_start).unwrap_or(Bits::COUNT);
            self.record_in(start / unit, access, in_line(start)..in_line(end));
            start = end;
        }
    }

    /// Counts a sample without an access. It adds to the total only.
    pub fn record_elsewhere(&mut self, weight: f64, at_ns: u64) {
        if weight.is_finite() && weight > 0.0 {
            self.total.add(weight, at_ns, self.half_life);
        }
    }

    /// Forgets an ended thread. Visits every line.
    pub fn forget(&mut self, thread: u32) {
        for slot in self.used_slots() {
            if let Some(entry) = self.find_entry(slot, thread) {
                self.drop_entry(slot, entry);
            }
            if self.slots[slot as usize].threads == 0 {
                self.drop_line(slot);
            }
        }
    }

    /// Forgets every line with a byte in this range, whose memory was freed, unmapped or moved.
    /// Visits every line.
    pub fn forget_bytes(&mut self, bytes: &Range<u64>) {
        let unit = u64::from(self.settings.unit_bytes());
        for slot in self.used_slots() {
            let start = self.slots[slot as usize].number * unit;
            if start < bytes.end && bytes.start < start.saturating_add(unit) {
                self.drop_line(slot);
            }
        }
    }

    /// The use at `now_ns` of the line that contains this address.
    #[must_use]
    pub fn line(&self, address: u64, now_ns: u64) -> Option<LineUse> {
        let number = address / u64::from(self.settings.unit_bytes());
        self.by_number.get(&number).map(|&slot| self.copy(slot, now_ns))
    }

    /// Number of known threads of the line that contains this address.
    #[must_use]
    pub fn threads_at(&self, address: u64) -> usize {
        let number = address / u64::from(self.settings.unit_bytes());
        self.by_number.get(&number).map_or(0, |&slot| self.slots[slot as usize].threads)
    }

    /// The heaviest lines, heaviest first, at most `most`.
    #[must_use]
    pub fn heaviest(&self, most: usize, now_ns: u64) -> Vec<LineUse> {
        let weigh = |slot: u32| (self.weight(slot, now_ns), slot);
        let mut weighted: Vec<(f64, u32)> = self.by_number.values().copied().map(weigh).collect();
        let number = |slot: u32| self.slots[slot as usize].number;
        weighted.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| number(a.1).cmp(&number(b.1))));
        weighted.into_iter().take(most).map(|(_, slot)| self.copy(slot, now_ns)).collect()
    }

    /// Counts the bytes of an access in one line.
    fn record_in(&mut self, number: u64, access: &SampledAccess, bytes: Range<u32>) {
        let slot = self.slot_of(number, access.at_ns);
        self.move_epoch(slot, access.at_ns);
        let entry = self.entry_of(slot, access.thread, access.at_ns);
        let continues = self.line_end(number) < access.end();
        let began_before = access.address < number.saturating_mul(self.settings.unit_bytes().into());
        let LineSlot { epoch_ns, weight, .. } = &mut self.slots[slot as usize];
        let grown = access.weight * self.half_life.growth(*epoch_ns, access.at_ns);
        *weight += grown;
        let window = access.at_ns / self.settings.window_ns;
        self.entries.record(entry, access, &AccessPart { bytes, began_before, continues, weight: grown, window });
    }

    fn line_end(&self, number: u64) -> u64 {
        (number + 1).saturating_mul(u64::from(self.settings.unit_bytes()))
    }

    /// The slot of a line, which is created if there is none.
    fn slot_of(&mut self, number: u64, at_ns: u64) -> u32 {
        if let Some(&slot) = self.by_number.get(&number) {
            return slot;
        }
        if self.free_slots.is_empty() {
            self.evict(NONE, at_ns);
        }
        let slot = self.free_slots.pop().expect("a full table was evicted");
        self.slots[slot as usize] = LineSlot { number, epoch_ns: at_ns, ..EMPTY };
        self.by_number.insert(number, slot);
        slot
    }

    /// The entry of a thread in a line, which is created if there is none.
    fn entry_of(&mut self, slot: u32, thread: u32, at_ns: u64) -> u32 {
        if let Some(entry) = self.find_entry(slot, thread) {
            return entry;
        }
        if self.slots[slot as usize].threads == MOST_THREADS {
            self.drop_lightest_entry(slot);
        }
        if self.entries.is_full() {
            self.evict(slot, at_ns);
        }
        let line = &mut self.slots[slot as usize];
        line.first = self.entries.take(thread, line.first);
        line.threads += 1;
        line.first
    }

    fn find_entry(&self, slot: u32, thread: u32) -> Option<u32> {
        self.entries.chain(self.slots[slot as usize].first).find(|&entry| self.entries.get(entry).thread == thread)
    }

    /// Moves the line's epoch to `at_ns` if it is more than [`MOST_EXPONENT`] half-lives ago, so
    /// that weights stay small.
    fn move_epoch(&mut self, slot: u32, at_ns: u64) {
        let line = &mut self.slots[slot as usize];
        if self.half_life.exponent(line.epoch_ns, at_ns) <= MOST_EXPONENT {
            return;
        }
        let rest = self.half_life.rest(line.epoch_ns, at_ns);
        line.epoch_ns = at_ns;
        line.weight *= rest;
        let mut entry = line.first;
        while entry != NONE {
            self.entries.scale(entry, rest);
            entry = self.entries.get(entry).next;
        }
    }

    /// Removes the lightest quarter of the lines, except `keep`.
    #[cold]
    fn evict(&mut self, keep: u32, now_ns: u64) {
        let mut weighted = std::mem::take(&mut self.weighted);
        weighted.clear();
        let others = self.by_number.values().copied().filter(|&slot| slot != keep);
        weighted.extend(others.map(|slot| (self.weight(slot, now_ns), slot)));
        let evicted = weighted.len().div_ceil(EVICTED_DIVISOR);
        if let Some(last) = evicted.checked_sub(1) {
            weighted.select_nth_unstable_by(last, |a, b| a.0.total_cmp(&b.0));
        }
        for &(_, slot) in &weighted[..evicted] {
            self.drop_line(slot);
        }
        self.weighted = weighted;
    }

    fn drop_line(&mut self, slot: u32) {
        while self.slots[slot as usize].first != NONE {
            self.drop_entry(slot, self.slots[slot as usize].first);
        }
        self.by_number.remove(&self.slots[slot as usize].number);
        self.slots[slot as usize] = EMPTY;
        self.free_slots.push(slot);
    }

    fn drop_lightest_entry(&mut self, slot: u32) {
        let entries = self.entries.chain(self.slots[slot as usize].first);
        let lightest = entries.min_by(|&a, &b| self.entries.get(a).weight().total_cmp(&self.entries.get(b).weight()));
        if let Some(entry) = lightest {
            self.drop_entry(slot, entry);
        }
    }

    fn drop_entry(&mut self, slot: u32, entry: u32) {
        let line = &mut self.slots[slot as usize];
        line.weight = (line.weight - self.entries.get(entry).weight()).max(0.0);
        line.threads -= 1;
        line.first = self.entries.release(line.first, entry);
    }

    fn used_slots(&self) -> Vec<u32> {
        self.by_number.values().copied().collect()
    }

    fn weight(&self, slot: u32, now_ns: u64) -> f64 {
        let line = &self.slots[slot as usize];
        line.weight * self.half_life.rest(line.epoch_ns, now_ns)
    }

    fn copy(&self, slot: u32, now_ns: u64) -> LineUse {
        let line = &self.slots[slot as usize];
        let rest = self.half_life.rest(line.epoch_ns, now_ns);
        let window = now_ns / self.settings.window_ns;
        let entries = self.entries.chain(line.first);
        let mut threads: Vec<ThreadUse> = entries.map(|entry| self.entries.copy(entry, rest, window)).collect();
        threads.sort_by_key(|thread| thread.thread);
        LineUse {
            address: line.number * u64::from(self.settings.unit_bytes()),
            bytes: self.settings.unit_bytes(),
            line_bytes: self.settings.line_bytes,
            at_ns: now_ns,
            weight: line.weight * rest,
            threads,
        }
    }
}

/// A hash of line numbers: two multiplications, each followed by a fold, so that high and low bits
/// are well mixed.
#[derive(Debug, Clone, Copy, Default)]
struct LineHasher(u64);

impl Hasher for LineHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, number: u64) {
        let first = (self.0 ^ number ^ number >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let second = (first ^ first >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.0 = second ^ second >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
