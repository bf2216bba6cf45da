//! Watchdogs: two processes that restore a program's memory if its repairer dies.
//!
//! ```text
//!   repairer ─┬─ watchdog     each has: pidfds of the repairer and of the program,
//!      │      └─ watchdog     a copy of the userfaultfd, the heartbeat
//!      └─ dies, or hangs while threads wait ─→ a watchdog traces the program, restores every
//!                                              page, and ends
//! ```
//! A thread that accesses a moved page waits for the repairer. Without a watchdog it would wait
//! forever after the repairer's death. A watchdog is this command (`/proc/self/exe`) under another
//! name. It has a session of its own, ignores signals, and has no descriptor of the user. The two
//! watchdogs are independent: the first one that traces the program's first thread restores the
//! pages, and the other one checks that nothing remains.
//!
//! Invariants:
//! - The repairer replaces a watchdog that has ended or is stopped (SIGSTOP).
//! - The kernel sends SIGCONT to each watchdog when the repairer ends (`PR_SET_PDEATHSIG`), so a
//!   stopped watchdog works too.
//! - A repairer that ends normally has restored all pages and dismisses the watchdogs.
//!
//! Cost: two sleeping processes of about 3 MiB each, most of it the file of the command, and four
//! reads of a counter per second.
#![allow(unsafe_code, reason = "signals are ignored between fork and exec, by system calls only")]

mod process;

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
use crate::tuning::{MAX_RESCUERS, MAX_WATCHDOG_END, MAX_WATCHDOG_START, RESCUER_CHECK_INTERVAL, WATCHDOGS};

pub use process::{is_watchdog, run_watchdog};

/// The process name of a watchdog and the first word of its command line. It differs from the name
/// of the command, so that `pkill` with that name does not kill it. At most 15 bytes.
const NAME: &CStr = c"memory-watchdog";
/// The message that dismisses a watchdog.
const DISMISS: u8 = 0;
/// The message that carries the userfaultfd.
const USERFAULT: u8 = 1;

/// The watchdogs of a repairer.
#[derive(Debug)]
pub(crate) struct Watchdogs {
    /// The process number of the program.
    program: u32,
    watchdogs: Vec<Watchdog>,
    /// A memfd with a counter that the repairer increments while it serves the program.
    heartbeat: File,
    beats: u64,
    /// A copy of the program's userfaultfd; `None` until [`Self::share`].
    userfault: Option<OwnedFd>,
}

#[derive(Debug)]
struct Watchdog {
    process: Child,
    /// The pidfd of the process.
    ended: OwnedFd,
    /// The repairer's end of a socket pair.
    channel: OwnedFd,
}

impl Watchdogs {
    /// Starts the watchdogs of `program`; returns when they are ready.
    ///
    /// # Errors
    /// [`Error::Launch`] where one cannot be started.
    pub(crate) fn start(program: u32) -> Result<Self> {
        let memory = rustix::fs::memfd_create("heartbeat", MemfdFlags::CLOEXEC).map_err(failed)?;
        let heartbeat = File::from(memory);
        heartbeat.write_all_at(&0_u64.to_le_bytes(), 0).map_err(failed)?;
        let mut this = Self { program, watchdogs: Vec::new(), heartbeat, beats: 0, userfault: None };
        this.replace_lost()?;
        Ok(this)
    }

    /// Gives every watchdog, also later ones, a copy of the program's userfaultfd. They need it if
    /// the program closes its own.
    ///
    /// # Errors
    /// [`Error::Launch`] where a watchdog cannot be started.
    pub(crate) fn share(&mut self, userfault: BorrowedFd<'_>) -> Result<()> {
        let userfault = userfault.try_clone_to_owned().map_err(failed)?;
        // A watchdog that has died is replaced at the next beat, and gets this descriptor then.
        self.watchdogs.iter().for_each(|watchdog| drop(watchdog.send(USERFAULT, Some(userfault.as_fd()))));
        self.userfault = Some(userfault);
        self.beat()
    }

    /// Increments the heartbeat, and replaces watchdogs that have died or are stopped. To be called
    /// several times per second.
    ///
    /// # Errors
    /// [`Error::Launch`] where a watchdog cannot be replaced. The caller must restore all pages
    /// then.
    pub(crate) fn beat(&mut self) -> Result<()> {
        self.beats += 1;
        self.heartbeat.write_all_at(&self.beats.to_le_bytes(), 0).map_err(failed)?;
        self.replace_lost()
    }

    /// Kills watchdogs that have ended or are stopped, and starts watchdogs until there are
    /// [`WATCHDOGS`].
    fn replace_lost(&mut self) -> Result<()> {
        let is_lost = |watchdog: &mut Watchdog| !is_child_running(watchdog.process.id());
        self.watchdogs.extract_if(.., is_lost).for_each(|mut watchdog| kill_and_reap(&mut watchdog.process));
        while self.watchdogs.len() < WATCHDOGS {
            let watchdog = Watchdog::start(self.program, &self.heartbeat)?;
            if let Some(userfault) = &self.userfault {
                watchdog.send(USERFAULT, Some(userfault.as_fd()))?;
            }
            self.watchdogs.push(watchdog);
        }
        Ok(())
    }

    /// Ends the watchdogs. To be called when all pages have been restored.
    pub(crate) fn dismiss(&mut self) {
        self.watchdogs.iter().for_each(|watchdog| drop(watchdog.send(DISMISS, None)));
        for watchdog in &mut self.watchdogs {
            if is_child_running(watchdog.process.id()) {
                let _ = poll(&mut [PollFd::new(&watchdog.ended, PollFlags::IN)], Some(&MAX_WATCHDOG_END));
            }
            kill_and_reap(&mut watchdog.process);
        }
        self.watchdogs.clear();
    }
}

impl Drop for Watchdogs {
    /// After an error the watchdogs stay, and restore all pages when this process has ended.
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
        let streams = (Stdio::from(theirs), Stdio::from(heartbeat.try_clone().map_err(failed)?));
        let mut process = spawn(program, Some(std::process::id()), streams)?;
        let ready = pidfd(process.id()).and_then(|ended| wait_until_ready(&ours).map(|()| ended));
        // No process remains after an error.
        let ended = ready.inspect_err(|_| kill_and_reap(&mut process))?;
        Ok(Self { process, ended, channel: ours })
    }

    /// Sends a message of one byte, with a descriptor if there is one.
    fn send(&self, message: u8, descriptor: Option<BorrowedFd<'_>>) -> Result<()> {
        let mut buffer = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut buffer);
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.channel, &[IoSlice::new(&[message])], &mut control, flags).map(|_| ()).map_err(failed)
    }
}

/// Waits until the watchdog at the other end of this channel reports that it is ready.
fn wait_until_ready(channel: &OwnedFd) -> Result<()> {
    let _ = poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&MAX_WATCHDOG_START));
    match rustix::net::recv(channel, &mut [0][..], rustix::net::RecvFlags::DONTWAIT) {
        Ok((1, _)) => Ok(()),
        Ok(_) => Err(failed(std::io::ErrorKind::UnexpectedEof)),
        Err(error) => Err(failed(error)),
    }
}

/// Kills a child and reaps it. A stopped process ends too.
fn kill_and_reap(child: &mut Child) {
    let _ = child.kill().and_then(|()| child.wait());
}

/// Starts a rescuer that restores the pages that a repairer has left behind in `program`, and
/// waits for its end. A rescuer that is killed or stopped is replaced. Returns soon after the
/// program's end, which `program_ended`, its pidfd, shows.
pub(crate) fn rescue(program: u32, program_ended: &OwnedFd) {
    for _ in 0..MAX_RESCUERS {
        let Ok(mut rescuer) = spawn(program, None, (Stdio::null(), Stdio::null())) else { return };
        wait_for_rescuer(&rescuer, program_ended);
        // The exit status of a rescuer that has ended is fixed: the signal does not change it.
        kill_and_reap(&mut rescuer);
        if rescuer.wait().is_ok_and(|status| status.success()) || is_readable(program_ended) {
            return;
        }
    }
}

/// Waits until a rescuer has ended or is stopped, or the program has ended.
fn wait_for_rescuer(rescuer: &Child, program_ended: &OwnedFd) {
    while is_child_running(rescuer.id()) && !is_readable(program_ended) {
        // Without a pidfd (no descriptor is free) the next check detects the end.
        let rescuer_ended = pidfd(rescuer.id()).ok();
        let ends = rescuer_ended.iter().chain([program_ended]);
        let mut ends: Vec<PollFd<'_>> = ends.map(|ended| PollFd::new(ended, PollFlags::IN)).collect();
        let _ = poll(&mut ends, Some(&RESCUER_CHECK_INTERVAL));
    }
}

/// Whether a pidfd is readable: its process has ended.
pub(crate) fn is_readable(pidfd: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Starts a watchdog of `program` and `repairer` with these standard streams. Without a repairer it
/// is a rescuer: it begins at once.
fn spawn(program: u32, repairer: Option<u32>, (input, output): (Stdio, Stdio)) -> Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(OsStr::from_bytes(NAME.to_bytes()))
        .arg(program.to_string())
        .args(repairer.map(|number| number.to_string()));
    command.stdin(input).stdout(output).stderr(Stdio::null()).current_dir("/").env_clear();
    // SAFETY: `detach_from_user` makes system calls only (setsid, sigaction, close_range), and
    // neither allocates nor takes a lock. So it is safe in the child of a fork in a process with
    // several threads.
    unsafe { command.pre_exec(detach_from_user) };
    command.spawn().map_err(failed)
}

/// Replaces a forked process of this command by a rescuer of `program`. It allocates nothing, and
/// returns only if that fails.
pub(crate) fn become_rescuer(program: u32) {
    // The ten digits of the largest number, and a zero byte.
    let mut number = [0_u8; 11];
    let _ = write!(&mut number[..], "{program}");
    let _ = detach_from_user();
    let arguments = [NAME.as_ptr(), number.as_ptr().cast(), ptr::null()];
    let environment = [ptr::null()];
    let mut none = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: all pointers point to locals that live until the end of this block. Both lists end
    // with a null pointer, and their strings end with a zero byte. `sigemptyset` initializes `none`
    // before `pthread_sigmask` reads it.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
        libc::execve(c"/proc/self/exe".as_ptr(), arguments.as_ptr(), environment.as_ptr());
    }
}

/// Makes the process independent of the user: a new session, signals ignored, and descriptors from
/// 3 on closed by exec.
fn detach_from_user() -> std::io::Result<()> {
    /// Signals that keep their default action. A fault must end the watchdog, so that it is
    /// replaced. SIGCHLD does nothing by default.
    const KEPT: [i32; 7] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT, libc::SIGCHLD];
    rustix::process::setsid()?;
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| !KEPT.contains(signal)) {
        // SAFETY: SIG_IGN installs no handler, so no code of this process can run. The kernel
        // refuses SIGKILL and SIGSTOP.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // SAFETY: the flag only sets close-on-exec. The descriptors stay open until the exec that
    // follows, so their owners stay valid.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    Ok(())
}

/// A pidfd of the process.
///
/// # Errors
/// [`Error::Launch`] where there is no such process or no descriptor is free.
pub(crate) fn pidfd(pid: u32) -> Result<OwnedFd> {
    let number = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let number = number.ok_or_else(|| failed(std::io::ErrorKind::InvalidInput))?;
    rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty()).map_err(failed)
}

fn failed(error: impl Into<std::io::Error>) -> Error {
    Error::system("start a watchdog, without which no page is moved")(error.into())
}
