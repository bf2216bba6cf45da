//! What the kernel tells of a thread that is not asked: where it sleeps, who traces it, what holds it back.

use std::fs;

use fieldstone_sys::process::{self, Capability, State, has_capability};

/// What a program of ours is called.
const OURS: &str = "fieldstone";

/// Whether a thread sleeps in the kernel where no signal wakes it, as the kernel's own access to a page of a userfaultfd does. It stops
/// before it is in user mode again.
pub(crate) fn sleeps_deeply(thread: u32) -> bool {
    process::stat(thread).is_ok_and(|stat| stat.state == State::DiskSleep)
}

/// Processor time that a thread has had, in nanoseconds.
pub(crate) fn processor_ns(thread: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap_or_default();
    text.split_ascii_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The number of the system call that a thread is in; none where it faulted in user mode, or runs.
pub(crate) fn in_system_call(thread: u32) -> Option<u32> {
    waiting(thread)?.split_ascii_whitespace().next()?.parse().ok()
}

/// The instruction in user mode that a thread will go on at; none where it runs.
pub(crate) fn goes_on_at(thread: u32) -> Option<u64> {
    let text = waiting(thread)?;
    u64::from_str_radix(text.split_ascii_whitespace().next_back()?.strip_prefix("0x")?, 16).ok()
}

/// Its stack pointer in user mode, where it is in the kernel.
pub(crate) fn stack_of(thread: u32) -> Option<u64> {
    let text = waiting(thread)?;
    u64::from_str_radix(text.split_ascii_whitespace().nth_back(1)?.strip_prefix("0x")?, 16).ok()
}

/// The address whose pages a thread empties that is in madvise(2).
pub(crate) fn emptied_by(thread: u32) -> Option<u64> {
    let text = waiting(thread)?;
    let mut words = text.split_ascii_whitespace();
    let number: libc::c_long = words.next()?.parse().ok()?;
    let address = words.next()?.strip_prefix("0x")?;
    (number == libc::SYS_madvise).then(|| u64::from_str_radix(address, 16).ok())?
}

fn waiting(thread: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{thread}/syscall")).ok()
}

/// Whether the kernel may give a thread a userfaultfd that sees the kernel's accesses too. One with the capability in a user namespace of
/// its own is refused all the same.
pub(crate) fn may_have_userfault(thread: u32) -> bool {
    let all = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let is_for_all = all.map_or(true, |word| word.trim() != "0");
    is_for_all || has_capability(thread, Capability::SysPtrace).unwrap_or(true)
}

/// Who traces a thread: none, or a thread of the tracer.
pub(crate) fn tracer_of(thread: u32) -> Option<u32> {
    field(thread, "TracerPid:").filter(|&tracer| tracer != 0)
}

/// The program of ours that holds a process.
#[must_use]
pub fn repaired_by(pid: u32) -> Option<u32> {
    tracer_of(pid).filter(|&tracer| process::comm(tracer).is_ok_and(|name| name == OURS))
}

/// The process that a thread is of.
pub(crate) fn process_of(thread: u32) -> Option<u32> {
    field(thread, "Tgid:")
}

/// Whether a filter looks at its system calls, which may end it for one that is made in its name.
pub(crate) fn is_filtered(thread: u32) -> bool {
    field(thread, "Seccomp:").is_some_and(|mode| mode != 0)
}

/// Whether it is a thread of the kernel's own in the process, such as `io_uring` has.
pub(crate) fn is_kernels(thread: u32) -> bool {
    /// `PF_IO_WORKER` and `PF_USER_WORKER`.
    const WORKER: u64 = 0x10 | 0x4000;
    flags(thread).is_some_and(|flags| flags & WORKER != 0)
}

/// Whether a thread is on its way out, or gone: it was killed, perhaps, and lets go of all that it traces only at the end of that.
pub(crate) fn is_ending(thread: u32) -> bool {
    /// `PF_EXITING`.
    const EXITING: u64 = 4;
    flags(thread).is_none_or(|flags| flags & EXITING != 0)
}

/// The kernel's flags of a thread.
fn flags(thread: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    // Behind the name, which may be anything: state, five numbers, flags.
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(6)?.parse().ok()
}

/// Whether a signal waits that it does not block.
pub(crate) fn has_signal(thread: u32) -> bool {
    let set = signal_sets(thread);
    (set("SigPnd:") | set("ShdPnd:")) & !set("SigBlk:") != 0
}

/// Whether nothing becomes of a signal that is delivered to a thread: it is ignored, by the program or by default.
pub(crate) fn ignores(thread: u32, signal: i32) -> bool {
    const BY_DEFAULT: [i32; 4] = [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT];
    let (set, bit) = (signal_sets(thread), 1_u64 << (signal - 1));
    set("SigIgn:") & bit != 0 || BY_DEFAULT.contains(&signal) && set("SigCgt:") & bit == 0
}

/// The sets of signals of a thread, by their names in `/proc`.
fn signal_sets(thread: u32) -> impl Fn(&str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    move |name| {
        let digits = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
        u64::from_str_radix(digits.trim(), 16).unwrap_or(0)
    }
}

/// Memory of a process that is locked, in KiB.
pub(crate) fn locked_kib(pid: u32) -> u32 {
    field(pid, "VmLck:").unwrap_or(0)
}

/// Whether a process is in a namespace of processes that we are not in: then it knows its threads by other numbers.
pub(crate) fn is_elsewhere(pid: &str) -> bool {
    let numbers = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).map(str::to_owned);
        line.map_or(0, |line| line.split_ascii_whitespace().count())
    };
    numbers(pid) > numbers("self")
}

/// Pages of a process that devices or the kernel itself hold on to, in KiB.
pub(crate) fn pinned_kib(pid: u32) -> u32 {
    field(pid, "VmPin:").unwrap_or(0)
}

/// How many descriptors a process has room for now: the kernel makes more.
pub(crate) fn room_for_descriptors(pid: u32) -> u64 {
    field(pid, "FDSize:").map_or(u64::MAX, u64::from)
}

/// A number of `/proc/PID/status`.
fn field(thread: u32, name: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name))?.split_ascii_whitespace().next()?.parse().ok()
}

/// The threads of a process; none where it is gone.
pub(crate) fn tasks(pid: u32) -> Vec<u32> {
    process::threads(pid).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_understood() {
        let own = std::process::id();
        assert!(tasks(own).contains(&own) && !process::has_ended(own) && process::has_ended(u32::MAX - 1));
        assert_eq!((tracer_of(own), pinned_kib(own)), (None, 0), "unless a debugger runs the tests");
        let thread = u32::try_from(rustix::thread::gettid().as_raw_pid()).unwrap();
        // Whoever reads this is in read(2).
        assert_eq!(in_system_call(thread), u32::try_from(libc::SYS_read).ok());
        assert!(goes_on_at(thread).is_some());
        assert_eq!(process_of(thread), Some(own));
        assert!(!is_kernels(thread) && !is_ending(thread) && is_ending(u32::MAX - 1));
        assert!(!has_signal(thread) && !is_elsewhere(&own.to_string()));
        // Rust's start ignores SIGPIPE, and catches SIGSEGV to find stacks that overflow.
        let signals = [libc::SIGPIPE, libc::SIGCHLD, libc::SIGSEGV, libc::SIGTERM];
        assert_eq!(signals.map(|signal| ignores(thread, signal)), [true, true, false, false]);
    }
}
