//! The hash table of the keys, which grows without a pause.
//!
//! ```text
//! directory  2^depth words, indexed by the upper bits of a hash
//!    └─→ segment  its own depth, its count, 510 slots with open addressing
//!           └─→ slot  16 bits of the hash, 48 bits: the entry; 0 if empty
//! ```
//! A full segment is split in two by the next bit of the hashes. The directory doubles when a segment that
//! is split has the depth of the directory. An insertion moves at most one segment, about 450 entries.
//! Source: Fagin, Nievergelt, Pippenger and Strong, *Extendible Hashing* (1979).
//!
//! The first word of an entry is the hash of its key. Segments are never joined.

use crate::heap::{Block, Field, Full, Heap};

const SEGMENT_WORDS: usize = 512;
/// Behind the depth and the count of a segment.
const FIRST_SLOT: usize = 2;
const SLOTS: usize = SEGMENT_WORDS - FIRST_SLOT;
/// Entries of a segment that is split by the next insertion.
const LIMIT: u64 = 448;
/// Bits of a slot that contain the entry.
const ENTRY_BITS: u32 = 48;

/// Where an entry is.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    segment: Block,
    slot: usize,
    pub(crate) entry: Block,
}

/// Creates the table of an empty heap, which has room for it.
pub(crate) fn create(heap: &Heap) -> Result<(), Full> {
    let (directory, segment) = (heap.allocate(1)?, heap.allocate(SEGMENT_WORDS)?);
    clear_segment(heap, segment, 0);
    heap.set_block(directory, segment);
    heap.set_block(Field::Directory as usize, directory);
    heap.set_field(Field::Depth, 0);
    heap.set_field(Field::Keys, 0);
    Ok(())
}

/// The entry with this hash that `is_wanted`.
pub(crate) fn find(heap: &Heap, hash: u64, is_wanted: impl Fn(Block) -> bool) -> Option<Place> {
    let segment = segment_of(heap, hash);
    let mut slot = home(hash);
    loop {
        match heap.get(segment + FIRST_SLOT + slot) {
            0 => return None,
            word if word >> ENTRY_BITS == tag(hash) && is_wanted(entry_of(word)) => {
                return Some(Place { segment, slot, entry: entry_of(word) });
            }
            _ => slot = (slot + 1) % SLOTS,
        }
    }
}

/// Adds an entry, which is not in the table.
pub(crate) fn insert(heap: &Heap, hash: u64, entry: Block) -> Result<(), Full> {
    let mut segment = segment_of(heap, hash);
    while heap.get(segment + 1) >= LIMIT {
        split(heap, hash)?;
        segment = segment_of(heap, hash);
    }
    put(heap, segment, tag(hash) << ENTRY_BITS | entry as u64);
    heap.set_field(Field::Keys, heap.field(Field::Keys) + 1);
    Ok(())
}

/// Removes an entry. The entries behind it move closer to their first places.
pub(crate) fn remove(heap: &Heap, place: Place) {
    let slots = place.segment + FIRST_SLOT;
    let (mut hole, mut slot) = (place.slot, place.slot);
    loop {
        slot = (slot + 1) % SLOTS;
        let word = heap.get(slots + slot);
        if word == 0 {
            break;
        }
        let distance = |from: usize, to: usize| (to + SLOTS - from) % SLOTS;
        if distance(home(word >> ENTRY_BITS), slot) >= distance(hole, slot) {
            heap.set(slots + hole, word);
            hole = slot;
        }
    }
    heap.set(slots + hole, 0);
    heap.set(place.segment + 1, heap.get(place.segment + 1) - 1);
    heap.set_field(Field::Keys, heap.field(Field::Keys) - 1);
}

/// The part of a hash that its slot contains.
const fn tag(hash: u64) -> u64 {
    hash & 0xffff
}

const fn entry_of(word: u64) -> Block {
    (word & ((1 << ENTRY_BITS) - 1)) as Block
}

/// The first slot for a hash or a tag.
const fn home(hash: u64) -> usize {
    (tag(hash) as usize * SLOTS) >> 16
}

/// The place in the directory for a hash.
const fn index(hash: u64, depth: u64) -> usize {
    (hash >> 1 >> (63 - depth)) as usize
}

fn segment_of(heap: &Heap, hash: u64) -> Block {
    heap.get_block(heap.get_block(Field::Directory as usize) + index(hash, heap.field(Field::Depth)))
}

fn clear_segment(heap: &Heap, segment: Block, depth: u64) {
    heap.set(segment, depth);
    (1..SEGMENT_WORDS).for_each(|word| heap.set(segment + word, 0));
}

/// Adds a slot's word to a segment that has room.
fn put(heap: &Heap, segment: Block, word: u64) {
    let mut slot = home(word >> ENTRY_BITS);
    while heap.get(segment + FIRST_SLOT + slot) != 0 {
        slot = (slot + 1) % SLOTS;
    }
    heap.set(segment + FIRST_SLOT + slot, word);
    heap.set(segment + 1, heap.get(segment + 1) + 1);
}

/// Splits the segment of a hash in two.
fn split(heap: &Heap, hash: u64) -> Result<(), Full> {
    let segment = segment_of(heap, hash);
    let depth = heap.get(segment);
    if depth == heap.field(Field::Depth) {
        double(heap)?;
    }
    let upper = heap.allocate(SEGMENT_WORDS)?;
    let words: Vec<_> = (FIRST_SLOT..SEGMENT_WORDS).map(|word| heap.get(segment + word)).collect();
    clear_segment(heap, segment, depth + 1);
    clear_segment(heap, upper, depth + 1);
    for word in words.into_iter().filter(|&word| word != 0) {
        let is_upper = heap.get(entry_of(word)) << depth >> 63 == 1;
        put(heap, if is_upper { upper } else { segment }, word);
    }
    // The upper half of the places that had the segment.
    let places = 1 << (heap.field(Field::Depth) - depth);
    let first = index(hash, heap.field(Field::Depth)) & !(places - 1);
    let directory = heap.get_block(Field::Directory as usize);
    (first + places / 2..first + places).for_each(|place| heap.set_block(directory + place, upper));
    Ok(())
}

/// Doubles the directory.
fn double(heap: &Heap) -> Result<(), Full> {
    let (directory, depth) = (heap.get_block(Field::Directory as usize), heap.field(Field::Depth));
    let places = 1 << depth;
    let doubled = heap.allocate(2 * places)?;
    (0..2 * places).for_each(|place| heap.set(doubled + place, heap.get(directory + place / 2)));
    heap.free(directory, places);
    heap.set_block(Field::Directory as usize, doubled);
    heap.set_field(Field::Depth, depth + 1);
    Ok(())
}
