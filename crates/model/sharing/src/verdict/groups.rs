//! Groups of bytes with the same users, and the contention between groups.

use super::ByteOwner;
use super::overlap::{ThreadOverlap, members};
use crate::bits::Bits;
use crate::line_use::{LineUse, ThreadUse};

/// A thread with less than this share of a byte's heaviest user is a guest there. With random
/// samples, its accesses cause at most one in twenty of the line's transfers.
const GUEST: f64 = 0.05;

/// Share of a line's weight that counts as zero for a byte: the rest of one sample among a thousand
/// after seven half-lives.
const RESIDUE: f64 = 1e-5;

/// Bytes with the same users.
#[derive(Debug, Clone, Default)]
pub(super) struct ByteGroup {
    /// Whether no user writes and several read.
    readers: bool,
    /// The users, without guests.
    users: u64,
    /// Guests in conflict with users.
    pub(super) guests: u64,
    /// Users that write.
    writers: u64,
    /// Users and guests that write.
    pub(super) all_writers: u64,
    bytes: Bits,
    /// Bytes that users truly share.
    shared: Bits,
    /// Bytes that users or guests truly share.
    pub(super) overlap: Bits,
    /// Those of them that several threads write.
    pub(super) written_by_many: Bits,
    read: f64,
    written: f64,
}

impl ByteGroup {
    pub(super) fn weight(&self) -> f64 {
        self.read + self.written
    }

    /// Whether several users truly share bytes of it.
    pub(super) fn is_shared(&self) -> bool {
        !self.shared.is_empty()
    }

    /// Whether a user of one group writes while another thread uses the other group at the same
    /// time.
    pub(super) fn fights(&self, other: &Self, overlap: &ThreadOverlap) -> bool {
        !std::ptr::eq(self, other)
            && (overlap.met(self.writers, other.users) != 0 || overlap.met(other.writers, self.users) != 0)
    }

    /// Whether threads change single bits of bytes that several of them write. Bit instructions
    /// show that. So, most likely, do plain accesses of a single byte: a read, a change and a
    /// write.
    pub(super) fn is_bits(&self, line: &LineUse) -> bool {
        let any = |of: fn(&ThreadUse) -> Bits| line.threads.iter().fold(Bits::NONE, |all, thread| all | of(thread));
        let in_words = any(|thread| thread.joined | thread.joined.up(1) | thread.began_before);
        let replaced = any(|thread| thread.replaced) & (in_words | any(|thread| thread.atomic));
        (self.written_by_many & replaced).is_empty()
    }

    pub(super) fn owner(&self, line: &LineUse) -> ByteOwner {
        let numbers = |mask: u64| members(mask).map(|place| line.threads[place].thread).collect();
        ByteOwner {
            threads: numbers(self.users),
            guests: numbers(self.guests & !self.users),
            bytes: self.bytes.runs().map(|run| line.addresses(run)).collect(),
            read: self.read,
            written: self.written,
        }
    }

    /// Adds the data of one byte.
    fn add(&mut self, other: &Self) {
        self.users |= other.users;
        self.guests |= other.guests;
        self.writers |= other.writers;
        self.all_writers |= other.all_writers;
        self.bytes |= other.bytes;
        self.shared |= other.shared;
        self.overlap |= other.overlap;
        self.written_by_many |= other.written_by_many;
        self.read += other.read;
        self.written += other.written;
    }
}

/// The groups of a line. Bytes that no active thread uses are in none.
pub(super) fn of(line: &LineUse, overlap: &ThreadOverlap) -> Vec<ByteGroup> {
    let mut groups: Vec<ByteGroup> = Vec::new();
    for byte in 0..line.bytes {
        let Some(alone) = one_byte(line, overlap, byte) else { continue };
        let same = |group: &&mut ByteGroup| {
            group.readers && alone.readers || !group.readers && !alone.readers && group.users == alone.users
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.add(&alone),
            None => groups.push(alone),
        }
    }
    groups
}

/// A group of one byte; `None` if it is unused.
fn one_byte(line: &LineUse, overlap: &ThreadOverlap, byte: u32) -> Option<ByteGroup> {
    let floor = line.weight * RESIDUE;
    let weights = |place: usize| {
        let thread = &line.threads[place];
        (f64::from(thread.read[byte as usize]), f64::from(thread.written[byte as usize]))
    };
    let total = |place: usize| weights(place).0 + weights(place).1;
    let mask = |of: &dyn Fn(usize) -> bool| {
        overlap.active().filter(|&place| of(place)).fold(0, |mask, place| mask | 1 << place)
    };
    let heaviest = overlap.active().map(total).fold(0.0, f64::max);
    let everyone: u64 = mask(&|place| total(place) > floor);
    let users = mask(&|place| total(place) > floor && total(place) >= GUEST * heaviest);
    if users == 0 {
        return None;
    }
    let all_writers = everyone & mask(&|place| weights(place).1 > floor);
    let writers = all_writers & users;
    let one = Bits::range(byte..byte + 1);
    let only_if = |condition: bool| if condition { one } else { Bits::NONE };
    // Threads that met a writer of this byte, and writers that met any user.
    let in_conflict = overlap.met(all_writers, everyone) | overlap.met(everyone, all_writers);
    Some(ByteGroup {
        readers: writers == 0 && users.count_ones() > 1,
        users,
        guests: everyone & !users & in_conflict,
        writers,
        all_writers,
        bytes: one,
        shared: only_if(overlap.met(writers, users) != 0),
        overlap: only_if(in_conflict != 0),
        written_by_many: only_if(overlap.met(all_writers, all_writers) != 0),
        read: overlap.active().map(|place| weights(place).0).sum(),
        written: overlap.active().map(|place| weights(place).1).sum(),
    })
}
