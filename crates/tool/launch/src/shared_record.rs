//! Memory that this process shares with code injected into other processes.
//!
//! The memory is a memfd that other processes open as `/proc/PID/fd/N` of this process. So no file
//! remains on disk, no descriptor is inherited, and the path vanishes with this process.
//! Pages of the record that are never written take no memory.

#![allow(unsafe_code, reason = "maps the shared record, and implements the unsafe trait for its types")]

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use fieldstone_wire::MAGIC;
use fieldstone_wire::guard::GuardSession;
use fieldstone_wire::page_exchange::PageExchange;
use fieldstone_wire::paging::PagingSession;
use fieldstone_wire::sites::Sites;
use fieldstone_wire::trace::Trace;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Error, Result};

/// The type of a shared record. Readers verify its magic number and its build.
///
/// # Safety
/// All zeros must be a valid value of the type. After [`Self::sign`], only atomic fields may
/// change.
pub unsafe trait ShareableRecord {
    /// The name of the memfd, shown in `/proc/PID/maps`.
    const NAME: &str;

    /// Writes the build and the magic number.
    fn sign(&mut self);
}

// SAFETY: `Trace` consists of integers and atomics, so all zeros is a valid value. `sign` and the
// closure of `create_with` write the plain fields before the record is shared.
unsafe impl ShareableRecord for Trace {
    const NAME: &str = "fieldstone-trace";

    fn sign(&mut self) {
        (self.build, self.magic) = (fieldstone_wire::trace::BUILD, MAGIC);
    }
}

// SAFETY: `Sites` consists of integers and atomics, so all zeros is a valid value. `sign` writes the
// plain fields before the record is shared.
unsafe impl ShareableRecord for Sites {
    const NAME: &str = "fieldstone-sites";

    fn sign(&mut self) {
        (self.build, self.magic) = (fieldstone_wire::sites::BUILD, MAGIC);
    }
}

// SAFETY: `GuardSession` consists of integers and atomics, so all zeros is a valid value. `sign` and
// the closure of `create_with` write the plain fields before the record is shared.
unsafe impl ShareableRecord for GuardSession {
    const NAME: &str = "fieldstone-guard";

    fn sign(&mut self) {
        (self.build, self.magic) = (fieldstone_wire::guard::BUILD, MAGIC);
    }
}

// SAFETY: `PagingSession` consists of integers and atomics, so all zeros is a valid value. `sign` and
// the closure of `create_with` write the plain fields before the record is shared.
unsafe impl ShareableRecord for PagingSession {
    const NAME: &str = "fieldstone-paging";

    fn sign(&mut self) {
        (self.build, self.magic) = (fieldstone_wire::paging::BUILD, MAGIC);
    }
}

// SAFETY: `PageExchange` consists of integers and atomics, so all zeros is a valid value. `sign`
// writes the plain fields before the record is shared.
unsafe impl ShareableRecord for PageExchange {
    const NAME: &str = "fieldstone-page-exchange";

    fn sign(&mut self) {
        (self.build, self.magic) = (fieldstone_wire::page_exchange::BUILD, MAGIC);
    }
}

/// A shared record created by this process, mapped until it is dropped.
pub struct SharedRecord<T> {
    memory: NonNull<T>,
    file: OwnedFd,
}

// SAFETY: `SharedRecord` owns its mapping and gives access to `&T` only, which `T: Sync` allows on
// every thread. Unmapping works on every thread.
unsafe impl<T: Sync> Send for SharedRecord<T> {}
// SAFETY: a shared reference gives access to `&T` only, which `T: Sync` allows on every thread.
unsafe impl<T: Sync> Sync for SharedRecord<T> {}

impl<T> fmt::Debug for SharedRecord<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRecord").field("file", &self.file).finish_non_exhaustive()
    }
}

impl<T: ShareableRecord> SharedRecord<T> {
    /// Creates a record of zeros, lets `initialize` write its constant fields, and signs it.
    ///
    /// # Errors
    /// [`Error::System`] without memory or descriptors.
    pub fn create_with(initialize: impl FnOnce(&mut T)) -> Result<Self> {
        let failed = |operation| move |errno: rustix::io::Errno| Error::system(operation)(errno.into());
        let file = rustix::fs::memfd_create(T::NAME, MemfdFlags::CLOEXEC).map_err(failed("make a shared record"))?;
        let bytes = size_of::<T>();
        rustix::fs::ftruncate(&file, bytes as u64).map_err(failed("size a shared record"))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no existing mapping changes.
        let mapped = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, 0) };
        let mapped = mapped.map_err(failed("map a shared record"))?;
        let mut memory = NonNull::new(mapped.cast::<T>())
            .ok_or_else(|| Error::system("map a shared record")(std::io::ErrorKind::OutOfMemory.into()))?;
        // SAFETY: the new mapping is page-aligned, has the size of `T` and contains zeros, which
        // are a valid `T` by the contract of `ShareableRecord`. No other process has its path yet.
        let record = unsafe { memory.as_mut() };
        initialize(record);
        record.sign();
        Ok(Self { memory, file })
    }
}

impl SharedRecord<Sites> {
    /// Creates an empty record of sites.
    ///
    /// # Errors
    /// As [`Self::create_with`].
    pub fn create() -> Result<Self> {
        Self::create_with(|_| ())
    }
}

impl<T> SharedRecord<T> {
    /// The record.
    #[must_use]
    pub fn record(&self) -> &T {
        // SAFETY: `drop` alone unmaps the memory, after every borrow of `self`. By the contract of
        // `ShareableRecord`, other processes change only atomic fields.
        unsafe { self.memory.as_ref() }
    }

    /// The path at which another process of this user can open the record.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

impl<T> Drop for SharedRecord<T> {
    fn drop(&mut self) {
        // SAFETY: `create_with` mapped this range for `self`, and no reference to it outlives
        // `self`.
        unsafe {
            let _ = rustix::mm::munmap(self.memory.as_ptr().cast(), size_of::<T>());
        }
    }
}
