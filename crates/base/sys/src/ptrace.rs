//! Another process's threads, held still: ptrace(2) by `PTRACE_SEIZE`, which leaves them running until they are asked to stop.
//!
//! ```text
//!   seize ── running ── interrupt ──> stopped: registers read and written, system calls made in its name
//!              ^                          |
//!              └────────── resume ────────┘            a signal, a new thread, an exit stop it too: [`Stop`] says which
//! ```
//! A thread is traced by the thread that seized it: a [`Tracee`] stays where it was made. Dropping it lets the thread go, in the state that
//! it was set to, and what it has started last, which nobody has been told of. Only x86-64 has registers here.
//!
//! Source: ptrace(2); the way that a system call is made in another's name is that of debuggers that call functions.
#![allow(unsafe_code, reason = "ptrace and waitpid on threads have no safe form")]

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::process::has_ended;
use crate::turns;
use crate::{Error, Result};

/// Why a thread stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It was asked to, or is about to start as a new one.
    Asked,
    /// A signal is about to be delivered: resume with it, or without.
    Signal(i32),
    /// It enters a system call, or leaves one.
    Call,
    /// The process is stopped by SIGSTOP or the like: it has to be resumed by [`Tracee::listen`], to stay so.
    Group,
    /// It has just started this one, which runs in the same memory: a thread, or a child by vfork.
    Cloned(u32),
    /// It has just made a child with a copy of its memory.
    Forked(u32),
    /// It is about to begin another program.
    Exec,
    /// It is about to end: its memory is there, but nothing can be done in its name any more.
    Ending,
    /// It is gone.
    Gone,
}

/// A thread of another process.
#[derive(Debug)]
pub struct Tracee {
    thread: u32,
    gone: bool,
    /// The signal in whose stop it stands, which was looked at and not waited for: the kernel delivers it if we are killed. One that was
    /// waited for is lost then.
    delivered_if_killed: Cell<i32>,
    /// ptrace knows the tracer by its thread.
    _stays_in_its_thread: PhantomData<*const ()>,
}

/// What a signal tells beside its number (`siginfo_t`), as the kernel gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalInfo([i32; 32]);

impl SignalInfo {
    /// Where it says what the signal comes of.
    const CODE: usize = 2;

    /// The signal.
    #[must_use]
    pub const fn signal(&self) -> i32 {
        self.0[0]
    }

    /// Whether this process has sent it by [`Tracee::send`].
    #[must_use]
    pub fn is_sent_by_us(&self) -> bool {
        const SENDER: usize = 4;
        self.0[Self::CODE] == libc::SI_TKILL && u32::try_from(self.0[SENDER]) == Ok(std::process::id())
    }

    /// Whether an instruction of the thread has raised it, and nobody sent it.
    #[cfg(target_arch = "x86_64")]
    const fn is_raised(&self) -> bool {
        self.0[Self::CODE] > 0
    }
}

/// A call that is made in a thread's name raises so many signals at most that come of the call's own place in memory, before it is given up.
#[cfg(target_arch = "x86_64")]
const MOST_FAULTS: u32 = 4;

/// A thread's registers, as the kernel gives them.
pub type Registers = libc::user_regs_struct;

/// `PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG`, which the C library's headers do not have.
const GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
/// `PTRACE_GETSIGMASK` and `PTRACE_SETSIGMASK`, which they do not have either.
const GET_SIGNAL_MASK: libc::c_uint = 0x420a;
const SET_SIGNAL_MASK: libc::c_uint = 0x420b;
/// Signals that an instruction raises. Blocked, they would end the program.
#[cfg(target_arch = "x86_64")]
const FAULTS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGILL)
    | bit(libc::SIGSYS)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP);

/// Whether it is a signal that instructions raise. Such a one is not blocked while a call is made in a thread's name.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub const fn is_raised_by_code(signal: i32) -> bool {
    signal > 0 && signal <= 64 && FAULTS & bit(signal) != 0
}

#[cfg(target_arch = "x86_64")]
const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}
/// Who is waited for is looked at so often at once, and then each time after so long.
const SHORT_LOOKS: u32 = 64;
const BETWEEN_LOOKS: Duration = Duration::from_micros(100);
/// A thread that was interrupted, or runs one system call, stops long before.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

const OPTIONS: libc::c_int = libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT
    | libc::PTRACE_O_TRACESYSGOOD;
/// What marks the stop of a system call.
const CALL: i32 = libc::SIGTRAP | 0x80;

impl Tracee {
    /// Takes hold of a running thread, which goes on. What it starts is held too, and begins stopped.
    ///
    /// # Errors
    /// [`Error::ProcessDenied`] where this user may not, or a debugger holds it; [`Error::NoSuchProcess`].
    pub fn seize(thread: u32) -> Result<Self> {
        // SAFETY: the request takes no pointer, only option bits.
        unsafe { request(libc::PTRACE_SEIZE, thread, 0, OPTIONS as usize) }
            .map_err(|source| of_thread(thread, source))?;
        Ok(Self::held(thread))
    }

    /// A thread that its parent's [`Stop::Cloned`] announced: it is held already.
    #[must_use]
    pub const fn held(thread: u32) -> Self {
        Self { thread, gone: false, delivered_if_killed: Cell::new(0), _stays_in_its_thread: PhantomData }
    }

    /// Its number.
    #[must_use]
    pub const fn thread(&self) -> u32 {
        self.thread
    }

    /// Asks it to stop. Where it waits in the kernel for a page of userfaultfd, on behalf of its own code, it does so too.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`].
    pub fn interrupt(&self) -> Result<()> {
        // SAFETY: no pointer.
        unsafe { self.request(libc::PTRACE_INTERRUPT, 0, 0) }
    }

    /// Waits until it stops, for half a minute at most. The end of a process's first thread is not reported until all others have
    /// ended, which may wait for this process: so `/proc` is looked at, and `try_wait` returns the end later.
    ///
    /// # Errors
    /// As waitpid(2); `ETIMEDOUT` for a thread that does not leave the kernel, such as one that is frozen.
    pub fn wait(&mut self) -> Result<Stop> {
        let until = Instant::now() + LONGEST_WAIT;
        for looks in 0_u32.. {
            if let Some(stop) = self.try_wait()? {
                return Ok(stop);
            }
            if looks < SHORT_LOOKS {
                turns::pause(looks);
            } else if has_ended(self.thread) {
                break;
            } else if Instant::now() > until {
                return Err(Error::Call { call: "waitpid", source: io::Error::from_raw_os_error(libc::ETIMEDOUT) });
            } else {
                std::thread::sleep(BETWEEN_LOOKS);
            }
        }
        Ok(self.try_wait()?.unwrap_or(Stop::Gone))
    }

    /// Whether it has stopped meanwhile.
    ///
    /// # Errors
    /// As waitpid(2).
    pub fn try_wait(&mut self) -> Result<Option<Stop>> {
        if self.gone {
            return Ok(Some(Stop::Gone));
        }
        if let Some(stop) = self.look_at_signal()? {
            return Ok(stop);
        }
        let mut status = 0;
        let thread = number(self.thread);
        loop {
            // SAFETY: the status is a live local.
            match unsafe { libc::waitpid(thread, &raw mut status, libc::WNOHANG | libc::__WALL) } {
                0 => return Ok(None),
                found if found == thread => break,
                _ => {}
            }
            let source = io::Error::last_os_error();
            match source.raw_os_error() {
                Some(libc::EINTR) => {}
                // A thread that is not the first of its process is gone without a word when another one execs.
                Some(libc::ECHILD) => {
                    self.gone = true;
                    return Ok(Some(Stop::Gone));
                }
                _ => return Err(Error::Call { call: "waitpid", source }),
            }
        }
        self.understand(status).map(Some)
    }

    /// The signal in whose stop it stands, if that is one of the program's: it stays to be waited for until it is resumed. `Some(None)` where
    /// it was returned before; none where something else is to be waited for. A trap is waited for: the program does not get one of ours.
    fn look_at_signal(&self) -> Result<Option<Option<Stop>>> {
        let (options, thread) = (libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL, self.thread);
        // SAFETY: a structure of integers, for which zeros are good.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one such structure, into a live local.
        let result = unsafe { libc::waitid(libc::P_PID, thread, &raw mut info, options) };
        if result < 0 || info.si_code != libc::CLD_TRAPPED {
            return Ok(None);
        }
        // SAFETY: the kernel filled it for a child that has stopped.
        let status = unsafe { info.si_status() };
        if !(1..=libc::SIGRTMAX()).contains(&status) || status == libc::SIGTRAP {
            return Ok(None);
        }
        let is_new = self.delivered_if_killed.replace(status) != status;
        Ok(Some(is_new.then_some(Stop::Signal(status))))
    }

    fn understand(&mut self, status: i32) -> Result<Stop> {
        if !libc::WIFSTOPPED(status) {
            self.gone = true;
            return Ok(Stop::Gone);
        }
        let signal = libc::WSTOPSIG(status);
        Ok(match status >> 16 {
            0 if signal == CALL => Stop::Call,
            0 => Stop::Signal(signal),
            libc::PTRACE_EVENT_STOP if is_stopping(signal) => Stop::Group,
            libc::PTRACE_EVENT_STOP => Stop::Asked,
            libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_VFORK => Stop::Cloned(self.message()?),
            libc::PTRACE_EVENT_FORK => Stop::Forked(self.message()?),
            libc::PTRACE_EVENT_EXEC => Stop::Exec,
            libc::PTRACE_EVENT_EXIT => Stop::Ending,
            _ => Stop::Asked,
        })
    }

    fn message(&self) -> Result<u32> {
        let mut message: libc::c_ulong = 0;
        // SAFETY: the request writes one long, into a live local.
        unsafe { self.request(libc::PTRACE_GETEVENTMSG, 0, (&raw mut message).expose_provenance())? };
        Ok(u32::try_from(message).unwrap_or(0))
    }

    /// Lets it go on, with a signal delivered or 0.
    ///
    /// # Errors
    /// [`Error::NoSuchProcess`] where it is gone or does not stand still.
    pub fn resume(&self, signal: i32) -> Result<()> {
        // SAFETY: no pointer, a signal's number.
        unsafe { self.request(libc::PTRACE_CONT, 0, usize::try_from(signal).unwrap_or(0)) }
    }

    /// Leaves it in the stop that its whole process is in, and listens.
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub fn listen(&self) -> Result<()> {
        // SAFETY: no pointer.
        unsafe { self.request(libc::PTRACE_LISTEN, 0, 0) }
    }

    /// What the signal tells in whose stop it is.
    ///
    /// # Errors
    /// As [`Self::resume`], and where it is in another stop.
    pub fn signal_info(&self) -> Result<SignalInfo> {
        let mut info = SignalInfo([0; 32]);
        // SAFETY: the request writes one `siginfo_t`, 128 bytes, into a live local of that size.
        unsafe { self.request(libc::PTRACE_GETSIGINFO, 0, (&raw mut info.0).expose_provenance())? };
        Ok(info)
    }

    /// Has the signal tell this that it goes on with next.
    ///
    /// # Errors
    /// As [`Self::signal_info`].
    pub fn set_signal_info(&self, info: &SignalInfo) -> Result<()> {
        // SAFETY: the request reads one `siginfo_t`, 128 bytes.
        unsafe { self.request(libc::PTRACE_SETSIGINFO, 0, std::ptr::from_ref(&info.0).expose_provenance()) }
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// As tkill(2).
    pub fn send(&self, signal: i32) -> Result<()> {
        // SAFETY: takes two numbers.
        let result = unsafe { libc::syscall(libc::SYS_tkill, number(self.thread), signal) };
        if result < 0 { Err(of_thread(self.thread, io::Error::last_os_error())) } else { Ok(()) }
    }

    /// Its registers, while it stands still.
    ///
    /// # Errors
    /// As [`Self::resume`].
    #[cfg(target_arch = "x86_64")]
    pub fn registers(&self) -> Result<Registers> {
        // SAFETY: a structure of integers, for which zeros are good.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        // SAFETY: the request writes one such structure, into a live local.
        unsafe { self.request(libc::PTRACE_GETREGS, 0, (&raw mut registers).expose_provenance())? };
        Ok(registers)
    }

    /// Sets them.
    ///
    /// # Errors
    /// As [`Self::resume`].
    #[cfg(target_arch = "x86_64")]
    pub fn set_registers(&self, registers: &Registers) -> Result<()> {
        // SAFETY: the request reads one such structure.
        unsafe { self.request(libc::PTRACE_SETREGS, 0, std::ptr::from_ref(registers).expose_provenance()) }
    }

    /// The signals that it blocks; the lowest bit is signal 1.
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub fn signal_mask(&self) -> Result<u64> {
        let mut mask = 0_u64;
        // SAFETY: the request writes as many bytes as are said, into a live local.
        unsafe { self.request(GET_SIGNAL_MASK, size_of::<u64>(), (&raw mut mask).expose_provenance())? };
        Ok(mask)
    }

    /// Sets the signals that it blocks. What it waited for with other ones blocked (sigsuspend(2), ppoll(2)) sets these when it goes on.
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub fn set_signal_mask(&self, mask: u64) -> Result<()> {
        // SAFETY: the request reads as many bytes as are said.
        unsafe { self.request(SET_SIGNAL_MASK, size_of::<u64>(), (&raw const mask).expose_provenance()) }
    }

    /// Makes a system call in its name, while it stands still; its registers are as before then, and it stands as one that was asked to.
    /// `instruction` is where a `syscall` instruction lies in its memory; what follows there it runs only if we are killed, and has to set
    /// its registers and the signals that it blocks as they were. Signals wait in the kernel meanwhile, so that none is lost then: `signal`
    /// among them, in whose stop it stands (or 0). One that cannot be blocked has to be delivered later: it is given to `meanwhile`.
    ///
    /// # Errors
    /// As [`Self::resume`]; [`Error::Call`] with the errno where the call itself fails, and with EFAULT where the instruction cannot be
    /// run in its state.
    #[cfg(target_arch = "x86_64")]
    pub fn call(
        &mut self,
        instruction: u64,
        (name, number): (&'static str, libc::c_long),
        arguments: [u64; 6],
        signal: i32,
        meanwhile: &mut dyn FnMut(SignalInfo),
    ) -> Result<u64> {
        let (before, mask) = (self.registers()?, self.signal_mask()?);
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        // No call is under way any more: what this thread stood in is begun again after the registers are put back.
        let orig_rax = u64::MAX;
        let rax = number.cast_unsigned();
        self.set_registers(&Registers { rip: instruction, rax, orig_rax, rdi, rsi, rdx, r10, r8, r9, ..before })?;
        self.set_signal_mask(!FAULTS)?;
        let (mut faults, mut entered) = (0, false);
        // The kernel keeps a signal that is to be delivered while it is blocked.
        let mut signal = usize::try_from(signal).unwrap_or(0);
        loop {
            // No step: of one the kernel would tell the program, were we killed.
            // SAFETY: no pointer.
            unsafe { self.request(libc::PTRACE_SYSCALL, 0, std::mem::take(&mut signal))? };
            match self.wait_while_it_lives()? {
                Stop::Call if entered => break,
                Stop::Call => entered = true,
                Stop::Signal(signal) => {
                    let info = self.signal_info()?;
                    // The instruction is ours: the program has to learn nothing of what it raises.
                    if !is_fault(signal) || !info.is_raised() {
                        meanwhile(info);
                        continue;
                    }
                    faults += 1;
                    if faults > MOST_FAULTS {
                        self.set_signal_mask(mask)?;
                        self.set_registers(&before)?;
                        return Err(Error::Call { call: name, source: io::Error::from_raw_os_error(libc::EFAULT) });
                    }
                }
                _ => {}
            }
        }
        let result = self.registers()?.rax;
        self.stand_where_signals_are_seen(meanwhile)?;
        // In this order: were we killed in between, what follows the call sets all registers.
        self.set_signal_mask(mask)?;
        self.set_registers(&before)?;
        // The kernel's last 4095 numbers are errors.
        match i32::try_from(result.wrapping_neg()) {
            Ok(errno @ 1..=4095) => Err(Error::Call { call: name, source: io::Error::from_raw_os_error(errno) }),
            _ => Ok(result),
        }
    }

    /// Whether it stands still since it is about to end, waited for or not.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        let ending = libc::SIGTRAP | libc::PTRACE_EVENT_EXIT << 8;
        self.signal_info().is_ok_and(|info| info.0[SignalInfo::CODE] == ending)
    }

    /// From the end of a call to where one that was interrupted before would begin again, or be ended by a signal.
    #[cfg(target_arch = "x86_64")]
    fn stand_where_signals_are_seen(&mut self, meanwhile: &mut dyn FnMut(SignalInfo)) -> Result<()> {
        self.interrupt()?;
        loop {
            self.resume(0)?;
            match self.wait_while_it_lives()? {
                Stop::Asked | Stop::Group => return Ok(()),
                Stop::Signal(_) => meanwhile(self.signal_info()?),
                _ => {}
            }
        }
    }

    /// Waits until it stops for anything but its end, which it is let go on to.
    #[cfg(target_arch = "x86_64")]
    fn wait_while_it_lives(&mut self) -> Result<Stop> {
        let stop = self.wait()?;
        if stop == Stop::Ending {
            self.resume(0)?;
        }
        if matches!(stop, Stop::Ending | Stop::Gone) {
            Err(Error::NoSuchProcess { pid: self.thread })
        } else {
            Ok(stop)
        }
    }

    /// Whether it stands still since its whole process is stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let told = self.signal_info();
        told.is_ok_and(|info| info.0[SignalInfo::CODE] >> 8 == libc::PTRACE_EVENT_STOP && is_stopping(info.signal()))
    }

    /// Where the kernel finds the robust mutexes that it holds, when it ends: a head in its memory, of three words.
    ///
    /// # Errors
    /// As get_robust_list(2).
    pub fn robust_list(&self) -> Result<u64> {
        let (mut head, mut bytes) = (0_u64, 0_usize);
        // SAFETY: the call writes two words, into live locals.
        let result =
            unsafe { libc::syscall(libc::SYS_get_robust_list, number(self.thread), &raw mut head, &raw mut bytes) };
        if result < 0 { Err(of_thread(self.thread, io::Error::last_os_error())) } else { Ok(head) }
    }

    /// Whether the program has its system calls handed to itself (`PR_SET_SYSCALL_USER_DISPATCH`), as one that runs programs of another system does:
    /// none can be made in its name then. Kernels before 6.4 do not tell.
    #[must_use]
    pub fn dispatches_calls(&self) -> bool {
        // Mode, offset, length, selector.
        let mut told = [0_u64; 4];
        // SAFETY: the kernel writes as many bytes as are told, into a live local.
        let result = unsafe {
            self.request(GET_SYSCALL_USER_DISPATCH_CONFIG, size_of_val(&told), told.as_mut_ptr().expose_provenance())
        };
        result.is_ok() && told[0] != 0
    }

    unsafe fn request(&self, request_number: libc::c_uint, address: usize, data: usize) -> Result<()> {
        if [libc::PTRACE_CONT, libc::PTRACE_SYSCALL, libc::PTRACE_DETACH, libc::PTRACE_LISTEN].contains(&request_number)
        {
            self.delivered_if_killed.set(0);
        }
        // SAFETY: the caller's word.
        unsafe { request(request_number, self.thread, address, data) }.map_err(|source| of_thread(self.thread, source))
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        self.end(0);
    }
}

impl Tracee {
    /// Lets it go, with a signal delivered or 0.
    pub fn let_go(mut self, signal: i32) {
        self.end(signal);
    }

    /// Lets it go once. A stop that nobody has heard of yet is no reason to lose what it tells.
    fn end(&mut self, mut signal: i32) {
        let mut stop = self.try_wait().ok().flatten();
        if !self.gone && stop.is_none() {
            if self.detach(signal).is_ok() {
                self.gone = true;
                return;
            }
            // It runs: it has to stand still to be let go.
            stop = self.interrupt().and_then(|()| self.wait()).ok();
        }
        match stop {
            Some(Stop::Signal(unheard)) => signal = unheard,
            // It is held, too, and nobody else knows of it.
            Some(Stop::Cloned(new) | Stop::Forked(new)) => drop(Self::held(new)),
            _ => {}
        }
        if !self.gone {
            let _ = self.detach(signal);
        }
        self.gone = true;
    }

    fn detach(&self, signal: i32) -> Result<()> {
        // SAFETY: no pointer.
        unsafe { self.request(libc::PTRACE_DETACH, 0, usize::try_from(signal).unwrap_or(0)) }
    }
}

/// Whether two threads have the same memory: kcmp(2). False where one is gone, or that is not for this user to know.
#[must_use]
pub fn share_memory(one: u32, other: u32) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: takes numbers only.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, number(one), number(other), KCMP_VM, 0, 0) };
    order == 0
}

/// The signals that come of an instruction that cannot be run.
#[cfg(target_arch = "x86_64")]
const fn is_fault(signal: i32) -> bool {
    matches!(signal, libc::SIGSEGV | libc::SIGILL | libc::SIGSYS | libc::SIGBUS)
}

/// The signals that stop a process.
const fn is_stopping(signal: i32) -> bool {
    matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

fn number(thread: u32) -> i32 {
    i32::try_from(thread).unwrap_or(0)
}

/// # Safety
/// `data` is what the request takes: a number, or the address of a live structure of the kind that it reads or writes.
unsafe fn request(request: libc::c_uint, thread: u32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: the caller's word.
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
