//! The page kinds that a program's memory can be placed on, by the names users type.

use core::fmt;
use core::str::FromStr;

/// A kind of page. The number is its code in the session record.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageKind {
    /// Base pages only: transparent huge pages are disabled for the memory.
    Small4k = 1,
    /// Multi-size transparent folios of 64 KiB.
    Folio64k = 2,
    /// Transparent huge pages (2 MiB on x86-64), where the kernel has them available.
    Thp = 3,
    /// Pages of the reserved hugetlb pool of 2 MiB.
    Hugetlb2m = 4,
    /// Pages of the reserved hugetlb pool of 1 GiB.
    Hugetlb1g = 5,
}

impl PageKind {
    /// Every kind, smallest page first.
    pub const ALL: [PageKind; 5] = [Self::Small4k, Self::Folio64k, Self::Thp, Self::Hugetlb2m, Self::Hugetlb1g];

    /// The name on the command line and in every report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small4k => "4k",
            Self::Folio64k => "folio-64k",
            Self::Thp => "thp",
            Self::Hugetlb2m => "hugetlb",
            Self::Hugetlb1g => "hugetlb-1g",
        }
    }

    /// The kind with this code, or `None` for a code of another version.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == code)
    }

    /// The page size in bytes.
    #[must_use]
    pub const fn page_bytes(self) -> u64 {
        match self {
            Self::Small4k => 4 << 10,
            Self::Folio64k => 64 << 10,
            Self::Thp | Self::Hugetlb2m => 2 << 20,
            Self::Hugetlb1g => 1 << 30,
        }
    }
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text names no page kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPageKind;

impl fmt::Display for UnknownPageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such page kind; there are 4k, folio-64k, thp, hugetlb, hugetlb-1g")
    }
}

impl core::error::Error for UnknownPageKind {}

impl FromStr for PageKind {
    type Err = UnknownPageKind;

    fn from_str(text: &str) -> Result<Self, UnknownPageKind> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or(UnknownPageKind)
    }
}
