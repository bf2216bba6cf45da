//! How far an operation on a whole store is.

use std::fmt;
use std::sync::Arc;

/// How far the recovery of a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryProgress {
    /// Commits that are only in the log.
    pub commits: u64,
    /// Pages that they have changed.
    pub pages: u64,
    /// How many of these pages are in their places. The last report has all of them, and they are durable.
    pub written_pages: u64,
    /// Commits that are lost because a record of the log is damaged; 0 unless
    /// [`StoreBuilder::accept_lost_commits`](crate::StoreBuilder::accept_lost_commits) is set.
    pub lost_commits: u64,
}

/// What a recovery does besides its work.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecoveryOptions {
    pub(crate) on_recovery: OnRecovery,
    /// Whether a store is opened although commits are lost.
    pub(crate) accepts_lost_commits: bool,
}

/// A function that is called with the progress of a recovery.
#[derive(Clone)]
pub(crate) struct OnRecovery(Arc<dyn Fn(RecoveryProgress) + Send + Sync>);

impl OnRecovery {
    pub(crate) fn new(report: impl Fn(RecoveryProgress) + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }

    pub(crate) fn report(&self, progress: RecoveryProgress) {
        (self.0)(progress);
    }
}

impl Default for OnRecovery {
    fn default() -> Self {
        Self::new(drop)
    }
}

impl fmt::Debug for OnRecovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnRecovery")
    }
}
