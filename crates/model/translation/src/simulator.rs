//! Runs accesses through configurations and counts the work of translation.
//!
//! | file | what it decides or does |
//! |---|---|
//! | `counts` | what is counted |
//! | `translator` | one configuration: TLB hits and misses, the loop over a batch |
//! | `walk` | which page-table entries a walk reads, also nested |
//! | `range_tlb` | TLBs whose entries translate a range |
//!
//! The outer loop is over configurations: the tables of one configuration stay in the processor's
//! first-level cache for a batch. Batches of a few thousand accesses are fastest; the result does
//! not depend on their size.

mod counts;
mod range_tlb;
mod translator;
mod walk;

use crate::access::PlacedAccess;
use crate::configuration::Configuration;
use crate::error::Result;
use translator::{BatchTotals, Translator};

pub use counts::{Counts, SideCounts};

/// Several configurations that translate the same accesses, each on a core of its own.
#[derive(Debug, Clone)]
pub struct Simulator {
    cores: Vec<Translator>,
    counts: Vec<Counts>,
    recorded: Option<usize>,
    walk_indices: Vec<u32>,
}

impl Simulator {
    /// Creates cores with empty TLBs, one for each configuration.
    ///
    /// # Errors
    /// Those of [`Configuration::check`].
    pub fn new(configurations: &[Configuration]) -> Result<Self> {
        configurations.iter().try_for_each(Configuration::check)?;
        let cores: Vec<Translator> = configurations.iter().map(Translator::new).collect();
        Ok(Self { counts: vec![Counts::default(); cores.len()], cores, recorded: None, walk_indices: Vec::new() })
    }

    /// Runs and counts a batch.
    pub fn run(&mut self, batch: &[PlacedAccess]) {
        self.walk_indices.clear();
        let tally = BatchTotals::of(batch);
        for (number, core) in self.cores.iter_mut().enumerate() {
            let walk_indices = (self.recorded == Some(number)).then_some(&mut self.walk_indices);
            core.run(batch, &tally, walk_indices);
            self.counts[number] = core.counts();
        }
    }

    /// Runs a batch without counting it, to warm up the TLBs.
    pub fn warm(&mut self, batch: &[PlacedAccess]) {
        self.walk_indices.clear();
        let tally = BatchTotals::of(batch);
        for (core, counts) in self.cores.iter_mut().zip(&self.counts) {
            core.run(batch, &tally, None);
            core.set_counts(*counts);
        }
    }

    /// Counts `times` accesses that a trace filter omitted, each to the same page as the access
    /// before it on its side: hits of the first level. `like` is one of them, or one with the same
    /// region and fetch flags.
    pub fn count_skipped(&mut self, like: PlacedAccess, times: u64) {
        let tally = BatchTotals::times(like, times);
        for (core, counts) in self.cores.iter_mut().zip(&mut self.counts) {
            core.count(&tally);
            *counts = core.counts();
        }
    }

    /// The counts, by configuration.
    #[must_use]
    pub fn counts(&self) -> &[Counts] {
        &self.counts
    }

    /// Clears all translations, as if another program had used the core. Counts stay.
    pub fn flush(&mut self) {
        self.cores.iter_mut().for_each(Translator::flush);
    }

    /// Makes [`Self::walk_indices`] report the configuration with this number; `None` stops it.
    pub fn record_walks(&mut self, configuration: Option<usize>) {
        self.recorded = configuration;
        self.walk_indices.clear();
    }

    /// Indices in the last batch of [`Self::run`] of the accesses that walked in the recorded
    /// configuration, in order. Batches have at most 2^32 accesses.
    #[must_use]
    pub fn walk_indices(&self) -> &[u32] {
        &self.walk_indices
    }

    /// Sets the starts of the ranges for range TLBs ([`crate::PrimaryRegion::range_starts`]) and
    /// clears these TLBs. Initially the region is one range.
    pub fn set_ranges(&mut self, starts: &[u64]) {
        for core in &mut self.cores {
            core.set_ranges(starts);
        }
    }
}
