//! The three page sizes of the models.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A page size of x86-64, or of Arm with a granule of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PageSize {
    /// 4 KiB: translated by a page table entry.
    #[serde(rename = "4K")]
    Small4k,
    /// 2 MiB: translated by a page directory entry.
    #[serde(rename = "2M")]
    Large2m,
    /// 1 GiB: translated by a page directory pointer table entry.
    #[serde(rename = "1G")]
    Huge1g,
}

impl PageSize {
    /// All sizes, smallest first.
    pub const ALL: [Self; 3] = [Self::Small4k, Self::Large2m, Self::Huge1g];

    /// Bits of an address inside the page.
    #[must_use]
    pub const fn shift(self) -> u32 {
        match self {
            Self::Small4k => 12,
            Self::Large2m => 21,
            Self::Huge1g => 30,
        }
    }

    /// Bytes of the page.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }

    /// The index in tables by page size.
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// Page table entries read by a walk without caches: 4, 3 or 2.
    #[must_use]
    pub const fn walk_references(self) -> u64 {
        4 - self as u64
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Small4k => "4K",
            Self::Large2m => "2M",
            Self::Huge1g => "1G",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::PageSize;

    #[test]
    fn sizes_are_those_of_the_architecture() {
        assert_eq!(PageSize::ALL.map(PageSize::bytes), [4096, 2 * 1024 * 1024, 1024 * 1024 * 1024]);
        assert_eq!(PageSize::ALL.map(PageSize::walk_references), [4, 3, 2]);
        assert_eq!(PageSize::ALL.map(|size| size.to_string()), ["4K", "2M", "1G"]);
    }
}
