//! The handlers of `SIGSEGV` and `SIGBUS`: a fault in a region goes to its handler, a fault at a
//! registered instruction continues at its resume point, and any other goes to the program's former
//! handler.
//!
//! They are installed when the first region needs them, and stay. A program that installs its own
//! must do so before, or must call the handler that it replaces. Handlers run on the alternate
//! stack if the thread has one. Faults inside a handler are delivered; other signals wait until it
//! returns.

#![allow(unsafe_code, reason = "handles signals")]

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::{self, null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::fault::{Access, Fault, Outcome};
use crate::mechanism::Mechanism;
use crate::region::Region;
use crate::signal_mask::{FAULT_SIGNALS, all_but_faults};
use crate::threads::current_thread;
use crate::{arch, fault_workers, fork, registry, resume};

/// `BUS_MCEERR_AR`: a poisoned page was accessed.
const POISONED: c_int = 4;

/// The program's former actions. Published before the handler can run.
static FORMER_ACTIONS: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];

pub(crate) fn install() -> io::Result<()> {
    fork::with_setup_lock(install_alone)
}

fn install_alone() -> io::Result<()> {
    for (signal, before) in FAULT_SIGNALS.into_iter().zip(&FORMER_ACTIONS) {
        if !before.load(Ordering::Acquire).is_null() {
            continue;
        }
        // SAFETY: sigaction consists of integers, for which zero is valid; both calls get live
        // locals.
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

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a live `siginfo_t`; `errno` belongs to this thread.
    let (code, address, errno) = unsafe { ((*info).si_code, (*info).si_addr().addr(), *libc::__errno_location()) };
    // Codes above 0 are the kernel's; a signal sent by a process has no address.
    // SAFETY: the kernel passes the context of this handler.
    let is_fetch = unsafe { arch::is_fetch(context) };
    let is_ours = code > 0 && !(signal == libc::SIGBUS && code == POISONED) && !is_fetch;
    let region = if is_ours { registry::find(address) } else { None };
    let outcome = match region.as_deref() {
        None if is_ours && resume(context) => Outcome::Resolved,
        None => Outcome::Chain,
        // The child of a bare clone(2), whose memory is plain from now on.
        Some(_) if fork::detect_child() => Outcome::Resolved,
        Some(region) if region.is_closed() => Outcome::Chain,
        Some(region) => handle(region, address, context),
    };
    drop(region);
    // SAFETY: `errno` belongs to this thread.
    unsafe { *libc::__errno_location() = errno };
    if outcome == Outcome::Chain {
        chain(signal, info, context);
    }
}

/// Continues at the resume point of the faulting instruction. False if it has none.
fn resume(context: *mut c_void) -> bool {
    // SAFETY: `on_fault` passes the context of its signal.
    let instruction = unsafe { arch::instruction(context) };
    let point = instruction.and_then(resume::find);
    if let Some(point) = point {
        // SAFETY: as before; the program registered the point for this instruction.
        unsafe { arch::set_instruction(context, point) };
    }
    point.is_some()
}

fn handle(region: &Region, address: usize, context: *mut c_void) -> Outcome {
    // SAFETY: `on_fault` passes the context of its signal.
    let access = if unsafe { arch::is_write(context) } { Access::Write } else { Access::Read };
    match region.mechanism {
        Mechanism::ProtectThread => fault_workers::submit(region, address, access, current_thread()),
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

/// Sends `SIGSEGV` with the fault's address to a thread that waits in the kernel. Its code says
/// that it was sent, because the kernel reserves its own codes.
///
/// A thread that faulted in a system call handles the signal only after the access, and faults
/// again; so does one that blocks the signal, which the kernel would have killed. Both end the
/// process.
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
    // SAFETY: the structures consist of integers, for which zero is valid; published actions are
    // never freed; the signal goes to a thread of this process.
    unsafe {
        let mut now = std::mem::zeroed::<libc::sigaction>();
        libc::sigaction(signal, null(), &raw mut now);
        let before = FORMER_ACTIONS[0].load(Ordering::Acquire).as_ref();
        let is_ours = now.sa_sigaction == on_fault as *const () as usize;
        let action = before.filter(|_| is_ours).map_or(now.sa_sigaction, |before| before.sa_sigaction);
        // A sent signal can be ignored, a fault cannot.
        if action == libc::SIG_IGN {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, &raw const information);
    }
}

/// Repeated signals to a thread for one address before it counts as not receiving them.
const MAX_REPEATS: u32 = 1000;

/// Whether a `SIGSEGV` is pending for a thread.
fn is_pending(thread: u32, address: usize) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")) else {
        // Without descriptors or /proc, count: a thread that does not receive the signal faults
        // repeatedly.
        static REPEATS: Mutex<(u32, usize, u32)> = Mutex::new((0, 0, 0));
        let mut repeats = REPEATS.lock().unwrap_or_else(PoisonError::into_inner);
        let count = if (repeats.0, repeats.1) == (thread, address) { repeats.2 + 1 } else { 0 };
        *repeats = (thread, address, count);
        return count > MAX_REPEATS;
    };
    let pending = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigPnd:")?.trim(), 16).ok());
    pending.is_some_and(|set| set & (1 << (libc::SIGSEGV - 1)) != 0)
}

/// The program's action after its one-time handler has run.
// SAFETY: sigaction consists of integers and an address, for which zero is valid: the default
// action.
static DEFAULT: libc::sigaction = unsafe { std::mem::zeroed() };

/// Handles a signal as without this crate.
fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let at = usize::from(signal == FAULT_SIGNALS[1]);
    // SAFETY: the action was published before the handler was installed, and is never freed.
    let Some(mut before) = (unsafe { FORMER_ACTIONS[at].load(Ordering::Acquire).as_ref() }) else { return };
    if before.sa_flags & libc::SA_RESETHAND != 0 {
        let (was, default) = (ptr::from_ref(before).cast_mut(), (&raw const DEFAULT).cast_mut());
        if FORMER_ACTIONS[at].compare_exchange(was, default, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Another thread has used the one-time handler.
            before = &DEFAULT;
        }
    }
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // The access is retried and ends the process as expected; a sent signal is sent again.
            // SAFETY: the calls access only the kernel's live `siginfo_t`.
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
        // SAFETY: the program registered a function of this type, which runs with the mask that it
        // would have had; returning from the signal restores the former mask.
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
