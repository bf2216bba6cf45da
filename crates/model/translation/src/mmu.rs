//! The MMU of one core: TLB levels, walk caches, walkers.
//!
//! ```text
//!   load, store ─→ data[0]        ─ miss ─→ data[1]   ─ miss ─→ walk caches ─→ page table
//!   fetch ───────→ instruction[0] ─ miss ─────┘ (shared_last), or instruction[1]
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `check` | which descriptions of an MMU are refused |
//! | `cpu` | the preset of a processor |
//! | `presets` | the list of presets, which are TOML files |
//!
//! A level has one or more arrays, each for other page sizes, which are looked up together. Intel's
//! first levels have one array per size, AMD's and Arm's one for all. A page size without an array
//! in a level misses there.
//!
//! An MMU is described in TOML (`--tlb FILE`); the presets are such files:
//!
//! ```toml
//! name = "small"
//! source = "made up"
//! walkers = 1                       # these two are optional, see below
//! l2_hit_cycles = 7
//! shared_last = true                # instruction fetches use the last level of `data` after their own
//! data = [
//!     { arrays = [{ name = "L1", entries = 64, ways = 4, pages = ["4K"] },
//!                 { name = "L1 large", entries = 32, pages = ["2M", "1G"] }] },   # no ways: fully associative
//!     { arrays = [{ name = "L2", entries = 1536, ways = 12, pages = ["4K", "2M"], pieces = ["1G"] }] },
//! ]
//! instruction = [{ arrays = [{ name = "I", entries = 64, pages = ["4K", "2M", "1G"] }] }]
//! walk_caches = { pml4e = 4, pdpte = 4, pde = 32, pte_lines = 512, nested = 64 }
//! ```
//!
//! `walkers` and `l2_hit_cycles` are informational: the costs of a walk and of a second-level hit
//! are measured. A direct-mapped TLB (`ways = 1`, or one entry) is refused: a trace omits accesses
//! that hit with two ways.

mod check;
mod cpu;
mod presets;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::page::PageSize;

pub use cpu::TlbDescription;

/// The most TLB levels, which are counted separately.
pub const TLB_LEVELS: usize = 3;

/// A core's MMU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mmu {
    /// The name, also on the command line.
    pub name: String,
    /// The source of the numbers; `recalled` marks numbers without a document.
    pub source: String,
    /// Concurrent page walks; 0 or absent: unknown. Informational.
    #[serde(default)]
    pub walkers: u32,
    /// Cycles of a miss in the first level that hits the second; 0 or absent: unknown.
    /// Informational.
    #[serde(default)]
    pub l2_hit_cycles: u32,
    /// Whether instruction fetches use the last level of `data` after their own levels. It is then
    /// not the first.
    #[serde(default)]
    pub shared_last: bool,
    /// TLB levels of loads and stores, the nearest first.
    pub data: Vec<TlbLevel>,
    /// TLB levels of instruction fetches, without the shared one.
    pub instruction: Vec<TlbLevel>,
    /// Caches that shorten walks.
    pub walk_caches: WalkCaches,
}

/// A TLB level: arrays that are looked up together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlbLevel {
    /// The arrays; at most one for each page size.
    pub arrays: Vec<TlbArray>,
}

/// One TLB array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlbArray {
    /// The manufacturer's name.
    pub name: String,
    /// Translations that it holds.
    pub entries: u32,
    /// Translations per set; 0 or absent: fully associative.
    #[serde(default)]
    pub ways: u32,
    /// Page sizes that it holds.
    pub pages: Vec<PageSize>,
    /// Page sizes that it holds split into pages of the largest of `pages`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<PageSize>,
}

/// Caches of paging structures. 0 entries: no such cache. All are fully associative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WalkCaches {
    /// Entries that save reading the first table (512 GiB each).
    pub pml4e: u32,
    /// Entries that save reading the first two tables (1 GiB each).
    pub pdpte: u32,
    /// Entries that save reading the first three tables (2 MiB each).
    pub pde: u32,
    /// Cache lines of eight last-level entries near the core: a walk that finds its line there is
    /// cheap. Not a structure of the walker, but an assumption about the space that the program's
    /// data leaves in the caches.
    pub pte_lines: u32,
    /// Translations of guest physical pages, used by nested walks under virtualization.
    #[serde(default)]
    pub nested: u32,
}

impl TlbArray {
    /// Translations per set.
    #[must_use]
    pub fn set_ways(&self) -> u32 {
        if self.ways == 0 { self.entries } else { self.ways }
    }

    /// The page size under which the array holds a page of `size`; `None` if it does not.
    #[must_use]
    pub fn holds(&self, size: PageSize) -> Option<PageSize> {
        if self.pages.contains(&size) {
            Some(size)
        } else if self.pieces.contains(&size) {
            self.pages.iter().copied().max()
        } else {
            None
        }
    }
}

impl Mmu {
    /// The preset of this name.
    #[must_use]
    pub fn preset(name: &str) -> Option<Self> {
        Self::presets().into_iter().find(|machine| machine.name == name)
    }

    /// All presets, oldest processor first.
    #[must_use]
    pub fn presets() -> Vec<Self> {
        presets::all()
    }

    /// The text of a preset, as a template for other descriptions.
    #[must_use]
    pub fn preset_text(name: &str) -> Option<&'static str> {
        presets::text(name)
    }

    /// Parses a description.
    ///
    /// # Errors
    /// [`Error::Text`] with the line, or [`Error::Mmu`] with the field and the remedy.
    pub fn from_toml(text: &str) -> Result<Self> {
        let machine: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = text[..at.min(text.len())].matches('\n').count() + 1;
            Error::Text { line, problem: error.message().trim().replace('\n', ", ") }
        })?;
        machine.check()?;
        Ok(machine)
    }

    /// Whether the first data level supports pages of this size.
    #[must_use]
    pub fn has_pages(&self, size: PageSize) -> bool {
        self.data.first().is_some_and(|level| level.arrays.iter().any(|array| array.holds(size).is_some()))
    }

    /// The TLB levels of a fetch, including the shared one.
    #[must_use]
    pub fn instruction_levels(&self) -> Vec<&TlbLevel> {
        let shared = self.data.last().filter(|_| self.shared_last);
        self.instruction.iter().chain(shared).collect()
    }

    /// The TLB reach in bytes: of the largest data level, with pages of `size` in all entries.
    #[must_use]
    pub fn reach_bytes(&self, size: PageSize) -> u64 {
        let of_level = |level: &TlbLevel| -> u64 {
            let bytes = |array: &TlbArray| array.holds(size).map_or(0, |held| u64::from(array.entries) * held.bytes());
            level.arrays.iter().map(bytes).sum()
        };
        self.data.iter().map(of_level).max().unwrap_or(0)
    }
}
