//! Checks of a node of any bytes.
//!
//! | check | when | after it |
//! |---|---|---|
//! | [`Node::check`] | a page comes from the file | no read and no change of this node leaves the page |
//! | [`Node::is_child_of`] | a change goes down a tree | the node has all keys between its fences |
//! | [`Node::verify`] | the whole file is verified | both |

use super::{CELLS, Fences, IN_EXTENT, LARGEST_ENTRY, LARGEST_KEY, LOWER, NO_FENCE, Node, PREFIX, SLOT, UNUSED};
use super::{UPPER, head_in, head_of};
use crate::extent::Extent;
use crate::page::{NODE, PAGE, kind, u16_at};

/// A level above those of any tree.
const HIGHEST: u8 = 32;

impl Node<'_> {
    /// Checks a node of any bytes against its place in the tree. `level` is `None` for a root.
    pub(crate) fn verify(self, level: Option<u8>, fences: Fences<'_>) -> Result<(), &'static str> {
        self.check()?;
        if level.is_some_and(|level| level != self.level()) {
            return Err("its level is not the one below its parent");
        }
        let own = self.fences();
        if (own.lower, own.upper) == (fences.lower, fences.upper) {
            Ok(())
        } else {
            Err("its fences are not the keys beside it in its parent")
        }
    }

    /// Whether a node, which is checked, has the level and the fences that its parent has for this child.
    pub(crate) fn is_child_of(self, parent: Node<'_>, child: usize) -> bool {
        let (own, outer) = (self.fences(), parent.fences());
        let is_key = |index: usize, key: &[u8]| key.strip_prefix(parent.prefix()) == Some(parent.rest(index));
        let has_lower = child.checked_sub(1).map_or(own.lower == outer.lower, |index| is_key(index, own.lower));
        let has_upper = if child == parent.count() {
            own.upper == outer.upper
        } else {
            own.upper.is_some_and(|upper| is_key(child, upper))
        };
        self.level() + 1 == parent.level() && has_lower && has_upper
    }

    /// Checks everything that the other functions rely on.
    pub(crate) fn check(self) -> Result<(), &'static str> {
        if kind(self.0) != NODE {
            return Err("it is no node of a tree");
        }
        if self.level() > HIGHEST {
            return Err("its tree has too many levels");
        }
        self.check_lengths()?;
        self.check_cells()?;
        self.check_keys()
    }

    /// The parts of the node do not overlap, and its prefix is that of its fences.
    fn check_lengths(self) -> Result<(), &'static str> {
        let (lower, upper) = (u16_at(self.0, LOWER), u16_at(self.0, UPPER));
        let upper = if upper == NO_FENCE { 0 } else { upper };
        let (cells, slots) = (u16_at(self.0, CELLS), self.slots_end());
        if self.count() > PAGE / SLOT || slots > cells || cells + lower + upper > PAGE {
            return Err("its parts overlap");
        }
        if lower.max(upper) > LARGEST_KEY {
            return Err("a fence is too long");
        }
        if u16_at(self.0, PREFIX) == self.fences().prefix() {
            Ok(())
        } else {
            Err("its prefix is not that of its fences")
        }
    }

    /// Cells are inside of their part and do not overlap, and the bytes between them are those that are
    /// counted as unused.
    fn check_cells(self) -> Result<(), &'static str> {
        let (start, end) = (u16_at(self.0, CELLS), PAGE - self.fences().bytes());
        let (mut occupied, mut used) = (Occupied([0; PAGE / 64]), 0);
        for &slot in self.slots() {
            let (at, rest) = super::cell_of(slot);
            let key_end = at + rest + if self.is_leaf() { 2 } else { 4 };
            if at < start || key_end > end {
                return Err("an entry is outside of its cells");
            }
            let value = if self.is_leaf() { u16_at(self.0, at) } else { 0 };
            let (value, is_in_extent) = (value & !IN_EXTENT, value & IN_EXTENT != 0);
            if key_end + value > end {
                return Err("a value is outside of its cells");
            }
            if is_in_extent && value != Extent::REFERENCE {
                return Err("a reference to a large value has a wrong length");
            }
            if self.prefix_length() + rest + value > LARGEST_ENTRY {
                return Err("an entry is too long");
            }
            if !occupied.add(at, key_end + value) {
                return Err("two of its entries overlap");
            }
            used += key_end + value - at;
        }
        if used + u16_at(self.0, UNUSED) == end - start { Ok(()) } else { Err("its count of unused bytes is wrong") }
    }

    /// Keys are sorted, between the fences and not too long, and each has its head.
    fn check_keys(self) -> Result<(), &'static str> {
        let count = self.count();
        if !(1..count).all(|index| self.rest(index - 1) < self.rest(index)) {
            return Err("its keys are not sorted");
        }
        for (index, &slot) in self.slots().iter().enumerate() {
            let rest = self.rest(index);
            if self.prefix_length() + rest.len() > LARGEST_KEY {
                return Err("a key is too long");
            }
            if head_in(slot) != head_of(rest) {
                return Err("the head of a key is not its first bytes");
            }
        }
        // All keys begin with the prefix, as both fences do if there are two.
        let (fences, prefix) = (self.fences(), self.prefix_length());
        let is_above = count == 0 || self.rest(0) >= &fences.lower[prefix..];
        let is_below = count == 0 || fences.upper.is_none_or(|upper| self.rest(count - 1) < &upper[prefix..]);
        if is_above && is_below { Ok(()) } else { Err("a key is outside of its fences") }
    }
}

/// The bytes of a page that entries have: a bit for each.
struct Occupied([u64; PAGE / 64]);

impl Occupied {
    /// Adds bytes of the page. Returns whether none of them was there.
    fn add(&mut self, start: usize, end: usize) -> bool {
        let mut is_new = true;
        for word in start / 64..end.div_ceil(64) {
            let (first, last) = (start.max(word * 64) - word * 64, end.min(word * 64 + 64) - word * 64);
            let bits = (u64::MAX >> (64 - (last - first))) << first;
            is_new &= self.0[word] & bits == 0;
            self.0[word] |= bits;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{LEVEL, Payload, SLOTS, clear, insert};
    use crate::page::{Page, set_u16};

    const FENCES: Fences<'_> = Fences { lower: b"ab", upper: Some(b"ad") };

    fn leaf() -> Page {
        let mut page = [0; PAGE];
        clear(&mut page, 0, FENCES);
        for (place, key) in [b"ab1", b"ab2", b"ac3"].into_iter().enumerate() {
            insert(&mut page, place, key, Payload::Value(b"value"));
        }
        page
    }

    #[test]
    fn each_wrong_part_of_a_node_is_found() {
        assert_eq!(Node(&leaf()).verify(Some(0), FENCES), Ok(()));
        assert_eq!(Node(&leaf()).verify(None, FENCES), Ok(()));
        assert!(Node(&leaf()).verify(Some(1), FENCES).is_err());
        assert!(Node(&leaf()).verify(None, Fences { lower: b"aa", ..FENCES }).is_err());
        assert!(Node(&leaf()).verify(None, Fences { upper: None, ..FENCES }).is_err());
        let wrong = |change: &dyn Fn(&mut Page)| {
            let mut page = leaf();
            change(&mut page);
            Node(&page).verify(None, FENCES)
        };
        assert_eq!(wrong(&|page| page[SLOTS] ^= 1), Err("the head of a key is not its first bytes"));
        assert_eq!(wrong(&|page| set_u16(page, PREFIX, 0)), Err("its prefix is not that of its fences"));
        assert_eq!(wrong(&|page| set_u16(page, UNUSED, 1)), Err("its count of unused bytes is wrong"));
        let first = u16_at(&leaf(), SLOTS + 4);
        assert_eq!(wrong(&|page| set_u16(page, SLOTS + 8 + 4, first)), Err("two of its entries overlap"));
        assert_eq!(wrong(&|page| page[first + 2 + 1] = b'9'), Err("its keys are not sorted"));
        assert_eq!(wrong(&|page| page[LEVEL] = u8::MAX), Err("its tree has too many levels"));
    }

    #[test]
    fn a_child_has_the_fences_and_the_level_that_its_parent_has_for_it() {
        let mut parent = [0; PAGE];
        clear(&mut parent, 1, Fences { lower: b"a", upper: Some(b"b") });
        insert(&mut parent, 0, b"ab", Payload::Child(8));
        insert(&mut parent, 1, b"ad", Payload::Child(9));
        let is_child = |level: u8, lower: &[u8], upper: Option<&[u8]>| {
            let mut page = [0; PAGE];
            clear(&mut page, level, Fences { lower, upper });
            [0, 1, 2].map(|child| Node(&page).is_child_of(Node(&parent), child))
        };
        assert_eq!(is_child(0, b"a", Some(b"ab")), [true, false, false]);
        assert_eq!(is_child(0, b"ab", Some(b"ad")), [false, true, false]);
        assert_eq!(is_child(0, b"ad", Some(b"b")), [false, false, true]);
        assert_eq!(is_child(1, b"ab", Some(b"ad")), [false; 3]);
        assert_eq!(is_child(0, b"ab", None), [false; 3]);
    }

    #[test]
    fn no_bytes_make_the_verification_panic() {
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        for _ in 0..20_000 {
            let mut page = leaf();
            for _ in 0..=random() % 6 {
                // Mostly the fields, the slots and the cells.
                let at = [13 + random() % 60, PAGE - 1 - random() % 60, random() % PAGE][random() % 3];
                page[at] = random() as u8;
            }
            let _ = Node(&page).verify(None, FENCES);
        }
    }
}
