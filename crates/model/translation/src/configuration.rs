//! The configurations to simulate: an MMU, the translation scheme of the primary region, and the
//! page size of each memory.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::mmu::Mmu;
use crate::mosaic::{mosaic_is_huge, threshold};
use crate::page::PageSize;

/// One simulated way to run the program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// The name in reports.
    pub name: String,
    /// The MMU.
    pub machine: Mmu,
    /// The translation of the primary region.
    pub scheme: Scheme,
    /// Page sizes of the primary region, if it is paged.
    pub region_pages: RegionPages,
    /// Page size of all other memory.
    pub other_pages: PageSize,
    /// The host's page size under virtualization; `None` without.
    pub nested: Option<PageSize>,
}

/// The translation of the primary region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scheme {
    /// TLBs and page tables, like all other memory.
    Paged,
    /// A direct segment over the whole region (Basu et al.).
    DirectSegment,
    /// Paging, with range TLBs beside the second TLB level. An entry translates a contiguous range
    /// of any length (Karakostas et al.). [`crate::Simulator::set_ranges`] sets the ranges.
    RangeTlb {
        /// Entries, fully associative.
        entries: u32,
    },
    /// No translation in or outside the region: memory is physical (Zagieboylo et al.).
    NoTranslation,
}

/// Page sizes of the primary region.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum RegionPages {
    /// One page size.
    Uniform(PageSize),
    /// Pages of 4 KiB, and larger pages in a share of the memory that [`mosaic_is_huge`] selects.
    Mosaic {
        /// The larger page size, which is also the chunk size.
        huge: PageSize,
        /// The share of chunks with larger pages, 0 to 1.
        share: f64,
    },
}

impl RegionPages {
    /// The page size at `offset` in the region.
    #[must_use]
    pub fn at(self, offset: u64) -> PageSize {
        match self {
            Self::Uniform(size) => size,
            Self::Mosaic { huge, share } if mosaic_is_huge(offset >> huge.shift(), share) => huge,
            Self::Mosaic { .. } => PageSize::Small4k,
        }
    }

    /// Like [`Self::at`], with the share converted to a threshold: the (larger) page size, and the
    /// bits of a chunk with the threshold.
    pub(crate) fn with_threshold(self) -> (PageSize, Option<(u32, u64)>) {
        match self {
            Self::Uniform(size) => (size, None),
            Self::Mosaic { huge, share } => (huge, Some((huge.shift(), threshold(share)))),
        }
    }

    fn largest(self) -> PageSize {
        match self {
            Self::Uniform(size) | Self::Mosaic { huge: size, .. } => size,
        }
    }
}

impl Configuration {
    /// The region on pages of one size, all other memory on 4 KiB.
    #[must_use]
    pub fn paged(machine: &Mmu, size: PageSize) -> Self {
        Self {
            name: size.to_string(),
            machine: machine.clone(),
            scheme: Scheme::Paged,
            region_pages: RegionPages::Uniform(size),
            other_pages: PageSize::Small4k,
            nested: None,
        }
    }

    /// A direct segment over the region, all other memory on 4 KiB.
    #[must_use]
    pub fn direct_segment(machine: &Mmu) -> Self {
        let paged = Self::paged(machine, PageSize::Small4k);
        Self { name: "direct segment".to_owned(), scheme: Scheme::DirectSegment, ..paged }
    }

    /// Range TLBs, with paging on 4 KiB.
    #[must_use]
    pub fn range_tlb(machine: &Mmu, entries: u32) -> Self {
        let paged = Self::paged(machine, PageSize::Small4k);
        Self { name: format!("{entries} ranges"), scheme: Scheme::RangeTlb { entries }, ..paged }
    }

    /// No translation.
    #[must_use]
    pub fn no_translation(machine: &Mmu) -> Self {
        let paged = Self::paged(machine, PageSize::Small4k);
        Self { name: "no translation".to_owned(), scheme: Scheme::NoTranslation, ..paged }
    }

    /// Pages of 2 MiB in a share of the region, 4 KiB in the rest.
    #[must_use]
    pub fn mosaic(machine: &Mmu, share: f64) -> Self {
        let paged = Self::paged(machine, PageSize::Small4k);
        let region_pages = RegionPages::Mosaic { huge: PageSize::Large2m, share };
        Self { name: format!("{:.0} % on 2M", share * 100.0), region_pages, ..paged }
    }

    /// The same configuration under virtualization, on a host with pages of `host`.
    #[must_use]
    pub fn on_host(self, host: PageSize) -> Self {
        Self { name: format!("{} on a host with {host}", self.name), nested: Some(host), ..self }
    }

    /// Checks that the configuration can be simulated.
    ///
    /// # Errors
    /// [`Error::Mmu`] for a flaw of the MMU, [`Error::Configuration`] for others.
    pub fn check(&self) -> Result<()> {
        self.machine.check()?;
        let refuse = |problem: String, remedy: &str| {
            Err(Error::Configuration { configuration: self.name.clone(), problem, remedy: remedy.to_owned() })
        };
        for size in [self.region_pages.largest(), self.other_pages] {
            let size = self.nested.map_or(size, |host| size.min(host));
            if !self.machine.has_pages(size) {
                let problem = format!("{} has no TLB for pages of {size}", self.machine.name);
                return refuse(problem, "use smaller pages or another MMU");
            }
        }
        if let RegionPages::Mosaic { huge, share } = self.region_pages {
            if !(0.0..=1.0).contains(&share) {
                return refuse(format!("the share is {share}"), "use 0 to 1");
            }
            if huge == PageSize::Small4k {
                return refuse("the larger pages of the mosaic are 4K".to_owned(), "use 2M or 1G");
            }
        }
        if let Scheme::RangeTlb { entries } = self.scheme
            && !(1..=crate::lru::LruTable::MAX_FULL).contains(&entries)
        {
            let remedy = format!("use 1 to {}", crate::lru::LruTable::MAX_FULL);
            return refuse(format!("there are {entries} range TLB entries"), &remedy);
        }
        Ok(())
    }
}
