//! Pages that are restored: the reason, the call, and the data that is removed.

use std::fmt;

use fieldstone_launch::clock::now_ns;
use fieldstone_remap::RestoreReason;

use super::Repairer;
use crate::error::Result;
use crate::event::RepairEvent;
use crate::page_trial::PageTrial;

/// Why a page was restored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PageRestoreReason {
    /// The mechanism had to: the kernel, an access that cannot be redirected, memory that was
    /// unmapped.
    Remap(RestoreReason),
    /// Single redirects cost too much. Contains their number per second.
    SingleRedirects(u64),
    /// No gain. Contains the ratio of the progress to the baseline, if known.
    NoGain(Option<f64>),
    /// There is a new plan or request for the page.
    RulesChanged,
}

impl fmt::Display for PageRestoreReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remap(why) => write!(f, "{why}"),
            Self::SingleRedirects(per_second) => {
                write!(f, "{per_second} accesses a second had to be redirected one by one")
            }
            Self::NoGain(Some(ratio)) => write!(f, "the threads ran {ratio:.2} times as fast as before"),
            Self::NoGain(None) => write!(
                f,
                "its code is entered and left at each access, which can cost more than the line, and no gain was measured"
            ),
            Self::RulesChanged => write!(f, "its rules changed"),
        }
    }
}

impl Repairer {
    /// Restores a page; returns its trial. `None` if the page was not moved, or was moved by a
    /// request.
    pub(super) fn restore(
        &mut self,
        page: u64,
        reason: PageRestoreReason,
        events: &mut Vec<RepairEvent>,
    ) -> Result<Option<PageTrial>> {
        let is_requested = self.requested.get(&page).is_some_and(|requested| requested.is_moved);
        if !is_requested && !self.moved.contains_key(&page) {
            return Ok(None);
        }
        if let Some(process) = &mut self.process {
            process.restore_page(page, RestoreReason::Requested)?;
        }
        let (moved, event) = self.remove_page(page, &reason);
        events.extend(event);
        Ok(moved)
    }

    /// Removes the data of a restored page. Lines whose memory was unmapped count a change of
    /// their rules, so that they are given up in the end. For failed repairs there are cooldowns.
    pub(super) fn remove_page(
        &mut self,
        page: u64,
        reason: &PageRestoreReason,
    ) -> (Option<PageTrial>, Option<RepairEvent>) {
        let was_requested =
            self.requested.get_mut(&page).is_some_and(|requested| std::mem::take(&mut requested.is_moved));
        let moved = self.moved.remove(&page);
        if matches!(reason, PageRestoreReason::Remap(RestoreReason::Removed | RestoreReason::DescriptorClosed)) {
            let now_ns = now_ns();
            for &line in moved.iter().flat_map(|moved| &moved.plan.lines) {
                self.history.change(line, &[], now_ns);
            }
        }
        let was_moved = moved.is_some() || was_requested;
        let event = was_moved.then(|| RepairEvent::PageRestored { page, why: reason.to_string() });
        (moved, event)
    }
}
