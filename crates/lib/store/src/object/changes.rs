//! Which pages of objects recent commits have changed, so that a window can show a later version.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::lock::lock;

/// Pages that are remembered at most. A window that is further behind is emptied.
const MOST_PAGES: usize = 1 << 16;

/// The pages that recent commits have changed.
#[derive(Debug, Default)]
pub(crate) struct ObjectChanges {
    has_objects: AtomicBool,
    recent: Mutex<Recent>,
}

#[derive(Debug, Default)]
struct Recent {
    /// Commit and pages, oldest first.
    commits: VecDeque<(u64, Vec<u32>)>,
    /// Of all these commits.
    pages: usize,
    /// The last commit that was forgotten.
    forgotten: u64,
}

impl ObjectChanges {
    /// Whether the store may have objects.
    pub(crate) fn has_objects(&self) -> bool {
        self.has_objects.load(Acquire)
    }

    pub(crate) fn set_has_objects(&self) {
        self.has_objects.store(true, Release);
    }

    /// Adds the pages of a commit, before a snapshot can read it.
    pub(crate) fn add(&self, commit: u64, pages: Vec<u32>) {
        if pages.is_empty() {
            return;
        }
        self.set_has_objects();
        let mut recent = lock(&self.recent);
        recent.pages += pages.len();
        recent.commits.push_back((commit, pages));
        while recent.pages > MOST_PAGES
            && let Some((commit, pages)) = recent.commits.pop_front()
        {
            recent.pages -= pages.len();
            recent.forgotten = commit;
        }
    }

    /// The pages that differ between two versions, some of them repeatedly; `None` if that is not known or
    /// they are more than `most`.
    pub(crate) fn between(&self, one: u64, other: u64, most: usize) -> Option<Vec<u32>> {
        let (older, newer) = (one.min(other), one.max(other));
        let recent = lock(&self.recent);
        if older < recent.forgotten {
            return None;
        }
        let mut pages = Vec::new();
        let commits = recent.commits.iter().rev().skip_while(|commit| commit.0 > newer);
        for (_, changed) in commits.take_while(|commit| commit.0 > older) {
            pages.extend_from_slice(changed);
            if pages.len() > most {
                return None;
            }
        }
        Some(pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_between_two_versions_are_those_of_the_commits_between() {
        let changes = ObjectChanges::default();
        assert!(!changes.has_objects());
        for commit in 1..10 {
            changes.add(commit, vec![commit as u32, 100]);
        }
        assert!(changes.has_objects());
        assert_eq!(changes.between(3, 5, 10), Some(vec![5, 100, 4, 100]));
        assert_eq!(changes.between(5, 3, 10), changes.between(3, 5, 10));
        assert_eq!((changes.between(4, 4, 0), changes.between(3, 5, 3)), (Some(vec![]), None));
        changes.add(10, vec![1; MOST_PAGES]);
        assert_eq!((changes.between(8, 9, 10), changes.between(9, 9, 10)), (None, Some(vec![])));
    }
}
