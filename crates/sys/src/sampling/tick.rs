//! The kernel's own tick, which comes whether anybody looks on or not: samples at it cost no interrupt.
//!
//! A timer of one's own costs a thread an interrupt a sample, and in a virtual machine some exits to the hypervisor to set it: 20 to 90 µs. The
//! tick's interrupt comes a hundred to a thousand times a second on each CPU that is busy, and a tracepoint stands in its way
//! (`irq_vectors:local_timer_entry`). Other timers' interrupts pass there too: a program that sets many has some samples more.
//!
//! Where it is to be had: the tracepoint's number is read from tracefs, which is root's as a rule, and CPUs may be set up to have no tick.
//!
//! The tracepoint fires in the kernel, and the registers are those that the thread had when it entered: also where it had done so long before, for a
//! system call. Those are left out, as by the clock: SYSCALL leaves the next instruction's address in rcx.

use perf_event::events::Tracepoint;

use super::registers::Registers;
use crate::kernel_file;

/// Where tracefs is mounted.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const TRACEPOINT: &str = "events/irq_vectors/local_timer_entry/id";

/// The tracepoint, where this user may read its number and all CPUs have a tick.
pub(super) fn tracepoint() -> Option<Tracepoint> {
    let tickless = kernel_file::text("/sys/devices/system/cpu/nohz_full").unwrap_or_default();
    if tickless.bytes().any(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let id = MOUNTS.iter().find_map(|mount| kernel_file::number(format!("{mount}/{TRACEPOINT}")))?;
    Some(Tracepoint::with_id(id))
}

/// Whether a thread with these registers is in a system call.
pub(super) const fn is_in_call(registers: &Registers) -> bool {
    let [_, rcx, ..] = registers.gpr;
    rcx == registers.rip
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_known_by_what_it_leaves() {
        let mut registers = Registers { rip: 0x1234, ..Registers::default() };
        assert!(!is_in_call(&registers));
        registers.gpr[1] = 0x1234;
        assert!(is_in_call(&registers));
    }
}
