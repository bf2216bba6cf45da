//! What is simulated: a machine, what stands beside its paging, and which memory has which pages.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::mosaic::{mosaic_is_huge, threshold};
use crate::page::PageSize;

/// One way to run the program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// What it is called in reports.
    pub name: String,
    /// The hardware.
    pub machine: Machine,
    /// What translates the primary region.
    pub scheme: Scheme,
    /// Pages of the primary region, where it has any.
    pub region_pages: Pages,
    /// Pages of everything else.
    pub other_pages: PageSize,
    /// Under virtualization: the host's page size.
    pub nested: Option<PageSize>,
}

/// What translates the primary region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scheme {
    /// TLBs and page tables, as everything else.
    Paged,
    /// A direct segment over all of it (Basu et al.).
    DirectSegment,
    /// Paging, and beside the second rank range TLBs, each entry of which translates a contiguous piece of any length
    /// (Karakostas et al.). The pieces are told by [`crate::Simulator::set_ranges`].
    RangeTlb {
        /// Entries, fully associative.
        entries: u32,
    },
    /// Nothing is translated, in the region or outside: memory is physical (Zagieboylo et al.).
    NoTranslation,
}

/// Pages of the primary region.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Pages {
    /// All of one size.
    Uniform(PageSize),
    /// Pages of 4 KiB, and larger ones in a share of the memory that [`mosaic_is_huge`] picks.
    Mosaic {
        /// The larger size. Chunks have this size too.
        huge: PageSize,
        /// The share that has them, 0 to 1.
        share: f64,
    },
}

impl Pages {
    /// The page size at `offset` in the region.
    #[must_use]
    pub fn at(self, offset: u64) -> PageSize {
        match self {
            Self::Uniform(size) => size,
            Self::Mosaic { huge, share } if mosaic_is_huge(offset >> huge.shift(), share) => huge,
            Self::Mosaic { .. } => PageSize::Small4k,
        }
    }

    /// As [`Self::at`], with the share turned into a whole number once.
    pub(crate) fn compiled(self) -> (PageSize, Option<(u32, u64)>) {
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
    /// The region on pages of one size, everything else on 4 KiB.
    #[must_use]
    pub fn paged(machine: &Machine, size: PageSize) -> Self {
        Self {
            name: size.to_string(),
            machine: machine.clone(),
            scheme: Scheme::Paged,
            region_pages: Pages::Uniform(size),
            other_pages: PageSize::Small4k,
            nested: None,
        }
    }

    /// A direct segment over the region, everything else on 4 KiB.
    #[must_use]
    pub fn direct_segment(machine: &Machine) -> Self {
        let paged = Self::paged(machine, PageSize::Small4k);
        Self { name: "direct segment".to_owned(), scheme: Scheme::DirectSegment, ..paged }
    }

    /// Range TLBs beside paging on 4 KiB.
    #[must_use]
    pub fn range_tlb(machine: &Machine, entries: u32) -> Self {
        let paged = Self::paged(machine, PageSize::Small4k);
        Self { name: format!("{entries} ranges"), scheme: Scheme::RangeTlb { entries }, ..paged }
    }

    /// No translation at all.
    #[must_use]
    pub fn no_translation(machine: &Machine) -> Self {
        let paged = Self::paged(machine, PageSize::Small4k);
        Self { name: "no translation".to_owned(), scheme: Scheme::NoTranslation, ..paged }
    }

    /// Pages of 2 MiB in a share of the region, 4 KiB in the rest.
    #[must_use]
    pub fn mosaic(machine: &Machine, share: f64) -> Self {
        let paged = Self::paged(machine, PageSize::Small4k);
        let region_pages = Pages::Mosaic { huge: PageSize::Large2m, share };
        Self { name: format!("{:.0} % on 2M", share * 100.0), region_pages, ..paged }
    }

    /// The same under virtualization, the host on pages of `host`.
    #[must_use]
    pub fn on_host(self, host: PageSize) -> Self {
        Self { name: format!("{} on a host with {host}", self.name), nested: Some(host), ..self }
    }

    /// Can it be simulated?
    ///
    /// # Errors
    /// [`Error::Machine`] for what is wrong with the machine, [`Error::Configuration`] for the rest.
    pub fn check(&self) -> Result<()> {
        self.machine.check()?;
        let refuse = |problem: String, remedy: &str| {
            Err(Error::Configuration { configuration: self.name.clone(), problem, remedy: remedy.to_owned() })
        };
        for size in [self.region_pages.largest(), self.other_pages] {
            let size = self.nested.map_or(size, |host| size.min(host));
            if !self.machine.has_pages(size) {
                let problem = format!("{} has no TLB for pages of {size}", self.machine.name);
                return refuse(problem, "take smaller pages or another machine");
            }
        }
        if let Pages::Mosaic { huge, share } = self.region_pages {
            if !(0.0..=1.0).contains(&share) {
                return refuse(format!("a share of {share}"), "give 0 to 1");
            }
            if huge == PageSize::Small4k {
                return refuse("a mosaic of 4K in 4K".to_owned(), "give the larger pages 2M or 1G");
            }
        }
        if let Scheme::RangeTlb { entries } = self.scheme
            && !(1..=crate::lru::Table::MOST_FULL).contains(&entries)
        {
            let remedy = format!("give 1 to {}", crate::lru::Table::MOST_FULL);
            return refuse(format!("{entries} range TLB entries"), &remedy);
        }
        Ok(())
    }
}
