//! Support of userfaultfd(2) for this user, and its features.
//!
//! There are three ways to open one: the system call for faults of user code only
//! (`UFFD_USER_MODE_ONLY`, open to all since 5.11), the same call for faults of the kernel too
//! (needs CAP_SYS_PTRACE or `vm.unprivileged_userfaultfd`), and `/dev/userfaultfd` (by file
//! permissions, since 6.1). `UFFDIO_API` without a request returns all features of the kernel. They
//! do not depend on the way.
//!
//! [`Userfaultfd`] is an open one; [`PageScan`] belongs to its asynchronous mode.
#![allow(unsafe_code, reason = "userfaultfd and its ioctl have no safe form")]

mod fd;

pub(crate) use fd::PAGEMAP_SCAN;
pub use fd::{FaultEvent, FaultOrigin, Message, Modes, PageScan, Userfaultfd, WrittenRange};

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use linux_raw_sys::general as uapi;
use rustix::mm::UserfaultfdFlags;
use serde::Serialize;

/// The support of userfaultfd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UserfaultSupport {
    /// Faults of user code can be handled.
    pub user_faults: bool,
    /// Faults of the kernel on user memory (read(2) into a trapped page) can be handled, by the
    /// system call.
    pub kernel_faults: bool,
    /// The same by `/dev/userfaultfd`.
    pub device: bool,
    /// Why even faults of user code are refused.
    pub refused: Option<String>,
    /// The kernel's features in bit order, by their names in the uapi header without
    /// `UFFD_FEATURE_`.
    pub features: Vec<String>,
}

impl UserfaultSupport {
    /// Whether the kernel has the feature, for instance `WP_ASYNC`.
    #[must_use]
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|have| have == feature)
    }
}

/// Names in bit order. Higher bits are shown by number.
const FEATURES: [&str; 17] = [
    "PAGEFAULT_FLAG_WP",
    "EVENT_FORK",
    "EVENT_REMAP",
    "EVENT_REMOVE",
    "MISSING_HUGETLBFS",
    "MISSING_SHMEM",
    "EVENT_UNMAP",
    "SIGBUS",
    "THREAD_ID",
    "MINOR_HUGETLBFS",
    "MINOR_SHMEM",
    "EXACT_ADDRESS",
    "WP_HUGETLBFS_SHMEM",
    "WP_UNPOPULATED",
    "POISON",
    "WP_ASYNC",
    "MOVE",
];

/// `USERFAULTFD_IOC_NEW`, `_IO(0xAA, 0x00)`: opens a userfaultfd through the device. Missing in
/// linux-raw-sys.
const IOC_NEW: libc::Ioctl = 0xAA00;

/// Tries each way and queries the features. Leaves no descriptor open.
#[must_use]
pub fn userfault() -> UserfaultSupport {
    let user = by_call(UserfaultfdFlags::from_bits_retain(uapi::UFFD_USER_MODE_ONLY));
    let kernel = by_call(UserfaultfdFlags::empty());
    let device = by_device();
    let refused = user.as_ref().err().map(ToString::to_string);
    let attempts = [user, kernel, device];
    let features = attempts.iter().flatten().find_map(|fd| features(fd).ok()).map_or_else(Vec::new, names);
    let [user, kernel, device] = attempts.map(|attempt| attempt.is_ok());
    UserfaultSupport { user_faults: user, kernel_faults: kernel, device, refused, features }
}

fn by_call(flags: UserfaultfdFlags) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor has no registered memory, so it traps no access.
    Ok(unsafe { rustix::mm::userfaultfd(flags | UserfaultfdFlags::CLOEXEC) }?)
}

fn by_device() -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open("/dev/userfaultfd")?;
    // SAFETY: IOC_NEW takes open flags by value and returns a new descriptor.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW, libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created the descriptor, so no other owner exists.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `UFFDIO_API`: the bits of all features of the kernel.
fn features(fd: &OwnedFd) -> io::Result<u64> {
    let mut api = uapi::uffdio_api { api: uapi::UFFD_API.into(), features: 0, ioctls: 0 };
    let request = libc::Ioctl::from(linux_raw_sys::ioctl::UFFDIO_API);
    // SAFETY: the request writes one `uffdio_api`, a live local.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut api) };
    if result == 0 { Ok(api.features) } else { Err(io::Error::last_os_error()) }
}

fn names(features: u64) -> Vec<String> {
    let set = (0..64).filter(|bit| features & (1 << bit) != 0);
    set.map(|bit| FEATURES.get(bit).map_or_else(|| format!("bit {bit}"), |name| (*name).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_the_bits_of_the_header() {
        let bits = uapi::UFFD_FEATURE_PAGEFAULT_FLAG_WP
            | uapi::UFFD_FEATURE_THREAD_ID
            | uapi::UFFD_FEATURE_EXACT_ADDRESS
            | uapi::UFFD_FEATURE_WP_ASYNC
            | uapi::UFFD_FEATURE_MOVE;
        let expected = ["PAGEFAULT_FLAG_WP", "THREAD_ID", "EXACT_ADDRESS", "WP_ASYNC", "MOVE", "bit 40"];
        assert_eq!(names(u64::from(bits) | 1 << 40), expected);
    }

    #[test]
    fn support_has_features_or_a_reason() {
        let found = userfault();
        assert_eq!(found.user_faults, found.refused.is_none());
        assert_eq!(found.user_faults || found.kernel_faults || found.device, !found.features.is_empty(), "{found:?}");
    }
}
