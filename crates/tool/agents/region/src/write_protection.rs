//! Write protection by userfaultfd: blocks writers to a range while [`crate::migration`] copies it.
//!
//! One descriptor is opened at the start ([`open_stored`]), since a program may drop the right to
//! open another. A page of the agent is registered with it. The kernel drops the registration when
//! the descriptor is closed, so the registration shows whether the stored number still refers to
//! this descriptor.

#![allow(unsafe_code, reason = "ioctls on a userfaultfd")]

use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::PlacementReason;
use linux_raw_sys::general as uapi;
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WAKE, UFFDIO_WRITEPROTECT};

use crate::descriptors::{Descriptor, StoredDescriptor, move_high};
use crate::raw::{self, RawResult};
use crate::table::PAGE;

/// `UFFDIO_WRITEPROTECT_MODE_WP`; the generated headers lack shifted constants.
const WRITE_PROTECT: u64 = 1;

static STORED: StoredDescriptor = StoredDescriptor::new();
/// The page of the agent that is registered with the stored descriptor.
static REGISTERED_PAGE: AtomicUsize = AtomicUsize::new(0);

/// A userfaultfd that can write-protect hugetlb memory.
pub(crate) struct WriteProtector(Descriptor);

/// Opens the userfaultfd and stores it. False if this user or a sandbox does not permit it.
pub(crate) fn open_stored() -> bool {
    let Some(fault) = WriteProtector::open() else { return false };
    // SAFETY: without a fixed address the kernel picks a free range, so no mapping is replaced.
    let page = unsafe { raw::map_anonymous(0, PAGE, libc::PROT_NONE, 0) };
    if !raw::failed(page) && !raw::failed(fault.register(page.cast_unsigned(), PAGE)) {
        REGISTERED_PAGE.store(page.cast_unsigned(), SeqCst);
        STORED.store(fault.0.into_stored());
    }
    true
}

/// Closes the stored descriptor: no memory is on hugetlb pages any more.
pub(crate) fn discard() {
    STORED.discard(is_stored);
}

/// Whether `fd` still is the descriptor that [`open_stored`] opened.
fn is_stored(fd: i32) -> bool {
    !raw::failed(WriteProtector(Descriptor::stored(fd)).set_protection(REGISTERED_PAGE.load(SeqCst), PAGE, false))
}

impl WriteProtector {
    /// The stored userfaultfd, or a new one; `None` if this user may not open one (any more).
    pub(crate) fn get() -> Option<Self> {
        let stored = STORED.get().filter(|&fd| is_stored(fd)).map(|fd| Self(Descriptor::stored(fd)));
        stored.or_else(Self::open)
    }

    /// Opens a userfaultfd that also blocks writes by the kernel (as by `read` into a page being
    /// moved). A userfaultfd for user mode only would make such calls fail.
    fn open() -> Option<Self> {
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
        // SAFETY: the call opens a descriptor and changes no memory.
        let fd = unsafe { raw::syscall(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) };
        if raw::failed(fd) {
            return None;
        }
        let this = Self(Descriptor::fresh(move_high(fd as i32)));
        let mut api = uapi::uffdio_api {
            api: u64::from(uapi::UFFD_API),
            features: u64::from(uapi::UFFD_FEATURE_PAGEFAULT_FLAG_WP | uapi::UFFD_FEATURE_WP_HUGETLBFS_SHMEM),
            ioctls: 0,
        };
        (!raw::failed(this.ioctl(UFFDIO_API, &mut api))).then_some(this)
    }

    /// Blocks writers to the range until [`Self::release`].
    ///
    /// # Errors
    /// The reason why the range cannot be protected.
    pub(crate) fn write_protect(&self, start: usize, bytes: usize) -> Result<(), PlacementReason> {
        let registered = self.register(start, bytes);
        let result = if raw::failed(registered) { registered } else { self.set_protection(start, bytes, true) };
        if !raw::failed(result) {
            return Ok(());
        }
        self.release(start, bytes);
        Err(match (-result) as i32 {
            libc::EBUSY => PlacementReason::KeptWatched,
            // The range cannot become a separate mapping.
            libc::ENOMEM => PlacementReason::KeptMappings,
            _ => PlacementReason::KeptNoUserfault,
        })
    }

    /// Unblocks the writers, whatever is mapped in the range now.
    pub(crate) fn release(&self, start: usize, bytes: usize) {
        self.set_protection(start, bytes, false);
        let range = || uapi::uffdio_range { start: start as u64, len: bytes as u64 };
        self.ioctl(UFFDIO_UNREGISTER, &mut range());
        self.ioctl(UFFDIO_WAKE, &mut range());
    }

    fn register(&self, start: usize, bytes: usize) -> RawResult {
        let range = uapi::uffdio_range { start: start as u64, len: bytes as u64 };
        let mode = u64::from(uapi::UFFDIO_REGISTER_MODE_WP);
        self.ioctl(UFFDIO_REGISTER, &mut uapi::uffdio_register { range, mode, ioctls: 0 })
    }

    fn set_protection(&self, start: usize, bytes: usize, protect: bool) -> RawResult {
        let range = uapi::uffdio_range { start: start as u64, len: bytes as u64 };
        let mode = if protect { WRITE_PROTECT } else { 0 };
        self.ioctl(UFFDIO_WRITEPROTECT, &mut uapi::uffdio_writeprotect { range, mode })
    }

    fn ioctl<T>(&self, request: u32, argument: &mut T) -> RawResult {
        let argument = core::ptr::from_mut(argument) as usize;
        let arguments = [self.0.fd as usize, request as usize, argument, 0, 0, 0];
        // SAFETY: the argument is the structure of this request and outlives the call.
        unsafe { raw::syscall(libc::SYS_ioctl, arguments) }
    }
}
