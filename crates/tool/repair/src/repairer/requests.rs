//! Pages that rules or the program request. They are moved without a trial, and findings do not
//! change them.

use std::collections::BTreeMap;

use fieldstone_remap::{PageRequest, page_with};

use super::Repairer;
use super::restore::PageRestoreReason;
use super::selection::is_on_line;
use crate::error::Result;
use crate::event::RepairEvent;
use crate::tuning::FIRST_RETRY_NS;

/// A page that a rule or the program requests.
#[derive(Debug)]
pub(super) struct RequestedPage {
    wanted: PageRequest,
    pub(super) is_moved: bool,
    /// Time of the next attempt to move it.
    next_ns: u64,
    /// Whether the obstacle was reported.
    is_refusal_reported: bool,
}

impl RequestedPage {
    const fn new(wanted: PageRequest) -> Self {
        Self { wanted, is_moved: false, next_ns: 0, is_refusal_reported: false }
    }
}

impl Repairer {
    /// Replaces the requested pages. Pages whose request has changed are restored.
    ///
    /// # Errors
    /// Where the process refuses to have a page restored.
    pub(crate) fn set_requests(
        &mut self,
        mut pages: BTreeMap<u64, PageRequest>,
        events: &mut Vec<RepairEvent>,
    ) -> Result<()> {
        let changed = self.requested.iter().filter(|(page, requested)| pages.get(page) != Some(&requested.wanted));
        let changed: Vec<u64> = changed.map(|(&page, _)| page).collect();
        for page in changed {
            if self.requested.get(&page).is_some_and(|requested| requested.is_moved) {
                self.restore(page, PageRestoreReason::RulesChanged, events)?;
            }
            self.requested.remove(&page);
        }
        pages.retain(|page, _| !self.requested.contains_key(page));
        for (page, wanted) in pages {
            self.restore(page, PageRestoreReason::RulesChanged, events)?;
            self.requested.insert(page, RequestedPage::new(wanted));
        }
        Ok(())
    }

    /// Whether a request has moved bytes of the line at this address.
    #[must_use]
    pub(crate) fn is_separated_by_request(&self, line: u64) -> bool {
        let has_bytes =
            |requested: &RequestedPage| requested.wanted.owners.iter().flatten().any(|own| is_on_line(own, line));
        self.requested.get(&page_with(line)).is_some_and(|requested| requested.is_moved && has_bytes(requested))
    }

    /// Moves the requested pages that are not moved and whose next attempt is due.
    pub(super) fn move_requested(&mut self, now_ns: u64, events: &mut Vec<RepairEvent>) -> Result<()> {
        let is_due = |requested: &RequestedPage| !requested.is_moved && requested.next_ns <= now_ns;
        let due: Vec<u64> =
            self.requested.iter().filter(|(_, requested)| is_due(requested)).map(|(&page, _)| page).collect();
        for page in due {
            let Some(wanted) = self.requested.get(&page).map(|requested| requested.wanted.clone()) else { continue };
            let moved = self.attach()?.move_page(&wanted);
            let Some(requested) = self.requested.get_mut(&page) else { continue };
            match moved {
                Ok(_) => {
                    (requested.is_moved, requested.is_refusal_reported) = (true, false);
                    let views = u32::try_from(wanted.owners.len()).unwrap_or(u32::MAX);
                    events.push(RepairEvent::PageMoved { page, views, lines: Vec::new() });
                }
                Err(fieldstone_remap::Error::Page { why, .. }) => {
                    requested.next_ns = now_ns + FIRST_RETRY_NS;
                    if !std::mem::replace(&mut requested.is_refusal_reported, true) {
                        events.push(RepairEvent::RuleRefused { page, why });
                    }
                }
                Err(other) => return Err(other.into()),
            }
        }
        Ok(())
    }
}
