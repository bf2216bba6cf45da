//! A direct segment: three registers beside paging (Basu et al., "Soporte HW" of the slides).
//!
//! ```text
//!   virtual     0 ........ BASE ================ LIMIT ........
//!                 paging          va + OFFSET          paging
//!   physical                  ====================
//! ```
//!
//! An address in `BASE <= va < LIMIT` is translated by one addition: no TLB, no page table, no miss. Every other one is
//! left to paging. Hence what a segment does *not* do: it gives programs no two-part addresses (an address stays one
//! number), it does not replace paging (the rest of the address space has it), and it does not work on top of paging
//! (what comes out is physical). `BASE == LIMIT` turns it off.
//!
//! Growing and shrinking move LIMIT only, so that what is translated already stays where it is.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The registers of a core that has a direct segment. All zero: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DirectSegment {
    /// First virtual address of the segment.
    pub base: u64,
    /// First virtual address behind it.
    pub limit: u64,
    /// What is added to a virtual address, modulo 2^64.
    pub offset: u64,
}

impl DirectSegment {
    /// A segment of `bytes` from `base`, whose memory lies at `physical`.
    #[must_use]
    pub const fn new(base: u64, bytes: u64, physical: u64) -> Self {
        Self { base, limit: base.saturating_add(bytes), offset: physical.wrapping_sub(base) }
    }

    /// Is `address` translated here?
    #[inline]
    #[must_use]
    pub const fn covers(&self, address: u64) -> bool {
        self.base <= address && address < self.limit
    }

    /// The physical address; `None` leaves the address to paging.
    #[inline]
    #[must_use]
    pub const fn translate(&self, address: u64) -> Option<u64> {
        if self.covers(address) { Some(address.wrapping_add(self.offset)) } else { None }
    }

    /// Bytes that it translates.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.limit - self.base
    }

    /// Moves LIMIT up to `limit`.
    ///
    /// # Errors
    /// [`Error::Segment`] when that is lower than now.
    pub fn grow_to(&mut self, limit: u64) -> Result<()> {
        self.move_limit(limit, limit >= self.limit, "to make it smaller is `shrink_to`")
    }

    /// Moves LIMIT down to `limit`.
    ///
    /// # Errors
    /// [`Error::Segment`] when that is higher than now, or below BASE.
    pub fn shrink_to(&mut self, limit: u64) -> Result<()> {
        let within = self.base <= limit && limit <= self.limit;
        self.move_limit(
            limit,
            within,
            "give an address between BASE and the LIMIT of now; to make it larger is `grow_to`",
        )
    }

    fn move_limit(&mut self, limit: u64, allowed: bool, remedy: &'static str) -> Result<()> {
        if !allowed {
            return Err(Error::Segment { base: self.base, old: self.limit, limit, remedy });
        }
        self.limit = limit;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::DirectSegment;

    #[test]
    fn base_is_inside_and_limit_is_not() {
        let segment = DirectSegment::new(0x1000_0000, 0x1000, 0x40_0000_0000);
        assert_eq!(segment.translate(0x0fff_ffff), None);
        assert_eq!(segment.translate(0x1000_0000), Some(0x40_0000_0000));
        assert_eq!(segment.translate(0x1000_0fff), Some(0x40_0000_0fff));
        assert_eq!(segment.translate(0x1000_1000), None);
        assert_eq!(segment.bytes(), 0x1000);
    }

    #[test]
    fn memory_may_lie_below_its_virtual_address() {
        let segment = DirectSegment::new(0x7000_0000_0000, 1 << 40, 0x10_0000);
        assert_eq!(segment.translate(0x7000_0000_0042), Some(0x10_0042));
    }

    #[test]
    fn an_empty_segment_translates_nothing() {
        let off = DirectSegment::default();
        for address in [0, 1, u64::MAX] {
            assert_eq!(off.translate(address), None);
        }
    }

    #[test]
    fn growth_and_shrinking_keep_what_is_translated() {
        let mut segment = DirectSegment::new(0x1000, 0x1000, 0x9000);
        let before = segment.translate(0x1800);
        segment.grow_to(0x5000).unwrap();
        assert_eq!((segment.translate(0x1800), segment.translate(0x4fff)), (before, Some(0xcfff)));
        segment.shrink_to(0x2000).unwrap();
        assert_eq!((segment.translate(0x1800), segment.translate(0x2000)), (before, None));
        segment.shrink_to(0x1000).unwrap();
        assert_eq!(segment.translate(0x1000), None, "shrunk to nothing");
    }

    #[test]
    fn registers_do_not_go_where_they_cannot() {
        let mut segment = DirectSegment::new(0x1000, 0x1000, 0);
        assert!(segment.grow_to(0x1fff).unwrap_err().to_string().contains("shrink_to"));
        assert!(segment.shrink_to(0x2001).unwrap_err().to_string().contains("grow_to"));
        assert!(segment.shrink_to(0xfff).is_err());
        assert_eq!(segment, DirectSegment::new(0x1000, 0x1000, 0), "a refused move leaves the registers");
    }
}
