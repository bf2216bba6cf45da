//! One repairer per process: a lock on a file of the process in `/proc`.
//!
//! A repairer traces a process only while a page is moved. The lock also keeps a second repairer
//! away from a process that the first one samples. The kernel releases it when its holder or the
//! process ends.
//!
//! The lock is one of fcntl(2). It belongs to this process, which must not open the file elsewhere:
//! the close of any descriptor of the file would release the lock.

use std::fs::File;

use fieldstone_remap::check_untraced;
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{Flock, FlockType, Pid, fcntl_getlk};

use crate::error::{Error, Result};

/// The right to repair a process, until it is dropped.
#[derive(Debug)]
pub(crate) struct RepairLock {
    /// `None` if this user may not open the file. Only the check of the tracer protects then.
    _file: Option<File>,
}

impl RepairLock {
    /// Takes the lock of process `pid`.
    ///
    /// # Errors
    /// [`Error::RepairRuns`] if another process repairs it, [`Error::Remap`] if another process
    /// traces it.
    pub(crate) fn take(pid: u32) -> Result<Self> {
        let file = File::options().write(true).open(format!("/proc/{pid}/coredump_filter")).ok();
        if let Some(file) = &file
            && fcntl_lock(file, FlockOperation::NonBlockingLockExclusive).is_err()
            && let Some(repairer) = holder(file)
        {
            return Err(Error::RepairRuns { pid, repairer });
        }
        check_untraced(pid)?;
        Ok(Self { _file: file })
    }
}

/// The process that holds the lock; `None` if it is free.
fn holder(file: &File) -> Option<u32> {
    let held = fcntl_getlk(file, &Flock::from(FlockType::WriteLock)).ok()??;
    held.pid.map(Pid::as_raw_pid).and_then(|pid| u32::try_from(pid).ok())
}
