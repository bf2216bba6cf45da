//! Touches an address that may fault, and lives to tell.
//!
//! The touch is one instruction in assembly, after another that puts the address behind it into a fixed register. On a fault
//! the SIGSEGV/SIGBUS handler, seeing that this thread probes, sets the program counter to that register and returns: the
//! flag after the touch is then never set. A fault at any other moment is a deviation of its own: memory that the model knows
//! to be there is not. The handler says so, with the step, and ends the process with 1.
//!
//! The handler is async-signal-safe: const-initialised thread locals of an executable (no allocation), write and _exit.

#![allow(unsafe_code, reason = "a signal handler, and an instruction that is meant to fault")]

use std::{arch::asm, cell::Cell, io::Write, mem::MaybeUninit};

/// How to touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Touch {
    /// Reads one byte.
    Read,
    /// Reads one byte and writes it back.
    Write,
}

thread_local! {
    static PROBING: Cell<bool> = const { Cell::new(false) };
    static STEP: Cell<(usize, &'static str)> = const { Cell::new((0, "start")) };
}

/// Notes which step this thread is at, for the handler's message.
pub(crate) fn at_step(number: usize, name: &'static str) {
    STEP.set((number, name));
}

/// Installs the handler for the process.
pub(crate) fn install() {
    // SAFETY: all-zero is a valid sigaction; the handler has the signature that SA_SIGINFO calls for and is
    // async-signal-safe (see above); it runs on the faulting thread's stack, and no stack overflow is provoked here.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut());
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
}

/// Whether `address` bears `touch`. Costs two signals' worth of time when it does not.
pub(crate) fn bears(address: usize, touch: Touch) -> bool {
    PROBING.set(true);
    // SAFETY: the address is the model's own memory or unmapped; a read changes nothing, a write puts back what it read,
    // and no other thread writes there. A fault is caught by the handler, which goes on behind the touch.
    let reached = unsafe { instruction(address, touch) };
    PROBING.set(false);
    reached
}

#[cfg(target_arch = "x86_64")]
unsafe fn instruction(address: usize, touch: Touch) -> bool {
    let mut reached: u64 = 0;
    match touch {
        // SAFETY: as `bears` says; r10 is declared as written.
        Touch::Read => unsafe {
            asm!(
                "lea r10, [rip + 2f]", // where the handler goes on
                "mov {byte}, byte ptr [{address}]",
                "mov {reached:e}, 1", // only when there was no fault
                "2:",
                address = in(reg) address, byte = out(reg_byte) _, reached = inout(reg) reached, out("r10") _,
                options(nostack)
            );
        },
        // SAFETY: as above; `or` with 0 reads and writes the byte without changing it.
        Touch::Write => unsafe {
            asm!(
                "lea r10, [rip + 2f]",
                "or byte ptr [{address}], 0",
                "mov {reached:e}, 1",
                "2:",
                address = in(reg) address, reached = inout(reg) reached, out("r10") _,
                options(nostack)
            );
        },
    }
    reached == 1
}

#[cfg(target_arch = "aarch64")]
unsafe fn instruction(address: usize, touch: Touch) -> bool {
    let mut reached: u64 = 0;
    let write = u64::from(touch == Touch::Write);
    // SAFETY: as `bears` says; x10 is declared as written.
    unsafe {
        asm!(
            "adr x10, 2f", // where the handler goes on
            "ldrb {byte:w}, [{address}]",
            "cbz {write}, 3f",
            "strb {byte:w}, [{address}]",
            "3:",
            "mov {reached}, #1", // only when there was no fault
            "2:",
            address = in(reg) address, write = in(reg) write, byte = out(reg) _, reached = inout(reg) reached,
            out("x10") _, options(nostack)
        );
    }
    reached == 1
}

extern "C" fn on_fault(signal: i32, information: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if !PROBING.get() {
        // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo; si_addr is set for both signals.
        report(signal, unsafe { (*information).si_addr() } as usize);
    }
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: with SA_SIGINFO the kernel passes a valid ucontext, which it restores when the handler returns. This thread
    // probes, so the fixed register holds the address behind the touch.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        {
            let registers = &mut (*context).uc_mcontext.gregs;
            registers[libc::REG_RIP as usize] = registers[libc::REG_R10 as usize];
        }
        #[cfg(target_arch = "aarch64")]
        {
            (*context).uc_mcontext.pc = (*context).uc_mcontext.regs[10];
        }
    }
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
    // SAFETY: writes the bytes of `text` that were filled; _exit needs nothing.
    unsafe {
        libc::write(2, text.as_ptr().cast(), text.len() - left);
        libc::_exit(1)
    }
}
