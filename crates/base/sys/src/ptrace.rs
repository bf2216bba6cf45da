//! Control of another process's threads: ptrace(2) by `PTRACE_SEIZE`, which does not stop them.
//!
//! ```text
//!   seize ── running ── interrupt ──> stopped: registers accessible, system calls on its behalf
//!              ^                          |
//!              └────────── resume ────────┘    signals, new threads, exits stop it too: [`Stop`]
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `stop` | why a thread stopped |
//! | `call` | registers, and system calls on behalf of a thread |
//! | `signal_info` | the details of a signal |
//!
//! The kernel identifies the tracer by its thread, so a [`Tracee`] stays in the thread that created
//! it. Dropping it detaches from the thread, in the state last set, and from a child or thread that
//! it has started but not reported. Registers are available on x86-64 only.
//!
//! Source: ptrace(2); debuggers inject system calls in the same way.
#![allow(unsafe_code, reason = "ptrace and waitpid on threads have no safe form")]

#[cfg(target_arch = "x86_64")]
mod call;
mod signal_info;
mod stop;

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::process::has_ended;
use crate::scheduling;
use crate::{Error, Result};

pub use signal_info::{SignalInfo, is_raised_by_code};
pub use stop::Stop;

/// A traced thread of another process.
#[derive(Debug)]
pub struct Tracee {
    thread: u32,
    gone: bool,
    /// The signal of the present stop if it was only peeked: the kernel delivers it when the tracer
    /// is killed. A signal that was waited for would then be lost.
    delivered_if_killed: Cell<i32>,
    /// Makes the type !Send: the kernel identifies the tracer by its thread.
    _not_send: PhantomData<*const ()>,
}

/// Registers of a thread, as the kernel reports them.
pub type TraceeRegisters = libc::user_regs_struct;

/// `PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG`; missing in the C library's headers.
const GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
/// `PTRACE_GETSIGMASK` and `PTRACE_SETSIGMASK`; missing in the C library's headers.
const GET_SIGNAL_MASK: libc::c_uint = 0x420a;
const SET_SIGNAL_MASK: libc::c_uint = 0x420b;
/// Polls before sleeping, and the sleep between further polls.
const SPIN_POLLS: u32 = 64;
const POLL_INTERVAL: Duration = Duration::from_micros(100);
/// Upper bound for a stop; an interrupted thread, or one system call, takes far less.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

const OPTIONS: libc::c_int = libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT
    | libc::PTRACE_O_TRACESYSGOOD;
/// The signal number that marks a system-call stop.
const CALL: i32 = libc::SIGTRAP | 0x80;

impl Tracee {
    /// Seizes a running thread without stopping it. Threads and children it creates are traced too,
    /// and begin stopped.
    ///
    /// # Errors
    /// [`Error::ProcessDenied`] without permission, or if another tracer has it;
    /// [`Error::NoSuchProcess`].
    pub fn seize(thread: u32) -> Result<Self> {
        // SAFETY: the request takes option bits and no pointer.
        unsafe { request(libc::PTRACE_SEIZE, thread, 0, OPTIONS as usize) }
            .map_err(|source| of_thread(thread, source))?;
        Ok(Self::attached(thread))
    }

    /// A thread that [`Stop::Cloned`] of its creator announced: the kernel has attached to it
    /// already.
    #[must_use]
    pub const fn attached(thread: u32) -> Self {
        Self { thread, gone: false, delivered_if_killed: Cell::new(0), _not_send: PhantomData }
    }

    /// The thread id.
    #[must_use]
    pub const fn thread(&self) -> u32 {
        self.thread
    }

    /// Requests a stop. A thread that waits in the kernel for a userfaultfd page on behalf of its
    /// own code stops too.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`].
    pub fn interrupt(&self) -> Result<()> {
        // SAFETY: the request takes no pointer.
        unsafe { self.request(libc::PTRACE_INTERRUPT, 0, 0) }
    }

    /// Waits until it stops, for at most 30 s. The kernel reports the exit of a process's first
    /// thread only after all others have exited, which may depend on this process. So the wait also
    /// checks `/proc`, and `try_wait` returns that exit later.
    ///
    /// # Errors
    /// As waitpid(2); `ETIMEDOUT` for a thread that does not leave the kernel, such as a frozen
    /// one.
    pub fn wait(&mut self) -> Result<Stop> {
        let until = Instant::now() + STOP_TIMEOUT;
        for polls in 0_u32.. {
            if let Some(stop) = self.try_wait()? {
                return Ok(stop);
            }
            if polls < SPIN_POLLS {
                scheduling::spin_or_sleep(polls);
            } else if has_ended(self.thread) {
                break;
            } else if Instant::now() > until {
                return Err(Error::Call { call: "waitpid", source: io::Error::from_raw_os_error(libc::ETIMEDOUT) });
            } else {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(self.try_wait()?.unwrap_or(Stop::Gone))
    }

    /// Whether it has stopped. Does not wait.
    ///
    /// # Errors
    /// As waitpid(2).
    pub fn try_wait(&mut self) -> Result<Option<Stop>> {
        if self.gone {
            return Ok(Some(Stop::Gone));
        }
        if let Some(stop) = self.peek_signal()? {
            return Ok(stop);
        }
        let mut status = 0;
        let thread = number(self.thread);
        loop {
            // SAFETY: the kernel writes one integer to a live local.
            match unsafe { libc::waitpid(thread, &raw mut status, libc::WNOHANG | libc::__WALL) } {
                0 => return Ok(None),
                found if found == thread => break,
                _ => {}
            }
            let source = io::Error::last_os_error();
            match source.raw_os_error() {
                Some(libc::EINTR) => {}
                // When another thread execs, threads other than the first exit without a report.
                Some(libc::ECHILD) => {
                    self.gone = true;
                    return Ok(Some(Stop::Gone));
                }
                _ => return Err(Error::Call { call: "waitpid", source }),
            }
        }
        self.decode(status).map(Some)
    }

    /// Peeks at the signal of the present stop, which stays pending for waitpid until the thread
    /// resumes. `Some(None)` if it was returned before; `None` for any other stop. SIGTRAP is not
    /// peeked, so that the program never receives one of the tracer's.
    fn peek_signal(&self) -> Result<Option<Option<Stop>>> {
        let (options, thread) = (libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL, self.thread);
        // SAFETY: siginfo_t consists of integers, for which zero is valid.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one siginfo_t to a live local.
        let result = unsafe { libc::waitid(libc::P_PID, thread, &raw mut info, options) };
        if result < 0 || info.si_code != libc::CLD_TRAPPED {
            return Ok(None);
        }
        // SAFETY: waitid has succeeded for a stopped child, so the kernel has filled si_status.
        let status = unsafe { info.si_status() };
        if !(1..=libc::SIGRTMAX()).contains(&status) || status == libc::SIGTRAP {
            return Ok(None);
        }
        let is_new = self.delivered_if_killed.replace(status) != status;
        Ok(Some(is_new.then_some(Stop::Signal(status))))
    }

    fn decode(&mut self, status: i32) -> Result<Stop> {
        if !libc::WIFSTOPPED(status) {
            self.gone = true;
            return Ok(Stop::Gone);
        }
        let signal = libc::WSTOPSIG(status);
        Ok(match status >> 16 {
            0 if signal == CALL => Stop::Call,
            0 => Stop::Signal(signal),
            libc::PTRACE_EVENT_STOP if is_stopping(signal) => Stop::Group,
            libc::PTRACE_EVENT_STOP => Stop::Interrupted,
            libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_VFORK => Stop::Cloned(self.message()?),
            libc::PTRACE_EVENT_FORK => Stop::Forked(self.message()?),
            libc::PTRACE_EVENT_EXEC => Stop::Exec,
            libc::PTRACE_EVENT_EXIT => Stop::Ending,
            _ => Stop::Interrupted,
        })
    }

    fn message(&self) -> Result<u32> {
        let mut message: libc::c_ulong = 0;
        // SAFETY: the request writes one long to a live local.
        unsafe { self.request(libc::PTRACE_GETEVENTMSG, 0, (&raw mut message).expose_provenance())? };
        Ok(u32::try_from(message).unwrap_or(0))
    }

    /// Resumes it, delivering `signal` unless 0.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`] if it has exited or is not stopped.
    pub fn resume(&self, signal: i32) -> Result<()> {
        // SAFETY: the request takes a signal number and no pointer.
        unsafe { self.request(libc::PTRACE_CONT, 0, usize::try_from(signal).unwrap_or(0)) }
    }

    /// Keeps it in its process's group stop and reports later changes.
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub fn listen(&self) -> Result<()> {
        // SAFETY: the request takes no pointer.
        unsafe { self.request(libc::PTRACE_LISTEN, 0, 0) }
    }

    /// Details of the signal of the present stop.
    ///
    /// # Errors
    /// As [`Self::resume`], and in any other stop.
    pub fn signal_info(&self) -> Result<SignalInfo> {
        let mut info = SignalInfo([0; 32]);
        // SAFETY: the request writes one `siginfo_t`, 128 bytes, to a live local of that size.
        unsafe { self.request(libc::PTRACE_GETSIGINFO, 0, (&raw mut info.0).expose_provenance())? };
        Ok(info)
    }

    /// Replaces the details of the signal that the next resume delivers.
    ///
    /// # Errors
    /// As [`Self::signal_info`].
    pub fn set_signal_info(&self, info: &SignalInfo) -> Result<()> {
        // SAFETY: the request reads one `siginfo_t`, 128 bytes, from a live borrow of that size.
        unsafe { self.request(libc::PTRACE_SETSIGINFO, 0, std::ptr::from_ref(&info.0).expose_provenance()) }
    }

    /// Sends a signal to the thread.
    ///
    /// # Errors
    /// As tkill(2).
    pub fn send(&self, signal: i32) -> Result<()> {
        // SAFETY: the call takes two integers and no pointer.
        let result = unsafe { libc::syscall(libc::SYS_tkill, number(self.thread), signal) };
        if result < 0 { Err(of_thread(self.thread, io::Error::last_os_error())) } else { Ok(()) }
    }

    /// The blocked signals; bit 0 is signal 1.
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub fn signal_mask(&self) -> Result<u64> {
        let mut mask = 0_u64;
        // SAFETY: the request writes size_of::<u64>() bytes to a live local of that size.
        unsafe { self.request(GET_SIGNAL_MASK, size_of::<u64>(), (&raw mut mask).expose_provenance())? };
        Ok(mask)
    }

    /// Sets the blocked signals. A call that waited with another mask (sigsuspend(2), ppoll(2))
    /// restores this one when it ends.
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub fn set_signal_mask(&self, mask: u64) -> Result<()> {
        // SAFETY: the request reads size_of::<u64>() bytes from a live local of that size.
        unsafe { self.request(SET_SIGNAL_MASK, size_of::<u64>(), (&raw const mask).expose_provenance()) }
    }

    /// Whether it is stopped before its exit, whether or not that stop was waited for.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        let ending = libc::SIGTRAP | libc::PTRACE_EVENT_EXIT << 8;
        self.signal_info().is_ok_and(|info| info.code() == ending)
    }

    /// Whether the thread is in a group stop of its process.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let info = self.signal_info();
        info.is_ok_and(|info| info.code() >> 8 == libc::PTRACE_EVENT_STOP && is_stopping(info.signal()))
    }

    /// Address of the thread's robust-mutex list head, three words in its memory.
    ///
    /// # Errors
    /// As get_robust_list(2).
    pub fn robust_list(&self) -> Result<u64> {
        let (mut head, mut bytes) = (0_u64, 0_usize);
        // SAFETY: the call writes two words to live locals.
        let result =
            unsafe { libc::syscall(libc::SYS_get_robust_list, number(self.thread), &raw mut head, &raw mut bytes) };
        if result < 0 { Err(of_thread(self.thread, io::Error::last_os_error())) } else { Ok(head) }
    }

    /// Whether the program intercepts its own system calls (`PR_SET_SYSCALL_USER_DISPATCH`), as
    /// emulators of other systems do; no call can be injected then. False before Linux 6.4, which
    /// does not report it.
    #[must_use]
    pub fn has_syscall_dispatch(&self) -> bool {
        // Mode, offset, length, selector.
        let mut config = [0_u64; 4];
        // SAFETY: the request writes size_of_val(&config) bytes to a live local of that size.
        let result = unsafe {
            self.request(
                GET_SYSCALL_USER_DISPATCH_CONFIG,
                size_of_val(&config),
                config.as_mut_ptr().expose_provenance(),
            )
        };
        result.is_ok() && config[0] != 0
    }

    unsafe fn request(&self, request_number: libc::c_uint, address: usize, data: usize) -> Result<()> {
        if [libc::PTRACE_CONT, libc::PTRACE_SYSCALL, libc::PTRACE_DETACH, libc::PTRACE_LISTEN].contains(&request_number)
        {
            self.delivered_if_killed.set(0);
        }
        // SAFETY: `data` is valid for the request, by this function's own contract.
        unsafe { request(request_number, self.thread, address, data) }.map_err(|source| of_thread(self.thread, source))
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        self.detach_once(0);
    }
}

impl Tracee {
    /// Detaches from the thread, delivering `signal` unless 0.
    pub fn detach_with_signal(mut self, signal: i32) {
        self.detach_once(signal);
    }

    /// Detaches once. A stop that was not yet returned keeps its signal or its new thread.
    fn detach_once(&mut self, mut signal: i32) {
        let mut stop = self.try_wait().ok().flatten();
        if !self.gone && stop.is_none() {
            if self.detach(signal).is_ok() {
                self.gone = true;
                return;
            }
            // Detaching needs a stopped thread.
            stop = self.interrupt().and_then(|()| self.wait()).ok();
        }
        match stop {
            Some(Stop::Signal(pending)) => signal = pending,
            // The kernel has attached to the new one too; dropping its tracee detaches from it.
            Some(Stop::Cloned(new) | Stop::Forked(new)) => drop(Self::attached(new)),
            _ => {}
        }
        if !self.gone {
            let _ = self.detach(signal);
        }
        self.gone = true;
    }

    fn detach(&self, signal: i32) -> Result<()> {
        // SAFETY: the request takes a signal number and no pointer.
        unsafe { self.request(libc::PTRACE_DETACH, 0, usize::try_from(signal).unwrap_or(0)) }
    }
}

/// Whether two threads share one address space: kcmp(2). False if one has exited, or without
/// permission.
#[must_use]
pub fn share_memory(one: u32, other: u32) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: the call takes integers only.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, number(one), number(other), KCMP_VM, 0, 0) };
    order == 0
}

/// Signals that stop a process.
const fn is_stopping(signal: i32) -> bool {
    matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

fn number(thread: u32) -> i32 {
    i32::try_from(thread).unwrap_or(0)
}

/// # Safety
/// `data` must be what the request takes: a number, or the address of a live structure of the type
/// that it reads or writes.
unsafe fn request(request: libc::c_uint, thread: u32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: `data` is valid for the request, by this function's own contract.
    let result = unsafe { libc::ptrace(request, number(thread), address, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn of_thread(thread: u32, source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::ESRCH) => Error::NoSuchProcess { pid: thread },
        Some(libc::EPERM | libc::EACCES) => {
            Error::ProcessDenied { pid: thread, path: format!("/proc/{thread}/mem").into() }
        }
        _ => Error::Call { call: "ptrace", source },
    }
}
