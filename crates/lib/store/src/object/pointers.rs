//! Pointers of 4 bytes: what they mean in one snapshot or transaction.
//!
//! ```text
//! address in the file   page │ unit        40 bits
//! pointer in memory     slot │ unit        32 bits: 23 for the slot, 9 for the unit
//! ```
//! A *slot* is a place for a page in the window. If the file fits into the window, page n has slot n, and
//! pointers are the same in memory and in the file. Otherwise a page gets a slot when the first pointer to
//! it is translated (*swizzled*), as in Texas: Singhal, Kakkad and Wilson, *Texas: An Efficient, Portable
//! Persistent Store*, 1992.

use std::collections::HashMap;

use crate::object::object_page::{UNITS, page_of};

/// Slots of the largest window: 32 GiB.
pub(crate) const MOST_SLOTS: u32 = 1 << 23;

/// The slots of a window.
#[derive(Debug)]
pub(crate) struct PageSlots {
    /// Slots from here on cannot be used.
    limit: u32,
    /// `None` if each page has the slot of its number.
    map: Option<SlotMap>,
}

/// The pages that have got slots. Slot 0 is that of the null pointer.
#[derive(Debug, Default)]
struct SlotMap {
    slot_of: HashMap<u32, u32>,
    /// The page of slot 1, 2, …
    pages: Vec<u32>,
}

impl PageSlots {
    /// The slots for a file of `end` pages. An eighth is left for pages that a transaction adds.
    pub(crate) fn new(limit: u32, end: u32) -> Self {
        Self { limit, map: (!fits(limit, end)).then(SlotMap::default) }
    }

    /// Whether pointers are the same in memory and in the file.
    pub(crate) const fn is_identity(&self) -> bool {
        self.map.is_none()
    }

    /// Whether they can be used for a file of `end` pages, and at least half of them are free.
    pub(crate) fn has_room(&self, end: u32) -> bool {
        match &self.map {
            None => fits(self.limit, end),
            Some(map) => !fits(self.limit, end) && map.pages.len() < self.limit as usize / 2,
        }
    }

    /// The page of a slot.
    pub(crate) fn page(&self, slot: u32) -> Option<u32> {
        match &self.map {
            None => (slot < self.limit).then_some(slot),
            Some(map) => map.pages.get(slot.checked_sub(1)? as usize).copied(),
        }
    }

    /// The slot of a page, if it has one.
    pub(crate) fn slot(&self, page: u32) -> Option<u32> {
        match &self.map {
            None => (page < self.limit).then_some(page),
            Some(map) => map.slot_of.get(&page).copied(),
        }
    }

    /// The pointer to an address; the page gets a slot if it has none. `None` without a free slot.
    pub(crate) fn pointer(&mut self, address: u64) -> Option<u32> {
        if address == 0 {
            return Some(0);
        }
        let page = u32::try_from(page_of(address)).ok()?;
        let slot = match (self.slot(page), &mut self.map) {
            (Some(slot), _) => slot,
            (None, Some(map)) if map.pages.len() + 1 < self.limit as usize => {
                map.pages.push(page);
                map.slot_of.insert(page, map.pages.len() as u32);
                map.pages.len() as u32
            }
            (None, _) => return None,
        };
        Some((u64::from(slot) * UNITS + address % UNITS) as u32)
    }

    /// The address of a pointer; `None` if its slot has no page.
    pub(crate) fn address(&self, pointer: u32) -> Option<u64> {
        if pointer == 0 {
            return Some(0);
        }
        let (slot, unit) = (pointer / UNITS as u32, u64::from(pointer) % UNITS);
        Some(u64::from(self.page(slot)?) * UNITS + unit)
    }
}

/// Whether each page of a file, and an eighth more, can have the slot of its number.
fn fits(limit: u32, end: u32) -> bool {
    end <= limit - limit / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_of_a_store_that_fits_are_its_addresses() {
        let mut slots = PageSlots::new(64, 56);
        assert!(slots.is_identity() && slots.has_room(56) && !slots.has_room(57));
        assert_eq!((slots.pointer(63 * 512 + 7), slots.pointer(64 * 512)), (Some(63 * 512 + 7), None));
        assert_eq!((slots.address(63 * 512 + 7), slots.address(64 * 512)), (Some(63 * 512 + 7), None));
    }

    #[test]
    fn a_page_keeps_its_slot_and_a_full_window_has_none_left() {
        let mut slots = PageSlots::new(8, 100);
        let pages = [90_u64, 3, 1 << 25, 90, 4, 5, 6, 7];
        let found: Vec<_> = pages.map(|page| slots.pointer(page * 512 + 1)).into_iter().flatten().collect();
        assert_eq!(found, [1, 2, 3, 1, 4, 5, 6, 7].map(|slot| slot * 512 + 1));
        assert_eq!((slots.pointer(8 * 512), slots.pointer(0), slots.address(0)), (None, Some(0), Some(0)));
        for (pointer, page) in found.into_iter().zip(pages) {
            assert_eq!(slots.address(pointer), Some(page * 512 + 1));
        }
        assert!(!slots.has_room(100) && PageSlots::new(8, 100).has_room(100) && slots.address(8 * 512).is_none());
    }
}
