//! The threads of a line, and which of them ran at the same time. A set of threads is a mask of
//! their indices in the line.

use crate::line_use::{LineUse, MOST_THREADS};

/// Threads that ran at the same time.
pub(super) struct ThreadOverlap {
    /// For each thread, those that ran with it.
    together: Vec<u64>,
    /// There are several threads, and one is too new to decide.
    too_young: bool,
}

impl ThreadOverlap {
    pub(super) fn of(line: &LineUse) -> Self {
        let threads = &line.threads[..line.threads.len().min(MOST_THREADS)];
        let ran_with = |own: usize| {
            let met = |other: &usize| *other != own && threads[own].windows.ran_with(&threads[*other].windows);
            (0..threads.len()).filter(met).fold(0, |mask, other| mask | 1 << other)
        };
        let latest = threads.iter().map(|thread| thread.windows.last()).max().unwrap_or(0);
        let too_young = threads.len() > 1 && threads.iter().any(|thread| thread.windows.is_new(latest));
        Self { together: (0..threads.len()).map(ran_with).collect(), too_young }
    }

    /// Whether no two threads ran at the same time.
    pub(super) fn is_empty(&self) -> bool {
        self.together.iter().all(|&others| others == 0)
    }

    /// Whether there are several threads, and one is too new to decide.
    pub(super) fn is_too_young(&self) -> bool {
        self.too_young
    }

    /// Indices of the threads that ran with another one.
    pub(super) fn active(&self) -> impl Iterator<Item = usize> {
        (0..self.together.len()).filter(|&thread| self.together[thread] != 0)
    }

    /// Those of `others` that ran with one of `threads`, except the thread itself.
    pub(super) fn met(&self, threads: u64, others: u64) -> u64 {
        members(threads).fold(0, |mask, thread| mask | self.together[thread] & others)
    }
}

/// The indices in a mask.
pub(super) fn members(mask: u64) -> impl Iterator<Item = usize> {
    (0..u64::BITS as usize).filter(move |place| mask >> place & 1 == 1)
}
