//! Entries: the use of one line by one thread. A pool of entries with weights per byte, chained by
//! line.

use std::ops::Range;

use super::recent::RecentFlags;
use crate::access::SampledAccess;
use crate::bits::Bits;
use crate::line_use::{SiteWeight, ThreadUse};
use crate::windows::Windows;

/// The end of a chain; no entry, no slot.
pub(super) const NONE: u32 = u32::MAX;
/// Instructions per entry. The accesses of a loop to one line rarely have more.
const SITES: usize = 8;

/// The bytes of an access in one line.
#[derive(Debug)]
pub(super) struct AccessPart {
    /// Range of bytes in the line.
    pub(super) bytes: Range<u32>,
    /// Whether the access began in the line before.
    pub(super) began_before: bool,
    /// Whether the access continues in the next line.
    pub(super) continues: bool,
    /// Its weight, relative to the line's epoch.
    pub(super) weight: f64,
    pub(super) window: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ThreadEntry {
    pub(super) thread: u32,
    /// The next entry of its line, or the next free one.
    pub(super) next: u32,
    weight: f64,
    windows: Windows,
    joined: RecentFlags,
    began_before: RecentFlags,
    atomic: RecentFlags,
    replaced: RecentFlags,
    /// Instructions with their weights; weight 0 for none.
    sites: [(u64, f32); SITES],
}

impl ThreadEntry {
    fn new(thread: u32, next: u32) -> Self {
        Self {
            thread,
            next,
            weight: 0.0,
            windows: Windows::default(),
            joined: RecentFlags::default(),
            began_before: RecentFlags::default(),
            atomic: RecentFlags::default(),
            replaced: RecentFlags::default(),
            sites: [(0, 0.0); SITES],
        }
    }

    /// Its weight, relative to its line's epoch.
    pub(super) fn weight(&self) -> f64 {
        self.weight
    }

    fn add(&mut self, access: &SampledAccess, access_part: &AccessPart) {
        self.weight += access_part.weight;
        self.windows.mark(access_part.window, access.cpu);
        let Range { start, end } = access_part.bytes;
        let last_joined = if access_part.continues { end } else { end - 1 };
        self.joined.add(Bits::range(start..last_joined), access_part.window);
        let of_access = Bits::range(start..end);
        for (flags, applies) in [
            (&mut self.began_before, access_part.began_before),
            (&mut self.atomic, access.atomic),
            (&mut self.replaced, access.write && !access.bitwise),
        ] {
            if applies {
                flags.add(of_access, access_part.window);
            }
        }
        self.add_site(access.site, single(access_part.weight));
    }

    /// Adds weight to an instruction. A new one replaces the lightest and inherits its weight, so
    /// that no weight is too low (Metwally et al., *Space Saving*, ICDT 2005).
    fn add_site(&mut self, site: u64, weight: f32) {
        let mut lightest = 0;
        for at in 0..SITES {
            if self.sites[at].0 == site && self.sites[at].1 > 0.0 {
                self.sites[at].1 += weight;
                return;
            }
            if self.sites[at].1 < self.sites[lightest].1 {
                lightest = at;
            }
        }
        self.sites[lightest] = (site, self.sites[lightest].1 + weight);
    }
}

/// All entries of all lines.
#[derive(Debug)]
pub(super) struct EntryPool {
    /// Bytes of a line.
    unit: usize,
    /// Maximum number of entries.
    count: usize,
    /// Entries that were ever used. Capacity for all is reserved; the kernel provides pages at
    /// their first use.
    entries: Vec<ThreadEntry>,
    /// For each entry, its weights of reads per byte, then those of writes.
    weights: Vec<f32>,
    first_free: u32,
}

impl EntryPool {
    pub(super) fn new(count: usize, unit: usize) -> Self {
        let count = count.min(NONE as usize);
        Self { unit, count, entries: Vec::with_capacity(count), weights: vec![0.0; count * unit * 2], first_free: NONE }
    }

    pub(super) fn is_full(&self) -> bool {
        self.first_free == NONE && self.entries.len() == self.count
    }

    pub(super) fn get(&self, entry: u32) -> &ThreadEntry {
        &self.entries[entry as usize]
    }

    /// Takes a free entry and puts it before `next` in a chain. There must be one: see
    /// [`Self::is_full`].
    pub(super) fn take(&mut self, thread: u32, next: u32) -> u32 {
        if self.first_free == NONE {
            self.first_free = u32::try_from(self.entries.len()).unwrap_or(NONE);
            self.entries.push(ThreadEntry::new(0, NONE));
        }
        let entry = self.first_free;
        self.first_free = self.entries[entry as usize].next;
        self.entries[entry as usize] = ThreadEntry::new(thread, next);
        self.weights_mut(entry).fill(0.0);
        entry
    }

    /// Frees an entry of the chain that starts with `first`; returns the new start.
    pub(super) fn release(&mut self, first: u32, entry: u32) -> u32 {
        let next = self.entries[entry as usize].next;
        let before = self.chain(first).find(|&before| self.entries[before as usize].next == entry);
        self.entries[entry as usize].next = self.first_free;
        self.first_free = entry;
        match before {
            Some(before) => {
                self.entries[before as usize].next = next;
                first
            }
            None => next,
        }
    }

    /// The entries of a chain.
    pub(super) fn chain(&self, first: u32) -> impl Iterator<Item = u32> {
        let some = |entry: u32| (entry != NONE).then_some(entry);
        std::iter::successors(some(first), move |&entry| some(self.entries[entry as usize].next))
    }

    pub(super) fn record(&mut self, entry: u32, access: &SampledAccess, access_part: &AccessPart) {
        let a_byte = single(access_part.weight / f64::from(access_part.bytes.end - access_part.bytes.start));
        let start = if access.write { self.unit } else { 0 };
        let bytes = start + access_part.bytes.start as usize..start + access_part.bytes.end as usize;
        for weight in &mut self.weights_mut(entry)[bytes] {
            *weight += a_byte;
        }
        self.entries[entry as usize].add(access, access_part);
    }

    /// Multiplies all weights of an entry.
    pub(super) fn scale(&mut self, entry: u32, factor: f64) {
        for weight in self.weights_mut(entry) {
            *weight = single(f64::from(*weight) * factor);
        }
        let entry = &mut self.entries[entry as usize];
        entry.weight *= factor;
        for (_, weight) in &mut entry.sites {
            *weight = single(f64::from(*weight) * factor);
        }
    }

    /// A copy of an entry, with its weights times `rest`.
    pub(super) fn copy(&self, entry: u32, rest: f64, window: u64) -> ThreadUse {
        let faded = |weights: &[f32]| weights.iter().map(|&weight| single(f64::from(weight) * rest)).collect();
        let (read, written) = self.weights(entry).split_at(self.unit);
        let entry = self.get(entry);
        let weighted = entry.sites.iter().filter(|(_, weight)| *weight > 0.0);
        let found = |&(site, weight): &(u64, f32)| SiteWeight { site, weight: single(f64::from(weight) * rest) };
        let mut sites: Vec<SiteWeight> = weighted.map(found).collect();
        sites.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        ThreadUse {
            thread: entry.thread,
            read: faded(read),
            written: faded(written),
            windows: entry.windows,
            joined: entry.joined.at(window),
            began_before: entry.began_before.at(window),
            atomic: entry.atomic.at(window),
            replaced: entry.replaced.at(window),
            sites,
        }
    }

    fn weights(&self, entry: u32) -> &[f32] {
        let start = entry as usize * self.unit * 2;
        &self.weights[start..start + self.unit * 2]
    }

    fn weights_mut(&mut self, entry: u32) -> &mut [f32] {
        let start = entry as usize * self.unit * 2;
        &mut self.weights[start..start + self.unit * 2]
    }
}

/// A weight in four bytes: their seven digits are more than samples provide.
#[expect(
    clippy::cast_possible_truncation,
    reason = "digits are given up on purpose; the range is kept small by epochs"
)]
fn single(weight: f64) -> f32 {
    weight as f32
}
