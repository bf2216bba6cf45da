//! x86-64: registers of a traced thread, and system calls on its behalf.
//!
//! ```text
//! save registers and mask ── set rip, arguments, mask ── enter ── leave ── interrupt ── restore
//! ```
//! Source: ptrace(2), `PTRACE_SYSCALL`.

use std::io;

use super::signal_info::FAULTS;
use super::{SignalInfo, Stop, Tracee, TraceeRegisters};
use crate::{Error, Result};

/// Faults of the injected instruction before a call is abandoned.
const MAX_FAULTS: u32 = 4;

impl Tracee {
    /// The registers of the stopped thread.
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub fn registers(&self) -> Result<TraceeRegisters> {
        // SAFETY: user_regs_struct consists of integers, for which zero is valid.
        let mut registers: TraceeRegisters = unsafe { std::mem::zeroed() };
        // SAFETY: the request writes one user_regs_struct to a live local.
        unsafe { self.request(libc::PTRACE_GETREGS, 0, (&raw mut registers).expose_provenance())? };
        Ok(registers)
    }

    /// Sets the registers of the stopped thread.
    ///
    /// # Errors
    /// As [`Self::resume`].
    pub fn set_registers(&self, registers: &TraceeRegisters) -> Result<()> {
        // SAFETY: the request reads one user_regs_struct from a live borrow.
        unsafe { self.request(libc::PTRACE_SETREGS, 0, std::ptr::from_ref(registers).expose_provenance()) }
    }

    /// Makes a system call on behalf of the stopped thread. Its registers and mask are then as
    /// before, and it is in an interrupt stop.
    ///
    /// `instruction` is the address of a `syscall` instruction in its memory. The thread executes
    /// the code behind it only if the tracer is killed; that code must restore its registers and
    /// mask. `signal` is the signal of the present stop, or 0. Signals stay pending in the kernel
    /// during the call, so none is lost if the tracer is killed. Those that cannot be blocked are
    /// passed to `meanwhile`, and the caller must deliver them later.
    ///
    /// # Errors
    /// As [`Self::resume`]; [`Error::Call`] with the errno of the call, or with EFAULT if the
    /// instruction cannot be executed in the thread's state.
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
        // Marks that no system call is in progress; an interrupted one restarts after the registers
        // are restored.
        let orig_rax = u64::MAX;
        let rax = number.cast_unsigned();
        self.set_registers(&TraceeRegisters { rip: instruction, rax, orig_rax, rdi, rsi, rdx, r10, r8, r9, ..before })?;
        self.set_signal_mask(!FAULTS)?;
        let (mut faults, mut entered) = (0, false);
        // The kernel keeps a signal pending if it is blocked at delivery.
        let mut signal = usize::try_from(signal).unwrap_or(0);
        loop {
            // Not PTRACE_SINGLESTEP: the kernel would report the step to the program if the tracer
            // were killed.
            // SAFETY: the request takes a signal number and no pointer.
            unsafe { self.request(libc::PTRACE_SYSCALL, 0, std::mem::take(&mut signal))? };
            match self.wait_until_stopped()? {
                Stop::Call if entered => break,
                Stop::Call => entered = true,
                Stop::Signal(signal) => {
                    let info = self.signal_info()?;
                    // The injected instruction raised it, so the program must not receive it.
                    if !is_fault(signal) || !info.is_raised() {
                        meanwhile(info);
                        continue;
                    }
                    faults += 1;
                    if faults > MAX_FAULTS {
                        self.set_signal_mask(mask)?;
                        self.set_registers(&before)?;
                        return Err(Error::Call { call: name, source: io::Error::from_raw_os_error(libc::EFAULT) });
                    }
                }
                _ => {}
            }
        }
        let result = self.registers()?.rax;
        self.stop_before_signal_delivery(meanwhile)?;
        // The mask first: if the tracer is killed in between, the code behind the call restores all
        // registers.
        self.set_signal_mask(mask)?;
        self.set_registers(&before)?;
        // Results from -4095 to -1 are errors.
        match i32::try_from(result.wrapping_neg()) {
            Ok(errno @ 1..=4095) => Err(Error::Call { call: name, source: io::Error::from_raw_os_error(errno) }),
            _ => Ok(result),
        }
    }

    /// Moves the thread from the end of the call to an interrupt stop, from which an interrupted
    /// system call restarts or a signal is delivered.
    fn stop_before_signal_delivery(&mut self, meanwhile: &mut dyn FnMut(SignalInfo)) -> Result<()> {
        self.interrupt()?;
        loop {
            self.resume(0)?;
            match self.wait_until_stopped()? {
                Stop::Interrupted | Stop::Group => return Ok(()),
                Stop::Signal(_) => meanwhile(self.signal_info()?),
                _ => {}
            }
        }
    }

    /// Waits for any stop except the exit stop, from which it resumes the thread.
    fn wait_until_stopped(&mut self) -> Result<Stop> {
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
}

/// Signals raised by an instruction that cannot be executed.
const fn is_fault(signal: i32) -> bool {
    matches!(signal, libc::SIGSEGV | libc::SIGILL | libc::SIGSYS | libc::SIGBUS)
}
