//! The physical placement of a process's memory, and its contiguity: `/proc/PID/pagemap` and
//! `/proc/kpageflags`.
//!
//! ```text
//!   virtual     |p p p p p p p p|p|p|. . .|     pagemap: a frame number for each present page
//!   frames       8 9 . . . . . 15 3 77          kpageflags: head, tail, hugetlb for each frame
//!   folios      [---- 32 KiB ----][4][4]        a head and the tails after it are one folio
//!   runs        [----- 8 pages --][1][1]        contiguous in both address spaces
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `walk` | bulk reads of the two tables |
//! | `folios` | the size of the folio of each frame |
//! | `runs` | contiguous pages |
//! | `present` | which part of a range is in memory |
//!
//! A folio is the block that the kernel allocated: 4 KiB, a multi-size folio of 8 KiB to 1 MiB, a
//! transparent huge page, a hugetlb page. Sizes are exact: heads and tails come from frame flags,
//! not from alignment.
//!
//! Source: the kernel's admin-guide/mm/pagemap. Limits:
//! - Frame numbers need CAP_SYS_ADMIN, and flags need root. Other users get [`Placement::Hidden`]
//!   and must use [`crate::smaps`].
//! - A folio's size is not the size of its *mapping*: after a partial mprotect or munmap, 4 KiB
//!   entries map a 2 MiB folio. `anon_huge_bytes` of smaps counts the entries; the smaller of the
//!   two applies to the TLB.
//! - It is no snapshot. A page that moves between the two reads may be counted with its neighbour's
//!   size.
//!
//! Cost: pagemap is read in bulk. Frame flags are read in bulk for small folios and by a few probes
//! for large ones. 2 GiB take about 10 ms on huge pages and 100 ms on small ones. Holes cost 8
//! bytes per page, so callers should pass mappings with resident memory, not an address space.

mod folios;
mod present;
mod runs;
mod walk;

use std::ops::Range;

use serde::Serialize;

pub use present::{PresentRange, populated_ranges, present_ranges};
pub use runs::Runs;

use crate::Result;

/// The result for some address ranges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Placement {
    /// The frames are known.
    Exact(FrameStats),
    /// This user may not read frame numbers.
    Hidden,
}

impl Placement {
    /// The frames, if they are visible.
    #[must_use]
    pub const fn exact(&self) -> Option<&FrameStats> {
        match self {
            Self::Exact(frames) => Some(frames),
            Self::Hidden => None,
        }
    }
}

/// Frames of some address ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FrameStats {
    /// Bytes in memory.
    pub present_bytes: u64,
    /// Bytes swapped out.
    pub swapped_bytes: u64,
    /// Of `present_bytes`, mapped to the kernel's zero page: read, never written. Not part of
    /// `folios`.
    pub zero_bytes: u64,
    /// The rest of `present_bytes` by folio size, smallest first.
    pub folios: Vec<FolioBytes>,
    /// Physical contiguity of all present pages.
    pub runs: Runs,
}

impl FrameStats {
    /// Bytes in folios of exactly this size, of the hugetlb pool or not.
    #[must_use]
    pub fn bytes_in(&self, folio_bytes: u64, hugetlb: bool) -> u64 {
        let of_kind = |folio: &&FolioBytes| folio.folio_bytes == folio_bytes && folio.hugetlb == hugetlb;
        self.folios.iter().filter(of_kind).map(|folio| folio.bytes).sum()
    }
}

/// Bytes in folios of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FolioBytes {
    /// Folio size in bytes.
    pub folio_bytes: u64,
    /// Whether the folios belong to the hugetlb pool.
    pub hugetlb: bool,
    /// Bytes of the range in such folios; a folio that crosses the range's end counts partly.
    pub bytes: u64,
}

/// Reads the placement of ranges of a process's memory. Ranges are widened to whole pages.
///
/// # Errors
/// [`crate::Error::NoSuchProcess`] when it has ended, [`crate::Error::ProcessDenied`] for another
/// user's process, [`crate::Error::File`] without such tables. Hidden frame numbers are no error.
pub fn read(pid: u32, ranges: &[Range<u64>]) -> Result<Placement> {
    walk::read(pid, ranges)
}

/// The folio of each address of a process, with `bytes` counting the one page; `None` for a page
/// that is not in memory or is the kernel's zero page. `None` for all if this user may not read
/// frame numbers. Costs a few reads per address.
///
/// # Errors
/// As [`read`].
pub fn folios_at(pid: u32, addresses: &[u64]) -> Result<Option<Vec<Option<FolioBytes>>>> {
    walk::folios_at(pid, addresses)
}

/// Whether this user can read frame numbers and flags, which usually needs root.
#[must_use]
pub fn frames_visible() -> bool {
    let here = 0_u64;
    let address = std::ptr::from_ref(&here).addr() as u64;
    let around = address..address + 1;
    matches!(read(std::process::id(), &[around]), Ok(Placement::Exact(_)))
}
