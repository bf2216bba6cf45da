//! Whether this user can repair programs, checked before a program is started or sampled.
//!
//! `fieldstone doctor` prints the same check. For a running process its own rights are checked too,
//! because that process opens the userfaultfd of a repair.

use fieldstone_remap::Process;
use fieldstone_sys::doctor::{Level, REPAIR, RUN_REPAIR, repair_verdict};
use fieldstone_sys::process::ProcessMemory;

use crate::error::{Error, Result};
use crate::repair_lock::RepairLock;

/// Checks that `run --repair` can repair a program that this user starts.
///
/// # Errors
/// [`Error::RepairUnavailable`].
pub fn check_run_repair() -> Result<()> {
    check(RUN_REPAIR)
}

/// Checks that `attach --repair` can repair process `pid`.
///
/// # Errors
/// [`Error::RepairUnavailable`]; [`Error::Linux`] where this user cannot access the process;
/// [`Error::RepairRuns`] where another process repairs it; [`Error::Remap`] where the process lacks
/// a right or is traced.
pub fn check_repair(pid: u32) -> Result<()> {
    // First, because an ended process or a process of another user has an error of its own.
    ProcessMemory::open(pid)?;
    check(REPAIR)?;
    RepairLock::take(pid)?;
    Ok(Process::check_userfault(pid)?)
}

fn check(command: &'static str) -> Result<()> {
    let Some(verdict) = repair_verdict(command).filter(|verdict| verdict.level == Level::Unavailable) else {
        return Ok(());
    };
    Err(Error::RepairUnavailable { command, why: verdict.obstacles.join("; "), remedy: verdict.remedy })
}
