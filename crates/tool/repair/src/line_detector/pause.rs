//! Pauses of sampling, and new threads that end them.

use std::collections::BTreeSet;
use std::fs::metadata;
use std::os::unix::fs::MetadataExt;

use fieldstone_sharing::LoopProgress;
use fieldstone_sys::process::threads;

use super::LineDetector;
use crate::error::Result;

impl LineDetector {
    /// Stops sampling until [`Self::resume`]; returns whether sampling is paused.
    pub(crate) fn pause(&mut self) -> bool {
        if self.threads_at_pause.is_none()
            && let Ok(known) = threads(self.pid)
            && self.sampler.pause().unwrap_or(false)
        {
            self.threads_at_pause = Some(known.into_iter().collect());
            self.stats.pauses += 1;
        }
        self.threads_at_pause.is_some()
    }

    /// Resumes sampling. A process that is about to end gives no samples, which is no error.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub(crate) fn resume(&mut self) -> Result<()> {
        if self.threads_at_pause.is_none() {
            return Ok(());
        }
        match self.sampler.resume() {
            Err(fieldstone_sys::Error::NoSuchProcess { .. }) => {}
            resumed => {
                resumed?;
                self.threads_at_pause = None;
                self.progress.iter_mut().for_each(LoopProgress::pause);
            }
        }
        Ok(())
    }

    /// Whether the process has more threads than at the last call, or other threads than at the
    /// start of a pause.
    pub(crate) fn has_new_threads(&mut self) -> bool {
        let before = std::mem::replace(&mut self.threads, thread_count(self.pid));
        // New threads can replace ended ones. The list is short in programs where sampling pauses.
        let has_new =
            |known: &BTreeSet<u32>| threads(self.pid).is_ok_and(|now| now.iter().any(|tid| !known.contains(tid)));
        before < self.threads || self.threads_at_pause.as_ref().is_some_and(has_new)
    }

    /// Whether the process had one thread at the last call of [`Self::has_new_threads`].
    #[must_use]
    pub(crate) const fn is_single_threaded(&self) -> bool {
        self.threads <= 1
    }
}

/// The number of threads, from the link count of their directory, which is larger by two. 0 if the
/// process has ended.
fn thread_count(pid: u32) -> u64 {
    metadata(format!("/proc/{pid}/task")).map_or(0, |list| list.nlink().saturating_sub(2))
}
