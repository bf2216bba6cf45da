//! What the kernel tells of a thread that is not asked: where it sleeps, who traces it, what holds it back.

use std::fs;

use fieldstone_sys::process::{self, State};

/// Whether a thread sleeps in the kernel where no signal wakes it, as the kernel's own access to a page of a userfaultfd does. It stops
/// before it is in user mode again.
pub(crate) fn sleeps_deeply(thread: u32) -> bool {
    process::stat(thread).is_ok_and(|stat| stat.state == State::DiskSleep)
}

/// Whether it has ended. The first thread of a process is still listed then, until all others have too.
pub(crate) fn has_ended(thread: u32) -> bool {
    process::stat(thread).map_or(true, |stat| stat.state.ended())
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

fn waiting(thread: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{thread}/syscall")).ok()
}

/// Who traces a thread: none, or a thread of the tracer.
pub(crate) fn tracer_of(thread: u32) -> Option<u32> {
    field(thread, "TracerPid:").filter(|&tracer| tracer != 0)
}

/// Whether a filter looks at its system calls, which may end it for one that is made in its name.
pub(crate) fn is_filtered(thread: u32) -> bool {
    field(thread, "Seccomp:").is_some_and(|mode| mode != 0)
}

/// Pages of a process that devices or the kernel itself hold on to, in KiB.
pub(crate) fn pinned_kib(pid: u32) -> u32 {
    field(pid, "VmPin:").unwrap_or(0)
}

/// A number of `/proc/PID/status`.
fn field(thread: u32, name: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name))?.split_ascii_whitespace().next()?.parse().ok()
}

/// The threads of a process.
pub(crate) fn tasks(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_understood() {
        let own = std::process::id();
        assert!(tasks(own).contains(&own) && !has_ended(own) && has_ended(u32::MAX - 1));
        assert_eq!((tracer_of(own), pinned_kib(own)), (None, 0), "unless a debugger runs the tests");
        let thread = u32::try_from(rustix::thread::gettid().as_raw_pid()).unwrap();
        // Whoever reads this is in read(2).
        assert_eq!(in_system_call(thread), u32::try_from(libc::SYS_read).ok());
        assert!(goes_on_at(thread).is_some());
    }
}
