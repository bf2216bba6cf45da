//! A record that injected code shares with us.
//!
//! A memfd, reached by others as `/proc/PID/fd/N` of ours: no file to leave behind, no descriptor for them to inherit, and
//! nothing to be reached once we are gone. It is sparse: what nobody writes takes no memory.

#![allow(unsafe_code, reason = "maps the shared record")]

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Error, Result};

/// A record that this process made, mapped until it is dropped.
pub(crate) struct Shared<T> {
    memory: NonNull<T>,
    file: OwnedFd,
}

// SAFETY: everything that changes in a record after its making is atomic: see `Shared::create`.
unsafe impl<T: Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Shared<T> {}

impl<T> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("file", &self.file).finish_non_exhaustive()
    }
}

impl<T> Shared<T> {
    /// Makes a record of zeros, and has `begin` write what never changes in it.
    ///
    /// # Errors
    /// [`Error::System`] where there is no memory or no descriptor.
    ///
    /// # Safety
    /// A `T` of zeros is one, and what changes in it after `begin` is atomic.
    pub(crate) unsafe fn create(name: &str, begin: impl FnOnce(&mut T)) -> Result<Self> {
        let failed = |operation| move |errno: rustix::io::Errno| Error::system(operation)(errno.into());
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).map_err(failed("make a shared record"))?;
        let bytes = size_of::<T>();
        rustix::fs::ftruncate(&file, bytes as u64).map_err(failed("size a shared record"))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is named, so nothing that exists is touched.
        let mapped = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, 0) };
        let mapped = mapped.map_err(failed("map a shared record"))?;
        let mut memory = NonNull::new(mapped.cast::<T>())
            .ok_or_else(|| Error::system("map a shared record")(std::io::ErrorKind::OutOfMemory.into()))?;
        // SAFETY: just mapped, page-aligned, as long as a record, of zeros, and not yet told to anybody.
        begin(unsafe { memory.as_mut() });
        Ok(Self { memory, file })
    }

    /// The record.
    pub(crate) fn record(&self) -> &T {
        // SAFETY: mapped until `self` is dropped; only atomics in it change.
        unsafe { self.memory.as_ref() }
    }

    /// The path by which another process of this user opens it.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours alone, and the borrow of `record` ends with `self`.
        unsafe {
            let _ = rustix::mm::munmap(self.memory.as_ptr().cast(), size_of::<T>());
        }
    }
}
