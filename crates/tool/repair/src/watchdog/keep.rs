//! The process of a watchdog.

use std::fs::{self, File};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use fieldstone_remap::{Process, repaired_by};
use fieldstone_sys::process::{State, set_parent_death_signal, stat, threads};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, getppid, pidfd_send_signal};

use super::{NAME, USERFAULT, pidfd};

/// How often the heartbeat is looked at, and how often in a row it may be what it was while threads wait: 2 s, in which this process ran.
/// A repairer at work changes it every 12 ms.
const BETWEEN_LOOKS: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
const MOST_LOOKS: u32 = 8;
/// Between two tries to put everything back. The other watchdog may be at it, or a debugger in between; longer from try to try.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Whether this process was started as a watchdog.
#[must_use]
pub fn is_watchdog() -> bool {
    std::env::args_os().next().is_some_and(|name| name.as_bytes() == NAME.to_bytes())
}

/// Does what a watchdog does, until nothing is left to do. Its arguments are the process to put back and the repairer to watch; without a
/// repairer it begins at once.
pub fn run_watchdog() {
    let numbers: Vec<u32> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    harden();
    let Some(&program) = numbers.first() else { return };
    let Ok(ended) = pidfd(program) else { return };
    let userfault = match numbers.get(1) {
        None => None,
        Some(&repairer) => match watch(program, repairer, &ended) {
            Verdict::Dismissed => return,
            Verdict::Orphaned(userfault) => userfault,
        },
    };
    put_back(program, &ended, userfault.as_ref());
}

/// Everything here is an improvement that the process works without.
fn harden() {
    let _ = rustix::thread::set_name(NAME);
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
    // Pages in use stay in memory, and no others: what is mapped later is not limited by RLIMIT_MEMLOCK.
    let _ = rustix::mm::mlockall(rustix::mm::MlockAllFlags::CURRENT | rustix::mm::MlockAllFlags::ONFAULT);
    let _ = fieldstone_sys::scheduling::raise_priority();
}

/// How watching ended.
enum Verdict {
    /// The repairer has put everything back, or the program is gone.
    Dismissed,
    /// The repairer is dead.
    Orphaned(Option<OwnedFd>),
}

fn watch(program: u32, repairer: u32, program_ended: &OwnedFd) -> Verdict {
    // SAFETY: the repairer passes both as standard input and output, and nothing else in this process uses those.
    let (channel, heartbeat) = unsafe { (BorrowedFd::borrow_raw(0), BorrowedFd::borrow_raw(1)) };
    let Ok(heartbeat) = heartbeat.try_clone_to_owned().map(File::from) else { return Verdict::Dismissed };
    let Ok(repairer_ended) = pidfd(repairer) else { return Verdict::Orphaned(None) };
    // Wakes this process, should it be stopped when the repairer dies. exec(2) of a file with capabilities would undo an earlier call.
    let _ = set_parent_death_signal(Some(libc::SIGCONT));
    // The number may be another process's by now.
    if getppid().map(Pid::as_raw_pid) != i32::try_from(repairer).ok() {
        return Verdict::Orphaned(None);
    }
    let _ = rustix::net::send(channel, &[1], rustix::net::SendFlags::NOSIGNAL);
    let (mut userfault, mut is_open, mut is_over) = (None, true, false);
    let mut pulse = Pulse::default();
    loop {
        let mut fds = [
            PollFd::new(&repairer_ended, PollFlags::IN),
            PollFd::new(program_ended, if is_over { PollFlags::empty() } else { PollFlags::IN }),
            PollFd::from_borrowed_fd(channel, if is_open { PollFlags::IN } else { PollFlags::empty() }),
        ];
        let _ = poll(&mut fds, Some(&BETWEEN_LOOKS));
        let [repairer_end, program_end, message] = fds.map(|fd| !fd.revents().is_empty());
        is_over |= program_end;
        if message && is_open {
            match receive(channel) {
                Received::Userfault(fd) => userfault = Some(fd),
                Received::Dismissed => return Verdict::Dismissed,
                Received::Closed => is_open = false,
            }
        } else if is_over && repaired_by(program).is_none() {
            return Verdict::Dismissed;
        } else if repairer_end {
            return Verdict::Orphaned(userfault);
        } else if pulse.has_stopped(&heartbeat) && threads_wait(program, userfault.as_ref()) {
            let _ = pidfd_send_signal(&repairer_ended, Signal::KILL);
        }
    }
}

/// What the repairer sends.
enum Received {
    Userfault(OwnedFd),
    Dismissed,
    /// It is dying.
    Closed,
}

fn receive(channel: BorrowedFd<'_>) -> Received {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut what = [0];
    let got = recvmsg(channel, &mut [IoSliceMut::new(&mut what)], &mut control, RecvFlags::CMSG_CLOEXEC);
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    match (got, descriptor) {
        (Ok(got), Some(fd)) if got.bytes == 1 && what == [USERFAULT] => Received::Userfault(fd),
        (Ok(got), None) if got.bytes == 1 => Received::Dismissed,
        _ => Received::Closed,
    }
}

/// The repairer's heartbeat.
#[derive(Debug, Default)]
struct Pulse {
    last: u64,
    looks: u32,
}

impl Pulse {
    /// Whether it was the same for too long. Called after each look.
    fn has_stopped(&mut self, heartbeat: &File) -> bool {
        let mut bytes = [0; 8];
        let _ = heartbeat.read_exact_at(&mut bytes, 0);
        let now = u64::from_le_bytes(bytes);
        self.looks = if now == self.last { self.looks + 1 } else { 0 };
        self.last = now;
        self.looks >= MOST_LOOKS
    }
}

/// Whether a thread of the program waits for the repairer: at a moved page, or where ptrace has stopped it. A thread that has ended waits,
/// too: until its tracer has reaped it, the program's parent does not see the program's end.
fn threads_wait(program: u32, userfault: Option<&OwnedFd>) -> bool {
    let is_held = |thread: u32| stat(thread).is_ok_and(|stat| matches!(stat.state, State::Stopped | State::Zombie));
    let at_a_page = userfault.is_some_and(|userfault| {
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", userfault.as_raw_fd())).unwrap_or_default();
        let total = text.lines().find_map(|line| line.strip_prefix("total:"));
        total.is_some_and(|total| total.trim() != "0")
    });
    at_a_page || threads(program).unwrap_or_default().into_iter().any(is_held)
}

/// Puts everything back. No bound: threads of the program wait for it as long as it lives.
fn put_back(program: u32, ended: &OwnedFd, userfault: Option<&OwnedFd>) {
    let mut pause = FIRST_PAUSE;
    loop {
        // An error: it cannot be read in this moment.
        if let Ok(false) = Process::is_left_behind(program) {
            return;
        }
        let shared = userfault.and_then(|userfault| userfault.try_clone().ok());
        if Process::rescue(program, shared).is_ok() {
            return;
        }
        let wait = Timespec::try_from(pause).unwrap_or(BETWEEN_LOOKS);
        let has_ended = poll(&mut [PollFd::new(ended, PollFlags::IN)], Some(&wait)).is_ok_and(|ready| ready > 0);
        if has_ended {
            return;
        }
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}
