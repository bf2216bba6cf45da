//! The handlers of `SIGSEGV` and `SIGBUS`: a fault in a region goes to its handler, any other to what the program had before.
//!
//! They are installed when the first region needs them, and stay. A program that installs its own afterwards takes them out; it
//! has to do so before, or to call what it replaced. Handlers run on the alternate stack where the thread has one. A handler's own
//! faults arrive; other signals wait until it is done.

#![allow(unsafe_code, reason = "handles signals")]

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::{self, null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::fault::{Access, Fault, Outcome};
use crate::region::{Mechanism, Region};
use crate::threads::own_number;
use crate::{fork, registry, serve};

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// `BUS_MCEERR_AR`: a poisoned page was touched.
const POISONED: c_int = 4;

/// What the program had. Published before the handler can run.
static BEFORE: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];

pub(crate) fn install() -> io::Result<()> {
    fork::setting_up(install_alone)
}

fn install_alone() -> io::Result<()> {
    for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
        if !before.load(Ordering::Acquire).is_null() {
            continue;
        }
        // SAFETY: structures of integers, for which zeros are good; both calls get live locals.
        unsafe {
            let mut had = std::mem::zeroed::<libc::sigaction>();
            if libc::sigaction(signal, null(), &raw mut had) != 0 {
                return Err(io::Error::last_os_error());
            }
            before.store(Box::into_raw(Box::new(had)), Ordering::Release);
            let mut ours = std::mem::zeroed::<libc::sigaction>();
            ours.sa_sigaction = on_fault as *const () as usize;
            ours.sa_mask = all_but_faults();
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            if libc::sigaction(signal, &raw const ours, null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

/// Runs `f` with all signals held back but the faults themselves: for who has a lock that a signal handler's access to controlled
/// memory would wait for, and for threads that are to get none of the program's.
pub(crate) fn without_signals<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: the sets are live locals, filled before they are read; the mask is this thread's and is put back.
    unsafe {
        let mut before = std::mem::zeroed::<libc::sigset_t>();
        let all = all_but_faults();
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
        let result = f();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        result
    }
}

/// All signals but those of faults.
fn all_but_faults() -> libc::sigset_t {
    // SAFETY: a structure of integers, which is filled.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        SIGNALS.iter().for_each(|&fault| _ = libc::sigdelset(&raw mut all, fault));
        all
    }
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a live `siginfo_t`; `errno` is this thread's.
    let (code, address, errno) = unsafe { ((*info).si_code, (*info).si_addr().addr(), *libc::__errno_location()) };
    // Codes above 0 are the kernel's own; a signal that somebody sent has no address.
    let is_ours = code > 0 && !(signal == libc::SIGBUS && code == POISONED) && !is_fetch(context);
    let region = if is_ours { registry::find(address) } else { None };
    let outcome = match region.as_deref() {
        None => Outcome::Chain,
        // The child of a bare clone(2), whose memory is plain from now on.
        Some(_) if fork::notice() => Outcome::Resolved,
        Some(region) => handle(region, address, context),
    };
    drop(region);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if outcome == Outcome::Chain {
        chain(signal, info, context);
    }
}

fn handle(region: &Region, address: usize, context: *mut c_void) -> Outcome {
    let access = access(context);
    match region.mechanism {
        Mechanism::ProtectThread => serve::pass_on(region, address, access, own_number()),
        Mechanism::ProtectSignal | Mechanism::UserfaultSignal => {
            (region.handler)(&Fault::new(region, address, access, 0, context))
        }
        Mechanism::UserfaultThread | Mechanism::Scan => Outcome::Chain,
    }
}

/// A `siginfo_t` of a fault, on 64 bits.
#[repr(C)]
struct FaultInformation {
    signal: c_int,
    errno: c_int,
    code: c_int,
    gap: c_int,
    address: usize,
    rest: [u64; 13],
}

/// Sends a thread that waits in the kernel a `SIGSEGV` with the address of its fault. The code says that it was sent: the kernel
/// keeps its own codes to itself.
///
/// A thread that faulted in a system call does not come to the signal before the access has passed, and faults again; so does one
/// that blocks the signal, which would end the process if the kernel had sent it. Either ends the process.
pub(crate) fn send_fault(thread: u32, address: usize) {
    if is_pending(thread, address) {
        eprintln!(
            "fieldstone-pages: a system call of thread {thread} touched {address:#x}, which the fault handler refused"
        );
        std::process::abort();
    }
    let (signal, code) = (libc::SIGSEGV, libc::SI_QUEUE);
    let information = FaultInformation { signal, errno: 0, code, gap: 0, address, rest: [0; 13] };
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: a structure of integers, for which zeros are good; live locals; what is published is never freed; a signal to a
    // thread of this process.
    unsafe {
        let mut now = std::mem::zeroed::<libc::sigaction>();
        libc::sigaction(signal, null(), &raw mut now);
        let before = BEFORE[0].load(Ordering::Acquire).as_ref();
        let is_ours = now.sa_sigaction == on_fault as *const () as usize;
        let action = before.filter(|_| is_ours).map_or(now.sa_sigaction, |before| before.sa_sigaction);
        // What is sent can be ignored, a fault cannot.
        if action == libc::SIG_IGN {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, &raw const information);
    }
}

/// Signals to a thread for the same address, one after the other, before it counts as not coming to them.
const MOST_REPEATS: u32 = 1000;

/// Whether a `SIGSEGV` waits for a thread.
fn is_pending(thread: u32, address: usize) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")) else {
        // No descriptor is left, or no /proc is there. A thread that does not come to the signal faults again and again.
        static REPEATS: Mutex<(u32, usize, u32)> = Mutex::new((0, 0, 0));
        let mut repeats = REPEATS.lock().unwrap_or_else(PoisonError::into_inner);
        let count = if (repeats.0, repeats.1) == (thread, address) { repeats.2 + 1 } else { 0 };
        *repeats = (thread, address, count);
        return count > MOST_REPEATS;
    };
    let pending = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigPnd:")?.trim(), 16).ok());
    pending.is_some_and(|set| set & (1 << (libc::SIGSEGV - 1)) != 0)
}

/// What the program has when its handler was for one time.
// SAFETY: a structure of integers and an address, for which zeros are good: the default action.
static DEFAULT: libc::sigaction = unsafe { std::mem::zeroed() };

/// Does with a signal what would have been done without us.
fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let at = usize::from(signal == SIGNALS[1]);
    // SAFETY: published before the handler was installed, and never freed.
    let Some(mut before) = (unsafe { BEFORE[at].load(Ordering::Acquire).as_ref() }) else { return };
    if before.sa_flags & libc::SA_RESETHAND != 0 {
        let (was, default) = (ptr::from_ref(before).cast_mut(), (&raw const DEFAULT).cast_mut());
        if BEFORE[at].compare_exchange(was, default, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Another thread has had its one time.
            before = &DEFAULT;
        }
    }
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // The access is tried again, and ends the process as it should; a signal that was sent is sent again.
            // SAFETY: plain calls; the information is the kernel's.
            unsafe {
                if (*info).si_code <= 0 && before.sa_sigaction == libc::SIG_IGN {
                    return;
                }
                libc::signal(signal, libc::SIG_DFL);
                if (*info).si_code <= 0 {
                    libc::raise(signal);
                }
            }
        }
        // SAFETY: the program registered a function of this shape, which runs with the mask that it would have had; returning
        // from the signal brings back the one of before.
        handler => unsafe {
            let mut mask = (*context.cast::<libc::ucontext_t>()).uc_sigmask;
            (1..=libc::SIGRTMAX()).filter(|&other| libc::sigismember(&raw const before.sa_mask, other) == 1).for_each(
                |other| {
                    libc::sigaddset(&raw mut mask, other);
                },
            );
            if before.sa_flags & libc::SA_NODEFER == 0 {
                libc::sigaddset(&raw mut mask, signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, null_mut());
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(handler);
                handler(signal, info, context);
            } else {
                let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        },
    }
}

/// The page-fault error code of x86: bit 1 is a write, bit 4 an instruction fetch.
#[cfg(target_arch = "x86_64")]
fn error_code(context: *mut c_void) -> i64 {
    // SAFETY: the kernel passes a live `ucontext_t`.
    unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] }
}

#[cfg(target_arch = "x86_64")]
fn access(context: *mut c_void) -> Access {
    if error_code(context) & 2 != 0 { Access::Write } else { Access::Read }
}

/// Whether memory was run, not accessed, which no handler can mend.
#[cfg(target_arch = "x86_64")]
fn is_fetch(context: *mut c_void) -> bool {
    error_code(context) & 16 != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn access(_context: *mut c_void) -> Access {
    Access::Read
}

#[cfg(not(target_arch = "x86_64"))]
fn is_fetch(_context: *mut c_void) -> bool {
    false
}
