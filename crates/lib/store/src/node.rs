//! A node of a tree: one page with sorted keys.
//!
//! ```text
//!  0 check, number, kind        as every page
//! 13 level                      0 for a leaf
//! 14 count                      of the entries
//! 16 sequence                   of the commit that the file contains
//! 24 cells                      where the lowest cell begins
//! 26 unused                     bytes of cells that nothing refers to
//! 28 prefix                     bytes that all keys here begin with
//! 30 lower, 32 upper            lengths of the fences: the keys here are at least the lower one and
//!                               below the upper one; 65535 for no upper fence
//! 34 reserved
//! 36 first child                of a branch: the child with the keys below the first entry
//! 40 slots                      8 bytes an entry: head, offset of its cell, length of the rest of the key
//!    …
//!    cells                      from the end of the page downwards: fences, then entries
//! ```
//! The head of a key is its first 4 bytes behind the prefix. Most comparisons look at heads only. A cell of
//! a leaf is the length of the value in 2 bytes, the rest of the key and the value; one of a branch is the
//! number of the child in 4 bytes and the rest of the key. A length with the highest bit set says that the
//! value is elsewhere, and that a reference of 20 bytes is here. The lower fence lies at the end of the page,
//! the upper one below it.
//!
//! Source: Bayer and Unterauer, *Prefix B-Trees*, TODS 2 (1977); heads and fences after Graefe, *Modern
//! B-Tree Techniques* (2011).

mod balance;
mod search;
mod verify;

use std::ops::Range;

use crate::extent::Extent;
use crate::page::{NODE, PAGE, Page, set_kind, set_u16, set_u32, u16_at, u32_at};

pub(crate) use balance::balance;

const LEVEL: usize = 13;
const COUNT: usize = 14;
const CELLS: usize = 24;
const UNUSED: usize = 26;
const PREFIX: usize = 28;
const LOWER: usize = 30;
const UPPER: usize = 32;
const FIRST_CHILD: usize = 36;
const SLOTS: usize = 40;
const SLOT: usize = 8;

/// The length of an upper fence that is not there.
const NO_FENCE: usize = u16::MAX as usize;

/// In the length of a value: it is a reference to an extent.
const IN_EXTENT: usize = 1 << 15;

/// The largest entry of a leaf, key and value together: four fit into a page beside fences of that size.
/// The value of a larger one is in an extent.
pub(crate) const LARGEST_ENTRY: usize = 1024;
/// The largest key.
pub(crate) const LARGEST_KEY: usize = 512;

/// A node that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'a>(pub(crate) &'a Page);

/// What an entry has beside its key.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    Value(&'a [u8]),
    /// A value in an extent, by its reference.
    Reference(&'a [u8]),
    Child(u32),
}

impl Payload<'_> {
    const fn bytes(self) -> usize {
        match self {
            Self::Value(value) | Self::Reference(value) => 2 + value.len(),
            Self::Child(_) => 4,
        }
    }
}

/// The keys of a node: at least `lower`, and below `upper` if there is one.
#[derive(Clone, Copy)]
pub(crate) struct Fences<'a> {
    pub(crate) lower: &'a [u8],
    pub(crate) upper: Option<&'a [u8]>,
}

impl Fences<'_> {
    /// Bytes that all keys between the fences begin with.
    fn prefix(&self) -> usize {
        self.upper.map_or(0, |upper| common(self.lower, upper))
    }

    fn bytes(&self) -> usize {
        self.lower.len() + self.upper.map_or(0, <[u8]>::len)
    }
}

/// The first bytes of a key behind the prefix; the offset of its cell; the length of its rest.
type Slot = [u8; SLOT];
/// Bytes of a key in its slot.
const HEAD: usize = 4;

/// The head of the key of a slot.
#[inline]
const fn head_in(slot: Slot) -> u32 {
    u64::from_le_bytes(slot) as u32
}

/// The offset of a cell, and the length of the rest of its key.
#[inline]
const fn cell_of(slot: Slot) -> (usize, usize) {
    let slot = u64::from_le_bytes(slot);
    ((slot >> 32) as u16 as usize, (slot >> 48) as usize)
}

/// How many bytes two keys have in common at their beginning.
pub(crate) fn common(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// The first four bytes, as a number that is ordered like them.
#[inline]
fn head_of(key: &[u8]) -> u32 {
    let short = || key.iter().enumerate().fold(0, |head, (index, &byte)| head | u32::from(byte) << (24 - 8 * index));
    key.first_chunk().map_or_else(short, |&bytes| u32::from_be_bytes(bytes))
}

impl<'a> Node<'a> {
    #[inline]
    pub(crate) fn level(self) -> u8 {
        self.0[LEVEL]
    }

    #[inline]
    pub(crate) fn is_leaf(self) -> bool {
        self.level() == 0
    }

    #[inline]
    pub(crate) fn count(self) -> usize {
        u16_at(self.0, COUNT)
    }

    #[inline]
    pub(crate) fn fences(self) -> Fences<'a> {
        let (lower, upper) = (u16_at(self.0, LOWER), u16_at(self.0, UPPER));
        let start = PAGE - lower;
        let upper = (upper != NO_FENCE).then(|| &self.0[start - upper..start]);
        Fences { lower: &self.0[start..], upper }
    }

    /// Whether a key is below the upper fence.
    #[inline]
    pub(crate) fn is_below_end(self, key: &[u8]) -> bool {
        self.fences().upper.is_none_or(|upper| key < upper)
    }

    #[inline]
    pub(crate) fn prefix_length(self) -> usize {
        u16_at(self.0, PREFIX)
    }

    /// The bytes that all keys here begin with.
    #[inline]
    pub(crate) fn prefix(self) -> &'a [u8] {
        &self.fences().lower[..self.prefix_length()]
    }

    #[inline]
    fn slots(self) -> &'a [Slot] {
        let (slots, _) = self.0[SLOTS..].as_chunks();
        slots.get(..self.count()).unwrap_or_default()
    }

    /// The bytes of an entry behind those of its value's length or its child, and the part of them that
    /// is its key.
    #[inline]
    fn cell(self, index: usize) -> (usize, usize) {
        cell_of(self.slots()[index])
    }

    /// The key of an entry behind the prefix.
    #[inline]
    pub(crate) fn rest(self, index: usize) -> &'a [u8] {
        let (at, length) = self.cell(index);
        let start = at + if self.is_leaf() { 2 } else { 4 };
        &self.0[start..start + length]
    }

    /// An entry of a leaf: its key behind the prefix, and what the leaf has of its value.
    #[inline]
    pub(crate) fn entry(self, index: usize) -> (&'a [u8], Payload<'a>) {
        let (at, length) = self.cell(index);
        let (size, contents) = (u16_at(self.0, at), &self.0[at + 2..]);
        let (rest, contents) = contents.split_at(length);
        let value = &contents[..size & !IN_EXTENT];
        (rest, if size & IN_EXTENT == 0 { Payload::Value(value) } else { Payload::Reference(value) })
    }

    /// Appends the key of an entry.
    pub(crate) fn append_key(self, index: usize, key: &mut Vec<u8>) {
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(self.rest(index));
    }

    /// What a leaf has of the value of an entry: all of it, or a reference.
    pub(crate) fn value(self, index: usize) -> &'a [u8] {
        let (_, Payload::Value(value) | Payload::Reference(value)) = self.entry(index) else { return &[] };
        value
    }

    /// The extent with the value of an entry of a leaf; `None` if the value is here.
    pub(crate) fn extent(self, index: usize) -> Option<Extent> {
        let (_, Payload::Reference(reference)) = self.entry(index) else { return None };
        Some(Extent::decode(reference))
    }

    /// A child: 0 is the one with the keys below the first entry.
    #[inline]
    pub(crate) fn child(self, index: usize) -> u32 {
        match index.checked_sub(1) {
            None => u32_at(self.0, FIRST_CHILD),
            Some(entry) => u32_at(self.0, self.cell(entry).0),
        }
    }

    fn payload(self, index: usize) -> Payload<'a> {
        if self.is_leaf() { self.entry(index).1 } else { Payload::Child(self.child(index + 1)) }
    }

    fn slots_end(self) -> usize {
        SLOTS + self.count() * SLOT
    }

    /// Bytes between the slots and the cells.
    fn gap(self) -> usize {
        u16_at(self.0, CELLS) - self.slots_end()
    }

    /// Bytes that its entries take, with their slots.
    pub(crate) fn used(self) -> usize {
        PAGE - SLOTS - self.fences().bytes() - self.gap() - u16_at(self.0, UNUSED)
    }

    /// Bytes that entries from elsewhere take here.
    fn room(self) -> usize {
        self.gap() + u16_at(self.0, UNUSED)
    }
}

/// Makes a page a node without entries.
pub(crate) fn clear(page: &mut Page, level: u8, fences: Fences<'_>) {
    page.fill(0);
    set_kind(page, NODE);
    page[LEVEL] = level;
    set_u16(page, PREFIX, fences.prefix());
    set_u16(page, LOWER, fences.lower.len());
    set_u16(page, UPPER, fences.upper.map_or(NO_FENCE, <[u8]>::len));
    let lower = PAGE - fences.lower.len();
    page[lower..].copy_from_slice(fences.lower);
    let upper = lower - fences.upper.map_or(0, <[u8]>::len);
    page[upper..lower].copy_from_slice(fences.upper.unwrap_or_default());
    set_u16(page, CELLS, upper);
}

pub(crate) fn set_first_child(page: &mut Page, child: u32) {
    set_u32(page, FIRST_CHILD, child);
}

/// Replaces a child: 0 is the one with the keys below the first entry.
pub(crate) fn set_child(page: &mut Page, index: usize, child: u32) {
    match index.checked_sub(1) {
        None => set_first_child(page, child),
        Some(entry) => {
            let (at, _) = Node(page).cell(entry);
            set_u32(page, at, child);
        }
    }
}

/// Replaces the reference to an extent by another.
pub(crate) fn set_reference(page: &mut Page, place: usize, reference: &[u8; Extent::REFERENCE]) {
    let (at, rest) = Node(page).cell(place);
    page[at + 2 + rest..][..Extent::REFERENCE].copy_from_slice(reference);
}

/// Whether an entry fits, perhaps after [`compact`].
pub(crate) fn fits(page: &Page, key: &[u8], payload: Payload<'_>) -> bool {
    let node = Node(page);
    SLOT + payload.bytes() + key.len() - node.prefix_length() <= node.room()
}

/// Inserts an entry that fits at its place.
pub(crate) fn insert(page: &mut Page, place: usize, key: &[u8], payload: Payload<'_>) {
    let rest = &key[u16_at(page, PREFIX)..];
    let bytes = payload.bytes() + rest.len();
    if Node(page).gap() < SLOT + bytes {
        compact(page);
    }
    let (count, at) = (Node(page).count(), u16_at(page, CELLS) - bytes);
    let slot = SLOTS + place * SLOT;
    page.copy_within(slot..SLOTS + count * SLOT, slot + SLOT);
    set_u32(page, slot, head_of(rest));
    set_u16(page, slot + 4, at);
    set_u16(page, slot + 6, rest.len());
    set_u16(page, COUNT, count + 1);
    set_u16(page, CELLS, at);
    match payload {
        Payload::Value(value) | Payload::Reference(value) => {
            let flag = if matches!(payload, Payload::Reference(_)) { IN_EXTENT } else { 0 };
            set_u16(page, at, value.len() | flag);
            page[at + 2..][..rest.len()].copy_from_slice(rest);
            page[at + 2 + rest.len()..][..value.len()].copy_from_slice(value);
        }
        Payload::Child(child) => {
            set_u32(page, at, child);
            page[at + 4..][..rest.len()].copy_from_slice(rest);
        }
    }
}

/// Removes an entry.
pub(crate) fn remove(page: &mut Page, place: usize) {
    let node = Node(page);
    let (count, (at, rest)) = (node.count(), node.cell(place));
    let bytes = node.payload(place).bytes() + rest;
    if at == u16_at(page, CELLS) {
        set_u16(page, CELLS, at + bytes);
    } else {
        let unused = u16_at(page, UNUSED);
        set_u16(page, UNUSED, unused + bytes);
    }
    page[at..at + bytes].fill(0);
    let slot = SLOTS + place * SLOT;
    page.copy_within(slot + SLOT..SLOTS + count * SLOT, slot);
    page[SLOTS + (count - 1) * SLOT..][..SLOT].fill(0);
    set_u16(page, COUNT, count - 1);
}

/// Removes a child and the entry beside it: of the first child the entry behind it, whose child becomes
/// the first one.
pub(crate) fn remove_child(page: &mut Page, child: usize) {
    if child == 0 {
        let second = Node(page).child(1);
        set_first_child(page, second);
    }
    remove(page, child.saturating_sub(1));
}

/// Replaces a value by one of the same length, both without an extent. Returns whether they are such.
pub(crate) fn replace(page: &mut Page, place: usize, payload: Payload<'_>) -> bool {
    let node = Node(page);
    let (at, rest) = node.cell(place);
    match (payload, node.payload(place)) {
        (Payload::Value(new), Payload::Value(old)) if new.len() == old.len() => {
            page[at + 2 + rest..][..new.len()].copy_from_slice(new);
            true
        }
        _ => false,
    }
}

/// Appends entries of another node, whose keys are higher than those here.
pub(crate) fn append(page: &mut Page, from: Node<'_>, entries: Range<usize>) {
    let mut key = Vec::new();
    for index in entries {
        key.clear();
        from.append_key(index, &mut key);
        let place = Node(page).count();
        insert(page, place, &key, from.payload(index));
    }
}

/// Moves the cells together.
fn compact(page: &mut Page) {
    let old = *page;
    let from = Node(&old);
    clear(page, from.level(), from.fences());
    page[..LEVEL].copy_from_slice(&old[..LEVEL]);
    page[COUNT + 2..CELLS].copy_from_slice(&old[COUNT + 2..CELLS]);
    set_u32(page, FIRST_CHILD, u32_at(&old, FIRST_CHILD));
    append(page, from, 0..from.count());
}

/// Where to divide a full node before a key is inserted at `place`: the index of the first entry that
/// goes to the right.
pub(crate) fn division(page: &Page, place: usize, key: &[u8]) -> usize {
    let node = Node(page);
    let count = node.count();
    // Keys that arrive in order leave full nodes behind. The left one gets an upper fence, not longer than
    // the key that goes to the right.
    if place == count && node.fences().upper.is_none() {
        return if node.is_leaf() && node.room() >= key.len() { count } else { count - 1 };
    }
    let bytes = |index: usize| SLOT + node.cell(index).1 + node.payload(index).bytes();
    let half = (0..count).map(bytes).sum::<usize>() / 2;
    let mut sum = 0;
    let at = (0..count).position(|index| {
        sum += bytes(index);
        sum > half
    });
    at.unwrap_or(count / 2).clamp(1, count - 1)
}

/// The shortest key that is above `left` and not above `right`.
pub(crate) fn separator<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    &right[..(common(left, right) + 1).min(right.len())]
}

/// Divides the entries of a node into two pages, with `separator` as the fence between. Of a branch, the
/// entry at `at` becomes the first child of the right one.
pub(crate) fn divide(old: &Page, at: usize, separator: &[u8], left: &mut Page, right: &mut Page) {
    let node = Node(old);
    let fences = node.fences();
    clear(left, node.level(), Fences { upper: Some(separator), ..fences });
    clear(right, node.level(), Fences { lower: separator, ..fences });
    append(left, node, 0..at);
    if node.is_leaf() {
        append(right, node, at..node.count());
    } else {
        set_first_child(left, node.child(0));
        set_first_child(right, node.child(at + 1));
        append(right, node, at + 1..node.count());
    }
}

/// Puts the entries of two neighbours into one page, if they fit. `separator` is the key between them.
pub(crate) fn join(left: &Page, right: &Page, separator: &[u8], joined: &mut Page) -> bool {
    let (left, right) = (Node(left), Node(right));
    let fences = Fences { lower: left.fences().lower, upper: right.fences().upper };
    clear(joined, left.level(), fences);
    // The keys become longer where the prefix becomes shorter.
    let prefix = fences.prefix();
    let grown = |node: Node<'_>| node.used() + node.count() * (node.prefix().len() - prefix);
    let middle = if left.is_leaf() { 0 } else { SLOT + 4 + separator.len() - prefix };
    if grown(left) + grown(right) + middle > Node(joined).room() {
        return false;
    }
    append(joined, left, 0..left.count());
    if !left.is_leaf() {
        set_first_child(joined, left.child(0));
        let place = left.count();
        insert(joined, place, separator, Payload::Child(right.child(0)));
    }
    append(joined, right, 0..right.count());
    true
}
