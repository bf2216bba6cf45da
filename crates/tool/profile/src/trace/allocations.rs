//! Find the owner of an address: the allocation that contains it, and the site of that allocation.
//!
//! ```text
//!   from allocators           [site 3]  [site 5][site 3]
//!   mapped by the program     [site 7                         ]      [site 8]
//!   owner of an address       3      7  5       3       7      none  8
//! ```
//! Invariant: an allocation has precedence over the mapping that contains it. An allocator's own
//! memory is a mapping without a site, or with the site of a custom allocator.
//!
//! Cost: one lookup in each of two B-trees.

use std::collections::BTreeMap;

/// The owner of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressOwner {
    /// An allocation or a mapping of the program, by the number of its site; 0 if an allocation's
    /// site is unknown.
    Site(u32),
    /// In the primary region without an allocation: mapped by an allocator, or by code that is not
    /// traced.
    Mapped,
    /// Outside the primary region: data of the program and its libraries, files, the main stack.
    Outside,
}

/// The allocations and mappings of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Allocations {
    live: Ranges,
    mapped: Ranges,
}

impl Allocations {
    /// Adds an allocation. It replaces one at the same address, whose deallocation was not traced.
    pub(super) fn add(&mut self, address: u64, bytes: u64, site: u64) {
        let site = u32::try_from(site).unwrap_or(0);
        self.live.0.insert(address, Range { bytes: bytes.max(1), site });
    }

    /// Removes an allocation.
    pub(super) fn remove(&mut self, address: u64) {
        self.live.0.remove(&address);
    }

    /// Adds a mapping of the program; with site 0 it only removes what was there.
    pub(super) fn add_mapped(&mut self, address: u64, bytes: u64, site: u64) {
        self.mapped.remove_range(address, bytes);
        if let Some(site) = u32::try_from(site).ok().filter(|&site| site != 0 && bytes > 0) {
            self.mapped.0.insert(address, Range { bytes, site });
        }
    }

    /// Removes all allocations and mappings in the range.
    pub(super) fn clear(&mut self, address: u64, bytes: u64) {
        self.live.remove_range(address, bytes);
        self.mapped.remove_range(address, bytes);
    }

    /// Moves a range to `to`, and grows or shrinks it to `new_bytes`.
    pub(super) fn move_range(&mut self, from: u64, bytes: u64, to: u64, new_bytes: u64) {
        self.live.move_range(from, bytes, to, new_bytes);
        self.mapped.move_range(from, bytes, to, new_bytes);
    }

    /// The owner of `address`.
    #[must_use]
    pub(super) fn owner(&self, address: u64, in_region: bool) -> AddressOwner {
        match self.live.site(address).or_else(|| self.mapped.site(address)) {
            Some(site) => AddressOwner::Site(site),
            None if in_region => AddressOwner::Mapped,
            None => AddressOwner::Outside,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Range {
    bytes: u64,
    site: u32,
}

/// Disjoint ranges of memory, by start address.
#[derive(Clone, Debug, Default)]
struct Ranges(BTreeMap<u64, Range>);

impl Ranges {
    fn site(&self, address: u64) -> Option<u32> {
        let (start, range) = self.0.range(..=address).next_back()?;
        (address - start < range.bytes).then_some(range.site)
    }

    /// Removes and returns the ranges within `bytes` from `address`. Ranges that cross its ends are
    /// split.
    fn remove_range(&mut self, address: u64, bytes: u64) -> Vec<(u64, Range)> {
        let end = address.saturating_add(bytes);
        if address == end {
            return Vec::new();
        }
        self.split_at(address);
        self.split_at(end);
        let inside: Vec<_> = self.0.range(address..end).map(|(&start, &range)| (start, range)).collect();
        for (start, _) in &inside {
            self.0.remove(start);
        }
        inside
    }

    /// Splits the range that crosses `address`.
    fn split_at(&mut self, address: u64) {
        if let Some((&start, range)) = self.0.range_mut(..address).next_back()
            && let Some(tail_bytes) = range.bytes.checked_sub(address - start).filter(|&tail_bytes| tail_bytes > 0)
        {
            range.bytes -= tail_bytes;
            let back = Range { bytes: tail_bytes, ..*range };
            self.0.entry(address).or_insert(back);
        }
    }

    /// Moves the ranges. If the memory grows, so does the last range, provided that it reached the
    /// end.
    fn move_range(&mut self, from: u64, bytes: u64, to: u64, new_bytes: u64) {
        let inside = self.remove_range(from, bytes);
        self.remove_range(to, new_bytes);
        for (start, range) in inside {
            let offset = start - from;
            let at_end = offset + range.bytes == bytes;
            let available = new_bytes.saturating_sub(offset);
            let bytes = if at_end { available } else { range.bytes.min(available) };
            if bytes > 0 {
                self.0.insert(to.saturating_add(offset), Range { bytes, ..range });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_an_address_is_its_allocation() {
        let mut allocations = Allocations::default();
        allocations.add(0x1000, 0x100, 1);
        allocations.add(0x1100, 0x80, 2);
        assert_eq!(allocations.owner(0xfff, true), AddressOwner::Mapped);
        assert_eq!(allocations.owner(0x1000, true), AddressOwner::Site(1));
        assert_eq!(allocations.owner(0x10ff, true), AddressOwner::Site(1));
        assert_eq!(allocations.owner(0x1100, true), AddressOwner::Site(2));
        assert_eq!(allocations.owner(0x1180, false), AddressOwner::Outside);
        allocations.remove(0x1100);
        assert_eq!(allocations.owner(0x1100, true), AddressOwner::Mapped);
        allocations.add(0x1000, 0x10, 3);
        assert_eq!(allocations.owner(0x1008, true), AddressOwner::Site(3), "the address was allocated again");
    }

    /// Site 7 maps four pages at 0x1000. In them, site 1 allocates 0x100 bytes at 0x2000.
    fn two_layers() -> Allocations {
        let mut allocations = Allocations::default();
        allocations.add_mapped(0x1000, 0x4000, 7);
        allocations.add(0x2000, 0x100, 1);
        allocations
    }

    #[test]
    fn an_allocation_has_precedence_over_its_mapping() {
        let mut allocations = two_layers();
        let owner = |allocations: &Allocations| [0x1fff, 0x2000, 0x20ff, 0x2100].map(|at| allocations.owner(at, true));
        assert_eq!(
            owner(&allocations),
            [AddressOwner::Site(7), AddressOwner::Site(1), AddressOwner::Site(1), AddressOwner::Site(7)]
        );
        allocations.remove(0x2000);
        assert_eq!(owner(&allocations), [AddressOwner::Site(7); 4], "the mapping is still there");
        allocations.add_mapped(0x2000, 0x1000, 0);
        assert_eq!(allocations.owner(0x2000, true), AddressOwner::Mapped, "the site is unknown");
        assert_eq!(allocations.owner(0x3000, true), AddressOwner::Site(7));
    }

    #[test]
    fn unmapped_memory_has_no_owner() {
        let mut allocations = two_layers();
        allocations.clear(0x2080, 0x1000);
        let expected =
            [(0x1fff, Some(7)), (0x207f, Some(1)), (0x2080, None), (0x307f, None), (0x3080, Some(7)), (0x5000, None)];
        for (at, site) in expected {
            assert_eq!(allocations.owner(at, true), site.map_or(AddressOwner::Mapped, AddressOwner::Site), "{at:#x}");
        }
        allocations.clear(0, u64::MAX);
        assert!(allocations.live.0.is_empty() && allocations.mapped.0.is_empty());
    }

    #[test]
    fn moved_memory_keeps_its_sites() {
        let mut allocations = two_layers();
        allocations.move_range(0x1000, 0x4000, 0x10_1000, 0x6000);
        let expected = [
            (0x1000, None),
            (0x2000, None),
            (0x10_1fff, Some(7)),
            (0x10_2000, Some(1)),
            (0x10_6fff, Some(7)),
            (0x10_7000, None),
        ];
        for (at, site) in expected {
            assert_eq!(allocations.owner(at, true), site.map_or(AddressOwner::Mapped, AddressOwner::Site), "{at:#x}");
        }
        allocations.move_range(0x10_1000, 0x6000, 0x10_1000, 0x1000);
        assert_eq!(allocations.owner(0x10_1fff, true), AddressOwner::Site(7));
        assert_eq!(allocations.owner(0x10_2000, true), AddressOwner::Mapped, "the range shrank");
    }
}
