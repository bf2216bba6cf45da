//! Whether an access depends on the result of an earlier one, as in pointer chasing.
//!
//! A page walk for an address that is known early overlaps other work; a walk for an address that
//! was just loaded does not. Registers are invisible, so a dependence is inferred from one of three
//! signs:
//!
//! - a loop loads into a register of the load's own address (`block` finds these);
//! - a word near a recently recorded address points to the accessed object;
//! - each word read, times one element size, plus one base, is the address of the next one (an
//!   index into indices).
//!
//! Cost: a system call for each check, so only one record in 509 is checked (`lane`).

use fieldstone_wire::trace::{CHASES, Record, RecordKind, STACK};

use crate::guest_memory;

/// Earlier records that are considered.
pub(crate) const MAX_EARLIER_RECORDS: usize = 16;
/// Earlier addresses near which words are read.
const ADDRESSES: usize = 4;
/// Bytes read near such an address: two cache lines.
const READ_BYTES: usize = 128;
/// The largest distance of the access from a pointer to its object.
const OBJECT_BYTES: u64 = 256;
const PAGE_BYTES: u64 = 4096;
/// The possible element sizes of an indexed array, as powers of two.
const SHIFTS: std::ops::RangeInclusive<u32> = 0..=12;

/// Whether the access of `record` depends on one of those `before` it, the last one first. `None`
/// for a record that cannot show it, as of the stack, to which compilers spill. `base` is the host
/// address of guest address 0.
pub(crate) fn depends(record: Record, before: impl Iterator<Item = Record>, base: u64) -> Option<bool> {
    if !is_data_structure_access(record) {
        return None;
    }
    if record.has(CHASES) {
        return Some(true);
    }
    let address = record.address();
    let mut places = [0; ADDRESSES];
    let addresses = before.filter(|&before| is_data_structure_access(before)).map(Record::address);
    let count = places.iter_mut().zip(addresses).map(|(place, address)| *place = address).count();
    let places = &places[..count];
    let lines: [_; ADDRESSES] = guest_memory::read_each(places.iter().map(|&place| line(place).wrapping_add(base)));
    Some(is_index_of_index(address, places, &lines) || lines.iter().flatten().any(|line| points_to(line, address)))
}

/// The start of the bytes that are read near `place`.
fn line(place: u64) -> u64 {
    place & !(READ_BYTES as u64 - 1)
}

/// Whether `address` follows from the word at the last of `places` as that one follows from the
/// word at the one before.
fn is_index_of_index(address: u64, places: &[u64], lines: &[Option<[u8; READ_BYTES]>]) -> bool {
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

/// The word at `place`; its bytes outside of the read bytes are 0.
fn word(place: u64, around: &[u8; READ_BYTES]) -> u64 {
    let start = usize::try_from(place - line(place)).unwrap_or(0);
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(&around[start..]).for_each(|(byte, read)| *byte = *read);
    u64::from_le_bytes(bytes)
}

/// Whether a record is of an access to a data structure. One at the start of a page is probably an
/// order record (`page_filter`).
fn is_data_structure_access(record: Record) -> bool {
    record.kind() == Some(RecordKind::Data) && !record.has(STACK) && !record.address().is_multiple_of(PAGE_BYTES)
}

/// Whether a word of `line` points to the object at `address`.
fn points_to(line: &[u8; READ_BYTES], address: u64) -> bool {
    line.as_chunks().0.iter().any(|&word| address.wrapping_sub(u64::from_le_bytes(word)) < OBJECT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_accesses_depend_and_array_accesses_do_not() {
        let nodes: Vec<Box<[u64; 32]>> = (0..2000).map(|_| Box::new([7; 32])).collect();
        let place = |at: usize| nodes[at].as_ptr().addr() as u64;
        let mut linked = nodes.clone();
        let places: Vec<u64> = linked.iter().map(|node| node.as_ptr().addr() as u64).collect();
        for (node, next) in linked.iter_mut().zip(&places[1..]) {
            node[3] = *next;
        }
        let record = |place: u64| Record::data(place + 16);
        let dependent = |places: &dyn Fn(usize) -> u64| {
            let before = |at: usize| (at - MAX_EARLIER_RECORDS..at).rev().map(|at| record(places(at)));
            (MAX_EARLIER_RECORDS..2000).filter(|&at| depends(record(places(at)), before(at), 0) == Some(true)).count()
        };
        // Objects whose fields begin a page are not checked.
        assert!(dependent(&|at| places[at]) > 1900);
        assert_eq!(dependent(&place), 0);
    }

    #[test]
    fn indices_into_indices_depend() {
        const LINES: usize = 5000;
        let step = |at: usize| (at * 1237 + 11) % LINES;
        let mut lines: Vec<[u32; 16]> = (0..LINES)
            .map(|at| [u32::try_from(step(at)).unwrap_or(0), 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9])
            .collect();
        let record = |lines: &[[u32; 16]], at: usize| Record::data(lines[at].as_ptr().addr() as u64);
        let count_dependent = |lines: &[[u32; 16]]| {
            let path: Vec<usize> = std::iter::successors(Some(1), |&at| Some(step(at))).take(1000).collect();
            let is_dependent =
                |at: &[usize]| depends(record(lines, at[2]), [at[1], at[0]].map(|at| record(lines, at)).into_iter(), 0);
            path.windows(3).filter(|at| is_dependent(at) == Some(true)).count()
        };
        // Records at the start of a page are not checked: one in 64.
        assert!(count_dependent(&lines) > 900, "{}", count_dependent(&lines));
        lines.iter_mut().for_each(|line| line[0] = 7);
        assert_eq!(count_dependent(&lines), 0);
    }

    #[test]
    fn the_flags_of_an_instruction_decide() {
        let none = || std::iter::empty();
        assert_eq!(depends(Record::data(0x1008).with(CHASES), none(), 0), Some(true));
        assert_eq!(depends(Record::data(0x1008), none(), 0), Some(false));
        for record in [Record::data(0x1008).with(STACK), Record::data(0x1000), Record::fetch(0x1008)] {
            assert_eq!(depends(record, none(), 0), None);
        }
    }

    #[test]
    fn unmapped_memory_shows_no_dependence() {
        let gone = (1..5).map(|page| Record::data(page << 12 | 8));
        assert_eq!(depends(Record::data(0x9008), gone, 0), Some(false));
    }
}
