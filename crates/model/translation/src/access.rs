//! One access of a program, placed: eight bytes.
//!
//! ```text
//!   63      62     61 … 57   56 … 0
//!   region  fetch  zero      address, or offset in the primary region
//! ```

/// An access to memory: where, whether it is in the primary region, whether it fetches an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Access(u64);

const REGION: u64 = 1 << 63;
const FETCH: u64 = 1 << 62;
/// Addresses have 57 bits: five levels of page tables, or Arm's 52.
const ADDRESS: u64 = (1 << 57) - 1;

impl Access {
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

    /// In the primary region?
    #[inline]
    #[must_use]
    pub const fn is_in_region(self) -> bool {
        self.0 & REGION != 0
    }

    /// An instruction fetch?
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

    /// An address that is different inside and outside of the region: the region begins at 2^57.
    #[inline]
    pub(crate) const fn location(self) -> u64 {
        self.0 & ADDRESS | (self.0 & REGION) >> 6
    }
}

#[cfg(test)]
mod tests {
    use super::Access;

    #[test]
    fn what_goes_in_comes_out() {
        let high = 0x01ff_ffff_ffff_f123;
        for access in [Access::outside(high), Access::in_region(high)] {
            assert_eq!(access.address(), high);
            assert!(!access.is_fetch() && access.fetch().is_fetch());
            assert_eq!(access.fetch().is_in_region(), access.is_in_region());
            assert_eq!(access.fetch().location(), access.location());
        }
        assert!(Access::in_region(0).is_in_region() && !Access::outside(0).is_in_region());
        assert_eq!(Access::outside(u64::MAX), Access::outside(high | 0xfff), "a kernel address keeps its low 57 bits");
        assert_ne!(Access::in_region(high).location(), Access::outside(high).location());
    }
}
