//! The translation hardware of one core: TLBs in ranks, walk caches, walkers.
//!
//! ```text
//!   load, store ─→ data[0]        ─ miss ─→ data[1]   ─ miss ─→ walk caches ─→ page table
//!   fetch ───────→ instruction[0] ─ miss ─────┘ (shared_last), or instruction[1]
//! ```
//! A rank is asked as a whole; it may have several arrays, each for other page sizes (Intel's first ranks have one for
//! each size, AMD's and Arm's one for all). A page size that a rank has no array for misses there.
//!
//! A machine is written as TOML (`--tlb FILE`); the presets are such files, so any of them shows how:
//!
//! ```toml
//! name = "small"
//! source = "made up"
//! walkers = 1                       # these two may be left out: see below
//! l2_hit_cycles = 7
//! shared_last = true                # instruction fetches use the last rank of `data` after their own
//! data = [
//!     { arrays = [{ name = "L1", entries = 64, ways = 4, pages = ["4K"] },
//!                 { name = "L1 large", entries = 32, pages = ["2M", "1G"] }] },   # no ways: fully associative
//!     { arrays = [{ name = "L2", entries = 1536, ways = 12, pages = ["4K", "2M"], pieces = ["1G"] }] },
//! ]
//! instruction = [{ arrays = [{ name = "I", entries = 64, pages = ["4K", "2M", "1G"] }] }]
//! walk_caches = { pml4e = 4, pdpte = 4, pde = 32, pte_lines = 512, nested = 64 }
//! ```
//!
//! `walkers` and `l2_hit_cycles` only inform: no count and no time depends on them, as what a walk and a second level's hit cost is
//! measured. A TLB of one way (`ways = 1`, or one entry) is refused: a trace leaves out accesses that two ways cannot miss.

mod check;
mod cpu;
mod presets;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::page::PageSize;

pub use cpu::Told;

/// The most ranks that are counted apart.
pub const RANKS: usize = 3;

/// A core's translation hardware.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// What it is called, on the command line too.
    pub name: String,
    /// Where the numbers come from; says `recalled` of what no document at hand confirmed.
    pub source: String,
    /// Page walks that run at the same time; 0 or absent: not known. It only informs.
    #[serde(default)]
    pub walkers: u32,
    /// What a miss in the first rank and a hit in the second costs; 0 or absent: not known. It only informs.
    #[serde(default)]
    pub l2_hit_cycles: u32,
    /// Do instruction fetches use the last rank of `data` behind their own ranks? It is not the first, then.
    #[serde(default)]
    pub shared_last: bool,
    /// TLBs of loads and stores, the first to be asked first.
    pub data: Vec<Rank>,
    /// TLBs of instruction fetches; without the shared one.
    pub instruction: Vec<Rank>,
    /// What makes walks shorter.
    pub walk_caches: WalkCaches,
}

/// Arrays that are asked at the same time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rank {
    /// At most one array for a page size.
    pub arrays: Vec<Level>,
}

/// One TLB array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// As its maker calls it.
    pub name: String,
    /// Translations that it holds.
    pub entries: u32,
    /// Translations in a set; 0 or absent: all of them, fully associative.
    #[serde(default)]
    pub ways: u32,
    /// Page sizes that it holds.
    pub pages: Vec<PageSize>,
    /// Page sizes that it holds in pieces of the largest of `pages`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pieces: Vec<PageSize>,
}

/// What a walk finds without reading the page table. 0 entries: there is no such cache. All are fully associative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WalkCaches {
    /// Entries that save the read of the first table (512 GiB each).
    pub pml4e: u32,
    /// Entries that save the first two (1 GiB each).
    pub pdpte: u32,
    /// Entries that save the first three (2 MiB each).
    pub pde: u32,
    /// Lines of eight last-table entries that are in the data caches near the core: a walk that finds its line there is
    /// cheap. Not a structure of the walker but a guess at what the program's own data leaves.
    pub pte_lines: u32,
    /// Translations of guest physical pages that a nested walk finds, under virtualization.
    #[serde(default)]
    pub nested: u32,
}

impl Level {
    /// Translations in a set.
    #[must_use]
    pub fn set_ways(&self) -> u32 {
        if self.ways == 0 { self.entries } else { self.ways }
    }

    /// The page size under which a page of `size` is held, if it is.
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

impl Machine {
    /// The preset of that name.
    #[must_use]
    pub fn preset(name: &str) -> Option<Self> {
        Self::presets().into_iter().find(|machine| machine.name == name)
    }

    /// All presets, the oldest processor first.
    #[must_use]
    pub fn presets() -> Vec<Self> {
        presets::all()
    }

    /// The text of a preset, to start a description of one's own from.
    #[must_use]
    pub fn preset_text(name: &str) -> Option<&'static str> {
        presets::text(name)
    }

    /// A machine from its description.
    ///
    /// # Errors
    /// [`Error::Text`] with the line, [`Error::Machine`] with the field, and what would be right.
    pub fn from_toml(text: &str) -> Result<Self> {
        let machine: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = text[..at.min(text.len())].matches('\n').count() + 1;
            Error::Text { line, problem: error.message().trim().replace('\n', ", ") }
        })?;
        machine.check()?;
        Ok(machine)
    }

    /// Can the first data rank translate pages of that size?
    #[must_use]
    pub fn has_pages(&self, size: PageSize) -> bool {
        self.data.first().is_some_and(|rank| rank.arrays.iter().any(|array| array.holds(size).is_some()))
    }

    /// The ranks that a fetch asks, with the shared one.
    #[must_use]
    pub fn instruction_ranks(&self) -> Vec<&Rank> {
        let shared = self.data.last().filter(|_| self.shared_last);
        self.instruction.iter().chain(shared).collect()
    }

    /// Bytes that the data TLBs translate when all entries hold pages of `size`: the largest rank's.
    #[must_use]
    pub fn reach_bytes(&self, size: PageSize) -> u64 {
        let of_rank = |rank: &Rank| -> u64 {
            let bytes = |array: &Level| array.holds(size).map_or(0, |held| u64::from(array.entries) * held.bytes());
            rank.arrays.iter().map(bytes).sum()
        };
        self.data.iter().map(of_rank).max().unwrap_or(0)
    }
}
