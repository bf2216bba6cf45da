//! Results of trials and of rechecks: a page stays, is restored, or is moved again.

use fieldstone_sharing::LoopProgress;

use super::Repairer;
use super::restore::PageRestoreReason;
use crate::error::Result;
use crate::event::RepairEvent;
use crate::page_trial::{PageTrial, Recheck, TrialResult};
use crate::tuning::RECHECK_AFTER_NS;

impl Repairer {
    /// Concludes the trials that have a result.
    pub(super) fn end_trials(
        &mut self,
        progress: Option<&LoopProgress>,
        now_ns: u64,
        events: &mut Vec<RepairEvent>,
    ) -> Result<()> {
        let result = |(&page, moved): (&u64, &mut PageTrial)| Some((page, moved.result(progress, now_ns)?));
        let results: Vec<(u64, TrialResult)> = self.moved.iter_mut().filter_map(result).collect();
        results.into_iter().try_for_each(|(page, result)| self.conclude(page, result, progress, now_ns, events))
    }

    /// Acts on the result of a trial: the page stays, or is restored and in cooldown.
    pub(super) fn conclude(
        &mut self,
        page: u64,
        result: TrialResult,
        progress: Option<&LoopProgress>,
        now_ns: u64,
        events: &mut Vec<RepairEvent>,
    ) -> Result<()> {
        let Some(moved) = self.moved.get(&page) else { return Ok(()) };
        let reason = match result {
            TrialResult::Gain | TrialResult::Stays => {
                self.allowance.refund(moved.spent_ns());
                if result == TrialResult::Gain {
                    self.cooldowns.entry(page).or_default().record_gain();
                }
                return Ok(());
            }
            TrialResult::SingleRedirects(per_second) => PageRestoreReason::SingleRedirects(per_second),
            TrialResult::NoGain(ratio) => {
                self.allowance.spend(moved.loss_ns(ratio, now_ns), now_ns);
                if let Some((progress, _)) = progress.zip(ratio) {
                    let (plan, share, with_repair) = (moved.plan.clone(), moved.share, moved.paces(progress, now_ns));
                    self.rechecks.insert(page, Recheck { plan, share, with_repair, restored_ns: now_ns });
                }
                PageRestoreReason::NoGain(ratio)
            }
        };
        for key in moved.blamed_instructions().into_iter().chain([page]) {
            self.cooldowns.entry(key).or_default().record_failure(now_ns);
        }
        self.restore(page, reason, events).map(drop)
    }

    /// Compares pages again that were restored without a gain. Where the threads make less progress
    /// now, their work had changed, and the page is moved again.
    pub(super) fn end_rechecks(
        &mut self,
        progress: Option<&LoopProgress>,
        now_ns: u64,
        events: &mut Vec<RepairEvent>,
    ) -> Result<()> {
        let is_due = |_: &u64, recheck: &mut Recheck| now_ns.saturating_sub(recheck.restored_ns) >= RECHECK_AFTER_NS;
        let due: Vec<(u64, Recheck)> = self.rechecks.extract_if(.., is_due).collect();
        for (page, recheck) in due {
            if progress.is_some_and(|progress| recheck.was_a_gain(progress, now_ns)) {
                self.cooldowns.entry(page).or_default().record_gain();
                self.apply(recheck.plan, recheck.share, None, now_ns, events)?;
            }
        }
        Ok(())
    }
}
