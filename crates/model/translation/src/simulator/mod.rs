//! Runs accesses through configurations and counts what translating them takes.
//!
//! Configurations outside, accesses inside: while one configuration works through a batch its tables stay in the
//! processor's first caches. Batches of a few thousand accesses are best; what comes out does not depend on their size.

mod counts;
mod ranges;
mod translator;
mod walk;

use crate::access::Access;
use crate::configuration::Configuration;
use crate::error::Result;
use translator::{Tally, Translator};

pub use counts::{Counts, Side};

/// Several configurations that see the same accesses, on one core each.
#[derive(Debug, Clone)]
pub struct Simulator {
    cores: Vec<Translator>,
    counts: Vec<Counts>,
    watched: Option<usize>,
    walked: Vec<u32>,
}

impl Simulator {
    /// Cores with empty TLBs, one for each configuration.
    ///
    /// # Errors
    /// What [`Configuration::check`] finds.
    pub fn new(configurations: &[Configuration]) -> Result<Self> {
        configurations.iter().try_for_each(Configuration::check)?;
        let cores: Vec<Translator> = configurations.iter().map(Translator::new).collect();
        Ok(Self { counts: vec![Counts::default(); cores.len()], cores, watched: None, walked: Vec::new() })
    }

    /// Runs and counts a batch.
    pub fn run(&mut self, batch: &[Access]) {
        self.walked.clear();
        let tally = Tally::of(batch);
        for (number, core) in self.cores.iter_mut().enumerate() {
            let walked = (self.watched == Some(number)).then_some(&mut self.walked);
            core.run(batch, &tally, walked);
            self.counts[number] = core.counts();
        }
    }

    /// Runs a batch that only brings the TLBs into the state that they would have: nothing is counted.
    pub fn warm(&mut self, batch: &[Access]) {
        self.walked.clear();
        let tally = Tally::of(batch);
        for (core, counts) in self.cores.iter_mut().zip(&self.counts) {
            core.run(batch, &tally, None);
            core.set_counts(*counts);
        }
    }

    /// Counts `times` accesses that a filter left out, as each was to the same page as the access before it on its
    /// side: hits of the first rank. `like` is one of them, or any other in the same state of region and fetch.
    pub fn skipped(&mut self, like: Access, times: u64) {
        let tally = Tally::times(like, times);
        for (core, counts) in self.cores.iter_mut().zip(&mut self.counts) {
            core.count(&tally);
            *counts = core.counts();
        }
    }

    /// What was counted, configuration by configuration.
    #[must_use]
    pub fn counts(&self) -> &[Counts] {
        &self.counts
    }

    /// Forgets all translations, as when another program had the core. Counts stay.
    pub fn flush(&mut self) {
        self.cores.iter_mut().for_each(Translator::flush);
    }

    /// From now on [`Self::walked`] is about the configuration with this number; `None` stops that.
    pub fn watch(&mut self, configuration: Option<usize>) {
        self.watched = configuration;
        self.walked.clear();
    }

    /// Places in the last batch of [`Self::run`] of the accesses that walked in the watched configuration, in order.
    /// Batches longer than 2^32 are not for this.
    #[must_use]
    pub fn walked(&self) -> &[u32] {
        &self.walked
    }

    /// Tells range TLBs where the region's contiguous pieces begin ([`crate::PrimaryRegion::range_starts`]); until
    /// told, the region is one. What they held is forgotten.
    pub fn set_ranges(&mut self, starts: &[u64]) {
        for core in &mut self.cores {
            core.set_ranges(starts);
        }
    }
}
