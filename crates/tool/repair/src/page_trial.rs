//! A moved page: the cost of redirecting its accesses, and the progress of its threads compared
//! with the baseline before the move.
//!
//! ```text
//!   moved ─┬─ single redirects exceed the allowance ──→ restored, at any time
//!          └─ laps of the loops that access its lines, with the repair : before it
//!               the lower bound is a gain ────────────→ stays
//!               the upper bound is no gain ───────────→ restored; compared again without repair
//!               unknown ─┬─ only clones of loops ─────→ stays: a clone adds nothing to a lap
//!                        └─ a clone of a stretch ─────→ restored: entered at each access, it can
//!                                                       cost more than the line
//! ```
//! Laps are counted by the loops' own counters (`fieldstone_sharing::progress`). The same threads
//! and counters are compared.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_remap::Route;
use fieldstone_sharing::{Allowance, LoopProgress, PaceComparison, PaceSeries, PagePlan, TrialOutcome, trial};

use crate::tuning::{
    BLAMED_REDIRECTS, COLD_CLONE_NS, COMPARE_AFTER_NS, FAULT_NS, LOOP_TRIAL_NS, RECHECK_AFTER_NS, REPAIR_SLOWDOWN,
    SETTLING_NS, SINGLE_REDIRECT_PART, STRETCH_TRIAL_NS, TRIAL_BURST_NS, UNKNOWN_LOSS,
};

/// A moved page and its trial.
#[derive(Debug)]
pub(crate) struct PageTrial {
    pub(crate) plan: PagePlan,
    /// The share of the threads' time that the heaviest line took before the move, 0 to 1.
    pub(crate) share: f64,
    /// Time of the move.
    moved_ns: u64,
    /// Time of the last clone.
    clone_ns: u64,
    /// Time of the last redirect.
    redirect_ns: u64,
    /// Number and cost in nanoseconds of single redirects, by instruction, since the instruction's
    /// last clone.
    single_redirects: BTreeMap<u64, (u32, f64)>,
    /// Instructions with a clone that is entered and left at each access.
    stretches: BTreeSet<u64>,
    allowance: Allowance,
    /// Cost of all redirects, in nanoseconds.
    spent_ns: f64,
    /// Progress of the threads before the move. `None` if it is unknown.
    baseline: Option<PaceSeries>,
    is_on_trial: bool,
}

/// The result of a trial.
#[derive(Debug, PartialEq)]
pub(crate) enum TrialResult {
    /// The threads make more progress than before.
    Gain,
    /// Single redirects cost too much. Contains their number per second.
    SingleRedirects(u64),
    /// The progress is no gain ([`trial::LEAST_GAIN`]). Contains the ratio to the baseline, if known.
    NoGain(Option<f64>),
    /// A gain is unknown, and the page stays.
    Stays,
}

/// A page that was restored without a gain, and is compared again without the repair.
#[derive(Debug)]
pub(crate) struct Recheck {
    pub(crate) plan: PagePlan,
    /// [`PageTrial::share`].
    pub(crate) share: f64,
    /// Progress of the threads with the repair.
    pub(crate) with_repair: PaceSeries,
    /// Time when the page was restored.
    pub(crate) restored_ns: u64,
}

/// The time that the program lost by `accesses` redirects which took `spent_ns` of our processor
/// time, in nanoseconds.
pub(crate) fn lost_ns(spent_ns: u64, accesses: usize) -> f64 {
    spent_ns as f64 / REPAIR_SLOWDOWN + FAULT_NS * accesses as f64
}

impl PageTrial {
    /// A page that was moved at `now_ns`. `baseline` is the progress of its threads before the
    /// move, if known.
    pub(crate) fn new(plan: PagePlan, share: f64, baseline: Option<PaceSeries>, now_ns: u64) -> Self {
        let allowance = Allowance::new(TRIAL_BURST_NS, SINGLE_REDIRECT_PART * share, now_ns);
        Self {
            plan,
            share,
            moved_ns: now_ns,
            clone_ns: now_ns,
            redirect_ns: now_ns,
            single_redirects: BTreeMap::new(),
            stretches: BTreeSet::new(),
            allowance,
            spent_ns: 0.0,
            baseline,
            is_on_trial: true,
        }
    }

    /// Records a redirect of the instruction at `ip`, which cost the program `cost_ns`.
    pub(crate) fn record_redirect(&mut self, ip: u64, route: Route, cost_ns: f64, now_ns: u64) {
        self.redirect_ns = now_ns;
        self.spent_ns += cost_ns;
        if route == Route::Alone {
            let (times, cost) = self.single_redirects.entry(ip).or_default();
            (*times, *cost) = (*times + 1, *cost + cost_ns);
            self.allowance.spend(cost_ns, now_ns);
        } else {
            // The redirects before were necessary to make the clone.
            self.allowance.refund(self.single_redirects.remove(&ip).map_or(0.0, |(_, cost)| cost));
            self.clone_ns = now_ns;
        }
        if route == Route::Stretch {
            self.stretches.insert(ip);
        }
    }

    /// Cost of all redirects, in nanoseconds.
    pub(crate) const fn spent_ns(&self) -> f64 {
        self.spent_ns
    }

    /// The baseline, for a new plan of the same page.
    pub(crate) fn into_baseline(self) -> Option<PaceSeries> {
        self.baseline
    }

    /// Whether clones are still being made, so that the page can still cost a full trial.
    pub(crate) const fn is_settling(&self, now_ns: u64) -> bool {
        self.is_on_trial && now_ns.saturating_sub(self.redirect_ns) < SETTLING_NS
    }

    /// Whether the page is on trial and has a baseline.
    pub(crate) fn is_compared(&self) -> bool {
        self.is_on_trial && self.baseline.as_ref().is_some_and(|baseline| !baseline.is_empty())
    }

    /// The instructions that prevent a gain: those with most of the single redirects, and those in
    /// stretches.
    pub(crate) fn blamed_instructions(&self) -> BTreeSet<u64> {
        let all: u32 = self.single_redirects.values().map(|(times, _)| times).sum();
        let frequent = self.single_redirects.iter().filter(|(_, (times, _))| times * BLAMED_REDIRECTS >= all);
        frequent.map(|(&ip, _)| ip).chain(self.stretches.iter().copied()).collect()
    }

    /// Progress of the threads since the last clone.
    pub(crate) fn paces(&self, progress: &LoopProgress, now_ns: u64) -> PaceSeries {
        progress.by_lines(&self.plan.lines, &(self.clone_ns + COLD_CLONE_NS..now_ns))
    }

    /// The time that the threads have lost since the move, in nanoseconds. `ratio` is their
    /// progress relative to the baseline, if known.
    pub(crate) fn loss_ns(&self, ratio: Option<f64>, now_ns: u64) -> f64 {
        let lost = ratio.map_or(UNKNOWN_LOSS, |ratio| (1.0 - ratio).max(0.0));
        lost * now_ns.saturating_sub(self.moved_ns) as f64
    }

    /// [`TrialResult::SingleRedirects`] if these have cost more than their allowance.
    pub(crate) fn excess_redirects(&self, now_ns: u64) -> Option<TrialResult> {
        let is_spent = self.allowance.left_ns(now_ns) < 0.0;
        let all: u64 = self.single_redirects.values().map(|&(times, _)| u64::from(times)).sum();
        let per_second = || all * 1_000_000_000 / now_ns.saturating_sub(self.moved_ns).max(1);
        is_spent.then(|| TrialResult::SingleRedirects(per_second()))
    }

    /// The result of the trial, once: `None` before its end and later. An excess of single
    /// redirects is returned at any time.
    pub(crate) fn result(&mut self, progress: Option<&LoopProgress>, now_ns: u64) -> Option<TrialResult> {
        let excess = self.excess_redirects(now_ns);
        if excess.is_some() || !self.is_on_trial {
            return excess;
        }
        let limit_ns = if self.stretches.is_empty() { LOOP_TRIAL_NS } else { STRETCH_TRIAL_NS };
        let is_over = now_ns.saturating_sub(self.moved_ns) > limit_ns;
        if now_ns.saturating_sub(self.clone_ns) < COMPARE_AFTER_NS && !is_over {
            return None;
        }
        let compared = progress.and_then(|progress| self.baseline.as_ref()?.compared(&self.paces(progress, now_ns)));
        let compared = compared.filter(|compared| self.has_all_threads(compared));
        let outcome =
            compared.as_ref().map_or(TrialOutcome::Doubt, |found| trial::outcome(&found.before, &found.after));
        let ratio = compared.map(|found| found.after.likely);
        let result = match outcome {
            TrialOutcome::Gain => TrialResult::Gain,
            TrialOutcome::NoGain => TrialResult::NoGain(ratio),
            TrialOutcome::Doubt if !is_over => return None,
            TrialOutcome::Doubt if self.stretches.is_empty() => TrialResult::Stays,
            TrialOutcome::Doubt => TrialResult::NoGain(ratio),
        };
        self.is_on_trial = false;
        Some(result)
    }

    /// Whether the comparison includes all threads whose bytes were separated.
    fn has_all_threads(&self, compared: &PaceComparison) -> bool {
        let mut separated = self.plan.moves.iter().flat_map(|one| &one.threads);
        separated.all(|thread| compared.threads.contains(thread))
    }
}

impl Recheck {
    /// Whether the threads make less progress without the repair: their work had changed, and the
    /// repair was a gain.
    pub(crate) fn was_a_gain(&self, progress: &LoopProgress, now_ns: u64) -> bool {
        let without = progress.by_lines(&self.plan.lines, &(self.restored_ns + RECHECK_AFTER_NS / 2..now_ns));
        let compared = without.compared(&self.with_repair);
        compared.is_some_and(|found| trial::outcome(&found.before, &found.after) == TrialOutcome::Gain)
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_sharing::{ByteMove, CounterValue};

    use super::*;

    const MS: u64 = 1_000_000;

    /// One sample per millisecond of two threads, with these laps per sample before and from the
    /// tenth millisecond.
    fn progress(laps: [(u64, u64); 2], until_ms: u64) -> LoopProgress {
        let mut progress = LoopProgress::default();
        for (thread, (before, after)) in (1..).zip(laps) {
            let mut value = 0;
            for ms in 0..until_ms {
                value += if ms < 10 { before } else { after };
                progress.count_sample(thread);
                let at_ns = ms * MS;
                let mark = CounterValue { thread, counter: 0x40, value, step: 1, bytes: 8, is_late: false, at_ns };
                progress.record(&mark, &[0x1000]);
            }
        }
        progress
    }

    /// A page that two threads use, moved at the tenth millisecond.
    fn moved_page(progress: Option<&LoopProgress>, threads: [u32; 2]) -> PageTrial {
        let one = |(start, view, thread)| ByteMove { bytes: start..start + 8, view, threads: vec![thread] };
        let moves = [(0x1000, 0, threads[0]), (0x1008, 1, threads[1])].map(one).to_vec();
        let plan = PagePlan { page: 0x1000, views: 2, moves, lines: vec![0x1000] };
        let baseline = progress.map(|progress| progress.by_lines(&plan.lines, &(0..10 * MS)));
        PageTrial::new(plan, 1.0, baseline, 10 * MS)
    }

    #[test]
    fn a_page_is_restored_if_none_of_its_threads_gains() {
        let result = |laps, threads: [u32; 2], now_ms: u64| {
            let progress = progress(laps, 300);
            let mut page = moved_page(Some(&progress), threads);
            (page.result(Some(&progress), now_ms * MS), page.is_compared())
        };
        assert_eq!(result([(10, 30), (10, 30)], [1, 2], 300), (Some(TrialResult::Gain), false));
        let (found, _) = result([(10, 9), (10, 10)], [1, 2], 300);
        let is_slower =
            |found: &TrialResult| matches!(found, TrialResult::NoGain(Some(ratio)) if (0.94..0.96).contains(ratio));
        assert!(found.as_ref().is_some_and(is_slower), "{found:?}");
        assert_eq!(result([(10, 9), (10, 10)], [1, 3], 300), (None, true), "thread 3 has no samples");
        assert_eq!(result([(10, 9), (10, 10)], [1, 3], 1100), (Some(TrialResult::Stays), false));
        assert_eq!(result([(10, 9), (10, 10)], [1, 2], 12), (None, true), "too early");
    }

    #[test]
    fn a_stretch_must_show_a_gain_within_a_short_trial() {
        let end = 11 * MS + STRETCH_TRIAL_NS;
        for (laps, result) in [(30, TrialResult::Gain), (0, TrialResult::NoGain(None))] {
            let progress = (laps > 0).then(|| progress([(10, laps), (10, laps)], 1000));
            let mut page = moved_page(progress.as_ref(), [1, 2]);
            page.record_redirect(0x40, Route::Stretch, 1e5, 11 * MS);
            assert_eq!(page.result(progress.as_ref(), end), Some(result));
            assert_eq!(page.blamed_instructions(), BTreeSet::from([0x40]));
            assert_eq!(page.result(progress.as_ref(), 2 * end), None, "the trial is over");
        }
    }

    #[test]
    fn single_redirects_end_a_repair_at_any_time() {
        let mut page = moved_page(None, [1, 2]);
        for access in 0..150 {
            page.record_redirect(0x40 + u64::from(access < 20), Route::Alone, 5e4, 10 * MS + access * MS / 20);
        }
        assert_eq!(page.excess_redirects(10 * MS + 150 * MS / 20), None);
        for access in 150..200 {
            page.record_redirect(0x40, Route::Alone, 5e4, 10 * MS + access * MS / 20);
        }
        assert_eq!(page.excess_redirects(20 * MS), Some(TrialResult::SingleRedirects(20_000)));
        assert_eq!(page.blamed_instructions(), BTreeSet::from([0x40]), "the other instruction ran only at the start");
        assert!((0.9e7..1.1e7).contains(&page.spent_ns()));
    }

    #[test]
    fn redirects_before_a_clone_are_its_cost() {
        let mut page = moved_page(None, [1, 2]);
        for site in 0..100 {
            (0..9).for_each(|_| page.record_redirect(site, Route::Alone, 5e4, 10 * MS));
            page.record_redirect(site, Route::Stretch, 5e4, 10 * MS);
        }
        assert_eq!(page.excess_redirects(10 * MS), None);
        assert!((4.9e7..5.1e7).contains(&page.spent_ns()));
    }

    #[test]
    fn a_few_redirects_per_second_are_within_the_allowance() {
        let mut page = moved_page(None, [1, 2]);
        for access in 0..5000 {
            page.record_redirect(0x40, Route::Alone, 5e4, 10 * MS + access * MS);
            assert_eq!(page.excess_redirects(10 * MS + access * MS), None);
        }
    }
}
