//! Accesses an address that may fault, and returns whether it did.
//!
//! The access is one assembly instruction. The instruction before it stores the address behind the
//! access in a fixed register. On a fault, the SIGSEGV/SIGBUS handler sees that this thread is
//! probing, sets the program counter to that register and returns. The flag set after the access
//! then stays 0.
//!
//! A fault at any other moment is an error: memory of the model is not accessible. The handler
//! reports it with the step and exits with 1. The handler is async-signal-safe: it uses
//! const-initialised thread locals of an executable (no allocation), write and _exit.

#![allow(unsafe_code, reason = "a signal handler, and an instruction that is meant to fault")]

#[cfg_attr(target_arch = "x86_64", path = "probe/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "probe/aarch64.rs")]
pub(crate) mod arch;

use std::{cell::Cell, io::Write, mem::MaybeUninit};

/// The kind of access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProbeKind {
    /// Reads one byte.
    Read,
    /// Reads one byte and writes it back.
    Write,
}

thread_local! {
    static PROBING: Cell<bool> = const { Cell::new(false) };
    static STEP: Cell<(usize, &'static str)> = const { Cell::new((0, "start")) };
}

/// Records the current step of this thread, for the handler's message.
pub(crate) fn set_step(number: usize, name: &'static str) {
    STEP.set((number, name));
}

/// Installs the fault handler for the process.
pub(crate) fn install() {
    // SAFETY: all-zero is a valid sigaction. The handler has the signature of SA_SIGINFO and is
    // async-signal-safe (module documentation). It runs on the faulting thread's stack, which does
    // not overflow in this program.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut());
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
}

/// Whether `address` can be accessed. A fault costs the time of a signal.
pub(crate) fn is_accessible(address: usize, probe: ProbeKind) -> bool {
    PROBING.set(true);
    // SAFETY: the address is memory of the model or unmapped. A read changes nothing; a write
    // stores the byte that it read, and no other thread writes there. The handler resumes a fault
    // behind the access.
    let reached = unsafe { arch::instruction(address, probe) };
    PROBING.set(false);
    reached
}

extern "C" fn on_fault(signal: i32, information: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if !PROBING.get() {
        // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo; both signals set si_addr.
        report(signal, unsafe { (*information).si_addr() } as usize);
    }
    // SAFETY: with SA_SIGINFO the kernel passes a valid ucontext and restores it when the handler
    // returns. This thread is probing, so the fixed register holds the address behind the access.
    unsafe { arch::resume(context.cast()) };
}

fn report(signal: i32, address: usize) -> ! {
    let (number, name) = STEP.get();
    let mut text = [0_u8; 160];
    let mut rest = &mut text[..];
    let _ = writeln!(
        rest,
        "mmap-stress: step {number} ({name}): signal {signal} at {address:#x}, where the model expects memory"
    );
    let left = rest.len();
    // SAFETY: writes the initialised bytes of `text`; _exit has no precondition.
    unsafe {
        libc::write(2, text.as_ptr().cast(), text.len() - left);
        libc::_exit(1)
    }
}
