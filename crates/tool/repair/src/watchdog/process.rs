//! The main function of a watchdog process: waits for the repairer's death, then restores all
//! pages.

use std::fs::{self, File};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use fieldstone_remap::{Process, repaired_by};
use fieldstone_sys::process::{State, set_parent_death_signal, stat, threads};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, getppid, pidfd_send_signal};

use super::{NAME, USERFAULT, pidfd};
use crate::tuning::{FIRST_RESCUE_PAUSE, HEARTBEAT_INTERVAL, MAX_RESCUE_PAUSE, MAX_SAME_HEARTBEATS};

/// Whether this process was started as a watchdog.
#[must_use]
pub fn is_watchdog() -> bool {
    std::env::args_os().next().is_some_and(|name| name.as_bytes() == NAME.to_bytes())
}

/// Runs as a watchdog until the program is restored or the repairer dismisses it. The arguments of
/// the process are the process numbers of the program and of the repairer. Without a repairer the
/// rescue begins at once.
pub fn run_watchdog() {
    let numbers: Vec<u32> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    harden();
    let Some(&program) = numbers.first() else { return };
    let Ok(ended) = pidfd(program) else { return };
    let userfault = match numbers.get(1) {
        None => None,
        Some(&repairer) => match watch(program, repairer, &ended) {
            WatchResult::Dismissed => return,
            WatchResult::RepairerDied(userfault) => userfault,
        },
    };
    restore(program, &ended, userfault.as_ref());
}

/// Makes the end of this process less likely. Errors are ignored, because the watchdog works
/// without these settings.
fn harden() {
    let _ = rustix::thread::set_name(NAME);
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
    // Locks pages on first use. Without MCL_FUTURE, later mappings do not fail by RLIMIT_MEMLOCK.
    let _ = rustix::mm::mlockall(rustix::mm::MlockAllFlags::CURRENT | rustix::mm::MlockAllFlags::ONFAULT);
    let _ = fieldstone_sys::scheduling::raise_priority();
}

/// How watching ended.
enum WatchResult {
    /// The repairer has restored all pages, or the program has ended.
    Dismissed,
    /// The repairer is dead. Contains the userfaultfd if the repairer has sent it.
    RepairerDied(Option<OwnedFd>),
}

fn watch(program: u32, repairer: u32, program_ended: &OwnedFd) -> WatchResult {
    // SAFETY: the repairer passes a socket and a memfd as standard input and output. This process
    // has no other code that uses or closes these descriptors, so they are open until it ends.
    let (channel, heartbeat) = unsafe { (BorrowedFd::borrow_raw(0), BorrowedFd::borrow_raw(1)) };
    let Ok(heartbeat) = heartbeat.try_clone_to_owned().map(File::from) else { return WatchResult::Dismissed };
    let Ok(repairer_ended) = pidfd(repairer) else { return WatchResult::RepairerDied(None) };
    // Continues this process if it is stopped when the repairer dies. Called after exec, because an
    // exec of a file with capabilities resets the setting.
    let _ = set_parent_death_signal(Some(libc::SIGCONT));
    // If the repairer has died before, its process number may belong to another process.
    if getppid().map(Pid::as_raw_pid) != i32::try_from(repairer).ok() {
        return WatchResult::RepairerDied(None);
    }
    let _ = rustix::net::send(channel, &[1], rustix::net::SendFlags::NOSIGNAL);
    let (mut userfault, mut is_open, mut is_over) = (None, true, false);
    let mut monitor = HeartbeatMonitor::default();
    loop {
        let mut fds = [
            PollFd::new(&repairer_ended, PollFlags::IN),
            PollFd::new(program_ended, if is_over { PollFlags::empty() } else { PollFlags::IN }),
            PollFd::from_borrowed_fd(channel, if is_open { PollFlags::IN } else { PollFlags::empty() }),
        ];
        let _ = poll(&mut fds, Some(&HEARTBEAT_INTERVAL));
        let [repairer_end, program_end, message] = fds.map(|fd| !fd.revents().is_empty());
        is_over |= program_end;
        if message && is_open {
            match receive(channel) {
                WatchdogMessage::Userfault(fd) => userfault = Some(fd),
                WatchdogMessage::Dismiss => return WatchResult::Dismissed,
                WatchdogMessage::Closed => is_open = false,
            }
        } else if is_over && repaired_by(program).is_none() {
            return WatchResult::Dismissed;
        } else if repairer_end {
            return WatchResult::RepairerDied(userfault);
        } else if monitor.has_stopped(&heartbeat) && has_waiting_threads(program, userfault.as_ref()) {
            let _ = pidfd_send_signal(&repairer_ended, Signal::KILL);
        }
    }
}

/// A message of the repairer.
enum WatchdogMessage {
    Userfault(OwnedFd),
    Dismiss,
    /// The repairer has closed the channel: it is dying.
    Closed,
}

fn receive(channel: BorrowedFd<'_>) -> WatchdogMessage {
    let mut buffer = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut buffer);
    let mut byte = [0];
    let received = recvmsg(channel, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC);
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    match (received, descriptor) {
        (Ok(received), Some(fd)) if received.bytes == 1 && byte == [USERFAULT] => WatchdogMessage::Userfault(fd),
        (Ok(received), None) if received.bytes == 1 => WatchdogMessage::Dismiss,
        _ => WatchdogMessage::Closed,
    }
}

/// Detects that the repairer's heartbeat has stopped.
#[derive(Debug, Default)]
struct HeartbeatMonitor {
    last: u64,
    /// Number of checks in a row with the same count.
    same: u32,
}

impl HeartbeatMonitor {
    /// Whether the count was the same in the last [`MAX_SAME_HEARTBEATS`] checks, with this one.
    fn has_stopped(&mut self, heartbeat: &File) -> bool {
        let mut bytes = [0; 8];
        let _ = heartbeat.read_exact_at(&mut bytes, 0);
        let now = u64::from_le_bytes(bytes);
        self.same = if now == self.last { self.same + 1 } else { 0 };
        self.last = now;
        self.same >= MAX_SAME_HEARTBEATS
    }
}

/// Whether a thread of the program waits for the repairer: at a moved page, in a ptrace stop, or as
/// a zombie. The program's parent does not receive the end of the program before its tracer has
/// reaped all threads.
fn has_waiting_threads(program: u32, userfault: Option<&OwnedFd>) -> bool {
    let is_stopped = |thread: u32| stat(thread).is_ok_and(|stat| matches!(stat.state, State::Stopped | State::Zombie));
    let has_fault = userfault.is_some_and(|userfault| {
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", userfault.as_raw_fd())).unwrap_or_default();
        let total = text.lines().find_map(|line| line.strip_prefix("total:"));
        total.is_some_and(|total| total.trim() != "0")
    });
    has_fault || threads(program).unwrap_or_default().into_iter().any(is_stopped)
}

/// Restores all pages. Retries until that succeeds or the program ends, because threads of the
/// program wait.
fn restore(program: u32, ended: &OwnedFd, userfault: Option<&OwnedFd>) {
    let mut pause = FIRST_RESCUE_PAUSE;
    loop {
        // After an error the process cannot be read at present, and is tried again.
        if let Ok(false) = Process::is_left_behind(program) {
            return;
        }
        let shared = userfault.and_then(|userfault| userfault.try_clone().ok());
        if Process::rescue(program, shared).is_ok() {
            return;
        }
        let wait = Timespec::try_from(pause).unwrap_or(HEARTBEAT_INTERVAL);
        let has_ended = poll(&mut [PollFd::new(ended, PollFlags::IN)], Some(&wait)).is_ok_and(|ready| ready > 0);
        if has_ended {
            return;
        }
        pause = MAX_RESCUE_PAUSE.min(pause * 2);
    }
}
