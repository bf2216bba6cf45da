//! Which pages a process's memory *really* lies on, and how contiguous they are: `/proc/PID/pagemap` and `/proc/kpageflags`.
//!
//! ```text
//!   virtual     |p p p p p p p p|p|p|. . .|     pagemap: a frame number for each present page
//!   frames       8 9 . . . . . 15 3 77          kpageflags: head, tail, hugetlb for each frame
//!   folios      [---- 32 KiB ----][4][4]        a head and the tails after it are one folio
//!   runs        [----- 8 pages --][1][1]        neighbours in both address spaces
//! ```
//!
//! A folio is the block that the kernel allocated: 4 KiB, a multi-size folio of 8 KiB to 1 MiB, a transparent huge page, a
//! hugetlb page. Sizes are exact, for heads and tails are read off the frames, not guessed from alignment.
//!
//! Source: the kernel's admin-guide/mm/pagemap. Traps:
//! - Frame numbers are shown only with CAP_SYS_ADMIN and flags only to root; anybody else gets [`Placement::Hidden`] and falls
//!   back to what [`crate::smaps`] says.
//! - A folio's size is not yet how it is *mapped*: after a partial mprotect or munmap a 2 MiB folio is mapped by 4 KiB entries.
//!   `anon_huge_bytes` of smaps counts the entries; the lower of the two is what the TLB sees.
//! - It is no snapshot. A page that moves between the two reads may be counted by its neighbour's size.
//!
//! Cost: pagemap is read in bulk, frame flags in bulk where folios are small and by a few probes where they are large; 2 GiB take
//! a hundredth of a second in huge pages and a tenth in small ones. Holes cost 8 bytes a page to read, so callers pass the
//! mappings that have something resident, not an address space.

mod folios;
mod runs;
mod spans;
mod walk;

use std::ops::Range;

use serde::Serialize;

pub use runs::Runs;
pub use spans::{Span, spans};

use crate::Result;

/// What could be learnt about the frames under a range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Placement {
    /// Everything.
    Exact(Frames),
    /// Nothing: this user may not see frame numbers.
    Hidden,
}

impl Placement {
    /// The frames, where they can be seen.
    #[must_use]
    pub const fn exact(&self) -> Option<&Frames> {
        match self {
            Self::Exact(frames) => Some(frames),
            Self::Hidden => None,
        }
    }
}

/// The frames under some address ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Frames {
    /// In memory.
    pub present_bytes: u64,
    /// Swapped out.
    pub swapped_bytes: u64,
    /// Of `present_bytes`, mapped to the kernel's page of zeros: read, never written. In no folio below.
    pub zero_bytes: u64,
    /// The rest of `present_bytes` by the folio it lies in, smallest first.
    pub folios: Vec<FolioBytes>,
    /// Physical contiguity of all that is present.
    pub runs: Runs,
}

impl Frames {
    /// Bytes that lie in folios of exactly this size, of the hugetlb pool or not.
    #[must_use]
    pub fn bytes_in(&self, folio_bytes: u64, hugetlb: bool) -> u64 {
        let of_kind = |folio: &&FolioBytes| folio.folio_bytes == folio_bytes && folio.hugetlb == hugetlb;
        self.folios.iter().filter(of_kind).map(|folio| folio.bytes).sum()
    }
}

/// How much lies in folios of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FolioBytes {
    /// The folio's size.
    pub folio_bytes: u64,
    /// Whether the folios are of the hugetlb pool.
    pub hugetlb: bool,
    /// The bytes of the range in such folios; a folio that reaches out of the range counts with its part.
    pub bytes: u64,
}

/// Reads where the ranges of a process's memory lie. Ranges are widened to whole pages.
///
/// # Errors
/// [`crate::Error::NoSuchProcess`] when it has ended, [`crate::Error::ProcessDenied`] when it is another user's,
/// [`crate::Error::File`] where the kernel has no such tables. Hidden frame numbers are no error.
pub fn read(pid: u32, ranges: &[Range<u64>]) -> Result<Placement> {
    walk::read(pid, ranges)
}

/// The folio that each of these addresses of a process lies in, counted with the one page there; `None` for what is not in memory, or
/// is the kernel's page of zeros. `None` for all where this user may not see frame numbers. A few reads for each address.
///
/// # Errors
/// As [`read`].
pub fn folios_at(pid: u32, addresses: &[u64]) -> Result<Option<Vec<Option<FolioBytes>>>> {
    walk::folios_at(pid, addresses)
}

/// Whether this user sees frame numbers and flags: root, mostly.
#[must_use]
pub fn frames_visible() -> bool {
    let here = 0_u64;
    let address = std::ptr::from_ref(&here).addr() as u64;
    let around = address..address + 1;
    matches!(read(std::process::id(), &[around]), Ok(Placement::Exact(_)))
}
