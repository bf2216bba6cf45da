//! Ends started programs: SIGTERM before SIGKILL, within a time limit, with all their descendants.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use fieldstone_sys::process::{ChildExit, children, comm, descendants, has_ended, wait4};

use crate::error::{Error, Result};
use crate::signals::{Interrupt, send, send_group};

const POLL: Duration = Duration::from_millis(10);

/// Kills a process group after a time limit.
#[derive(Debug)]
pub struct Deadline {
    passed: Arc<AtomicBool>,
    done: Sender<()>,
    thread: JoinHandle<()>,
}

impl Deadline {
    /// Kills the group led by `leader` after `limit`, or when a signal interrupts this command.
    pub fn start(leader: u32, limit: Duration, interrupt: Interrupt) -> Self {
        let passed = Arc::new(AtomicBool::new(false));
        let (done, finished) = channel();
        let thread_passed = Arc::clone(&passed);
        let thread = spawn(move || {
            let until = Instant::now() + limit;
            loop {
                let wait = until.saturating_duration_since(Instant::now()).min(Duration::from_millis(100));
                match finished.recv_timeout(wait) {
                    Err(RecvTimeoutError::Timeout) if Instant::now() < until && interrupt.check().is_ok() => {}
                    Err(RecvTimeoutError::Timeout) => {
                        thread_passed.store(true, SeqCst);
                        // The leader may have joined another group.
                        send_group(leader, libc::SIGKILL);
                        send(leader, libc::SIGKILL);
                        return;
                    }
                    _ => return,
                }
            }
        });
        Self { passed, done, thread }
    }

    /// Cancels the deadline. Returns whether the group was killed.
    pub fn finish(self) -> bool {
        drop(self.done);
        // The closed channel wakes the thread.
        let _ = self.thread.join();
        self.passed.load(SeqCst)
    }
}

/// Waits for a child to end, without a time limit. Callers use a [`Deadline`], or have killed the
/// child.
///
/// # Errors
/// [`Error::Linux`] if `pid` is no child of this process.
pub fn wait(pid: u32) -> Result<ChildExit> {
    wait4(Some(pid), true)?.ok_or(Error::Linux(fieldstone_sys::Error::NoSuchProcess { pid }))
}

/// Kills all processes of a group.
pub fn kill_group(leader: u32) {
    send_group(leader, libc::SIGKILL);
}

/// Descendants of a program that outlived it.
#[derive(Debug, Default)]
pub struct LeftoverProcesses {
    /// The `comm` of those that were still running.
    pub names: Vec<String>,
    /// CPU time in user mode of all of them and of the descendants that they waited for, in ns.
    pub user_ns: u64,
    /// CPU time in the kernel of the same processes, in ns.
    pub system_ns: u64,
}

/// Kills and reaps the processes that outlived a program: the rest of its group, and orphans that
/// this process inherited. `excluded` are children of this process that do not belong to the
/// program.
pub fn kill_leftovers(leader: u32, excluded: &[u32]) -> LeftoverProcesses {
    let leftovers = || {
        let inherited =
            children(std::process::id()).unwrap_or_default().into_iter().filter(|pid| !excluded.contains(pid));
        inherited.flat_map(|pid| descendants(pid).unwrap_or_default().into_iter().chain([pid])).collect::<Vec<u32>>()
    };
    let names = leftovers().into_iter().filter(|&pid| !has_ended(pid)).filter_map(|pid| comm(pid).ok()).collect();
    let mut leftover = LeftoverProcesses { names, ..LeftoverProcesses::default() };
    kill_group(leader);
    for _ in 0..100 {
        while let Ok(Some(ended)) = wait4(None, false) {
            if !excluded.contains(&ended.pid) {
                leftover.user_ns += ended.user_ns;
                leftover.system_ns += ended.system_ns;
            }
        }
        let remaining = leftovers();
        if remaining.is_empty() {
            break;
        }
        remaining.iter().for_each(|&pid| send(pid, libc::SIGKILL));
        sleep(POLL);
    }
    leftover
}

/// Sends SIGTERM to a child, and SIGKILL if it has not ended after `grace_period`.
/// `None` if its exit status is not available.
pub fn terminate(pid: u32, grace_period: Duration) -> Option<ChildExit> {
    send(pid, libc::SIGTERM);
    let until = Instant::now() + grace_period;
    loop {
        match wait4(Some(pid), false) {
            Ok(None) if Instant::now() < until => sleep(POLL),
            Ok(None) => {
                send_group(pid, libc::SIGKILL);
                send(pid, libc::SIGKILL);
                return wait(pid).ok();
            }
            Ok(ended) => return ended,
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;

    fn sleeper() -> u32 {
        Command::new("sleep").arg("1000").process_group(0).spawn().unwrap().id()
    }

    #[test]
    fn a_deadline_kills_the_group_and_reports_it() {
        let pid = sleeper();
        let deadline = Deadline::start(pid, Duration::from_millis(20), Interrupt::default());
        assert_eq!(wait(pid).unwrap().status.signal(), Some(libc::SIGKILL));
        assert!(deadline.finish());
    }

    #[test]
    fn a_canceled_deadline_kills_nothing() {
        let pid = sleeper();
        assert!(!Deadline::start(pid, Duration::from_secs(3600), Interrupt::default()).finish());
        assert!(wait4(Some(pid), false).unwrap().is_none(), "it still runs");
        kill_group(pid);
        wait(pid).unwrap();
    }

    #[test]
    fn a_process_gets_sigterm_and_after_the_grace_period_sigkill() {
        let pid = sleeper();
        let signal = |ended: Option<ChildExit>| ended.and_then(|ended| ended.status.signal());
        assert_eq!(signal(terminate(pid, Duration::from_secs(3600))), Some(libc::SIGTERM));
        let mut ignoring = Command::new("sh");
        ignoring
            .args(["-c", "trap '' TERM; echo; exec sleep 1000"])
            .process_group(0)
            .stdout(std::process::Stdio::piped());
        let mut ignoring = ignoring.spawn().unwrap();
        std::io::Read::read_exact(ignoring.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        assert_eq!(signal(terminate(ignoring.id(), Duration::from_millis(20))), Some(libc::SIGKILL));
        assert!(ignoring.wait().is_err(), "it is reaped");
    }
}
