//! Whether an access had to wait for another one: pointers that lead to pointers.
//!
//! A walk for an address that is known early hides behind other work; one for an address that was itself just read does not.
//! Registers cannot be seen, so three signs are taken: a loop that loads into a register that the address of the load is made
//! of (`block` finds these); a word beside one of the addresses recorded last that points to where the access goes; and
//! indices that lead to indices: each word read, times one size, from one base, is where the next one is read.
//! Looking costs a system call, so only one record in some hundreds is judged (`lane`).

use fieldstone_wire::trace::{CHASES, Record, RecordKind, STACK};

use crate::guest;

/// Records before it that are looked at.
pub(crate) const LOOK_BACK: usize = 16;
/// Addresses of them around which is looked.
const REMEMBERED: usize = 4;
/// What is looked at around such an address: two lines.
const LOOK_BYTES: usize = 128;
/// A pointer leads to the object, and the access may be to a field of it.
const OBJECT_BYTES: u64 = 256;
const PAGE_BYTES: u64 = 4096;
/// Sizes, as powers of two, of what an index counts.
const SHIFTS: std::ops::RangeInclusive<u32> = 0..=12;

/// Whether the access of `record` depends on one of those `before` it, the last one first. `None` for a record that says
/// nothing: what a compiler spills to the stack is no data structure. `base` is where the guest's address 0 lies.
pub(crate) fn judge(record: Record, before: impl Iterator<Item = Record>, base: u64) -> Option<bool> {
    if !tells(record) {
        return None;
    }
    if record.has(CHASES) {
        return Some(true);
    }
    let address = record.address();
    let mut places = [0; REMEMBERED];
    let told = before.filter(|&before| tells(before)).map(Record::address);
    let count = places.iter_mut().zip(told).map(|(place, address)| *place = address).count();
    let places = &places[..count];
    let lines: [_; REMEMBERED] = guest::read_each(places.iter().map(|&place| line(place).wrapping_add(base)));
    Some(is_index_of_index(address, places, &lines) || lines.iter().flatten().any(|line| leads_to(line, address)))
}

/// Where what is looked at around `place` begins.
fn line(place: u64) -> u64 {
    place & !(LOOK_BYTES as u64 - 1)
}

/// Whether `address` follows from the word at the last of `places` as that one does from the word at the one before.
fn is_index_of_index(address: u64, places: &[u64], lines: &[Option<[u8; LOOK_BYTES]>]) -> bool {
    let (&[last, before, ..], &[Some(line_of_last), Some(line_of_before), ..]) = (places, lines) else { return false };
    let (index, index_before) = (word(last, &line_of_last), word(before, &line_of_before));
    let follows = |mask: u64| {
        let (index, index_before) = (index & mask, index_before & mask);
        let start = |address: u64, index: u64, shift: u32| address.wrapping_sub(index << shift);
        index != index_before
            && SHIFTS.into_iter().any(|shift| start(address, index, shift) == start(last, index_before, shift))
    };
    [u64::MAX, u64::from(u32::MAX)].into_iter().any(follows)
}

/// The word at `place`; what of it lies behind its line is 0.
fn word(place: u64, around: &[u8; LOOK_BYTES]) -> u64 {
    let start = usize::try_from(place - line(place)).unwrap_or(0);
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(&around[start..]).for_each(|(byte, read)| *byte = *read);
    u64::from_le_bytes(bytes)
}

/// Whether a record is of an access to a data structure. One at a page's start is most likely there for the order alone (`recent`).
fn tells(record: Record) -> bool {
    record.kind() == Some(RecordKind::Data) && !record.has(STACK) && !record.address().is_multiple_of(PAGE_BYTES)
}

/// Whether one of its words points to `address`.
fn leads_to(line: &[u8; LOOK_BYTES], address: u64) -> bool {
    line.as_chunks().0.iter().any(|&word| address.wrapping_sub(u64::from_le_bytes(word)) < OBJECT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_depends_and_an_array_does_not() {
        let nodes: Vec<Box<[u64; 32]>> = (0..2000).map(|_| Box::new([7; 32])).collect();
        let place = |at: usize| nodes[at].as_ptr().addr() as u64;
        let mut linked = nodes.clone();
        let places: Vec<u64> = linked.iter().map(|node| node.as_ptr().addr() as u64).collect();
        for (node, next) in linked.iter_mut().zip(&places[1..]) {
            node[3] = *next;
        }
        let record = |place: u64| Record::data(place + 16);
        let dependent = |places: &dyn Fn(usize) -> u64| {
            let before = |at: usize| (at - LOOK_BACK..at).rev().map(|at| record(places(at)));
            (LOOK_BACK..2000).filter(|&at| judge(record(places(at)), before(at), 0) == Some(true)).count()
        };
        // Objects whose fields begin a page say nothing.
        assert!(dependent(&|at| places[at]) > 1900);
        assert_eq!(dependent(&place), 0);
    }

    #[test]
    fn indices_that_lead_to_indices_depend() {
        const LINES: usize = 5000;
        let step = |at: usize| (at * 1237 + 11) % LINES;
        let mut lines: Vec<[u32; 16]> = (0..LINES)
            .map(|at| [u32::try_from(step(at)).unwrap_or(0), 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9])
            .collect();
        let record = |lines: &[[u32; 16]], at: usize| Record::data(lines[at].as_ptr().addr() as u64);
        let judged = |lines: &[[u32; 16]]| {
            let path: Vec<usize> = std::iter::successors(Some(1), |&at| Some(step(at))).take(1000).collect();
            let depends =
                |at: &[usize]| judge(record(lines, at[2]), [at[1], at[0]].map(|at| record(lines, at)).into_iter(), 0);
            path.windows(3).filter(|at| depends(at) == Some(true)).count()
        };
        // Those that begin a page say nothing: one in 64.
        assert!(judged(&lines) > 900, "{}", judged(&lines));
        lines.iter_mut().for_each(|line| line[0] = 7);
        assert_eq!(judged(&lines), 0);
    }

    #[test]
    fn the_instruction_may_tell_by_itself() {
        let none = || std::iter::empty();
        assert_eq!(judge(Record::data(0x1008).with(CHASES), none(), 0), Some(true));
        assert_eq!(judge(Record::data(0x1008), none(), 0), Some(false));
        for silent in [Record::data(0x1008).with(STACK), Record::data(0x1000), Record::fetch(0x1008)] {
            assert_eq!(judge(silent, none(), 0), None);
        }
    }

    #[test]
    fn memory_that_is_gone_harms_nobody() {
        let gone = (1..5).map(|page| Record::data(page << 12 | 8));
        assert_eq!(judge(Record::data(0x9008), gone, 0), Some(false));
    }
}
