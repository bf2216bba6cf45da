//! userfaultfd write protection on small pages and on hugetlb pages: a writer stops until its fault
//! is resolved.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, OwnedFd};

use fieldstone_sys::userfault;
use linux_raw_sys::general as uapi;
use linux_raw_sys::ioctl;
use rustix::mm::UserfaultfdFlags;

use super::memory::Mapped;
use super::{MIB, hugetlb_lock, hugetlb_pages};

/// `UFFDIO_WRITEPROTECT_MODE_WP`, which linux-raw-sys lacks.
const MODE_WP: u64 = 1;

/// Makes a userfaultfd request.
///
/// # Safety
/// `argument` must be the structure that `request` takes.
unsafe fn request<T>(fd: &OwnedFd, request: u32, argument: &mut T) {
    // SAFETY: `argument` is a live structure of the right type, as the caller guarantees.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::Ioctl::from(request), std::ptr::from_mut(argument)) };
    assert_eq!(result, 0, "request {request:#x}: {}", io::Error::last_os_error());
}

fn protect(fd: &OwnedFd, range: uapi::uffdio_range, on: bool) {
    let mode = if on { MODE_WP } else { 0 };
    // SAFETY: `request` receives UFFDIO_WRITEPROTECT's own structure.
    unsafe { request(fd, ioctl::UFFDIO_WRITEPROTECT, &mut uapi::uffdio_writeprotect { range, mode }) };
}

/// Waits for a message; returns its event, and flags and address of a fault.
fn next_fault(fd: &OwnedFd) -> (u8, u64, u64) {
    let mut message = MaybeUninit::<uapi::uffd_msg>::zeroed();
    // SAFETY: the message is written to a live local of its size; all its fields are integers.
    unsafe {
        let got = libc::read(fd.as_raw_fd(), message.as_mut_ptr().cast(), size_of::<uapi::uffd_msg>());
        assert_eq!(usize::try_from(got), Ok(size_of::<uapi::uffd_msg>()));
        let message = message.assume_init();
        (message.event, message.arg.pagefault.flags, message.arg.pagefault.address)
    }
}

/// Protects the memory, lets a thread write to it, and resolves its fault.
fn a_write_is_trapped_and_resumed(mapped: &Mapped) {
    mapped.touch();
    // SAFETY: the memory stays mapped, and this function resolves every fault on it until it closes
    // the descriptor.
    let fd = unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::from_bits_retain(uapi::UFFD_USER_MODE_ONLY)) }.unwrap();
    let features = u64::from(uapi::UFFD_FEATURE_PAGEFAULT_FLAG_WP | uapi::UFFD_FEATURE_WP_HUGETLBFS_SHMEM);
    let range = uapi::uffdio_range { start: mapped.range().start, len: mapped.range().end - mapped.range().start };
    let mode = u64::from(uapi::UFFDIO_REGISTER_MODE_WP);
    // SAFETY: each request receives its own structure.
    unsafe {
        request(&fd, ioctl::UFFDIO_API, &mut uapi::uffdio_api { api: uapi::UFFD_API.into(), features, ioctls: 0 });
        request(&fd, ioctl::UFFDIO_REGISTER, &mut uapi::uffdio_register { range, mode, ioctls: 0 });
    }
    protect(&fd, range, true);
    std::thread::scope(|scope| {
        assert_eq!(mapped.read(0), 1, "reads pass");
        let writer = scope.spawn(|| mapped.write(0, 7));
        let (event, flags, address) = next_fault(&fd);
        assert_eq!(u32::from(event), uapi::UFFD_EVENT_PAGEFAULT);
        assert_ne!(flags & u64::from(uapi::UFFD_PAGEFAULT_FLAG_WP), 0);
        assert!(mapped.range().contains(&address));
        assert_eq!(mapped.read(0), 1, "not yet written");
        protect(&fd, range, false);
        writer.join().unwrap();
    });
    assert_eq!(mapped.read(0), 7);
}

fn can_protect() -> bool {
    let found = userfault::userfault();
    let can = found.user_faults && found.has("WP_HUGETLBFS_SHMEM");
    if !can {
        println!("SKIP no userfaultfd write protection for this user: {found:?}");
    }
    can
}

#[test]
fn write_protection_traps_on_small_pages() {
    if can_protect() {
        a_write_is_trapped_and_resumed(&Mapped::anonymous(2 * MIB, 2 * MIB));
    }
}

#[test]
fn write_protection_traps_on_hugetlb_pages() {
    let _alone = hugetlb_lock::lock();
    if !can_protect() {
        return;
    }
    let Some(_pages) = hugetlb_pages(1) else { return };
    a_write_is_trapped_and_resumed(&Mapped::hugetlb(2 * MIB, 2 * MIB).unwrap());
}
