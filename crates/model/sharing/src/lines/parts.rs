//! What one thread does in one line: a pool of such parts, each with its weights a byte, chained by line.

use std::ops::Range;

use super::lately::Lately;
use crate::access::Access;
use crate::bits::Bits;
use crate::line::{SiteWeight, ThreadUse};
use crate::windows::Windows;

/// The end of a chain; no part, no slot.
pub(super) const NONE: u32 = u32::MAX;
/// Instructions that are kept a part: the accesses of a loop's body to one line are rarely more.
const SITES: usize = 8;

/// The part of an access in one line.
#[derive(Debug)]
pub(super) struct Piece {
    /// In the line.
    pub(super) bytes: Range<u32>,
    /// The access began in the line before.
    pub(super) began_before: bool,
    /// The access goes on in the next line.
    pub(super) goes_on: bool,
    /// Since the line's epoch.
    pub(super) weight: f64,
    pub(super) window: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) thread: u32,
    /// In the chain of its line, or of the free ones.
    pub(super) next: u32,
    weight: f64,
    windows: Windows,
    joined: Lately,
    began_before: Lately,
    atomic: Lately,
    replaced: Lately,
    /// Instruction and weight; weight 0: none.
    sites: [(u64, f32); SITES],
}

impl Part {
    fn new(thread: u32, next: u32) -> Self {
        Self {
            thread,
            next,
            weight: 0.0,
            windows: Windows::default(),
            joined: Lately::default(),
            began_before: Lately::default(),
            atomic: Lately::default(),
            replaced: Lately::default(),
            sites: [(0, 0.0); SITES],
        }
    }

    /// Since its line's epoch.
    pub(super) fn weight(&self) -> f64 {
        self.weight
    }

    fn note(&mut self, access: &Access, piece: &Piece) {
        self.weight += piece.weight;
        self.windows.mark(piece.window, access.cpu);
        let Range { start, end } = piece.bytes;
        let last_joined = if piece.goes_on { end } else { end - 1 };
        self.joined.add(Bits::range(start..last_joined), piece.window);
        let of_access = Bits::range(start..end);
        for (flags, applies) in [
            (&mut self.began_before, piece.began_before),
            (&mut self.atomic, access.atomic),
            (&mut self.replaced, access.write && !access.bitwise),
        ] {
            if applies {
                flags.add(of_access, piece.window);
            }
        }
        self.note_site(access.site, single(piece.weight));
    }

    /// The site gets the weight; a new one takes the place of the lightest and its weight too, so that none is told too
    /// light (Metwally et al., *Space Saving*, ICDT 2005).
    fn note_site(&mut self, site: u64, weight: f32) {
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

/// All parts of all lines.
#[derive(Debug)]
pub(super) struct Parts {
    /// Bytes of a line.
    unit: usize,
    /// At most.
    count: usize,
    /// Those that were ever taken. There is room for all; the system gives memory as it is touched.
    parts: Vec<Part>,
    /// A part: its weights of reads, byte by byte, then those of writes.
    weights: Vec<f32>,
    first_free: u32,
}

impl Parts {
    pub(super) fn new(count: usize, unit: usize) -> Self {
        let count = count.min(NONE as usize);
        Self { unit, count, parts: Vec::with_capacity(count), weights: vec![0.0; count * unit * 2], first_free: NONE }
    }

    pub(super) fn is_full(&self) -> bool {
        self.first_free == NONE && self.parts.len() == self.count
    }

    pub(super) fn get(&self, part: u32) -> &Part {
        &self.parts[part as usize]
    }

    /// A free part, before `next` in a chain. There is one: see [`Self::is_full`].
    pub(super) fn take(&mut self, thread: u32, next: u32) -> u32 {
        if self.first_free == NONE {
            self.first_free = u32::try_from(self.parts.len()).unwrap_or(NONE);
            self.parts.push(Part::new(0, NONE));
        }
        let part = self.first_free;
        self.first_free = self.parts[part as usize].next;
        self.parts[part as usize] = Part::new(thread, next);
        self.weights_mut(part).fill(0.0);
        part
    }

    /// Frees a part of the chain that begins with `first`; returns what it begins with then.
    pub(super) fn give(&mut self, first: u32, part: u32) -> u32 {
        let next = self.parts[part as usize].next;
        let before = self.chain(first).find(|&before| self.parts[before as usize].next == part);
        self.parts[part as usize].next = self.first_free;
        self.first_free = part;
        match before {
            Some(before) => {
                self.parts[before as usize].next = next;
                first
            }
            None => next,
        }
    }

    /// The parts of a chain.
    pub(super) fn chain(&self, first: u32) -> impl Iterator<Item = u32> {
        let some = |part: u32| (part != NONE).then_some(part);
        std::iter::successors(some(first), move |&part| some(self.parts[part as usize].next))
    }

    pub(super) fn record(&mut self, part: u32, access: &Access, piece: &Piece) {
        let a_byte = single(piece.weight / f64::from(piece.bytes.end - piece.bytes.start));
        let start = if access.write { self.unit } else { 0 };
        let bytes = start + piece.bytes.start as usize..start + piece.bytes.end as usize;
        for weight in &mut self.weights_mut(part)[bytes] {
            *weight += a_byte;
        }
        self.parts[part as usize].note(access, piece);
    }

    /// Multiplies all of a part's weights.
    pub(super) fn scale(&mut self, part: u32, factor: f64) {
        for weight in self.weights_mut(part) {
            *weight = single(f64::from(*weight) * factor);
        }
        let part = &mut self.parts[part as usize];
        part.weight *= factor;
        for (_, weight) in &mut part.sites {
            *weight = single(f64::from(*weight) * factor);
        }
    }

    /// What the thread does, its weights times `rest`.
    pub(super) fn copy(&self, part: u32, rest: f64, window: u64) -> ThreadUse {
        let faded = |weights: &[f32]| weights.iter().map(|&weight| single(f64::from(weight) * rest)).collect();
        let (read, written) = self.weights(part).split_at(self.unit);
        let part = self.get(part);
        let weighs = part.sites.iter().filter(|(_, weight)| *weight > 0.0);
        let told = |&(site, weight): &(u64, f32)| SiteWeight { site, weight: single(f64::from(weight) * rest) };
        let mut sites: Vec<SiteWeight> = weighs.map(told).collect();
        sites.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        ThreadUse {
            thread: part.thread,
            read: faded(read),
            written: faded(written),
            windows: part.windows,
            joined: part.joined.at(window),
            began_before: part.began_before.at(window),
            atomic: part.atomic.at(window),
            replaced: part.replaced.at(window),
            sites,
        }
    }

    fn weights(&self, part: u32) -> &[f32] {
        let start = part as usize * self.unit * 2;
        &self.weights[start..start + self.unit * 2]
    }

    fn weights_mut(&mut self, part: u32) -> &mut [f32] {
        let start = part as usize * self.unit * 2;
        &mut self.weights[start..start + self.unit * 2]
    }
}

/// A weight, kept in four bytes: seven digits are more than samples have.
#[expect(
    clippy::cast_possible_truncation,
    reason = "digits are given up on purpose; the range is kept small by epochs"
)]
fn single(weight: f64) -> f32 {
    weight as f32
}
