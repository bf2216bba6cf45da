//! Bytes of a line that the same threads use, and what such groups do to each other.

use super::Owner;
use super::crowd::{Crowd, members};
use crate::bits::Bits;
use crate::line::{Line, ThreadUse};

/// A thread with less than this share of a byte's heaviest user is a guest there: sampled at random, its accesses make the
/// line travel for one in twenty at most.
const GUEST: f64 = 0.05;

/// The share of a line's weight, a byte, that is nothing: what is left of one sample among a thousand after seven half-lives.
const RESIDUE: f64 = 1e-5;

/// Bytes with the same users.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    /// None of the users writes; several read.
    readers: bool,
    /// Those that use the bytes, guests apart.
    users: u64,
    /// Those that use some of them seldom, where that is a conflict.
    pub(super) guests: u64,
    /// Users that write.
    writers: u64,
    /// Users or not, those that write.
    pub(super) all_writers: u64,
    bytes: Bits,
    /// Bytes that users share truly.
    shared: Bits,
    /// Bytes that users or guests share truly.
    pub(super) overlap: Bits,
    /// Of these, those that several write.
    pub(super) written_by_many: Bits,
    read: f64,
    written: f64,
}

impl Group {
    pub(super) fn weight(&self) -> f64 {
        self.read + self.written
    }

    /// Do several users share bytes of it truly?
    pub(super) fn is_shared(&self) -> bool {
        !self.shared.is_empty()
    }

    /// Does a user of one group write while another thread, at the same time, uses the other group?
    pub(super) fn fights(&self, other: &Self, crowd: &Crowd) -> bool {
        !std::ptr::eq(self, other)
            && (crowd.met(self.writers, other.users) != 0 || crowd.met(other.writers, self.users) != 0)
    }

    /// Do threads change single bits of what several of them write? So says an instruction that changes bits only; and a byte that is
    /// accessed alone, and not atomically, is most likely changed so, by a read, a change and a write.
    pub(super) fn is_bits(&self, line: &Line) -> bool {
        let any = |of: fn(&ThreadUse) -> Bits| line.threads.iter().fold(Bits::NONE, |all, thread| all | of(thread));
        let in_words = any(|thread| thread.joined | thread.joined.up(1) | thread.began_before);
        let replaced = any(|thread| thread.replaced) & (in_words | any(|thread| thread.atomic));
        (self.written_by_many & replaced).is_empty()
    }

    pub(super) fn owner(&self, line: &Line) -> Owner {
        let numbers = |mask: u64| members(mask).map(|place| line.threads[place].thread).collect();
        Owner {
            threads: numbers(self.users),
            guests: numbers(self.guests & !self.users),
            bytes: self.bytes.runs().map(|run| line.addresses(run)).collect(),
            read: self.read,
            written: self.written,
        }
    }

    /// Takes in what is known of one byte.
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

/// The groups of a line; bytes that no thread of the crowd uses are in none.
pub(super) fn of(line: &Line, crowd: &Crowd) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for byte in 0..line.bytes {
        let Some(alone) = one_byte(line, crowd, byte) else { continue };
        let same = |group: &&mut Group| {
            group.readers && alone.readers || !group.readers && !alone.readers && group.users == alone.users
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.add(&alone),
            None => groups.push(alone),
        }
    }
    groups
}

/// A group of one byte; none if nobody uses it.
fn one_byte(line: &Line, crowd: &Crowd, byte: u32) -> Option<Group> {
    let floor = line.weight * RESIDUE;
    let weights = |place: usize| {
        let thread = &line.threads[place];
        (f64::from(thread.read[byte as usize]), f64::from(thread.written[byte as usize]))
    };
    let total = |place: usize| weights(place).0 + weights(place).1;
    let mask =
        |of: &dyn Fn(usize) -> bool| crowd.active().filter(|&place| of(place)).fold(0, |mask, place| mask | 1 << place);
    let heaviest = crowd.active().map(total).fold(0.0, f64::max);
    let everyone: u64 = mask(&|place| total(place) > floor);
    let users = mask(&|place| total(place) > floor && total(place) >= GUEST * heaviest);
    if users == 0 {
        return None;
    }
    let all_writers = everyone & mask(&|place| weights(place).1 > floor);
    let writers = all_writers & users;
    let one = Bits::range(byte..byte + 1);
    let only_if = |condition: bool| if condition { one } else { Bits::NONE };
    // Those that met a writer of this byte; and the writers that met anyone.
    let in_conflict = crowd.met(all_writers, everyone) | crowd.met(everyone, all_writers);
    Some(Group {
        readers: writers == 0 && users.count_ones() > 1,
        users,
        guests: everyone & !users & in_conflict,
        writers,
        all_writers,
        bytes: one,
        shared: only_if(crowd.met(writers, users) != 0),
        overlap: only_if(in_conflict != 0),
        written_by_many: only_if(crowd.met(all_writers, all_writers) != 0),
        read: crowd.active().map(|place| weights(place).0).sum(),
        written: crowd.active().map(|place| weights(place).1).sum(),
    })
}
