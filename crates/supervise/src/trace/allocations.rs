//! Whose memory an address is: which allocation it lies in, and by which site that was made.

use std::collections::BTreeMap;

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Whose {
    /// Given out by an allocator, at the site of this number; 0 where the site is not known.
    Site(u32),
    /// In the primary region, and from no allocator that is seen: mapped by the program itself, or an allocator's own.
    Mapped,
    /// Outside of it: data of the program and its libraries, files, the main stack.
    Outside,
}

/// What the allocators of a process have given out.
#[derive(Clone, Debug, Default)]
pub(super) struct Allocations {
    /// By address: bytes and site.
    live: BTreeMap<u64, (u64, u32)>,
}

impl Allocations {
    /// An allocation was made. What is still there at the address was freed unseen.
    pub(super) fn add(&mut self, address: u64, bytes: u64, site: u64) {
        self.live.insert(address, (bytes, u32::try_from(site).unwrap_or(0)));
    }

    /// It was taken back.
    pub(super) fn remove(&mut self, address: u64) {
        self.live.remove(&address);
    }

    /// Whose memory `address` is.
    #[must_use]
    pub(super) fn whose(&self, address: u64, in_region: bool) -> Whose {
        match self.live.range(..=address).next_back() {
            Some((&start, &(bytes, site))) if address - start < bytes.max(1) => Whose::Site(site),
            _ if in_region => Whose::Mapped,
            _ => Whose::Outside,
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
}
