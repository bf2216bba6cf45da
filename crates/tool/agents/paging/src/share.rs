//! The part of the bound that this process may use: what the other processes of the run leave, and at
//! least an equal part.
//!
//! ```text
//! allowed = max(bound - memory of the others, bound / processes)
//! ```
//! So a process that grows makes the larger ones evict, and the sum stays within the bound: a process
//! above its equal part has what the others leave.
//!
//! Each process locks the byte of the record with its index (an open file description lock). The
//! kernel releases the lock when the process ends, however it ends.

use core::ffi::CStr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use fieldstone_wire::paging::{PagingProcess, PagingSession, ProcessState};

use crate::raw;

/// Nanoseconds between two looks for processes that have ended.
const INTERVAL: u64 = 50_000_000;
/// The part that a process has at least, in pages.
const LEAST: usize = 256;

/// The view of a process on the others.
#[derive(Debug)]
pub(crate) struct Share {
    session: &'static PagingSession,
    own: &'static PagingProcess,
    /// The record, with the lock; `None` if it cannot be opened: the process has the whole bound.
    file: Option<i32>,
    /// When it looked for processes that have ended.
    looked: u64,
}

impl Share {
    /// Opens the record at `path`, and locks the entry of this process.
    pub(crate) fn open(session: &'static PagingSession, own: &'static PagingProcess, path: &CStr) -> Self {
        let file = raw::open(path, libc::O_RDWR | libc::O_CLOEXEC);
        let is_locked = file.zip(session.index_of(own)).is_some_and(|(file, index)| raw::lock_byte(file, index));
        if is_locked {
            own.state.store(ProcessState::Running as u32, Release);
        }
        Self { session, own, file: file.filter(|_| is_locked), looked: 0 }
    }

    /// The pages that this process may have, of `bound` for all.
    pub(crate) fn allowed(&mut self, bound: usize) -> usize {
        let Some(file) = self.file else { return bound };
        let now = fieldstone_paging::now_ns();
        let is_time = now - self.looked > INTERVAL;
        if is_time {
            self.looked = now;
        }
        let (mut count, mut others) = (1, 0);
        for (index, process) in self.session.processes.iter().enumerate().take(self.session.claimed()) {
            if core::ptr::eq(process, self.own) || process.state.load(Acquire) != ProcessState::Running as u32 {
                continue;
            }
            if is_time && !raw::is_byte_locked(file, index) {
                process.state.store(ProcessState::Ended as u32, Release);
                continue;
            }
            count += 1;
            others += process.counters.resident.load(Relaxed) as usize + process.unpaged.load(Relaxed) as usize;
        }
        bound.saturating_sub(others).max(bound / count).max(LEAST)
    }
}
