//! Collapses memory of a running process into huge pages from outside: process_madvise(2) with
//! `MADV_COLLAPSE`, Linux 6.1.
//!
//! ```text
//!   |4|4|4| |4|4|...|4|   an aligned 2 MiB on small pages
//!   [   one huge page  ]  holds a copy and replaces them in one step; writers wait meanwhile
//! ```
//!
//! Contents, addresses and permissions stay. No code is injected. Only the huge pages remain in the
//! process, and the kernel splits them when it must. Source: process_madvise(2), madvise(2),
//! `mm/khugepaged.c`; `tests/collapse.rs` tests these facts:
//! - It needs CAP_SYS_NICE, and the right to read the process (its owner's, or CAP_SYS_PTRACE).
//! - `MADV_NOHUGEPAGE` and `PR_SET_THP_DISABLE` bind it; the modes in
//!   /sys/kernel/mm/transparent_hugepage do not.
//! - Missing pages of the 2 MiB are zero-filled, swapped ones are read. Private memory of files
//!   (data segments), hugetlb memory, and memory that userfaultfd has registered for writes are
//!   refused.
//! - The new page comes from the NUMA node that holds most of the old ones, or from any of equals.
#![allow(unsafe_code, reason = "process_madvise has no safe form")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use fieldstone_wire::Remedy;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::process::{Capability, has_capability, has_thp_disabled, stat};
use crate::{Error, Result, kernel_file};

/// Bytes that one call collapses: the range of one page-table entry of the second level.
pub const HUGE_BYTES: u64 = 2 << 20;

/// Attempts for a page that the kernel is using.
const TRIES: u32 = 4;
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// A process whose memory may be collapsed. Holds a pidfd, so the number cannot be reused.
#[derive(Debug)]
pub struct CollapseTarget {
    pid: u32,
    fd: OwnedFd,
}

impl CollapseTarget {
    /// Opens process `pid` and checks that this user may collapse its memory. Changes nothing.
    ///
    /// # Errors
    /// [`Error::NotCollapsible`] with the cause, [`Error::NoSuchProcess`],
    /// [`Error::ProcessDenied`].
    pub fn open(pid: u32) -> Result<Self> {
        check_kind(pid)?;
        let gone = Error::NoSuchProcess { pid };
        let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Err(gone) };
        let fd = pidfd_open(number, PidfdFlags::empty()).map_err(|errno| match errno.raw_os_error() {
            libc::ENOSYS => not_collapsible(pid, TOO_OLD),
            libc::ESRCH => gone,
            _ => Error::Call { call: "pidfd_open", source: errno.into() },
        })?;
        let this = Self { pid, fd };
        // An empty range: the kernel checks the permissions and does nothing.
        this.advise(&[]).map_err(|error| refusal(pid, error))?;
        Ok(this)
    }

    /// The process id.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Collapses the [`HUGE_BYTES`] at `start`, a multiple of them, into one huge page. Succeeds
    /// without effect if they are on a huge page already.
    ///
    /// # Errors
    /// `ENOMEM` when no huge page is free, `EBUSY` when the control group is at its limit, `EAGAIN`
    /// when the kernel used a page at each attempt, `EINVAL` for memory that cannot be collapsed
    /// (see above), `ESRCH` when the process has ended.
    pub fn collapse(&self, start: u64) -> io::Result<()> {
        let bytes = usize::try_from(HUGE_BYTES).unwrap_or(0);
        let base = std::ptr::with_exposed_provenance_mut(usize::try_from(start).unwrap_or(0));
        let range = [libc::iovec { iov_base: base, iov_len: bytes }];
        for _ in 1..TRIES {
            match self.advise(&range) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => std::thread::sleep(BETWEEN_TRIES),
                result => return result,
            }
        }
        self.advise(&range)
    }

    fn advise(&self, ranges: &[libc::iovec]) -> io::Result<()> {
        // SAFETY: the kernel only reads the list, which is borrowed for the call. Its addresses
        // belong to the other process.
        let result = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                self.fd.as_raw_fd(),
                ranges.as_ptr(),
                ranges.len(),
                linux_raw_sys::general::MADV_COLLAPSE,
                0_u32,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

const TOO_OLD: &str = "Linux supports this from 6.1 on; restart the program by `fieldstone run --region`";

fn not_collapsible(pid: u32, why: impl Into<String>) -> Error {
    Error::NotCollapsible { pid, why: why.into() }
}

/// Refuses processes without memory to collapse, and threads.
fn check_kind(pid: u32) -> Result<()> {
    if pid == std::process::id() {
        return Err(not_collapsible(pid, "it is this command itself; name another process"));
    }
    let found = stat(pid)?;
    if found.state.has_ended() {
        return Err(Error::NoSuchProcess { pid });
    }
    if found.virtual_bytes == 0 {
        return Err(not_collapsible(pid, "it is a kernel thread, which has no memory of its own"));
    }
    let status = kernel_file::text(format!("/proc/{pid}/status")).unwrap_or_default();
    if let Some(group) = kernel_file::field(&status, "Tgid").filter(|group| *group != pid.to_string()) {
        return Err(not_collapsible(pid, format!("it is a thread of process {group}; name that")));
    }
    if has_thp_disabled(pid) {
        let why = "it or its parent has disabled transparent huge pages (PR_SET_THP_DISABLE); restart it without that";
        return Err(not_collapsible(pid, why));
    }
    Ok(())
}

/// The error for an errno of the empty call.
fn refusal(pid: u32, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ESRCH) => Error::NoSuchProcess { pid },
        Some(libc::ENOSYS | libc::EINVAL) => not_collapsible(pid, TOO_OLD),
        Some(libc::EPERM | libc::EACCES) => match may_be_read(pid) {
            Err(denied) => denied,
            Ok(()) => {
                let remedy = Remedy(Some(format_args!("sudo fieldstone attach --huge {pid}")));
                not_collapsible(pid, format!("this needs CAP_SYS_NICE{remedy}"))
            }
        },
        _ => Error::Call { call: "process_madvise(MADV_COLLAPSE)", source: error },
    }
}

/// Whether this user may read the process; the kernel checks that when the file is opened.
fn may_be_read(pid: u32) -> Result<()> {
    let path = format!("/proc/{pid}/pagemap");
    File::open(&path).map(drop).map_err(|source| Error::process_file(pid, "open", Path::new(&path), source))
}

/// Whether this user has CAP_SYS_NICE, which collapsing needs. False where that is unknown.
#[must_use]
pub fn is_permitted() -> bool {
    has_capability(std::process::id(), Capability::SysNice) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(pid: u32) -> String {
        CollapseTarget::open(pid).unwrap_err().to_string()
    }

    #[test]
    fn a_process_without_memory_to_collapse_is_refused() {
        assert!(why(std::process::id()).contains("this command itself"));
        assert!(matches!(CollapseTarget::open(0x7fff_fff0), Err(Error::NoSuchProcess { .. })));
        let kernel_thread = crate::process::stat(2).is_ok_and(|stat| stat.comm == "kthreadd");
        assert!(!kernel_thread || why(2).contains("kernel thread"), "{}", why(2));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while !crate::process::stat(child.id()).unwrap().state.has_ended() {
            std::thread::yield_now();
        }
        assert!(matches!(CollapseTarget::open(child.id()), Err(Error::NoSuchProcess { .. })), "ended, not reaped");
        child.wait().unwrap();
    }

    #[test]
    fn a_thread_is_refused() {
        let (send_id, thread_id) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send_id.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = ended.recv();
        });
        let message = why(u32::try_from(thread_id.recv().unwrap()).unwrap());
        drop(end);
        thread.join().unwrap();
        assert!(message.contains(&format!("thread of process {}", std::process::id())), "{message}");
    }

    #[test]
    fn each_errno_has_a_message() {
        let message = |errno| refusal(std::process::id(), io::Error::from_raw_os_error(errno)).to_string();
        assert!(message(libc::ENOSYS).contains("6.1"));
        assert!(message(libc::EINVAL).contains("6.1"));
        assert!(message(libc::EPERM).contains("CAP_SYS_NICE"));
        assert!(message(libc::ESRCH).contains("does not exist"));
    }
}
