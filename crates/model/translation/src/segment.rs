//! A direct segment: three registers beside paging (Basu et al., "Soporte HW" of the slides).
//!
//! ```text
//!   virtual     0 ........ BASE ================ LIMIT ........
//!                 paging          va + OFFSET          paging
//!   physical                  ====================
//! ```
//!
//! One addition translates an address in `BASE <= va < LIMIT`: no TLB, no page table, no miss.
//! Paging translates all others. A segment does not give programs two-part addresses (an address
//! stays one number). It does not replace paging, which translates the rest of the address space.
//! It does not work on top of paging: its result is physical. `BASE == LIMIT` disables it.
//!
//! Growing and shrinking only move LIMIT, so existing translations do not change.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The direct segment registers of a core. All zero: disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DirectSegment {
    /// First virtual address of the segment.
    pub base: u64,
    /// First virtual address after the segment.
    pub limit: u64,
    /// The value added to a virtual address, modulo 2^64.
    pub offset: u64,
}

impl DirectSegment {
    /// A segment of `bytes` from `base`, with its memory at `physical`.
    #[must_use]
    pub const fn new(base: u64, bytes: u64, physical: u64) -> Self {
        Self { base, limit: base.saturating_add(bytes), offset: physical.wrapping_sub(base) }
    }

    /// Whether the segment translates `address`.
    #[inline]
    #[must_use]
    pub const fn covers(&self, address: u64) -> bool {
        self.base <= address && address < self.limit
    }

    /// The physical address; `None` if paging translates the address.
    #[inline]
    #[must_use]
    pub const fn translate(&self, address: u64) -> Option<u64> {
        if self.covers(address) { Some(address.wrapping_add(self.offset)) } else { None }
    }

    /// Bytes translated.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.limit - self.base
    }

    /// Moves LIMIT up to `limit`.
    ///
    /// # Errors
    /// [`Error::Segment`] if `limit` is lower than LIMIT.
    pub fn grow_to(&mut self, limit: u64) -> Result<()> {
        self.move_limit(limit, limit >= self.limit, "use `shrink_to` to make it smaller")
    }

    /// Moves LIMIT down to `limit`.
    ///
    /// # Errors
    /// [`Error::Segment`] if `limit` is higher than LIMIT or below BASE.
    pub fn shrink_to(&mut self, limit: u64) -> Result<()> {
        let within = self.base <= limit && limit <= self.limit;
        self.move_limit(limit, within, "use an address from BASE to the current LIMIT, or `grow_to` to make it larger")
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
    fn physical_memory_can_be_below_its_virtual_address() {
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
    fn growing_and_shrinking_keep_existing_translations() {
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
    fn invalid_limits_are_refused() {
        let mut segment = DirectSegment::new(0x1000, 0x1000, 0);
        assert!(segment.grow_to(0x1fff).unwrap_err().to_string().contains("shrink_to"));
        assert!(segment.shrink_to(0x2001).unwrap_err().to_string().contains("grow_to"));
        assert!(segment.shrink_to(0xfff).is_err());
        assert_eq!(segment, DirectSegment::new(0x1000, 0x1000, 0), "a refused change keeps the registers");
    }
}
