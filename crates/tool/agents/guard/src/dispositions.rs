//! The program's own dispositions of SIGSEGV and SIGBUS.
//!
//! ```text
//! program: sigaction(SIGSEGV, handler) ──→ TABLE: what the program installed, and reads back
//!                                      └─→ kernel: handler of the agent, the program's flags and mask
//! fault of a guarded object            ──→ report
//! any other fault                      ──→ the program's handler, with the same record and context
//! ```
//! The kernel gets the program's mask and flags, so it blocks the same signals and uses the same
//! stack as without the agent. `SA_RESETHAND` is done here: otherwise the agent's handler would be
//! gone after a fault.
//!
//! signal(3) and its relatives call sigaction inside libc, past an interposed one. So they are
//! interposed too.

#![allow(unsafe_code, reason = "interposes the signal functions, calls the program's handlers")]
#![cfg_attr(test, allow(dead_code, reason = "a test binary keeps its own functions"))]

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::next::{self, Next};
use crate::{ending, faults, raw};

type SigactionFunction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type SignalFunction = unsafe extern "C" fn(c_int, libc::sighandler_t) -> libc::sighandler_t;
type SimpleHandler = unsafe extern "C" fn(c_int);
type InfoHandler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// `SIG_HOLD` of `signal.h`: sigset(3) blocks the signal.
const SIG_HOLD: libc::sighandler_t = 2;

/// A disposition of the program.
struct Entry {
    is_locked: AtomicBool,
    action: UnsafeCell<MaybeUninit<libc::sigaction>>,
}

// SAFETY: `action` is accessed only by the holder of the lock.
unsafe impl Sync for Entry {}

static TABLE: [Entry; 2] =
    [const { Entry { is_locked: AtomicBool::new(false), action: UnsafeCell::new(MaybeUninit::zeroed()) } }; 2];

static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
static REAL_SIGACTION: Next = Next::empty();

fn entry(signal: c_int) -> Option<&'static Entry> {
    match signal {
        _ if !IS_INSTALLED.load(Acquire) => None,
        libc::SIGSEGV => Some(&TABLE[0]),
        libc::SIGBUS => Some(&TABLE[1]),
        _ => None,
    }
}

impl Entry {
    /// Runs `work` with the disposition. All signals are blocked meanwhile, so a handler never waits
    /// for its own thread.
    fn with<R>(&self, work: impl FnOnce(&mut libc::sigaction) -> R) -> R {
        let mask = raw::block_signals();
        while self.is_locked.compare_exchange_weak(false, true, Acquire, Relaxed).is_err() {
            core::hint::spin_loop();
        }
        // SAFETY: this thread holds the lock; all zeroes are a valid disposition, the default.
        let result = work(unsafe { (*self.action.get()).assume_init_mut() });
        self.is_locked.store(false, Release);
        raw::restore_signals(mask);
        result
    }
}

/// The kernel's disposition for the program's `action`.
fn for_kernel(action: &libc::sigaction) -> libc::sigaction {
    let mut own = *action;
    own.sa_sigaction = faults::handle as InfoHandler as libc::sighandler_t;
    if is_handler(action.sa_sigaction) {
        own.sa_flags = action.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
    } else {
        own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the call writes the mask.
        unsafe { libc::sigemptyset(&raw mut own.sa_mask) };
    }
    own
}

fn is_handler(handler: libc::sighandler_t) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN
}

fn real_sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    REAL_SIGACTION.search_once(c"sigaction");
    // SAFETY: `find` returned libc's sigaction; both pointers are null or the callers' records.
    unsafe { REAL_SIGACTION.function::<SigactionFunction>()(signal, new, old) }
}

/// Installs the agent's handler, and keeps what was there.
pub(crate) fn install() {
    for (signal, entry) in [(libc::SIGSEGV, &TABLE[0]), (libc::SIGBUS, &TABLE[1])] {
        entry.with(|action| {
            real_sigaction(signal, null(), action);
            real_sigaction(signal, &for_kernel(action), null_mut());
        });
    }
    IS_INSTALLED.store(true, Release);
}

/// In the child of a fork: another thread of the parent may have held a lock. Signals were blocked
/// then, and its change was complete or not begun for the kernel.
pub(crate) fn after_fork() {
    TABLE.iter().for_each(|entry| entry.is_locked.store(false, Release));
}

/// Whether the signal has its default action.
pub(crate) fn is_default(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    real_sigaction(signal, null(), action.as_mut_ptr());
    // SAFETY: all zeroes are a valid disposition, and the call stores one.
    unsafe { action.assume_init_ref() }.sa_sigaction == libc::SIG_DFL
}

/// Gives the signal its default action, so that the instruction that faulted ends the process.
pub(crate) fn restore_default(signal: c_int) {
    let mut default = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeroes are a valid disposition: the default action.
    unsafe { default.assume_init_mut().sa_sigaction = libc::SIG_DFL };
    real_sigaction(signal, default.as_ptr(), null_mut());
}

/// Delivers a signal that is not the agent's to the program, as the kernel would.
pub(crate) fn deliver(signal: c_int, info: &mut libc::siginfo_t, context: *mut c_void) {
    let Some(entry) = entry(signal) else { return restore_default(signal) };
    let action = entry.with(|action| {
        let current = *action;
        if is_handler(current.sa_sigaction) && current.sa_flags & libc::SA_RESETHAND != 0 {
            action.sa_sigaction = libc::SIG_DFL;
            real_sigaction(signal, &for_kernel(action), null_mut());
        }
        current
    });
    // The kernel does not ignore a fault: the program could not continue.
    let is_fault = info.si_code > 0;
    match action.sa_sigaction {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            ending::complete();
            restore_default(signal);
            if !is_fault {
                // It was sent by a process: no instruction repeats it.
                raw::signal_thread(signal, Some(info));
            }
        }
        // SAFETY: the program installed this function as handler of this form; record and context are
        // those of the kernel.
        handler => unsafe {
            if action.sa_flags & libc::SA_SIGINFO != 0 {
                core::mem::transmute::<usize, InfoHandler>(handler)(signal, info, context);
            } else {
                core::mem::transmute::<usize, SimpleHandler>(handler)(signal);
            }
        },
    }
}

/// Interposes sigaction(2).
///
/// # Safety
/// The caller upholds the contract of sigaction.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let Some(entry) = entry(signal) else { return real_sigaction(signal, new, old) };
    // SAFETY: the caller passes null or a record.
    let new = unsafe { new.as_ref() }.copied();
    let (result, previous) = entry.with(|action| {
        let previous = *action;
        let mut result = 0;
        if let Some(new) = new {
            result = real_sigaction(signal, &for_kernel(&new), null_mut());
            if result == 0 {
                *action = new;
            }
        }
        (result, previous)
    });
    if result == 0 && !old.is_null() {
        // SAFETY: the caller passes a place for the old disposition.
        unsafe { old.write(previous) };
    }
    result
}

/// Interposes `__sigaction`, another name of it.
///
/// # Safety
/// The caller upholds the contract of sigaction.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn __sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller upholds the contract.
    unsafe { sigaction(signal, new, old) }
}

/// Installs a handler with these flags. Returns the old one; `SIG_ERR` on failure.
fn set_handler(signal: c_int, handler: libc::sighandler_t, flags: c_int) -> libc::sighandler_t {
    let (mut new, mut old) = (MaybeUninit::<libc::sigaction>::zeroed(), MaybeUninit::<libc::sigaction>::zeroed());
    // SAFETY: all zeroes are valid dispositions; `sigaction` gets both records.
    unsafe {
        let record = new.assume_init_mut();
        (record.sa_sigaction, record.sa_flags) = (handler, flags);
        match sigaction(signal, new.as_ptr(), old.as_mut_ptr()) {
            0 => old.assume_init_ref().sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

/// Defines an interposed function that installs a handler with fixed flags.
macro_rules! signal_function {
    ($name:ident, $literal:literal, $flags:expr) => {
        /// Interposes the function of this name.
        ///
        /// # Safety
        /// The caller upholds the contract of the interposed function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C" fn $name(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
            if entry(signal).is_some() {
                return set_handler(signal, handler, $flags);
            }
            pass_on($literal, signal, handler)
        }
    };
}

/// Calls the next function of this name.
fn pass_on(name: &core::ffi::CStr, signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    let function = next::find(name);
    if function.is_null() {
        return libc::SIG_ERR;
    }
    // SAFETY: each name is of a function of this type.
    unsafe { core::mem::transmute::<*mut c_void, SignalFunction>(function)(signal, handler) }
}

signal_function!(signal, c"signal", libc::SA_RESTART);
signal_function!(bsd_signal, c"bsd_signal", libc::SA_RESTART);
signal_function!(ssignal, c"ssignal", libc::SA_RESTART);
signal_function!(sysv_signal, c"sysv_signal", libc::SA_RESETHAND | libc::SA_NODEFER);
signal_function!(__sysv_signal, c"__sysv_signal", libc::SA_RESETHAND | libc::SA_NODEFER);

/// Interposes sigset(3), which also changes the mask.
///
/// # Safety
/// The caller upholds the contract of sigset.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sigset(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    let Some(entry) = entry(signal) else { return pass_on(c"sigset", signal, handler) };
    let was_blocked = raw::set_blocked(signal, handler == SIG_HOLD);
    let old =
        if handler == SIG_HOLD { entry.with(|action| action.sa_sigaction) } else { set_handler(signal, handler, 0) };
    if was_blocked { SIG_HOLD } else { old }
}
