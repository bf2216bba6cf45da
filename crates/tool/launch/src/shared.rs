//! A record that injected code shares with us.
//!
//! A memfd, reached by others as `/proc/PID/fd/N` of ours: no file to leave behind, no descriptor for them to inherit, and
//! nothing to be reached once we are gone. It is sparse: what nobody writes takes no memory.

#![allow(unsafe_code, reason = "maps the shared record, and vouches for the shape of records")]

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use fieldstone_wire::MAGIC;
use fieldstone_wire::sites::Sites;
use fieldstone_wire::trace::Trace;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Error, Result};

/// A record that others know by its magic number and its build.
///
/// # Safety
/// One of zeros is one, and what changes in it once it is signed is atomic.
pub unsafe trait Signed {
    /// What its memfd is called.
    const NAME: &str;

    /// Writes the build and the magic number.
    fn sign(&mut self);
}

// SAFETY: a trace is made of numbers and atomics, for which zero is a value; its plan does not change after `sign`.
unsafe impl Signed for Trace {
    const NAME: &str = "fieldstone-trace";

    fn sign(&mut self) {
        (self.build, self.magic) = (fieldstone_wire::trace::BUILD, MAGIC);
    }
}

// SAFETY: a record of sites is made of numbers and atomics, for which zero is a value.
unsafe impl Signed for Sites {
    const NAME: &str = "fieldstone-sites";

    fn sign(&mut self) {
        (self.build, self.magic) = (fieldstone_wire::sites::BUILD, MAGIC);
    }
}

/// A record that this process made, mapped until it is dropped.
pub struct Shared<T> {
    memory: NonNull<T>,
    file: OwnedFd,
}

// SAFETY: everything that changes in a record after its making is atomic: see `Signed`.
unsafe impl<T: Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Shared<T> {}

impl<T> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("file", &self.file).finish_non_exhaustive()
    }
}

impl<T: Signed> Shared<T> {
    /// Makes a record of zeros, has `begin` write what never changes in it, and signs it.
    ///
    /// # Errors
    /// [`Error::System`] where there is no memory or no descriptor.
    pub fn make(begin: impl FnOnce(&mut T)) -> Result<Self> {
        let failed = |operation| move |errno: rustix::io::Errno| Error::system(operation)(errno.into());
        let file = rustix::fs::memfd_create(T::NAME, MemfdFlags::CLOEXEC).map_err(failed("make a shared record"))?;
        let bytes = size_of::<T>();
        rustix::fs::ftruncate(&file, bytes as u64).map_err(failed("size a shared record"))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is named, so nothing that exists is touched.
        let mapped = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, 0) };
        let mapped = mapped.map_err(failed("map a shared record"))?;
        let mut memory = NonNull::new(mapped.cast::<T>())
            .ok_or_else(|| Error::system("map a shared record")(std::io::ErrorKind::OutOfMemory.into()))?;
        // SAFETY: just mapped, page-aligned, as long as a record, of zeros, which is one, and not yet told to anybody.
        let record = unsafe { memory.as_mut() };
        begin(record);
        record.sign();
        Ok(Self { memory, file })
    }
}

impl<T> Shared<T> {
    /// The record.
    #[must_use]
    pub fn record(&self) -> &T {
        // SAFETY: mapped until `self` is dropped; only atomics in it change.
        unsafe { self.memory.as_ref() }
    }

    /// The path by which another process of this user opens it.
    #[must_use]
    pub fn path(&self) -> String {
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
