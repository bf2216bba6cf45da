//! Lines that are not private: the recent samples whose laps access them, and an upper bound of
//! their cost.

use std::collections::VecDeque;

use fieldstone_rewrite::Registers;
use fieldstone_sharing::LineCost;
use fieldstone_sys::sampling::Sample;

use super::LineDetector;
use crate::sampled_code::walk_registers;
use crate::tuning::{MAX_LINE_SAMPLES, MIN_COST_SAMPLES};

/// The samples of one line since the line is tracked.
#[derive(Debug)]
pub(super) struct TrackedLine {
    /// The most recent samples whose laps accessed the line, with their threads. At most
    /// [`MAX_LINE_SAMPLES`].
    recent: VecDeque<(u32, Registers)>,
    /// Samples whose laps accessed the line.
    laps: u64,
    /// [`LineDetector::weighed_samples`] when tracking began.
    samples_before: u64,
}

impl LineDetector {
    /// Counts a lap for each tracked line of `lines`.
    pub(super) fn record_laps(&mut self, sample: &Sample, lines: &[u64]) {
        for line in lines {
            if let Some(tracked) = self.tracked.get_mut(line) {
                tracked.laps += 1;
                tracked.recent.truncate(MAX_LINE_SAMPLES - 1);
                tracked.recent.push_front((sample.tid, walk_registers(&sample.registers)));
            }
        }
    }

    /// Starts to track the line at this address.
    pub(super) fn track(&mut self, line: u64) {
        let samples_before = self.weighed_samples();
        self.tracked.entry(line).or_insert_with(|| TrackedLine { recent: VecDeque::new(), laps: 0, samples_before });
    }

    /// Upper bound of the cost of a tracked line: the share of the time that threads spent in loops
    /// that access it. `None` for a line that is not tracked, and below [`MIN_COST_SAMPLES`]
    /// samples.
    #[must_use]
    pub(crate) fn max_cost(&self, line: u64) -> Option<LineCost> {
        let tracked = self.tracked.get(&line)?;
        let all = self.weighed_samples() - tracked.samples_before;
        LineCost::new(tracked.laps as f64, all as f64).filter(|_| all >= MIN_COST_SAMPLES)
    }

    /// Number of samples that count as time in a cost: the analysed and the single-threaded ones.
    const fn weighed_samples(&self) -> u64 {
        self.stats.analysed + self.stats.single_threaded
    }

    /// Recent samples of a tracked line: the thread, and its registers in the loop around the
    /// access.
    pub(crate) fn samples_of(&self, line: u64) -> impl Iterator<Item = &(u32, Registers)> {
        self.tracked.get(&line).into_iter().flat_map(|tracked| &tracked.recent)
    }
}
