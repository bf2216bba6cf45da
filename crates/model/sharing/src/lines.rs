//! The table of lines: what sampled accesses add up to, a line, a thread, a byte.
//!
//! ```text
//!   by number ─→ slot: epoch, weight ─→ part: thread, windows, joined ─→ part: next thread ─→ …
//!                                        └ bytes: read[0..64], written[0..64]
//! ```
//! - An access costs a look-up, a walk over at most [`MOST_THREADS`] parts and an addition a byte. All memory is taken at
//!   the start.
//! - Weights fade by half-lives ([`crate::decay`]); nothing is touched for it. A slot's epoch is its own.
//! - The table is bounded. When it is full, the lightest quarter of the lines leaves at once, so that what one access
//!   pays for it stays the same however large the table. What is left is never lighter than what has left.
//! - A thread that ended is forgotten: what it did must not look like a fight with the one that comes after it.
//!
//! An access that goes across lines counts in each of them in full, since it waits for all of them. So the weights of all lines can add up to
//! more than the samples, and that of one line cannot.

mod lately;
mod parts;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use crate::access::Access;
use crate::bits::Bits;
use crate::decay::{HalfLife, MOST_EXPONENT, Sum};
use crate::error::Result;
use crate::line::{Line, MOST_THREADS, ThreadUse};
use crate::settings::Settings;
use parts::{NONE, Parts, Piece};

/// Parts a line, on the average; a line that has more takes from those that have fewer.
const PARTS_A_LINE: usize = 4;
/// The share of the lines that leaves a full table: one of so many.
const LEAVING: usize = 4;

/// What is kept of a line besides its parts.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// Its address over its bytes.
    number: u64,
    /// The first of its parts.
    first: u32,
    threads: usize,
    /// Weights count from then; those of the parts too.
    epoch_ns: u64,
    weight: f64,
}

const EMPTY: Slot = Slot { number: 0, first: NONE, threads: 0, epoch_ns: 0, weight: 0.0 };

/// Histograms of the lines that a program's threads touch.
#[derive(Debug)]
pub struct Lines {
    settings: Settings,
    half_life: HalfLife,
    by_number: HashMap<u64, u32, BuildHasherDefault<Spread>>,
    slots: Vec<Slot>,
    free_slots: Vec<u32>,
    parts: Parts,
    total: Sum,
    unusable: u64,
    /// Room to find the lightest lines in.
    weighed: Vec<(f64, u32)>,
}

impl Lines {
    /// An empty table. Takes all of its memory, which the system gives as it is touched: about 2 KiB a line.
    ///
    /// # Errors
    /// A setting out of its range.
    pub fn new(settings: Settings) -> Result<Self> {
        settings.check()?;
        let most_lines = settings.most_lines as usize;
        Ok(Self {
            settings,
            half_life: HalfLife::new(settings.half_life_ns),
            // Twice the room: entries that left count until the map has cleaned up.
            by_number: HashMap::with_capacity_and_hasher(most_lines * 2, BuildHasherDefault::default()),
            slots: vec![EMPTY; most_lines],
            free_slots: (0..settings.most_lines).rev().collect(),
            parts: Parts::new(most_lines * PARTS_A_LINE + MOST_THREADS, settings.unit_bytes() as usize),
            total: Sum::default(),
            unusable: 0,
            weighed: Vec::with_capacity(most_lines),
        })
    }

    /// How lines are counted here.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Lines, or pairs, that are in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Is nothing in the table?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// Accesses that were not counted: empty, too wide, or of no weight.
    #[must_use]
    pub fn unusable(&self) -> u64 {
        self.unusable
    }

    /// All samples, faded to `now_ns`: those on lines that left the table and those elsewhere too.
    #[must_use]
    pub fn total(&self, now_ns: u64) -> f64 {
        self.total.at(now_ns, self.half_life)
    }

    /// Counts an access.
    pub fn record(&mut self, access: &Access) {
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

    /// Counts a sample that shows no access: it is one of all samples, on no line.
    pub fn record_elsewhere(&mut self, weight: f64, at_ns: u64) {
        if weight.is_finite() && weight > 0.0 {
            self.total.add(weight, at_ns, self.half_life);
        }
    }

    /// A thread ended: forgets all that it did. Costs a look at every line.
    pub fn forget(&mut self, thread: u32) {
        for slot in self.used_slots() {
            if let Some(part) = self.find_part(slot, thread) {
                self.drop_part(slot, part);
            }
            if self.slots[slot as usize].threads == 0 {
                self.drop_line(slot);
            }
        }
    }

    /// Memory was freed, unmapped or moved: forgets every line that has a byte of it. Costs a look at every line.
    pub fn forget_bytes(&mut self, bytes: &Range<u64>) {
        let unit = u64::from(self.settings.unit_bytes());
        for slot in self.used_slots() {
            let start = self.slots[slot as usize].number * unit;
            if start < bytes.end && bytes.start < start.saturating_add(unit) {
                self.drop_line(slot);
            }
        }
    }

    /// The line that holds this address, as it is at `now_ns`.
    #[must_use]
    pub fn line(&self, address: u64, now_ns: u64) -> Option<Line> {
        let number = address / u64::from(self.settings.unit_bytes());
        self.by_number.get(&number).map(|&slot| self.copy(slot, now_ns))
    }

    /// How many threads are known of the line that holds this address.
    #[must_use]
    pub fn threads_at(&self, address: u64) -> usize {
        let number = address / u64::from(self.settings.unit_bytes());
        self.by_number.get(&number).map_or(0, |&slot| self.slots[slot as usize].threads)
    }

    /// The heaviest lines, heaviest first, at most so many.
    #[must_use]
    pub fn heaviest(&self, most: usize, now_ns: u64) -> Vec<Line> {
        let weigh = |slot: u32| (self.weight(slot, now_ns), slot);
        let mut weighed: Vec<(f64, u32)> = self.by_number.values().copied().map(weigh).collect();
        let number = |slot: u32| self.slots[slot as usize].number;
        weighed.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| number(a.1).cmp(&number(b.1))));
        weighed.into_iter().take(most).map(|(_, slot)| self.copy(slot, now_ns)).collect()
    }

    /// The part of an access in one line.
    fn record_in(&mut self, number: u64, access: &Access, bytes: Range<u32>) {
        let slot = self.slot_of(number, access.at_ns);
        self.move_epoch(slot, access.at_ns);
        let part = self.part_of(slot, access.thread, access.at_ns);
        let goes_on = self.line_end(number) < access.end();
        let began_before = access.address < number.saturating_mul(self.settings.unit_bytes().into());
        let Slot { epoch_ns, weight, .. } = &mut self.slots[slot as usize];
        let grown = access.weight * self.half_life.growth(*epoch_ns, access.at_ns);
        *weight += grown;
        let window = access.at_ns / self.settings.window_ns;
        self.parts.record(part, access, &Piece { bytes, began_before, goes_on, weight: grown, window });
    }

    fn line_end(&self, number: u64) -> u64 {
        (number + 1).saturating_mul(u64::from(self.settings.unit_bytes()))
    }

    /// The slot of a line, made if there is none.
    fn slot_of(&mut self, number: u64, at_ns: u64) -> u32 {
        if let Some(&slot) = self.by_number.get(&number) {
            return slot;
        }
        if self.free_slots.is_empty() {
            self.thin_out(NONE, at_ns);
        }
        let slot = self.free_slots.pop().expect("a full table was thinned out");
        self.slots[slot as usize] = Slot { number, epoch_ns: at_ns, ..EMPTY };
        self.by_number.insert(number, slot);
        slot
    }

    /// The part of a thread in a line, made if there is none.
    fn part_of(&mut self, slot: u32, thread: u32, at_ns: u64) -> u32 {
        if let Some(part) = self.find_part(slot, thread) {
            return part;
        }
        if self.slots[slot as usize].threads == MOST_THREADS {
            self.drop_lightest_part(slot);
        }
        if self.parts.is_full() {
            self.thin_out(slot, at_ns);
        }
        let line = &mut self.slots[slot as usize];
        line.first = self.parts.take(thread, line.first);
        line.threads += 1;
        line.first
    }

    fn find_part(&self, slot: u32, thread: u32) -> Option<u32> {
        self.parts.chain(self.slots[slot as usize].first).find(|&part| self.parts.get(part).thread == thread)
    }

    /// Keeps the numbers of a line small: its epoch becomes `at_ns` when it is long ago.
    fn move_epoch(&mut self, slot: u32, at_ns: u64) {
        let line = &mut self.slots[slot as usize];
        if self.half_life.exponent(line.epoch_ns, at_ns) <= MOST_EXPONENT {
            return;
        }
        let rest = self.half_life.rest(line.epoch_ns, at_ns);
        line.epoch_ns = at_ns;
        line.weight *= rest;
        let mut part = line.first;
        while part != NONE {
            self.parts.scale(part, rest);
            part = self.parts.get(part).next;
        }
    }

    /// Makes room: the lightest quarter of the lines leaves, `keep` not among them.
    #[cold]
    fn thin_out(&mut self, keep: u32, now_ns: u64) {
        let mut weighed = std::mem::take(&mut self.weighed);
        weighed.clear();
        let others = self.by_number.values().copied().filter(|&slot| slot != keep);
        weighed.extend(others.map(|slot| (self.weight(slot, now_ns), slot)));
        let leaving = weighed.len().div_ceil(LEAVING);
        if let Some(last) = leaving.checked_sub(1) {
            weighed.select_nth_unstable_by(last, |a, b| a.0.total_cmp(&b.0));
        }
        for &(_, slot) in &weighed[..leaving] {
            self.drop_line(slot);
        }
        self.weighed = weighed;
    }

    fn drop_line(&mut self, slot: u32) {
        while self.slots[slot as usize].first != NONE {
            self.drop_part(slot, self.slots[slot as usize].first);
        }
        self.by_number.remove(&self.slots[slot as usize].number);
        self.slots[slot as usize] = EMPTY;
        self.free_slots.push(slot);
    }

    fn drop_lightest_part(&mut self, slot: u32) {
        let parts = self.parts.chain(self.slots[slot as usize].first);
        let lightest = parts.min_by(|&a, &b| self.parts.get(a).weight().total_cmp(&self.parts.get(b).weight()));
        if let Some(part) = lightest {
            self.drop_part(slot, part);
        }
    }

    fn drop_part(&mut self, slot: u32, part: u32) {
        let line = &mut self.slots[slot as usize];
        line.weight = (line.weight - self.parts.get(part).weight()).max(0.0);
        line.threads -= 1;
        line.first = self.parts.give(line.first, part);
    }

    fn used_slots(&self) -> Vec<u32> {
        self.by_number.values().copied().collect()
    }

    fn weight(&self, slot: u32, now_ns: u64) -> f64 {
        let line = &self.slots[slot as usize];
        line.weight * self.half_life.rest(line.epoch_ns, now_ns)
    }

    fn copy(&self, slot: u32, now_ns: u64) -> Line {
        let line = &self.slots[slot as usize];
        let rest = self.half_life.rest(line.epoch_ns, now_ns);
        let window = now_ns / self.settings.window_ns;
        let parts = self.parts.chain(line.first);
        let mut threads: Vec<ThreadUse> = parts.map(|part| self.parts.copy(part, rest, window)).collect();
        threads.sort_by_key(|thread| thread.thread);
        Line {
            address: line.number * u64::from(self.settings.unit_bytes()),
            bytes: self.settings.unit_bytes(),
            line_bytes: self.settings.line_bytes,
            at_ns: now_ns,
            weight: line.weight * rest,
            threads,
        }
    }
}

/// A hash of line numbers: two multiplications, each followed by a fold, so that high and low bits are both good.
#[derive(Debug, Clone, Copy, Default)]
struct Spread(u64);

impl Hasher for Spread {
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
