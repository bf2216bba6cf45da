//! Settings of the calling process, mostly made between fork and exec: prctl(2).
//!
//! These functions return plain [`io::Result`], make one system call and do not allocate, so they
//! can be used in [`std::os::unix::process::CommandExt::pre_exec`].

use std::io;

use rustix::process::Signal;

/// Disables (or re-enables) transparent huge pages for this process: `PR_SET_THP_DISABLE`.
///
/// Inherited by fork and kept by exec, so an unmodified program then runs on base pages only.
/// Memory already on huge pages stays there. `MADV_HUGEPAGE` succeeds without effect while it is
/// set.
///
/// # Errors
/// EINVAL on a kernel built without transparent huge pages.
pub fn set_thp_disabled(disabled: bool) -> io::Result<()> {
    Ok(rustix::thread::disable_transparent_huge_pages(disabled)?)
}

/// Whether transparent huge pages are disabled for this process.
///
/// # Errors
/// As [`set_thp_disabled`].
pub fn thp_disabled() -> io::Result<bool> {
    Ok(rustix::thread::transparent_huge_pages_are_disabled()?)
}

/// Makes this process the parent of orphaned descendants: `PR_SET_CHILD_SUBREAPER`.
///
/// Not inherited. A program that daemonises remains a descendant of its supervisor.
///
/// # Errors
/// The errno of prctl.
pub fn set_child_subreaper(on: bool) -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(on.then(rustix::process::getpid))?)
}

/// Requests `signal` at the end of the parent *thread*: `PR_SET_PDEATHSIG`. `None` cancels it.
///
/// Kept by exec, except of a setuid program; not inherited by fork. Limits: the signal follows the
/// end of the thread that forked, not of the process. A parent that ended before the call causes no
/// signal, so callers must compare getppid(2) afterwards.
///
/// # Errors
/// EINVAL for a number that is no signal.
pub fn set_parent_death_signal(signal: Option<i32>) -> io::Result<()> {
    let signal = match signal {
        None => None,
        Some(number) => Some(Signal::from_named_raw(number).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?),
    };
    Ok(rustix::process::set_parent_process_death_signal(signal)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_no_signal_is_refused() {
        assert_eq!(set_parent_death_signal(Some(100_000)).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
