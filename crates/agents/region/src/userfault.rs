//! As much of userfaultfd as [`crate::demote`] needs: keep writers out of a range for a moment.

#![allow(unsafe_code, reason = "ioctls on a userfaultfd")]

use linux_raw_sys::general as uapi;
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER, UFFDIO_WRITEPROTECT};

use crate::raw;

/// Descriptors of the agent lie above those that programs count on.
const HIGH_DESCRIPTOR: usize = 700;

/// `UFFDIO_WRITEPROTECT_MODE_WP`: the generated headers leave shifted constants of this kind out.
const WRITE_PROTECT: u64 = 1;

/// An open userfaultfd that can write-protect hugetlb memory. Closing it lets every waiting writer go on.
pub(crate) struct Userfault(i32);

impl Userfault {
    /// Opens one that makes the kernel's own writers wait too (a `read` into a page that is being moved); `None` where
    /// this user may not, or a sandbox forbids it. One for user mode alone would fail such calls, and is no use.
    pub(crate) fn open() -> Option<Self> {
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
        // SAFETY: opens a descriptor, nothing else.
        let fd = unsafe { raw::syscall(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) };
        if raw::failed(fd) {
            return None;
        }
        let this = Self(raise(fd as i32));
        let mut api = uapi::uffdio_api {
            api: u64::from(uapi::UFFD_API),
            features: u64::from(uapi::UFFD_FEATURE_PAGEFAULT_FLAG_WP | uapi::UFFD_FEATURE_WP_HUGETLBFS_SHMEM),
            ioctls: 0,
        };
        this.ioctl(UFFDIO_API, &mut api).then_some(this)
    }

    /// Keeps writers out of the range; they wait.
    pub(crate) fn write_protect(&self, start: usize, bytes: usize) -> bool {
        let range = uapi::uffdio_range { start: start as u64, len: bytes as u64 };
        let mut register = uapi::uffdio_register { range, mode: u64::from(uapi::UFFDIO_REGISTER_MODE_WP), ioctls: 0 };
        self.ioctl(UFFDIO_REGISTER, &mut register) && self.set_protection(start, bytes, true)
    }

    /// Lets the writers in again.
    pub(crate) fn write_unprotect(&self, start: usize, bytes: usize) {
        self.set_protection(start, bytes, false);
    }

    fn set_protection(&self, start: usize, bytes: usize, protect: bool) -> bool {
        let range = uapi::uffdio_range { start: start as u64, len: bytes as u64 };
        let mode = if protect { WRITE_PROTECT } else { 0 };
        self.ioctl(UFFDIO_WRITEPROTECT, &mut uapi::uffdio_writeprotect { range, mode })
    }

    fn ioctl<T>(&self, request: u32, argument: &mut T) -> bool {
        let argument = core::ptr::from_mut(argument) as usize;
        // SAFETY: the argument is the structure that the request takes, and outlives the call.
        let result = unsafe { raw::syscall(libc::SYS_ioctl, [self.0 as usize, request as usize, argument, 0, 0, 0]) };
        !raw::failed(result)
    }
}

impl Drop for Userfault {
    fn drop(&mut self) {
        raw::close(self.0);
    }
}

/// Moves a descriptor out of the program's way; it stays where it is if the limit on descriptors is low.
fn raise(fd: i32) -> i32 {
    let duplicate = [fd as usize, libc::F_DUPFD_CLOEXEC as usize, HIGH_DESCRIPTOR, 0, 0, 0];
    // SAFETY: duplicates a descriptor of the agent's own.
    let high = unsafe { raw::syscall(libc::SYS_fcntl, duplicate) };
    if raw::failed(high) {
        return fd;
    }
    raw::close(fd);
    high as i32
}
