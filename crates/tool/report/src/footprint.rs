//! The memory of one watched run: how it grows over time, with which permissions, whether it is
//! swapped (the characterisation of seed 003_), and in which page sizes the kernel gave it.
//!
//! Sources: `/proc/PID/smaps` summed over all mappings (`Rss`, `Swap`, `AnonHugePages`,
//! `Private_Hugetlb`, ...) and the permission field of each mapping. Resident memory includes
//! hugetlb pages, which the kernel's `Rss` leaves out.

use crate::run::{PageShare, RegionStats};
use serde::{Deserialize, Serialize};

/// The watched, unmeasured run of one page kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Footprint {
    /// Page kind that it ran on.
    pub kind: String,
    /// Memory over time, in order of time.
    #[serde(default)]
    pub points: Vec<FootprintPoint>,
    /// Memory by permission, when most of it was mapped.
    #[serde(default)]
    pub permissions: Vec<PermissionShare>,
    /// What the primary process' region counted, where there was one.
    #[serde(default)]
    pub region: Option<RegionStats>,
}

impl Footprint {
    /// The point with the most resident memory.
    pub fn peak(&self) -> Option<&FootprintPoint> {
        self.points.iter().max_by_key(|point| point.resident_bytes)
    }

    /// Largest amount of memory that was swapped out at any time.
    pub fn swap_peak_bytes(&self) -> u64 {
        self.points.iter().map(|point| point.swap_bytes).max().unwrap_or(0)
    }

    /// Whether more than a tenth of the region's resident memory is on other pages than requested
    /// because the hugetlb pool had too few. The times of such a program are not those of the kind.
    pub fn lacks_pool_pages(&self) -> bool {
        let Some(region) = &self.region else { return false };
        let bytes_where = |is_wanted: &dyn Fn(&PageShare) -> bool| {
            let wanted = region.pages.iter().filter(|share| is_wanted(share));
            wanted.fold(0, |all: u64, share| all.saturating_add(share.bytes))
        };
        let on_others = bytes_where(&|share| share.kind != self.kind);
        on_others.min(region.fell_back_bytes) > bytes_where(&|_| true) / 10
    }

    /// Share of mapped memory that is readable, writable and not executable, from 0 to 1; none if
    /// nothing is known.
    pub fn read_write_share(&self) -> Option<f64> {
        let all: f64 = self.permissions.iter().map(|share| share.bytes as f64).sum();
        let read_write = self.permissions.iter().filter(|share| share.permission == "rw-");
        (all > 0.0).then(|| read_write.map(|share| share.bytes as f64).sum::<f64>() / all)
    }
}

/// Memory of the primary process at one moment, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FootprintPoint {
    /// Seconds since the program started.
    pub t_s: f64,
    /// Resident: the sum of the four below.
    pub resident_bytes: u64,
    /// Swapped out.
    pub swap_bytes: u64,
    /// In base pages (4 KiB).
    pub small_bytes: u64,
    /// In folios larger than a base page and smaller than 2 MiB, where they can be distinguished.
    pub folio_bytes: u64,
    /// In 2 MiB pages, transparent or hugetlb.
    pub huge_2m_bytes: u64,
    /// In 1 GiB pages.
    pub huge_1g_bytes: u64,
}

/// Memory with one set of permissions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionShare {
    /// `rw-`, `r--`, `r-x`, `---`, ...
    pub permission: String,
    /// Mapped (virtual).
    pub bytes: u64,
    /// Resident.
    #[serde(default)]
    pub resident_bytes: u64,
}
