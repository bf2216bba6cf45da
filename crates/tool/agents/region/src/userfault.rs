//! As much of userfaultfd as [`crate::demote`] needs: keep writers out of a range for a moment.
//!
//! One descriptor is kept from the start ([`keep`]), since a program may drop the right to open another. A page of the
//! agent's own is registered with it: the kernel forgets the registration when the descriptor is closed, so a kept number
//! whose page is not registered any more is not used.

#![allow(unsafe_code, reason = "ioctls on a userfaultfd")]

use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::PlacementReason;
use linux_raw_sys::general as uapi;
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WAKE, UFFDIO_WRITEPROTECT};

use crate::kept::{Descriptor, Kept, raise};
use crate::raw::{self, Raw};
use crate::table::PAGE;

/// `UFFDIO_WRITEPROTECT_MODE_WP`: the generated headers leave shifted constants of this kind out.
const WRITE_PROTECT: u64 = 1;

static KEPT: Kept = Kept::new();
/// The agent's own page that is registered with the kept descriptor.
static WITNESS: AtomicUsize = AtomicUsize::new(0);

/// A userfaultfd that can write-protect hugetlb memory.
pub(crate) struct Userfault(Descriptor);

/// Opens the userfaultfd that stays open. False where this user may not, or a sandbox forbids it.
pub(crate) fn keep() -> bool {
    let Some(fault) = Userfault::open() else { return false };
    // SAFETY: no address is named, so nothing that exists is touched.
    let page = unsafe { raw::map_anonymous(0, PAGE, libc::PROT_NONE, 0) };
    if !raw::failed(page) && !raw::failed(fault.register(page.cast_unsigned(), PAGE)) {
        WITNESS.store(page.cast_unsigned(), SeqCst);
        KEPT.keep(fault.0.into_kept());
    }
    true
}

/// Closes the kept descriptor: nothing lies on hugetlb pages any more.
pub(crate) fn discard() {
    KEPT.discard(is_kept);
}

/// Whether `fd` still is what [`keep`] opened.
fn is_kept(fd: i32) -> bool {
    !raw::failed(Userfault(Descriptor::kept(fd)).set_protection(WITNESS.load(SeqCst), PAGE, false))
}

impl Userfault {
    /// The kept one, or one that is opened for this use; `None` where this user may not (or not any more).
    pub(crate) fn get() -> Option<Self> {
        let kept = KEPT.get().filter(|&fd| is_kept(fd)).map(|fd| Self(Descriptor::kept(fd)));
        kept.or_else(Self::open)
    }

    /// Opens one that makes the kernel's own writers wait too (a `read` into a page that is being moved). One for user
    /// mode alone would fail such calls, and is no use.
    fn open() -> Option<Self> {
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
        // SAFETY: opens a descriptor, nothing else.
        let fd = unsafe { raw::syscall(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) };
        if raw::failed(fd) {
            return None;
        }
        let this = Self(Descriptor::fresh(raise(fd as i32)));
        let mut api = uapi::uffdio_api {
            api: u64::from(uapi::UFFD_API),
            features: u64::from(uapi::UFFD_FEATURE_PAGEFAULT_FLAG_WP | uapi::UFFD_FEATURE_WP_HUGETLBFS_SHMEM),
            ioctls: 0,
        };
        (!raw::failed(this.ioctl(UFFDIO_API, &mut api))).then_some(this)
    }

    /// Keeps writers out of the range; they wait until [`Self::release`].
    ///
    /// # Errors
    /// Why the range stays as it is.
    pub(crate) fn write_protect(&self, start: usize, bytes: usize) -> Result<(), PlacementReason> {
        let registered = self.register(start, bytes);
        let result = if raw::failed(registered) { registered } else { self.set_protection(start, bytes, true) };
        if !raw::failed(result) {
            return Ok(());
        }
        self.release(start, bytes);
        Err(match (-result) as i32 {
            libc::EBUSY => PlacementReason::KeptWatched,
            // The range has to become a mapping of its own.
            libc::ENOMEM => PlacementReason::KeptMappings,
            _ => PlacementReason::KeptNoUserfault,
        })
    }

    /// Lets the writers go on, whatever lies in the range now.
    pub(crate) fn release(&self, start: usize, bytes: usize) {
        self.set_protection(start, bytes, false);
        let range = || uapi::uffdio_range { start: start as u64, len: bytes as u64 };
        self.ioctl(UFFDIO_UNREGISTER, &mut range());
        self.ioctl(UFFDIO_WAKE, &mut range());
    }

    fn register(&self, start: usize, bytes: usize) -> Raw {
        let range = uapi::uffdio_range { start: start as u64, len: bytes as u64 };
        let mode = u64::from(uapi::UFFDIO_REGISTER_MODE_WP);
        self.ioctl(UFFDIO_REGISTER, &mut uapi::uffdio_register { range, mode, ioctls: 0 })
    }

    fn set_protection(&self, start: usize, bytes: usize, protect: bool) -> Raw {
        let range = uapi::uffdio_range { start: start as u64, len: bytes as u64 };
        let mode = if protect { WRITE_PROTECT } else { 0 };
        self.ioctl(UFFDIO_WRITEPROTECT, &mut uapi::uffdio_writeprotect { range, mode })
    }

    fn ioctl<T>(&self, request: u32, argument: &mut T) -> Raw {
        let argument = core::ptr::from_mut(argument) as usize;
        let arguments = [self.0.fd as usize, request as usize, argument, 0, 0, 0];
        // SAFETY: the argument is the structure that the request takes, and outlives the call.
        unsafe { raw::syscall(libc::SYS_ioctl, arguments) }
    }
}
