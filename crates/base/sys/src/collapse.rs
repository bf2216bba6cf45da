//! Putting a running process's memory on huge pages, from outside: process_madvise(2) with `MADV_COLLAPSE`, Linux 6.1.
//!
//! ```text
//!   |4|4|4| |4|4|...|4|   an aligned 2 MiB on small pages
//!   [ copied to, and   ]  a huge page that takes their place in one step; who writes meanwhile waits
//! ```
//!
//! Contents, addresses and what the process may do with them stay. Nothing is injected, and nothing stays behind in the process
//! but the huge pages, which the kernel splits again when it must. Source: process_madvise(2), madvise(2), the kernel's
//! `mm/khugepaged.c`; `tests/collapse.rs` tries what this crate leans on.
//! - It takes CAP_SYS_NICE, and the right to read the process (its owner's, or CAP_SYS_PTRACE).
//! - The modes in /sys/kernel/mm/transparent_hugepage do not bind it; `MADV_NOHUGEPAGE` and `PR_SET_THP_DISABLE` do.
//! - Missing pages of the 2 MiB are filled with zeros, swapped ones are read. Private memory of files (data segments), hugetlb
//!   memory and what userfaultfd has registered for writes are refused.
//! - The new page comes from the node that holds most of the old ones, among those that are equal from any.
#![allow(unsafe_code, reason = "process_madvise has no safe form")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::process::{Capability, has_capability, has_thp_disabled, stat};
use crate::{Error, Result, kernel_file};

/// The bytes that one call puts on a huge page: what one entry of the page table's second level maps with base pages of 4 KiB.
pub const HUGE_BYTES: u64 = 2 << 20;

/// How often a page that the kernel is using at the moment is tried.
const TRIES: u32 = 4;
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// A process whose memory may be collapsed. Its number cannot come to mean another process.
#[derive(Debug)]
pub struct Target {
    pid: u32,
    fd: OwnedFd,
}

impl Target {
    /// Holds on to process `pid`, and asks the kernel whether its memory may be collapsed by this user. Nothing is changed.
    ///
    /// # Errors
    /// [`Error::NotCollapsible`] with what stands in the way, [`Error::NoSuchProcess`], [`Error::ProcessDenied`].
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
        // No range: the kernel checks who asks for what, and does nothing.
        this.advise(&[]).map_err(|error| refusal(pid, error))?;
        Ok(this)
    }

    /// Its number.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Puts the [`HUGE_BYTES`] from `start` on, a multiple of them, on one huge page. Memory that lies on one already is left.
    ///
    /// # Errors
    /// `ENOMEM` where no huge page is free, `EBUSY` where the control group may have no more memory, `EAGAIN` where the kernel
    /// itself was using a page each time, `EINVAL` where the memory is of a kind that cannot be (see above), `ESRCH` when the
    /// process has ended.
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
        // SAFETY: the kernel reads the list, and the addresses in it are those of the other process.
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

const TOO_OLD: &str = "Linux does this from 6.1 on; start the program anew by `fieldstone run --region`";

fn not_collapsible(pid: u32, why: impl Into<String>) -> Error {
    Error::NotCollapsible { pid, why: why.into() }
}

/// Refuses what has no memory to collapse, whoever asks.
fn check_kind(pid: u32) -> Result<()> {
    if pid == std::process::id() {
        return Err(not_collapsible(pid, "it is this very command; name another"));
    }
    let found = stat(pid)?;
    if found.state.ended() {
        return Err(Error::NoSuchProcess { pid });
    }
    if found.virtual_bytes == 0 {
        return Err(not_collapsible(pid, "it is a thread of the kernel, which has no memory of its own"));
    }
    let status = kernel_file::text(format!("/proc/{pid}/status")).unwrap_or_default();
    if let Some(group) = kernel_file::field(&status, "Tgid").filter(|group| *group != pid.to_string()) {
        return Err(not_collapsible(pid, format!("it is a thread of process {group}; name that")));
    }
    if has_thp_disabled(pid) {
        let why = "it, or the process that started it, has switched transparent huge pages off (PR_SET_THP_DISABLE); restart it without that";
        return Err(not_collapsible(pid, why));
    }
    Ok(())
}

/// What an errno of the empty call means.
fn refusal(pid: u32, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ESRCH) => Error::NoSuchProcess { pid },
        Some(libc::ENOSYS | libc::EINVAL) => not_collapsible(pid, TOO_OLD),
        Some(libc::EPERM | libc::EACCES) => match may_be_read(pid) {
            Err(denied) => denied,
            Ok(()) => {
                not_collapsible(pid, format!("this takes CAP_SYS_NICE; `sudo fieldstone attach --huge {pid}` has it"))
            }
        },
        _ => Error::Call { call: "process_madvise(MADV_COLLAPSE)", source: error },
    }
}

/// Whether this user may look into the process, which is asked when the file is opened.
fn may_be_read(pid: u32) -> Result<()> {
    let path = format!("/proc/{pid}/pagemap");
    File::open(&path).map(drop).map_err(|source| Error::process_file(pid, "open", Path::new(&path), source))
}

/// Whether this user may put other processes' memory on huge pages at all: CAP_SYS_NICE is among the capabilities. What is not
/// told counts as no.
#[must_use]
pub fn is_permitted() -> bool {
    has_capability(std::process::id(), Capability::SysNice) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(pid: u32) -> String {
        Target::open(pid).unwrap_err().to_string()
    }

    #[test]
    fn what_has_no_memory_to_collapse_is_told_apart() {
        assert!(why(std::process::id()).contains("this very command"));
        assert!(matches!(Target::open(0x7fff_fff0), Err(Error::NoSuchProcess { .. })));
        let kernel_thread = crate::process::stat(2).is_ok_and(|stat| stat.comm == "kthreadd");
        assert!(!kernel_thread || why(2).contains("thread of the kernel"), "{}", why(2));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while !crate::process::stat(child.id()).unwrap().state.ended() {
            std::thread::yield_now();
        }
        assert!(matches!(Target::open(child.id()), Err(Error::NoSuchProcess { .. })), "not reaped, but gone");
        child.wait().unwrap();
    }

    #[test]
    fn a_thread_is_not_a_process() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = ended.recv();
        });
        let said = why(u32::try_from(told.recv().unwrap()).unwrap());
        drop(end);
        thread.join().unwrap();
        assert!(said.contains(&format!("thread of process {}", std::process::id())), "{said}");
    }

    #[test]
    fn each_errno_has_its_way_out() {
        let said = |errno| refusal(std::process::id(), io::Error::from_raw_os_error(errno)).to_string();
        assert!(said(libc::ENOSYS).contains("6.1"));
        assert!(said(libc::EINVAL).contains("6.1"));
        assert!(said(libc::EPERM).contains("CAP_SYS_NICE"));
        assert!(said(libc::ESRCH).contains("is gone"));
    }
}
