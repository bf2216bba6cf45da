//! The userfaultfd of a process, shared by the process and the repairer.
//!
//! A userfaultfd is bound to the process that opens it. So a thread of the program opens it, by an
//! injected call, and the repairer duplicates the descriptor. The descriptor stays open in the
//! program: if the repairer is killed, threads wait at missing pages instead of reading zeros,
//! until the next repairer has restored the pages (see `record`).

use std::io;
use std::os::fd::OwnedFd;

use fieldstone_sys::userfault::{FaultOrigin, Userfaultfd};
use fieldstone_wire::Remedy;
use linux_raw_sys::general as uapi;

use crate::error::{Error, Result};
use crate::tracer::status::{descriptor_table_size, is_exiting, living_thread, may_open_userfaultfd};
use crate::tracer::{InsertedCode, NoCode, Tracer, argument, duplicate_descriptor};

const FEATURES: u32 = uapi::UFFD_FEATURE_THREAD_ID
    | uapi::UFFD_FEATURE_EVENT_FORK
    | uapi::UFFD_FEATURE_EVENT_REMAP
    | uapi::UFFD_FEATURE_EVENT_REMOVE
    | uapi::UFFD_FEATURE_EVENT_UNMAP;
/// Limit for the descriptor's number in the program. High numbers do not collide with the program's
/// own.
const HIGH_DESCRIPTOR: u64 = 800;

/// The error both before an attempt and when the kernel refuses the call.
fn no_userfaultfd(pid: u32) -> Error {
    let why = "it may not have a userfaultfd that sees the kernel's accesses too, and without that no page can be moved safely";
    Error::Refused { pid, why: format!("{why}{}", Remedy(Some("sudo sysctl vm.unprivileged_userfaultfd=1"))) }
}

/// The userfaultfd of a process.
#[derive(Debug)]
pub(crate) struct SharedUserfault {
    fd: Userfaultfd,
    /// Number of the descriptor in the program.
    number: i32,
}

impl SharedUserfault {
    /// A duplicated descriptor with its number in the program.
    pub(crate) const fn new(fd: Userfaultfd, number: i32) -> Self {
        Self { fd, number }
    }

    /// Checks by the capabilities of process `pid` that [`Self::open`] is permitted. Does nothing
    /// in the process.
    ///
    /// # Errors
    /// [`Error::Refused`] with the command that permits it.
    pub(crate) fn check(pid: u32) -> Result<()> {
        if may_open_userfaultfd(living_thread(pid)) {
            return Ok(());
        }
        Err(no_userfaultfd(pid))
    }

    /// Opens a userfaultfd in the program and duplicates it. All threads are stopped on return.
    ///
    /// # Errors
    /// [`Error::Refused`] if the kernel does not permit it, else the error of the call.
    pub(crate) fn open(tracer: &mut Tracer) -> Result<Self> {
        tracer.stop_all()?;
        let pid = tracer.pid();
        let flags = argument(libc::O_CLOEXEC | libc::O_NONBLOCK);
        let opened = tracer.call(&NoCode, ("userfaultfd", libc::SYS_userfaultfd), [flags, 0, 0, 0, 0, 0]);
        let low = opened.map_err(|error| refused(pid, error))?;
        // To enlarge the table takes the kernel some milliseconds, in which all threads are
        // stopped.
        let highest = descriptor_limit(pid).min(descriptor_table_size(pid)).saturating_sub(1).min(HIGH_DESCRIPTOR);
        let arguments = [low, argument(libc::F_DUPFD_CLOEXEC), highest, 0, 0, 0];
        let close = ("close", libc::SYS_close);
        let theirs = match tracer.call(&NoCode, ("fcntl", libc::SYS_fcntl), arguments) {
            Ok(high) => {
                tracer.call(&NoCode, close, [low, 0, 0, 0, 0, 0])?;
                high
            }
            // All numbers from `highest` on are in use.
            Err(_) => low,
        };
        let number = i32::try_from(theirs).unwrap_or(-1);
        let failed = |source| Error::Process { pid, operation: "watch the memory of", source };
        let adopt = |fd| Userfaultfd::adopt(fd, FEATURES, FaultOrigin::UserAndKernel).map_err(failed);
        let adopted = share(pid, number).and_then(adopt);
        if adopted.is_err() {
            let _ = tracer.call(&NoCode, close, [theirs, 0, 0, 0, 0, 0]);
        }
        Ok(Self { fd: adopted?, number })
    }

    /// The userfaultfd of a killed repairer, which watches the pages it moved. `shared` is a
    /// duplicate of it, if the caller has one.
    ///
    /// # Errors
    /// [`Error::Refused`] if the program has closed it and there is no duplicate.
    pub(crate) fn inherit(pid: u32, number: i32, shared: Option<OwnedFd>) -> Result<Self> {
        if let Some(fd) = shared {
            return Ok(Self { fd: Userfaultfd::inherited(fd, FaultOrigin::UserAndKernel), number });
        }
        if is_userfault(pid, number) != Some(true) {
            let why = "a killed repairer moved some of its pages, and it has closed the descriptor that watched them: they cannot be \
                       restored";
            return Err(Error::Refused { pid, why: why.to_owned() });
        }
        Ok(Self { fd: Userfaultfd::inherited(share(pid, number)?, FaultOrigin::UserAndKernel), number })
    }

    /// The repairer's descriptor.
    pub(crate) const fn fd(&self) -> &Userfaultfd {
        &self.fd
    }

    /// Number of the descriptor in the program.
    pub(crate) const fn number(&self) -> i32 {
        self.number
    }

    /// Whether the program has closed its descriptor, as daemons do with all descriptors. If the
    /// repairer were killed now, the program's threads would read zeros.
    pub(crate) fn is_closed_by_program(&self, tracer: &Tracer) -> bool {
        // An exiting thread has no descriptors any more.
        let is_open = |thread| is_userfault(thread, self.number).filter(|&is_open| is_open || !is_exiting(thread));
        tracer.threads().into_iter().find_map(is_open) == Some(false)
    }

    /// Closes the descriptor in the program, if the program has not closed it.
    ///
    /// # Errors
    /// As [`Tracer::call`].
    pub(crate) fn close_in_program(&self, tracer: &mut Tracer, code: &dyn InsertedCode) -> Result<()> {
        if self.is_closed_by_program(tracer) {
            return Ok(());
        }
        tracer.close(code, self.number)
    }
}

/// Whether a descriptor of a thread is a userfaultfd. `None` if that cannot be read.
fn is_userfault(thread: u32, descriptor: i32) -> Option<bool> {
    match std::fs::read_link(format!("/proc/{thread}/fd/{descriptor}")) {
        Ok(link) => Some(link.to_str() == Some("anon_inode:[userfaultfd]")),
        Err(error) => (error.kind() == io::ErrorKind::NotFound).then_some(false),
    }
}

/// Maximum number of open descriptors of a process.
fn descriptor_limit(pid: u32) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    files.and_then(|files| files.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(u64::MAX)
}

fn share(pid: u32, number: i32) -> Result<OwnedFd> {
    duplicate_descriptor(pid, number).map_err(|source| Error::Process {
        pid,
        operation: "share a descriptor with",
        source,
    })
}

fn refused(pid: u32, error: Error) -> Error {
    match error {
        Error::Linux(fieldstone_sys::Error::Call { source, .. })
            if matches!(source.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) =>
        {
            no_userfaultfd(pid)
        }
        other => other,
    }
}
