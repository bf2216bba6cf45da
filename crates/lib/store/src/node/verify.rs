//! Checks of a node that only a verification of the whole file makes.
//!
//! [`Node::check`] makes every read safe. This finds nodes that can be read and are wrong: their
//! searches miss entries, or a change of them destroys other entries.

use super::{CELLS, Fences, LARGEST_KEY, Node, UNUSED, head_of};
use crate::page::{PAGE, u16_at, u32_at};

impl Node<'_> {
    /// Checks a node of any bytes against its place in the tree. `level` is `None` for a root.
    pub(crate) fn verify(self, level: Option<u8>, fences: Fences<'_>) -> Result<(), &'static str> {
        self.check()?;
        if level.is_some_and(|level| level != self.level()) {
            return Err("its level is not the one below its parent");
        }
        let own = self.fences();
        if (own.lower, own.upper) != (fences.lower, fences.upper) {
            return Err("its fences are not the keys beside it in its parent");
        }
        if self.prefix().len() != own.prefix() {
            return Err("its prefix is not that of its fences");
        }
        self.verify_keys()?;
        self.verify_cells()
    }

    /// Keys are between the fences, not too long, and each has its head.
    fn verify_keys(self) -> Result<(), &'static str> {
        let (fences, mut key) = (self.fences(), Vec::new());
        for index in 0..self.count() {
            key.clear();
            self.append_key(index, &mut key);
            if key.as_slice() < fences.lower || fences.upper.is_some_and(|upper| key.as_slice() >= upper) {
                return Err("a key is outside of its fences");
            }
            if key.len() > LARGEST_KEY {
                return Err("a key is too long");
            }
            if u32_at(self.0, self.slot(index)) != head_of(self.rest(index)) {
                return Err("the head of a key is not its first bytes");
            }
        }
        Ok(())
    }

    /// Cells do not overlap, and the bytes between them are those that are counted as unused.
    fn verify_cells(self) -> Result<(), &'static str> {
        let mut cells: Vec<(usize, usize)> = (0..self.count())
            .map(|index| (self.cell(index).0, self.payload(index).bytes() + self.rest(index).len()))
            .collect();
        cells.sort_unstable();
        if cells.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            return Err("two of its entries overlap");
        }
        let used: usize = cells.iter().map(|cell| cell.1).sum();
        if used + u16_at(self.0, UNUSED) == PAGE - self.fences().bytes() - u16_at(self.0, CELLS) {
            Ok(())
        } else {
            Err("its count of unused bytes is wrong")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{PREFIX, Payload, SLOTS, clear, insert};
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
        assert_eq!(wrong(&|page| set_u16(page, SLOTS + 8 + 4, first)), Err("its keys are not sorted"));
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
