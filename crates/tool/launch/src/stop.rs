//! Ending what was started: in time, gently first, and nothing left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use fieldstone_sys::process::{ChildExit, children, comm, descendants, has_ended, wait4};

use crate::error::{Error, Result};
use crate::signals::{Interrupt, send, send_group};

const POLL: Duration = Duration::from_millis(10);

/// Kills a process group when its time is over.
#[derive(Debug)]
pub struct Deadline {
    passed: Arc<AtomicBool>,
    done: Sender<()>,
    thread: JoinHandle<()>,
}

impl Deadline {
    /// Gives the group that `leader` leads so much time, and no more once the user wants to end.
    pub fn start(leader: u32, limit: Duration, interrupt: Interrupt) -> Self {
        let passed = Arc::new(AtomicBool::new(false));
        let (done, finished) = channel();
        let tell = Arc::clone(&passed);
        let thread = spawn(move || {
            let until = Instant::now() + limit;
            loop {
                let wait = until.saturating_duration_since(Instant::now()).min(Duration::from_millis(100));
                match finished.recv_timeout(wait) {
                    Err(RecvTimeoutError::Timeout) if Instant::now() < until && interrupt.check().is_ok() => {}
                    Err(RecvTimeoutError::Timeout) => {
                        tell.store(true, SeqCst);
                        // The leader by its own number too: it may have joined another group.
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

    /// Ends the watch; whether the time had passed.
    pub fn finish(self) -> bool {
        drop(self.done);
        // It ends: the thread looks at the closed channel every 100 ms.
        let _ = self.thread.join();
        self.passed.load(SeqCst)
    }
}

/// Waits for a child to end: for as long as it runs. Callers bound it by a [`Deadline`], or have killed the child.
pub fn wait(pid: u32) -> Result<ChildExit> {
    wait4(Some(pid), true)?.ok_or(Error::Linux(fieldstone_sys::Error::NoSuchProcess { pid }))
}

/// Kills what is left of a group.
pub fn end_group(leader: u32) {
    send_group(leader, libc::SIGKILL);
}

/// What a program left behind.
#[derive(Debug, Default)]
pub struct Strays {
    /// The names of those that had not ended by themselves.
    pub left: Vec<String>,
    /// Time of all of them in user mode, and of the descendants that they had waited for.
    pub user_ns: u64,
    /// The same in the kernel.
    pub system_ns: u64,
}

/// Kills and reaps what a program left behind: the rest of its group, and what has become our child since its own
/// parent ended. `spared` are children of ours that are not the program's.
pub fn end_strays(leader: u32, spared: &[u32]) -> Strays {
    let strays = || {
        let own = children(std::process::id()).unwrap_or_default().into_iter().filter(|pid| !spared.contains(pid));
        own.flat_map(|pid| descendants(pid).unwrap_or_default().into_iter().chain([pid])).collect::<Vec<u32>>()
    };
    let left = strays().into_iter().filter(|&pid| !has_ended(pid)).filter_map(|pid| comm(pid).ok()).collect();
    let mut found = Strays { left, ..Strays::default() };
    end_group(leader);
    for _ in 0..100 {
        while let Ok(Some(ended)) = wait4(None, false) {
            if !spared.contains(&ended.pid) {
                found.user_ns += ended.user_ns;
                found.system_ns += ended.system_ns;
            }
        }
        let strays = strays();
        if strays.is_empty() {
            break;
        }
        strays.iter().for_each(|&pid| send(pid, libc::SIGKILL));
        sleep(POLL);
    }
    found
}

/// Asks a server to end, and makes it end if it does not within `patience`. How it ended, if that could be told.
pub fn stop_gently(pid: u32, patience: Duration) -> Option<ChildExit> {
    send(pid, libc::SIGTERM);
    let until = Instant::now() + patience;
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
    fn a_deadline_kills_and_says_so() {
        let pid = sleeper();
        let deadline = Deadline::start(pid, Duration::from_millis(20), Interrupt::default());
        assert_eq!(wait(pid).unwrap().status.signal(), Some(libc::SIGKILL));
        assert!(deadline.finish());
    }

    #[test]
    fn a_deadline_that_was_met_kills_nothing() {
        let pid = sleeper();
        assert!(!Deadline::start(pid, Duration::from_secs(3600), Interrupt::default()).finish());
        assert!(wait4(Some(pid), false).unwrap().is_none(), "it still runs");
        end_group(pid);
        wait(pid).unwrap();
    }

    #[test]
    fn who_is_asked_to_end_is_given_its_time() {
        let pid = sleeper();
        let signal = |ended: Option<ChildExit>| ended.and_then(|ended| ended.status.signal());
        assert_eq!(signal(stop_gently(pid, Duration::from_secs(3600))), Some(libc::SIGTERM));
        let mut deaf = Command::new("sh");
        deaf.args(["-c", "trap '' TERM; echo; exec sleep 1000"]).process_group(0).stdout(std::process::Stdio::piped());
        let mut deaf = deaf.spawn().unwrap();
        std::io::Read::read_exact(deaf.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        assert_eq!(signal(stop_gently(deaf.id(), Duration::from_millis(20))), Some(libc::SIGKILL));
        assert!(deaf.wait().is_err(), "it is reaped");
    }
}
