//! State of a thread or a process as `/proc` shows it: system call, tracer, signals, resources.

use std::fs;

use fieldstone_sys::process::{self, Capability, State, has_capability};
use fieldstone_wire::Remedy;

use crate::error::{Error, Result};

/// Command name of Fieldstone's own processes.
const OWN_COMMAND: &str = "fieldstone";

/// Whether a thread is in uninterruptible sleep, as when the kernel itself accesses a page of a
/// userfaultfd. It stops before it returns to user mode.
pub(crate) fn is_in_uninterruptible_sleep(thread: u32) -> bool {
    process::stat(thread).is_ok_and(|stat| stat.state == State::DiskSleep)
}

/// Processor time of a thread, in nanoseconds; 0 when unknown.
pub(crate) fn cpu_time_ns(thread: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap_or_default();
    text.split_ascii_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Number of the system call that a thread is in. `None` if it faulted in user mode or runs.
pub(crate) fn current_system_call(thread: u32) -> Option<u32> {
    syscall_file(thread)?.split_ascii_whitespace().next()?.parse().ok()
}

/// Address of the next user-mode instruction of a thread. `None` if it runs.
pub(crate) fn user_ip(thread: u32) -> Option<u64> {
    let text = syscall_file(thread)?;
    u64::from_str_radix(text.split_ascii_whitespace().next_back()?.strip_prefix("0x")?, 16).ok()
}

/// User-mode stack pointer of a thread that is in the kernel. `None` if it runs.
pub(crate) fn user_stack_pointer(thread: u32) -> Option<u64> {
    let text = syscall_file(thread)?;
    u64::from_str_radix(text.split_ascii_whitespace().nth_back(1)?.strip_prefix("0x")?, 16).ok()
}

/// Address argument of madvise(2) if a thread is in that call, else `None`.
pub(crate) fn madvise_address(thread: u32) -> Option<u64> {
    let text = syscall_file(thread)?;
    let mut words = text.split_ascii_whitespace();
    let number: libc::c_long = words.next()?.parse().ok()?;
    let address = words.next()?.strip_prefix("0x")?;
    (number == libc::SYS_madvise).then(|| u64::from_str_radix(address, 16).ok())?
}

fn syscall_file(thread: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{thread}/syscall")).ok()
}

/// Whether the kernel permits a thread to open a userfaultfd that also reports kernel accesses. A
/// capability that only holds in the thread's own user namespace is not enough.
pub(crate) fn may_open_userfaultfd(thread: u32) -> bool {
    let all = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let is_for_all = all.map_or(true, |word| word.trim() != "0");
    is_for_all || has_capability(thread, Capability::SysPtrace).unwrap_or(true)
}

/// The thread that traces `thread`, or `None`.
pub(crate) fn tracer_of(thread: u32) -> Option<u32> {
    field(thread, "TracerPid:").filter(|&tracer| tracer != 0)
}

/// The Fieldstone process that traces process `pid`, or `None`.
#[must_use]
pub fn repaired_by(pid: u32) -> Option<u32> {
    tracer_of(pid).filter(|&tracer| is_own(tracer))
}

fn is_own(pid: u32) -> bool {
    process::comm(pid).is_ok_and(|name| name == OWN_COMMAND)
}

/// The error for process `pid`, which another process traces.
pub(crate) fn traced_by(pid: u32, tracer: u32) -> Error {
    let why = if is_own(tracer) {
        format!("process {tracer} (fieldstone) traces it already{}", Remedy(Some(format_args!("kill {tracer}"))))
    } else {
        format!("process {tracer} traces it already, as a debugger does: detach that tracer first")
    };
    Error::Refused { pid, why }
}

/// Checks that no process traces process `pid`. A killed tracer that still releases its tracees
/// does not count.
///
/// # Errors
/// [`Error::Refused`] with the number of the tracer.
pub fn check_untraced(pid: u32) -> Result<()> {
    match tracer_of(pid).filter(|&tracer| !is_exiting(tracer)) {
        Some(tracer) => Err(traced_by(pid, tracer)),
        None => Ok(()),
    }
}

/// The process of a thread.
pub(crate) fn process_of(thread: u32) -> Option<u32> {
    field(thread, "Tgid:")
}

/// Whether a seccomp filter checks the thread's system calls. It may kill the thread for an
/// injected call.
pub(crate) fn has_seccomp_filter(thread: u32) -> bool {
    field(thread, "Seccomp:").is_some_and(|mode| mode != 0)
}

/// Whether it is a kernel worker inside the process, such as those of `io_uring`.
pub(crate) fn is_kernel_worker(thread: u32) -> bool {
    /// `PF_IO_WORKER` and `PF_USER_WORKER`.
    const WORKER: u64 = 0x10 | 0x4000;
    flags(thread).is_some_and(|flags| flags & WORKER != 0)
}

/// Whether a thread is exiting or gone. A killed tracer releases its tracees at the end of its
/// exit.
pub(crate) fn is_exiting(thread: u32) -> bool {
    /// `PF_EXITING`.
    const EXITING: u64 = 4;
    flags(thread).is_none_or(|flags| flags & EXITING != 0)
}

/// The kernel's `PF_*` flags of a thread.
fn flags(thread: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    // Fields after the command name: state, five numbers, flags.
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(6)?.parse().ok()
}

/// Whether a signal is pending that the thread does not block.
pub(crate) fn has_pending_signal(thread: u32) -> bool {
    let set = signal_sets(thread);
    (set("SigPnd:") | set("ShdPnd:")) & !set("SigBlk:") != 0
}

/// Whether a delivered signal has no effect: it is ignored by the program or by default.
pub(crate) fn ignores_signal(thread: u32, signal: i32) -> bool {
    const BY_DEFAULT: [i32; 4] = [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT];
    let (set, bit) = (signal_sets(thread), 1_u64 << (signal - 1));
    set("SigIgn:") & bit != 0 || BY_DEFAULT.contains(&signal) && set("SigCgt:") & bit == 0
}

/// Signal sets of a thread, by their names in `/proc/PID/status`.
fn signal_sets(thread: u32) -> impl Fn(&str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    move |name| {
        let digits = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
        u64::from_str_radix(digits.trim(), 16).unwrap_or(0)
    }
}

/// Locked memory of a process, in KiB.
pub(crate) fn locked_kib(pid: u32) -> u32 {
    field(pid, "VmLck:").unwrap_or(0)
}

/// Whether a process is in a PID namespace of its own, where its threads have other numbers.
pub(crate) fn is_in_other_pid_namespace(pid: &str) -> bool {
    let numbers = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).map(str::to_owned);
        line.map_or(0, |line| line.split_ascii_whitespace().count())
    };
    numbers(pid) > numbers("self")
}

/// Memory of a process pinned by devices or by the kernel, in KiB.
pub(crate) fn pinned_kib(pid: u32) -> u32 {
    field(pid, "VmPin:").unwrap_or(0)
}

/// Capacity of the process's descriptor table. The kernel enlarges it on demand.
pub(crate) fn descriptor_table_size(pid: u32) -> u64 {
    field(pid, "FDSize:").map_or(u64::MAX, u64::from)
}

/// A number of `/proc/PID/status`.
fn field(thread: u32, name: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name))?.split_ascii_whitespace().next()?.parse().ok()
}

/// The threads of a process; empty if it is gone.
pub(crate) fn threads_of(pid: u32) -> Vec<u32> {
    process::threads(pid).unwrap_or_default()
}

/// A thread that has not exited, by which `/proc` shows the memory of the process. The first thread
/// may exit before the others.
pub(crate) fn living_thread(pid: u32) -> u32 {
    threads_of(pid).into_iter().find(|&thread| !process::has_ended(thread)).unwrap_or(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_this_process_is_parsed() {
        let own = std::process::id();
        assert!(threads_of(own).contains(&own) && !process::has_ended(own) && process::has_ended(u32::MAX - 1));
        assert_eq!((tracer_of(own), pinned_kib(own)), (None, 0), "unless a debugger runs the tests");
        let thread = u32::try_from(rustix::thread::gettid().as_raw_pid()).unwrap();
        // The thread that reads this file is in read(2).
        assert_eq!(current_system_call(thread), u32::try_from(libc::SYS_read).ok());
        assert!(user_ip(thread).is_some());
        assert_eq!(process_of(thread), Some(own));
        assert!(!is_kernel_worker(thread) && !is_exiting(thread) && is_exiting(u32::MAX - 1));
        assert!(!has_pending_signal(thread) && !is_in_other_pid_namespace(&own.to_string()));
        // The Rust run time ignores_signal SIGPIPE and handles SIGSEGV to detect stack overflows.
        let signals = [libc::SIGPIPE, libc::SIGCHLD, libc::SIGSEGV, libc::SIGTERM];
        assert_eq!(signals.map(|signal| ignores_signal(thread, signal)), [true, true, false, false]);
    }
}
