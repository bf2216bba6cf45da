//! wait4(2): how a child ended and what it used, or that it was stopped.
#![allow(unsafe_code, reason = "wait4 with its rusage is in no safe crate that this workspace uses")]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::{Error, Result};

/// A child that ended, with what it and its reaped descendants used.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Ended {
    /// The child.
    pub pid: u32,
    /// Its exit code or signal.
    pub status: ExitStatus,
    /// Time in user mode.
    pub user_ns: u64,
    /// Time in the kernel.
    pub system_ns: u64,
    /// The largest resident set of the child or of any one reaped descendant; hugetlb pages are not in it.
    pub max_resident_bytes: u64,
    /// Page faults served without reading from a disk.
    pub minor_faults: u64,
    /// Page faults that had to read.
    pub major_faults: u64,
}

/// Waits for a child to end; `pid` `None` waits for any. With `block` false, `Ok(None)` when none has ended yet.
///
/// A signal that interrupts the wait is no end: the call goes on waiting.
///
/// # Errors
/// [`Error::Call`] with ECHILD where there is no such child, for instance because [`std::process::Child`] reaped it.
pub fn wait4(pid: Option<u32>, block: bool) -> Result<Option<Ended>> {
    let changed = wait(pid, if block { 0 } else { libc::WNOHANG })?;
    Ok(changed.and_then(|change| if let Change::Ended(ended) = change { Some(ended) } else { None }))
}

/// What became of a child.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// It has ended, and is reaped.
    Ended(Ended),
    /// The signal of this number has stopped it.
    Stopped(i32),
}

/// Waits for child `pid` to end or to be stopped.
///
/// # Errors
/// As [`wait4`].
pub fn wait_change(pid: u32) -> Result<Change> {
    wait(Some(pid), libc::WUNTRACED)?.ok_or(Error::NoSuchProcess { pid })
}

/// Whether child `pid` has neither ended nor been stopped by a signal. The child is not reaped.
#[must_use]
pub fn is_at_work(pid: u32) -> bool {
    let child = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    child.is_some_and(|child| matches!(waitid(WaitId::Pid(child), options), Ok(None)))
}

fn wait(pid: Option<u32>, flags: i32) -> Result<Option<Change>> {
    let wanted = match pid {
        None => -1,
        Some(pid) => libc::pid_t::try_from(pid).map_err(|_| Error::NoSuchProcess { pid })?,
    };
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both out-pointers are to live locals of the type that wait4 writes.
        let got = unsafe { libc::wait4(wanted, &raw mut status, flags, usage.as_mut_ptr()) };
        match u32::try_from(got) {
            Ok(0) => return Ok(None),
            Ok(_) if libc::WIFSTOPPED(status) => return Ok(Some(Change::Stopped(libc::WSTOPSIG(status)))),
            Ok(pid) => {
                // SAFETY: rusage is plain integers, zeroed above and filled by the successful call.
                let usage = unsafe { usage.assume_init() };
                return Ok(Some(Change::Ended(ended(pid, status, &usage))));
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

fn ended(pid: u32, status: i32, usage: &libc::rusage) -> Ended {
    let count = |number: libc::c_long| u64::try_from(number).unwrap_or(0);
    let time_ns = |time: libc::timeval| {
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_usec).unwrap_or(0) * 1_000
    };
    Ended {
        pid,
        status: ExitStatus::from_raw(status),
        user_ns: time_ns(usage.ru_utime),
        system_ns: time_ns(usage.ru_stime),
        // Linux gives kilobytes here.
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
    fn a_stopped_child_is_not_at_work_until_it_is_continued() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let becomes = |wanted: bool| {
            let begun = std::time::Instant::now();
            while is_at_work(child.id()) != wanted {
                assert!(begun.elapsed().as_secs() < 10, "it does not become {wanted}");
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
        assert!(!is_at_work(child.id()), "an ended child stays ended until it is reaped");
        child.wait().unwrap();
        assert!(!is_at_work(child.id()), "there is no such child");
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
    fn a_child_that_lives_is_not_waited_for() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(wait4(Some(child.id()), false).unwrap().is_none());
        let pid = child.id();
        crate::signals::pass_on(&crate::signals::Taken { signal: libc::SIGSTOP, sender: None, value: None }, pid);
        assert!(matches!(wait_change(pid), Ok(Change::Stopped(libc::SIGSTOP))));
        child.kill().unwrap();
        assert!(matches!(wait_change(pid), Ok(Change::Ended(ended)) if ended.status.signal() == Some(libc::SIGKILL)));
        assert!(child.wait().is_err(), "it is reaped");
    }
}
