//! Watchdogs: two processes that put a program's memory back when its repairer dies.
//!
//! ```text
//!   repairer ──┬── watchdog     each has: pidfds of the repairer and of the program, a copy of the userfaultfd, the heartbeat
//!      │       └── watchdog
//!      └─ dies, or stands still while threads wait ──> a watchdog takes hold of the program, puts every page back, and ends
//! ```
//! Threads that access a moved page wait for the repairer. When it is killed they would wait forever: so somebody has to be there who
//! is not killed with it. A watchdog is this command once more (`/proc/self/exe`) under another name, in a session of its own, with all
//! signals ignored and no descriptor of the user's. Each of the two works alone: the one that
//! traces the program's first thread first does it, the other one looks whether something is left to do.
//!
//! The repairer replaces a watchdog that has ended or is stopped (SIGSTOP). The kernel sends SIGCONT to each watchdog when the
//! repairer ends (`PR_SET_PDEATHSIG`). So a watchdog that is stopped in the moment of the repairer's death still does its work.
//!
//! A repairer that ends by itself has put everything back before; it dismisses the watchdogs.
//!
//! Cost: two processes of some 3 MiB each, most of it the command's own file, which sleep; four looks a second at a counter.
#![allow(unsafe_code, reason = "signals are ignored between fork and exec, by bare system calls")]

mod keep;

use fieldstone_sys::process::{has_ended, is_child_running};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::ptr;

use crate::error::{Error, Result};

pub use keep::{is_watchdog, run_watchdog};

/// What a watchdog is called, in its name and in its command line. It differs from the command's own name, so that `pkill` with that name
/// does not reach it. At most 15 bytes.
const NAME: &CStr = c"memory-watchdog";
/// Two, so that one is there while the other one is being replaced.
const COUNT: usize = 2;
/// How long a watchdog may take to start: some milliseconds, more where all processors are busy.
const LONGEST_START: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// How long a dismissed watchdog may take to end.
const LONGEST_END: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How often [`rescue`] checks whether the process that rescues is stopped, and how many of these it starts at most.
const BETWEEN_CHECKS: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const MOST_RESCUERS: u32 = 8;
/// The message that dismisses a watchdog; one that brings a descriptor has another byte.
const DISMISSED: u8 = 0;
const USERFAULT: u8 = 1;

/// The watchdogs of a repairer.
#[derive(Debug)]
pub(super) struct Watchdogs {
    program: u32,
    each: Vec<Watchdog>,
    /// A counter that changes as long as the repairer serves the program.
    heartbeat: File,
    beats: u64,
    userfault: Option<OwnedFd>,
}

#[derive(Debug)]
struct Watchdog {
    process: Child,
    ended: OwnedFd,
    channel: OwnedFd,
}

impl Watchdogs {
    /// Starts the watchdogs of `program`; returns when they watch.
    ///
    /// # Errors
    /// [`Error::System`] where one cannot be started.
    pub(super) fn start(program: u32) -> Result<Self> {
        let memory = rustix::fs::memfd_create("heartbeat", MemfdFlags::CLOEXEC).map_err(failed)?;
        let heartbeat = File::from(memory);
        heartbeat.write_all_at(&0_u64.to_le_bytes(), 0).map_err(failed)?;
        let mut this = Self { program, each: Vec::new(), heartbeat, beats: 0, userfault: None };
        this.replace_lost()?;
        Ok(this)
    }

    /// Gives every watchdog, now and later, a copy of the program's userfaultfd. They need it where the program closes its own.
    ///
    /// # Errors
    /// [`Error::System`] where a watchdog cannot be started.
    pub(super) fn share(&mut self, userfault: BorrowedFd<'_>) -> Result<()> {
        let userfault = userfault.try_clone_to_owned().map_err(failed)?;
        // One that has died since is replaced, with this descriptor, by the next beat.
        self.each.iter().for_each(|watchdog| drop(watchdog.send(USERFAULT, Some(userfault.as_fd()))));
        self.userfault = Some(userfault);
        self.beat()
    }

    /// Shows that the repairer is at work, and replaces watchdogs that have died or are stopped. To be called several times a second.
    ///
    /// # Errors
    /// [`Error::System`] where one cannot be replaced: then everything has to be put back.
    pub(super) fn beat(&mut self) -> Result<()> {
        self.beats += 1;
        self.heartbeat.write_all_at(&self.beats.to_le_bytes(), 0).map_err(failed)?;
        self.replace_lost()
    }

    fn replace_lost(&mut self) -> Result<()> {
        let is_lost = |watchdog: &mut Watchdog| !is_child_running(watchdog.process.id());
        self.each.extract_if(.., is_lost).for_each(|mut watchdog| end(&mut watchdog.process));
        while self.each.len() < COUNT {
            let watchdog = Watchdog::start(self.program, &self.heartbeat)?;
            if let Some(userfault) = &self.userfault {
                watchdog.send(USERFAULT, Some(userfault.as_fd()))?;
            }
            self.each.push(watchdog);
        }
        Ok(())
    }

    /// Ends the watchdogs. Everything has been put back.
    pub(super) fn dismiss(&mut self) {
        self.each.iter().for_each(|watchdog| drop(watchdog.send(DISMISSED, None)));
        for watchdog in &mut self.each {
            if is_child_running(watchdog.process.id()) {
                let _ = poll(&mut [PollFd::new(&watchdog.ended, PollFlags::IN)], Some(&LONGEST_END));
            }
            end(&mut watchdog.process);
        }
        self.each.clear();
    }
}

impl Drop for Watchdogs {
    /// After an error they stay, and put everything back when this process has ended.
    fn drop(&mut self) {
        if has_ended(self.program) {
            self.dismiss();
        }
    }
}

impl Watchdog {
    fn start(program: u32, heartbeat: &File) -> Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(failed)?;
        let wiring = (Stdio::from(theirs), Stdio::from(heartbeat.try_clone().map_err(failed)?));
        let mut process = spawn(program, Some(std::process::id()), wiring)?;
        let watches = pidfd(process.id()).and_then(|ended| until_it_watches(&ours).map(|()| ended));
        // One that does not watch is not left behind.
        let ended = watches.inspect_err(|_| end(&mut process))?;
        Ok(Self { process, ended, channel: ours })
    }

    fn send(&self, what: u8, descriptor: Option<BorrowedFd<'_>>) -> Result<()> {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.channel, &[IoSlice::new(&[what])], &mut control, flags).map(|_| ()).map_err(failed)
    }
}

/// Waits until the watchdog at the other end of this channel reports that it watches.
fn until_it_watches(channel: &OwnedFd) -> Result<()> {
    let _ = poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&LONGEST_START));
    match rustix::net::recv(channel, &mut [0][..], rustix::net::RecvFlags::DONTWAIT) {
        Ok((1, _)) => Ok(()),
        Ok(_) => Err(failed(std::io::ErrorKind::UnexpectedEof)),
        Err(error) => Err(failed(error)),
    }
}

/// Kills a child and reaps it. A process that is stopped ends, too, when it is killed.
fn end(child: &mut Child) {
    let _ = child.kill().and_then(|()| child.wait());
}

/// Has a process of ours put back what is left behind in `program`, and waits for that. It does nothing where nothing is left behind.
/// A process that is killed or stopped meanwhile is replaced. Returns soon after the program's end, which `program_ended` (its pidfd)
/// shows.
pub(super) fn rescue(program: u32, program_ended: &OwnedFd) {
    for _ in 0..MOST_RESCUERS {
        let Ok(mut rescuer) = spawn(program, None, (Stdio::null(), Stdio::null())) else { return };
        until_done(&rescuer, program_ended);
        // A rescuer that has ended is only reaped: its exit status is already fixed.
        end(&mut rescuer);
        if rescuer.wait().is_ok_and(|status| status.success()) || has_ended_by(program_ended) {
            return;
        }
    }
}

/// Waits until a rescuer has ended or is stopped, or the program has ended.
fn until_done(rescuer: &Child, program_ended: &OwnedFd) {
    while is_child_running(rescuer.id()) && !has_ended_by(program_ended) {
        // Without a pidfd (no descriptor is left) the end is seen by the next check.
        let rescuer_ended = pidfd(rescuer.id()).ok();
        let ends = rescuer_ended.iter().chain([program_ended]);
        let mut ends: Vec<PollFd<'_>> = ends.map(|ended| PollFd::new(ended, PollFlags::IN)).collect();
        let _ = poll(&mut ends, Some(&BETWEEN_CHECKS));
    }
}

/// Whether the process of this pidfd has ended.
pub(super) fn has_ended_by(pidfd: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Starts a watchdog, with these as its standard input and output.
fn spawn(program: u32, repairer: Option<u32>, (input, output): (Stdio, Stdio)) -> Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(OsStr::from_bytes(NAME.to_bytes()))
        .arg(program.to_string())
        .args(repairer.map(|number| number.to_string()));
    command.stdin(input).stdout(output).stderr(Stdio::null()).current_dir("/").env_clear();
    // SAFETY: between fork and exec only bare system calls are made: setsid(2), sigaction(2), close_range(2).
    unsafe { command.pre_exec(leave_the_user) };
    command.spawn().map_err(failed)
}

/// Turns a forked process of this command into a watchdog without a repairer, which puts back what is left behind in `program`. It
/// allocates nothing, and returns where that fails.
pub(super) fn become_rescuer(program: u32) {
    // As many digits as the largest number has, and a zero byte.
    let mut number = [0_u8; 11];
    let _ = write!(&mut number[..], "{program}");
    let _ = leave_the_user();
    let arguments = [NAME.as_ptr(), number.as_ptr().cast(), ptr::null()];
    let environment = [ptr::null()];
    let mut none = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: all pointers are to live locals; both lists end with a null pointer and their strings with a zero byte.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
        libc::execve(c"/proc/self/exe".as_ptr(), arguments.as_ptr(), environment.as_ptr());
    }
}

/// A session of its own; no signal that can be ignored; no descriptor beside the first three.
fn leave_the_user() -> std::io::Result<()> {
    /// Those that a fault of its own raises end it, so that it can be replaced; of SIGCHLD nothing is known to be wrong.
    const KEPT: [i32; 7] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT, libc::SIGCHLD];
    rustix::process::setsid()?;
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| !KEPT.contains(signal)) {
        // SAFETY: SIG_IGN is no function of ours. What cannot be ignored (SIGKILL, SIGSTOP) is refused.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // SAFETY: descriptors are closed by the exec that follows, as Rust's own are; those are not used again here.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    Ok(())
}

pub(super) fn pidfd(pid: u32) -> Result<OwnedFd> {
    let number = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let number = number.ok_or_else(|| failed(std::io::ErrorKind::InvalidInput))?;
    rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty()).map_err(failed)
}

fn failed(error: impl Into<std::io::Error>) -> Error {
    Error::system("start a watchdog, without which no page is moved")(error.into())
}
