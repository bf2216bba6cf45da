//! What address translation costs: models of the hardware, fed with the accesses of a program.
//!
//! A trace says which addresses a program touched. [`PrimaryRegion`] places them: the program's private anonymous
//! memory in one contiguous region, as `fieldstone run --region` would, the rest where it lies. [`Simulator`] runs the
//! placed accesses through as many [`Configuration`]s as are asked for, each a [`Machine`] with a page size, a direct
//! segment, range TLBs or no translation at all. What comes out are [`Counts`]; [`cost`] makes time of them.
//!
//! ```text
//!   trace → region ─ Access ─┬→ simulator ── Counts ──┬→ cost ── Estimate: low, likely, high
//!            (placed)        ├→ reach: misses against  │
//!                            │         TLB entries     └← Calibration, MosaicFit: measured elsewhere
//!                            └→ tree: blocks instead of translation
//! ```
//!
//! | file | |
//! |---|---|
//! | `page`, `access` | page sizes; one access in eight bytes |
//! | `region`, `segment` | where a program's memory lies in the primary region; the registers BASE, LIMIT, OFFSET |
//! | `machine/` | TLBs and walk caches of a processor: checked, read from TOML, presets, corrected by what a processor tells |
//! | `mosaic`, `configuration` | which memory has which pages; what is simulated |
//! | `lru/` | the two replacement structures: short sets, long lists |
//! | `simulator/` | the hot loop; page walks, nested ones too; counts |
//! | `reach` | miss rate against TLB entries, by sampled stack distances |
//! | `tree` | arrays as trees of blocks: walked by software, by a cursor, by hardware |
//! | `cost/` | calibrated costs of a walk, estimates, fits over mosaics |
//!
//! Sources: Basu et al., *Efficient Virtual Memory for Big Memory Servers* (direct segments); Zagieboylo et al., *The
//! Cost of Software-Based Memory Management Without Virtual Memory* (trees, walk caches); Waldspurger et al.,
//! *Efficient MRC Construction with SHARDS*; Karakostas et al., *Redundant Memory Mappings* (ranges); Agbarya et al.,
//! *Mosalloc* (mosaics).
//!
//! What is not modelled: prefetching of translations, entries that join neighbouring pages, hashed set indices,
//! replacement other than least recently used, and other programs on the same core (but see [`Simulator::flush`]).
#![forbid(unsafe_code)]

pub mod access;
pub mod configuration;
pub mod cost;
pub mod error;
mod lru;
pub mod machine;
pub mod mosaic;
pub mod page;
pub mod reach;
pub mod region;
pub mod segment;
pub mod simulator;
pub mod tree;

pub use access::Access;
pub use configuration::{Configuration, Pages, Scheme};
pub use cost::{Calibration, CalibrationPoint, Estimate, MosaicFit, MosaicRun, Pattern, WalkCost};
pub use error::{Error, Result};
pub use machine::{Level, Machine, Rank, Told, WalkCaches};
pub use mosaic::mosaic_is_huge;
pub use page::PageSize;
pub use reach::{Reach, ReachPoint};
pub use region::PrimaryRegion;
pub use segment::DirectSegment;
pub use simulator::{Counts, Side, Simulator};
pub use tree::{TreeCounts, TreeModel, TreeShape};
