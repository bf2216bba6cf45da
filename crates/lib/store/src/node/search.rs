//! The search for a key in a node.
//!
//! 1. Find the first head that is not below that of the key, by halves, without a branch that depends on the
//!    keys: the processor would mispredict every second one.
//! 2. Compare the rest of the keys with this head. There is one in most nodes.
//!
//! Cost: a comparison of 4 bytes for each halving, and about one look at a cell.

use std::cmp::Ordering;

use super::{HEAD, Node, cell_of, head_in, head_of};
use crate::page::{LINE, prefetch};

impl Node<'_> {
    /// Brings the first lines of the cell of an entry into the cache of the processor, if there is one.
    #[inline]
    pub(crate) fn prefetch_entry(self, index: usize) {
        if let Some(&slot) = self.slots().get(index) {
            let line = cell_of(slot).0 / LINE;
            prefetch(self.0, line);
            prefetch(self.0, line + 1);
        }
    }

    /// The place of a key: that of the entry with this key, or where such an entry would be inserted.
    #[inline]
    pub(crate) fn find(self, key: &[u8]) -> Result<usize, usize> {
        let key = &key[self.prefix_length().min(key.len())..];
        let (head, slots) = (head_of(key), self.slots());
        let low = slots.partition_point(|&slot| head_in(slot) < head);
        let has_head = |place: usize| slots.get(place).is_some_and(|&slot| head_in(slot) == head);
        if !has_head(low) {
            return Err(low);
        }
        let equal = if has_head(low + 1) { slots[low..].partition_point(|&slot| head_in(slot) == head) } else { 1 };
        let (mut low, mut high) = (low, low + equal);
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.compare(middle, key) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Compares the rest of an entry with that of a key with the same head.
    #[inline]
    fn compare(self, index: usize, key: &[u8]) -> Ordering {
        let (_, length) = self.cell(index);
        if length.min(key.len()) <= HEAD {
            // The head is all of the shorter one, so that is the beginning of the longer one.
            return length.cmp(&key.len());
        }
        self.rest(index)[HEAD..].cmp(&key[HEAD..])
    }

    /// The child with a key.
    #[inline]
    pub(crate) fn child_of(self, key: &[u8]) -> usize {
        self.find(key).map_or_else(|place| place, |entry| entry + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::crash::Random;
    use crate::node::{Fences, Payload, clear, insert};
    use crate::page::PAGE;

    /// A short key of few different bytes, so that many have equal heads or are the beginning of others.
    fn key(random: &mut Random) -> Vec<u8> {
        (0..random.below(8)).map(|_| [0, 1, b'a'][random.below(3) as usize]).collect()
    }

    #[test]
    fn keys_with_equal_heads_are_found_where_they_are_in_a_sorted_list() {
        let mut random = Random(5);
        for _ in 0..50 {
            let keys: BTreeSet<Vec<u8>> = (0..random.below(120)).map(|_| key(&mut random)).collect();
            let mut page = [0; PAGE];
            clear(&mut page, 0, Fences { lower: &[], upper: None });
            for (place, key) in keys.iter().enumerate() {
                insert(&mut page, place, key, Payload::Value(b"value"));
            }
            assert_eq!(Node(&page).check(), Ok(()));
            let sorted = Vec::from_iter(keys);
            for key in sorted.iter().cloned().chain((0..100).map(|_| key(&mut random))) {
                assert_eq!(Node(&page).find(&key), sorted.binary_search(&key), "{key:?}");
            }
        }
    }
}
