//! The cost of address translation: models of TLBs, page walks, direct segments and alternatives,
//! driven by a program's accesses.
//!
//! A trace lists the addresses that a program accesses. [`PrimaryRegion`] places them: the
//! program's private anonymous memory in one contiguous region, as `fieldstone run --region` does,
//! other memory at its own address. [`Simulator`] runs the placed accesses through several
//! [`Configuration`]s: an [`Mmu`] with a page size, a direct segment, range TLBs or no translation.
//! It produces [`Counts`], which [`cost`] converts to time.
//!
//! ```text
//!   trace → region ─ PlacedAccess ─┬→ simulator ── Counts ──┬→ cost ── Interval
//!                                  ├→ miss_ratio: misses    │
//!                                  │      per TLB size      └← Calibration, MosaicFit: from measurements
//!                                  └→ tree: blocks instead of translation
//! ```
//!
//! | file | what it decides or does |
//! |---|---|
//! | `page`, `access` | page sizes; one access in eight bytes |
//! | `region` | the placement of a program's memory in the primary region |
//! | `segment` | the registers BASE, LIMIT and OFFSET of a direct segment |
//! | `mmu/` | TLBs, page-walk caches, presets, the processor of this machine |
//! | `mosaic`, `configuration` | which memory has larger pages; the configurations to simulate |
//! | `lru/` | two LRU structures: short sets, long lists |
//! | `simulator/` | the main loop; page walks, also nested; counts |
//! | `miss_ratio` | miss ratio for each TLB size, from sampled stack distances |
//! | `tree` | arrays as trees: walked by software, cursor or hardware |
//! | `cost/` | calibrated costs of a walk, estimates, fits over mosaics |
//! | `error` | errors, with object, cause and remedy |
//!
//! Sources: Basu et al., *Efficient Virtual Memory for Big Memory Servers* (direct segments);
//! Zagieboylo et al., *The Cost of Software-Based Memory Management Without Virtual Memory* (trees,
//! walk caches); Waldspurger et al., *Efficient MRC Construction with SHARDS*; Karakostas et al.,
//! *Redundant Memory Mappings* (ranges); Agbarya et al., *Mosalloc* (mosaics).
//!
//! Not modelled: prefetching of translations, entries that coalesce adjacent pages, hashed set
//! indices, replacement policies other than LRU, and other programs on the same core (but see
//! [`Simulator::flush`]).
#![forbid(unsafe_code)]

pub mod access;
pub mod configuration;
pub mod cost;
pub mod error;
mod lru;
pub mod miss_ratio;
pub mod mmu;
pub mod mosaic;
pub mod page;
pub mod region;
pub mod segment;
pub mod simulator;
pub mod tree;

pub use access::PlacedAccess;
pub use configuration::{Configuration, RegionPages, Scheme};
pub use cost::{Calibration, CalibrationPattern, CalibrationPoint, MosaicFit, MosaicRun, PageWalkCost};
pub use error::{Error, Result};
pub use miss_ratio::{MissRatioCurve, MissRatioPoint};
pub use mmu::{Mmu, TlbArray, TlbDescription, TlbLevel, WalkCaches};
pub use mosaic::mosaic_is_huge;
pub use page::PageSize;
pub use region::PrimaryRegion;
pub use segment::DirectSegment;
pub use simulator::{Counts, SideCounts, Simulator};
pub use tree::{TreeCounts, TreeModel, TreeShape};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
