//! Which userfaultfd(2) this user gets, and with what features.
//!
//! Three doors: the system call for faults of user code alone (`UFFD_USER_MODE_ONLY`, open to all since 5.11), the same call for
//! faults of the kernel too (needs CAP_SYS_PTRACE or `vm.unprivileged_userfaultfd`), and `/dev/userfaultfd` (whoever may open it,
//! since 6.1). Features are asked with `UFFDIO_API`: a request for none is answered with all that the kernel has. They do not
//! depend on the door.
//!
//! [`Userfaultfd`] is one that stays open, and [`PageScan`] what goes with its asynchronous mode.
#![allow(unsafe_code, reason = "userfaultfd and its ioctl have no safe form")]

mod fd;

pub(crate) use fd::PAGEMAP_SCAN;
pub use fd::{Event, Message, Modes, PageScan, Reach, Userfaultfd, WrittenRange};

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use linux_raw_sys::general as uapi;
use rustix::mm::UserfaultfdFlags;
use serde::Serialize;

/// What userfaultfd gives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Userfault {
    /// Faults of user code can be served.
    pub user_faults: bool,
    /// Faults that the kernel takes on user memory (read(2) into a trapped page) can be served too, by the system call.
    pub kernel_faults: bool,
    /// The same by `/dev/userfaultfd`.
    pub device: bool,
    /// Why the least of them, faults of user code, is refused.
    pub refused: Option<String>,
    /// The kernel's features by the names of the uapi header without `UFFD_FEATURE_`, in its order.
    pub features: Vec<String>,
}

impl Userfault {
    /// Whether the kernel has the feature, for instance `WP_ASYNC`.
    #[must_use]
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|have| have == feature)
    }
}

/// Names in the order of their bits. The kernel's bits past the last are shown by number.
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

/// `USERFAULTFD_IOC_NEW`, `_IO(0xAA, 0x00)`: opens a userfaultfd through the device. Not in linux-raw-sys.
const IOC_NEW: libc::Ioctl = 0xAA00;

/// Tries each door and asks for the features. Leaves nothing open.
#[must_use]
pub fn userfault() -> Userfault {
    let user = by_call(UserfaultfdFlags::from_bits_retain(uapi::UFFD_USER_MODE_ONLY));
    let kernel = by_call(UserfaultfdFlags::empty());
    let device = by_device();
    let refused = user.as_ref().err().map(ToString::to_string);
    let doors = [user, kernel, device];
    let features = doors.iter().flatten().find_map(|fd| features(fd).ok()).map_or_else(Vec::new, names);
    let [user, kernel, device] = doors.map(|door| door.is_ok());
    Userfault { user_faults: user, kernel_faults: kernel, device, refused, features }
}

fn by_call(flags: UserfaultfdFlags) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is registered with no memory, so it can trap nothing.
    Ok(unsafe { rustix::mm::userfaultfd(flags | UserfaultfdFlags::CLOEXEC) }?)
}

fn by_device() -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open("/dev/userfaultfd")?;
    // SAFETY: IOC_NEW takes open flags by value, and returns a new descriptor.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW, libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `UFFDIO_API`: the bits of all features that the kernel has.
fn features(fd: &OwnedFd) -> io::Result<u64> {
    let mut api = uapi::uffdio_api { api: uapi::UFFD_API.into(), features: 0, ioctls: 0 };
    let request = libc::Ioctl::from(linux_raw_sys::ioctl::UFFDIO_API);
    // SAFETY: the request takes a pointer to a `uffdio_api`, which is a live local, and writes no more than that.
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
    fn names_stand_at_the_bits_of_the_header() {
        let bits = uapi::UFFD_FEATURE_PAGEFAULT_FLAG_WP
            | uapi::UFFD_FEATURE_THREAD_ID
            | uapi::UFFD_FEATURE_EXACT_ADDRESS
            | uapi::UFFD_FEATURE_WP_ASYNC
            | uapi::UFFD_FEATURE_MOVE;
        let expected = ["PAGEFAULT_FLAG_WP", "THREAD_ID", "EXACT_ADDRESS", "WP_ASYNC", "MOVE", "bit 40"];
        assert_eq!(names(u64::from(bits) | 1 << 40), expected);
    }

    #[test]
    fn a_door_that_opens_shows_features_and_one_that_does_not_says_why() {
        let found = userfault();
        assert_eq!(found.user_faults, found.refused.is_none());
        assert_eq!(found.user_faults || found.kernel_faults || found.device, !found.features.is_empty(), "{found:?}");
    }
}
