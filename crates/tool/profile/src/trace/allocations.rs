//! Whose memory an address is: which allocation it lies in, and by which site that was made.
//!
//! ```text
//!   given out by allocators   [site 3]  [site 5][site 3]
//!   mapped by the program     [site 7                         ]      [site 8]
//!   an address is             3      7  5       3       7      none  8
//! ```
//! An allocator's own memory is mapped too, at no site, or at that of the program's own allocator: what was given out comes first.

use std::collections::BTreeMap;

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Whose {
    /// Given out by an allocator, or mapped by the program itself, at the site of this number; 0 where an allocation's is not
    /// known.
    Site(u32),
    /// In the primary region, and neither: mapped by an allocator for itself, or by code that is not seen.
    Mapped,
    /// Outside of it: data of the program and its libraries, files, the main stack.
    Outside,
}

/// What the allocators of a process have given out, and what it has mapped.
#[derive(Clone, Debug, Default)]
pub(super) struct Allocations {
    live: Ranges,
    mapped: Ranges,
}

impl Allocations {
    /// An allocation was made. What is still there at the address was freed unseen.
    pub(super) fn add(&mut self, address: u64, bytes: u64, site: u64) {
        let site = u32::try_from(site).unwrap_or(0);
        self.live.0.insert(address, Range { bytes: bytes.max(1), site });
    }

    /// It was taken back.
    pub(super) fn remove(&mut self, address: u64) {
        self.live.0.remove(&address);
    }

    /// The program itself mapped memory, at a known site.
    pub(super) fn add_mapped(&mut self, address: u64, bytes: u64, site: u64) {
        self.mapped.take_out(address, bytes);
        if let Some(site) = u32::try_from(site).ok().filter(|&site| site != 0 && bytes > 0) {
            self.mapped.0.insert(address, Range { bytes, site });
        }
    }

    /// Other memory is there now, or none.
    pub(super) fn clear(&mut self, address: u64, bytes: u64) {
        self.live.take_out(address, bytes);
        self.mapped.take_out(address, bytes);
    }

    /// Memory is elsewhere now, or longer or shorter.
    pub(super) fn moved(&mut self, from: u64, bytes: u64, to: u64, bytes_there: u64) {
        self.live.moved(from, bytes, to, bytes_there);
        self.mapped.moved(from, bytes, to, bytes_there);
    }

    /// Whose memory `address` is.
    #[must_use]
    pub(super) fn whose(&self, address: u64, in_region: bool) -> Whose {
        match self.live.site(address).or_else(|| self.mapped.site(address)) {
            Some(site) => Whose::Site(site),
            None if in_region => Whose::Mapped,
            None => Whose::Outside,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Range {
    bytes: u64,
    site: u32,
}

/// Ranges of memory, by address.
#[derive(Clone, Debug, Default)]
struct Ranges(BTreeMap<u64, Range>);

impl Ranges {
    fn site(&self, address: u64) -> Option<u32> {
        let (start, range) = self.0.range(..=address).next_back()?;
        (address - start < range.bytes).then_some(range.site)
    }

    /// Takes out what lies in so many bytes from `address`, cut to them.
    fn take_out(&mut self, address: u64, bytes: u64) -> Vec<(u64, Range)> {
        let end = address.saturating_add(bytes);
        if address == end {
            return Vec::new();
        }
        self.cut(address);
        self.cut(end);
        let inside: Vec<_> = self.0.range(address..end).map(|(&start, &range)| (start, range)).collect();
        for (start, _) in &inside {
            self.0.remove(start);
        }
        inside
    }

    /// Makes two ranges of one that goes across `address`.
    fn cut(&mut self, address: u64) {
        if let Some((&start, range)) = self.0.range_mut(..address).next_back()
            && let Some(behind) = range.bytes.checked_sub(address - start).filter(|&behind| behind > 0)
        {
            range.bytes -= behind;
            let back = Range { bytes: behind, ..*range };
            self.0.entry(address).or_insert(back);
        }
    }

    /// What becomes longer is still that of its last range, if that reached the end.
    fn moved(&mut self, from: u64, bytes: u64, to: u64, bytes_there: u64) {
        let inside = self.take_out(from, bytes);
        self.take_out(to, bytes_there);
        for (start, range) in inside {
            let offset = start - from;
            let at_end = offset + range.bytes == bytes;
            let room = bytes_there.saturating_sub(offset);
            let bytes = if at_end { room } else { range.bytes.min(room) };
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
    fn an_address_is_whose_it_lies_in() {
        let mut allocations = Allocations::default();
        allocations.add(0x1000, 0x100, 1);
        allocations.add(0x1100, 0x80, 2);
        assert_eq!(allocations.whose(0xfff, true), Whose::Mapped);
        assert_eq!(allocations.whose(0x1000, true), Whose::Site(1));
        assert_eq!(allocations.whose(0x10ff, true), Whose::Site(1));
        assert_eq!(allocations.whose(0x1100, true), Whose::Site(2));
        assert_eq!(allocations.whose(0x1180, false), Whose::Outside);
        allocations.remove(0x1100);
        assert_eq!(allocations.whose(0x1100, true), Whose::Mapped);
        allocations.add(0x1000, 0x10, 3);
        assert_eq!(allocations.whose(0x1008, true), Whose::Site(3), "the address was given out anew");
    }

    /// Site 7 has mapped four pages from 0x1000, and in them site 1 was given 0x100 bytes at 0x2000.
    fn two_layers() -> Allocations {
        let mut allocations = Allocations::default();
        allocations.add_mapped(0x1000, 0x4000, 7);
        allocations.add(0x2000, 0x100, 1);
        allocations
    }

    #[test]
    fn what_was_given_out_lies_over_what_was_mapped() {
        let mut allocations = two_layers();
        let whose = |allocations: &Allocations| [0x1fff, 0x2000, 0x20ff, 0x2100].map(|at| allocations.whose(at, true));
        assert_eq!(whose(&allocations), [Whose::Site(7), Whose::Site(1), Whose::Site(1), Whose::Site(7)]);
        allocations.remove(0x2000);
        assert_eq!(whose(&allocations), [Whose::Site(7); 4], "the outer range is still there");
        allocations.add_mapped(0x2000, 0x1000, 0);
        assert_eq!(allocations.whose(0x2000, true), Whose::Mapped, "by whom is not known");
        assert_eq!(allocations.whose(0x3000, true), Whose::Site(7));
    }

    #[test]
    fn what_is_unmapped_is_nobodys() {
        let mut allocations = two_layers();
        allocations.clear(0x2080, 0x1000);
        let expected =
            [(0x1fff, Some(7)), (0x207f, Some(1)), (0x2080, None), (0x307f, None), (0x3080, Some(7)), (0x5000, None)];
        for (at, site) in expected {
            assert_eq!(allocations.whose(at, true), site.map_or(Whose::Mapped, Whose::Site), "{at:#x}");
        }
        allocations.clear(0, u64::MAX);
        assert!(allocations.live.0.is_empty() && allocations.mapped.0.is_empty());
    }

    #[test]
    fn what_moves_keeps_its_sites() {
        let mut allocations = two_layers();
        allocations.moved(0x1000, 0x4000, 0x10_1000, 0x6000);
        let expected = [
            (0x1000, None),
            (0x2000, None),
            (0x10_1fff, Some(7)),
            (0x10_2000, Some(1)),
            (0x10_6fff, Some(7)),
            (0x10_7000, None),
        ];
        for (at, site) in expected {
            assert_eq!(allocations.whose(at, true), site.map_or(Whose::Mapped, Whose::Site), "{at:#x}");
        }
        allocations.moved(0x10_1000, 0x6000, 0x10_1000, 0x1000);
        assert_eq!(allocations.whose(0x10_1fff, true), Whose::Site(7));
        assert_eq!(allocations.whose(0x10_2000, true), Whose::Mapped, "it became shorter");
    }
}
