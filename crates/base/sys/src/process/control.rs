//! What a process sets for itself, mostly between fork and exec: prctl(2).
//!
//! These return plain [`io::Result`], make one system call and allocate nothing, so that they may stand in
//! [`std::os::unix::process::CommandExt::pre_exec`].

use std::io;

use rustix::process::Signal;

/// Forbids (or allows again) transparent huge pages for this process: `PR_SET_THP_DISABLE`.
///
/// Inherited by fork and kept by exec, so it gives an unmodified program a true base-page run. Memory that already lies on
/// huge pages stays there. `MADV_HUGEPAGE` succeeds and does nothing while it is set.
///
/// # Errors
/// EINVAL on a kernel built without transparent huge pages.
pub fn set_thp_disabled(disabled: bool) -> io::Result<()> {
    Ok(rustix::thread::disable_transparent_huge_pages(disabled)?)
}

/// Whether transparent huge pages are forbidden for this process.
///
/// # Errors
/// As [`set_thp_disabled`].
pub fn thp_disabled() -> io::Result<bool> {
    Ok(rustix::thread::transparent_huge_pages_are_disabled()?)
}

/// Makes this process the parent of every orphan below it: `PR_SET_CHILD_SUBREAPER`.
///
/// Not inherited. A program that daemonises stays within reach of its supervisor.
///
/// # Errors
/// The errno of prctl.
pub fn set_child_subreaper(on: bool) -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(on.then(rustix::process::getpid))?)
}

/// Asks for `signal` when the parent *thread* ends: `PR_SET_PDEATHSIG`. `None` takes it back.
///
/// Kept by exec, except of a setuid program; not inherited by fork. Two traps: it is the end of the thread that forked that
/// counts, not of the process; and a parent that died before the call sends nothing, so a caller compares getppid(2) after it.
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
