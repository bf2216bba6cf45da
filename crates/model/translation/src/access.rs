//! One placed access of a program, in eight bytes.
//!
//! ```text
//!   63      62     61 … 57   56 … 0
//!   region  fetch  zero      address, or offset in the primary region
//! ```

/// A memory access: its address or region offset, and whether it is an instruction fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct PlacedAccess(u64);

const REGION: u64 = 1 << 63;
const FETCH: u64 = 1 << 62;
/// Addresses have 57 bits: five levels of page tables, or Arm's 52.
const ADDRESS: u64 = (1 << 57) - 1;

impl PlacedAccess {
    /// A load or store at `address`, outside the primary region. Bits above the 57th are dropped.
    #[inline]
    #[must_use]
    pub const fn outside(address: u64) -> Self {
        Self(address & ADDRESS)
    }

    /// A load or store `offset` bytes into the primary region.
    #[inline]
    #[must_use]
    pub const fn in_region(offset: u64) -> Self {
        Self(offset & ADDRESS | REGION)
    }

    /// The same access as an instruction fetch.
    #[inline]
    #[must_use]
    pub const fn fetch(self) -> Self {
        Self(self.0 | FETCH)
    }

    /// Whether the access is in the primary region.
    #[inline]
    #[must_use]
    pub const fn is_in_region(self) -> bool {
        self.0 & REGION != 0
    }

    /// Whether the access is an instruction fetch.
    #[inline]
    #[must_use]
    pub const fn is_fetch(self) -> bool {
        self.0 & FETCH != 0
    }

    /// The address; in the region, the offset from its start.
    #[inline]
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0 & ADDRESS
    }

    /// An address that differs inside and outside the region: the region begins at 2^57.
    #[inline]
    pub(crate) const fn location(self) -> u64 {
        self.0 & ADDRESS | (self.0 & REGION) >> 6
    }
}

#[cfg(test)]
mod tests {
    use super::PlacedAccess;

    #[test]
    fn an_access_keeps_its_address_and_flags() {
        let high = 0x01ff_ffff_ffff_f123;
        for access in [PlacedAccess::outside(high), PlacedAccess::in_region(high)] {
            assert_eq!(access.address(), high);
            assert!(!access.is_fetch() && access.fetch().is_fetch());
            assert_eq!(access.fetch().is_in_region(), access.is_in_region());
            assert_eq!(access.fetch().location(), access.location());
        }
        assert!(PlacedAccess::in_region(0).is_in_region() && !PlacedAccess::outside(0).is_in_region());
        assert_eq!(
            PlacedAccess::outside(u64::MAX),
            PlacedAccess::outside(high | 0xfff),
            "a kernel address keeps its low 57 bits"
        );
        assert_ne!(PlacedAccess::in_region(high).location(), PlacedAccess::outside(high).location());
    }
}
