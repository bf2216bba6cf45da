//! The page kinds a region can be placed on, as users type them: one kind, or a mosaic.

use core::fmt;
use core::str::FromStr;

use crate::{PageKind, UnknownPageKind};

/// Pages of one kind in a share of the region, 4 KiB pages in the rest: `hugetlb`, `thp`,
/// `thp:25%`. Only transparent pages can be mixed, because only they can be refused per chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mixture {
    kind: PageKind,
    percent: u32,
}

impl Mixture {
    /// Transparent huge pages in `percent` of the region's chunks. `None` unless 1 ≤ `percent` ≤
    /// 99.
    #[must_use]
    pub const fn mosaic(percent: u32) -> Option<Self> {
        if percent == 0 || percent >= 100 { None } else { Some(Self { kind: PageKind::Thp, percent }) }
    }

    /// The requested page kind.
    #[must_use]
    pub const fn kind(self) -> PageKind {
        self.kind
    }

    /// Percentage of chunks with that kind: 100, or less in a mosaic.
    #[must_use]
    pub const fn percent(self) -> u32 {
        self.percent
    }

    /// Whether some chunks stay on small pages by request.
    #[must_use]
    pub const fn is_mosaic(self) -> bool {
        self.percent < 100
    }
}

impl From<PageKind> for Mixture {
    fn from(kind: PageKind) -> Self {
        Self { kind, percent: 100 }
    }
}

impl fmt::Display for Mixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_mosaic() { write!(f, "{}:{}%", self.kind, self.percent) } else { self.kind.fmt(f) }
    }
}

/// Why a text is not a mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownMixture {
    /// It names no page kind.
    Kind(UnknownPageKind),
    /// It mixes a kind that cannot be mixed.
    Unmixable(PageKind),
    /// The text after the colon is not a percentage from 1 to 99.
    Share,
}

impl fmt::Display for UnknownMixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(unknown) => unknown.fmt(f),
            Self::Unmixable(kind) => {
                write!(f, "{kind} pages cannot be mixed with small ones; transparent pages can: thp:25%")
            }
            Self::Share => f.write_str("the share of a mosaic is 1 to 99 percent, as in thp:25%"),
        }
    }
}

impl core::error::Error for UnknownMixture {}

impl FromStr for Mixture {
    type Err = UnknownMixture;

    fn from_str(text: &str) -> Result<Self, UnknownMixture> {
        let Some((kind, share)) = text.split_once(':') else {
            return text.parse::<PageKind>().map(Self::from).map_err(UnknownMixture::Kind);
        };
        let kind = kind.parse().map_err(UnknownMixture::Kind)?;
        if kind != PageKind::Thp {
            return Err(UnknownMixture::Unmixable(kind));
        }
        let percent = share.strip_suffix('%').and_then(|percent| percent.parse().ok());
        percent.and_then(Self::mosaic).ok_or(UnknownMixture::Share)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::{Mixture, UnknownMixture};
    use crate::PageKind;

    #[test]
    fn every_mixture_parses_as_it_prints() {
        let kinds = PageKind::ALL.map(Mixture::from);
        let mosaics = (1..100).filter_map(Mixture::mosaic);
        for mixture in kinds.into_iter().chain(mosaics) {
            assert_eq!(mixture.to_string().parse(), Ok(mixture));
            assert_eq!(mixture.is_mosaic(), mixture.percent() < 100);
        }
        assert_eq!("thp:25%".parse(), Ok(Mixture::mosaic(25).unwrap()));
    }

    #[test]
    fn a_refused_mixture_names_a_valid_one() {
        for (text, error) in [
            ("thp:0%", UnknownMixture::Share),
            ("thp:100%", UnknownMixture::Share),
            ("thp:25", UnknownMixture::Share),
            ("thp:-5%", UnknownMixture::Share),
            ("hugetlb:25%", UnknownMixture::Unmixable(PageKind::Hugetlb2m)),
            ("4k:25%", UnknownMixture::Unmixable(PageKind::Small4k)),
        ] {
            assert_eq!(text.parse::<Mixture>(), Err(error), "{text}");
            assert!(error.to_string().contains("thp:25%"), "{error}");
        }
        assert!(matches!("huge:25%".parse::<Mixture>(), Err(UnknownMixture::Kind(_))));
        assert!("thq".parse::<Mixture>().unwrap_err().to_string().contains("folio-64k"));
    }
}
