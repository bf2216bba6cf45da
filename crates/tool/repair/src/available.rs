//! Whether a repair is possible for this user, checked before a program is started or sampled.
//!
//! The check is the one that `fieldstone doctor` prints. A running process is also checked for its own rights, since the userfaultfd
//! of a repair is opened by that process.

use fieldstone_remap::{Memory, Process};
use fieldstone_sys::doctor::{Level, REPAIR, RUN_REPAIR, repair_verdict};

use crate::error::{Error, Result};

/// Checks that `run --repair` can repair a program that this user starts.
///
/// # Errors
/// [`Error::RepairUnavailable`].
pub fn check_run_repair() -> Result<()> {
    check(RUN_REPAIR)
}

/// Checks that `repair --pid` can repair process `pid`.
///
/// # Errors
/// [`Error::RepairUnavailable`], or [`Error::Remap`] where the process is closed to this user or lacks a right itself.
pub fn check_repair(pid: u32) -> Result<()> {
    // Another user's process, or an ended one, has an error of its own.
    Memory::open(pid)?;
    check(REPAIR)?;
    Ok(Process::check_userfault(pid)?)
}

fn check(command: &'static str) -> Result<()> {
    let Some(verdict) = repair_verdict(command).filter(|verdict| verdict.level == Level::Unavailable) else {
        return Ok(());
    };
    Err(Error::RepairUnavailable { command, why: verdict.obstacles.join("; "), remedy: verdict.remedy })
}
