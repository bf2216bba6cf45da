//! wait4(2): the exit status and resource usage of a child, or that it was stopped.
#![allow(unsafe_code, reason = "wait4 with its rusage is in no safe crate that this workspace uses")]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::{Error, Result};

/// A child that has ended, with the usage of it and its reaped descendants.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ChildExit {
    /// Process id.
    pub pid: u32,
    /// Exit code or signal.
    pub status: ExitStatus,
    /// User-mode time.
    pub user_ns: u64,
    /// Kernel-mode time.
    pub system_ns: u64,
    /// The largest resident set of the child or of any one reaped descendant, without hugetlb
    /// pages.
    pub max_resident_bytes: u64,
    /// Page faults without disk reads.
    pub minor_faults: u64,
    /// Page faults with disk reads.
    pub major_faults: u64,
}

/// Waits for child `pid` to end, or for any child if `None`. Without `block`, `Ok(None)` when none
/// has ended yet.
///
/// Interruption by a signal does not end the wait.
///
/// # Errors
/// [`Error::Call`] with ECHILD without such a child, for instance because [`std::process::Child`]
/// reaped it.
pub fn wait4(pid: Option<u32>, block: bool) -> Result<Option<ChildExit>> {
    let changed = wait(pid, if block { 0 } else { libc::WNOHANG })?;
    Ok(changed.and_then(|change| if let ChildChange::Ended(ended) = change { Some(ended) } else { None }))
}

/// A change of a child's state.
#[derive(Clone, Copy, Debug)]
pub enum ChildChange {
    /// It has ended and is reaped.
    Ended(ChildExit),
    /// The signal with this number has stopped it.
    Stopped(i32),
}

/// Waits for child `pid` to end or to be stopped.
///
/// # Errors
/// As [`wait4`].
pub fn wait_change(pid: u32) -> Result<ChildChange> {
    wait(Some(pid), libc::WUNTRACED)?.ok_or(Error::NoSuchProcess { pid })
}

/// Whether child `pid` has neither ended nor been stopped by a signal. Does not reap it.
#[must_use]
pub fn is_child_running(pid: u32) -> bool {
    let child = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    child.is_some_and(|child| matches!(waitid(WaitId::Pid(child), options), Ok(None)))
}

fn wait(pid: Option<u32>, flags: i32) -> Result<Option<ChildChange>> {
    let wanted = match pid {
        None => -1,
        Some(pid) => libc::pid_t::try_from(pid).map_err(|_| Error::NoSuchProcess { pid })?,
    };
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both pointers are to live locals of the types that wait4 writes.
        let got = unsafe { libc::wait4(wanted, &raw mut status, flags, usage.as_mut_ptr()) };
        match u32::try_from(got) {
            Ok(0) => return Ok(None),
            Ok(_) if libc::WIFSTOPPED(status) => return Ok(Some(ChildChange::Stopped(libc::WSTOPSIG(status)))),
            Ok(pid) => {
                // SAFETY: rusage holds only integers, which are zeroed above and filled by the
                // successful call.
                let usage = unsafe { usage.assume_init() };
                return Ok(Some(ChildChange::Ended(ended(pid, status, &usage))));
            }
            Err(_) => {
                let source = io::Error::last_os_error();
                if source.kind() != io::ErrorKind::Interrupted {
                    return Err(Error::Call { call: "wait4", source });
                }
            }
        }
    }
}

fn ended(pid: u32, status: i32, usage: &libc::rusage) -> ChildExit {
    let count = |number: libc::c_long| u64::try_from(number).unwrap_or(0);
    let time_ns = |time: libc::timeval| {
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_usec).unwrap_or(0) * 1_000
    };
    ChildExit {
        pid,
        status: ExitStatus::from_raw(status),
        user_ns: time_ns(usage.ru_utime),
        system_ns: time_ns(usage.ru_stime),
        // Linux reports kilobytes.
        max_resident_bytes: count(usage.ru_maxrss).saturating_mul(1024),
        minor_faults: count(usage.ru_minflt),
        major_faults: count(usage.ru_majflt),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_stopped_child_is_not_running_until_continued() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let becomes = |wanted: bool| {
            let begun = std::time::Instant::now();
            while is_child_running(child.id()) != wanted {
                assert!(begun.elapsed().as_secs() < 10, "the state does not become {wanted}");
                std::thread::yield_now();
            }
        };
        becomes(true);
        for (signal, wanted) in [
            (rustix::process::Signal::STOP, false),
            (rustix::process::Signal::CONT, true),
            (rustix::process::Signal::KILL, false),
        ] {
            rustix::process::kill_process(pid, signal).unwrap();
            becomes(wanted);
        }
        assert!(!is_child_running(child.id()), "an ended child stays ended until it is reaped");
        child.wait().unwrap();
        assert!(!is_child_running(child.id()), "the child does not exist");
    }

    #[test]
    fn a_child_is_reaped_with_its_code_signal_and_usage() {
        let child = Command::new("sh").args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit 7"]).spawn();
        let pid = child.unwrap().id();
        let ended = wait4(Some(pid), true).unwrap().unwrap();
        assert_eq!((ended.pid, ended.status.code()), (pid, Some(7)));
        assert!(ended.user_ns + ended.system_ns > 0 && ended.max_resident_bytes > 0 && ended.minor_faults > 0);

        let pid = Command::new("sh").args(["-c", "kill -9 $$"]).spawn().unwrap().id();
        assert_eq!(wait4(Some(pid), true).unwrap().unwrap().status.signal(), Some(9));
        assert!(matches!(wait4(Some(pid), true), Err(Error::Call { .. })), "reaped once only");
    }

    #[test]
    fn a_nonblocking_wait_returns_while_the_child_lives() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(wait4(Some(child.id()), false).unwrap().is_none());
        let pid = child.id();
        crate::signals::forward(
            &crate::signals::ReceivedSignal { signal: libc::SIGSTOP, sender: None, value: None },
            pid,
        );
        assert!(matches!(wait_change(pid), Ok(ChildChange::Stopped(libc::SIGSTOP))));
        child.kill().unwrap();
        assert!(
            matches!(wait_change(pid), Ok(ChildChange::Ended(ended)) if ended.status.signal() == Some(libc::SIGKILL))
        );
        assert!(child.wait().is_err(), "it is reaped");
    }
}
