//! Memory that a region can control, and aliases of it (MAP2).
//!
//! A [`Memory`] owns one mapping: anonymous, shared (so that it can be mapped twice), on huge
//! pages, or of a file. Its page size is the unit of faults and protections: 4 KiB, or the huge
//! page. Source: Appel and Li, MAP2: "map the same physical page at two different virtual
//! addresses, at different levels of protection, in the same address space".

#![allow(unsafe_code, reason = "maps memory")]

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, mremap, munmap,
};

use crate::error::{Error, Result};

const HUGE_BYTES: usize = 2 << 20;

/// The kind of a mapping. No descriptor is kept: the program could close or replace it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backing {
    Anonymous,
    Shared,
    File,
    PrivateFile,
}

/// A readable and writable mapping, unmapped on drop.
#[derive(Debug)]
pub struct Memory(Arc<OwnedMapping>);

#[derive(Debug)]
struct OwnedMapping {
    start: NonNull<u8>,
    bytes: usize,
    page_bytes: usize,
    backing: Backing,
    /// Whether a region controls it.
    controlled: AtomicBool,
}

// SAFETY: a mapping belongs to the process, not to a thread, and is accessed through raw pointers
// only.
unsafe impl Send for OwnedMapping {}
// SAFETY: its fields are immutable or atomic, and its contents are accessed through raw pointers
// only.
unsafe impl Sync for OwnedMapping {}

impl Memory {
    /// Private memory of zeros, at least `bytes` bytes. The kernel may use huge pages
    /// (`advise_huge`).
    ///
    /// # Errors
    /// [`Error::System`] without memory or address space.
    pub fn anonymous(bytes: usize) -> Result<Self> {
        let page_bytes = rustix::param::page_size();
        let bytes = rounded(bytes, page_bytes)?;
        Self::map_anonymous(bytes, page_bytes, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    /// Private memory on 2 MiB pages of the hugetlb pool.
    ///
    /// # Errors
    /// [`Error::System`] with `ENOMEM` if the pool has too few free pages.
    pub fn hugetlb(bytes: usize) -> Result<Self> {
        let bytes = rounded(bytes, HUGE_BYTES)?;
        Self::map_anonymous(bytes, HUGE_BYTES, MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB)
    }

    /// Memory of zeros that can be mapped twice: see [`Memory::alias`].
    ///
    /// # Errors
    /// As [`Memory::anonymous`].
    pub fn shared(bytes: usize) -> Result<Self> {
        let page_bytes = rustix::param::page_size();
        let bytes = rounded(bytes, page_bytes)?;
        let system = |call| move |errno| Error::system(call, 0, bytes, errno);
        let fd = memfd_create("fieldstone", MemfdFlags::CLOEXEC).map_err(system("memfd_create"))?;
        ftruncate(&fd, bytes as u64).map_err(system("ftruncate"))?;
        let start = map_at(&fd, 0, bytes, MapFlags::SHARED)?;
        Ok(Self::of(start, bytes, page_bytes, Backing::Shared))
    }

    /// A part of a file, shared: writes reach the file. `offset` and `bytes` are multiples of the
    /// page size, except at the file's end.
    ///
    /// # Errors
    /// [`Error::Range`] beyond the file's end, and as mmap(2).
    pub fn file(file: &File, offset: u64, bytes: usize) -> Result<Self> {
        let bytes = Self::within(file, offset, bytes)?;
        let start = map_at(file, offset, bytes, MapFlags::SHARED)?;
        Ok(Self::of(start, bytes, rustix::param::page_size(), Backing::File))
    }

    /// A part of a file, private: writes stay in memory.
    ///
    /// # Errors
    /// As [`Memory::file`].
    pub fn file_private(file: &File, offset: u64, bytes: usize) -> Result<Self> {
        let bytes = Self::within(file, offset, bytes)?;
        let start = map_at(file, offset, bytes, MapFlags::PRIVATE)?;
        Ok(Self::of(start, bytes, rustix::param::page_size(), Backing::PrivateFile))
    }

    /// The mapped size: whole pages, none of them entirely beyond the file's end, where an access
    /// raises `SIGBUS`.
    fn within(file: &File, offset: u64, bytes: usize) -> Result<usize> {
        let page_bytes = rustix::param::page_size();
        let size = file.metadata().map_err(|error| Error::system("fstat", 0, bytes, error))?.len();
        let end = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        if !offset.is_multiple_of(page_bytes as u64) || bytes == 0 || bytes > end {
            return Err(Error::Range { range: 0..bytes, bytes: end, page_bytes });
        }
        rounded(bytes, page_bytes)
    }

    fn map_anonymous(bytes: usize, page_bytes: usize, flags: MapFlags) -> Result<Self> {
        // SAFETY: a new mapping at an address chosen by the kernel replaces no other memory.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, read_write(), flags) };
        let start = start.map_err(|errno| Error::system("mmap", 0, bytes, errno))?;
        Ok(Self::of(not_null(start.cast()), bytes, page_bytes, Backing::Anonymous))
    }

    fn of(start: NonNull<u8>, bytes: usize, page_bytes: usize, backing: Backing) -> Self {
        Self(Arc::new(OwnedMapping { start, bytes, page_bytes, backing, controlled: AtomicBool::new(false) }))
    }

    /// Another owner of the same mapping, for callers that want the memory back if it cannot be
    /// controlled. Only one owner may be controlled at a time. The last owner unmaps it.
    #[doc(hidden)]
    #[must_use]
    pub fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    /// A second mapping of the memory at another address, always readable and writable.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for private memory.
    pub fn alias(&self) -> Result<Alias> {
        if matches!(self.0.backing, Backing::Anonymous | Backing::PrivateFile) {
            return Err(Error::Unsupported { what: "an alias", why: "the memory is private: use `Memory::shared`" });
        }
        let failed = |call| move |errno| Error::system(call, self.start(), self.bytes(), errno);
        // SAFETY: an old size of 0 keeps the mapping, and maps the same pages at an address chosen
        // by the kernel.
        let view = unsafe { mremap(self.as_ptr().cast(), 0, self.bytes(), MremapFlags::MAYMOVE) };
        let start = not_null(view.map_err(failed("mremap"))?.cast());
        let alias = Alias { start, bytes: self.bytes() };
        // SAFETY: this is the new mapping, which may have inherited the protection of the first
        // page.
        unsafe { mprotect(start.as_ptr().cast(), self.bytes(), MprotectFlags::READ | MprotectFlags::WRITE) }
            .map_err(failed("mprotect"))?;
        Ok(alias)
    }

    /// Requests transparent huge pages. Protecting one page of a huge page splits it.
    pub fn advise_huge(&self) {
        // SAFETY: the advice changes no contents. A kernel without huge pages refuses it and keeps
        // small ones.
        let _ = unsafe { madvise(self.0.start.as_ptr().cast(), self.0.bytes, Advice::LinuxHugepage) };
    }

    /// Makes the memory read as zeros in forked children.
    ///
    /// # Errors
    /// `EINVAL` for shared memory, and on kernels before 4.14.
    pub fn clear_in_child(&self) -> Result<()> {
        // SAFETY: the advice changes nothing in this process.
        let done = unsafe { madvise(self.0.start.as_ptr().cast(), self.0.bytes, Advice::LinuxWipeOnFork) };
        done.map_err(|errno| Error::system("madvise(WIPEONFORK)", self.start(), self.0.bytes, errno))
    }

    /// Touches every page for writing.
    ///
    /// # Errors
    /// `ENOMEM` without memory.
    pub fn populate(&self) -> Result<()> {
        // SAFETY: populating reads the pages in and changes no contents.
        let done = unsafe { madvise(self.0.start.as_ptr().cast(), self.0.bytes, Advice::LinuxPopulateWrite) };
        done.map_err(|errno| Error::system("madvise(POPULATE_WRITE)", self.start(), self.0.bytes, errno))
    }

    /// Pointer to the first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// The memory as words, which threads may share. An access is one of an instruction: it may fault.
    ///
    /// Code that accesses the memory through [`Memory::as_ptr`] at the same time must do so by atomics
    /// of 8 bytes, too.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        let start = self.0.start.as_ptr().cast_const();
        // SAFETY: the mapping is as long as this value, begins at a page and has whole words, for which all
        // bytes are valid; only unsafe code accesses it otherwise.
        #[allow(clippy::cast_ptr_alignment, reason = "a mapping begins at a page")]
        unsafe {
            std::slice::from_raw_parts(start.cast(), self.0.bytes / 8)
        }
    }

    /// Address of the first byte.
    #[must_use]
    pub fn start(&self) -> usize {
        self.0.start.as_ptr().expose_provenance()
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Page size in bytes: the unit of protection and filling.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.0.page_bytes
    }

    /// Marks the memory as controlled by a region.
    pub(crate) fn take_control(&self) -> Result<()> {
        if self.0.controlled.swap(true, Ordering::Relaxed) {
            return Err(Error::Unsupported { what: "controlling this memory", why: "another region controls it" });
        }
        Ok(())
    }

    pub(crate) fn release_control(&self) {
        self.0.controlled.store(false, Ordering::Relaxed);
    }

    /// Refuses operations that would make pages accessible without the region's knowledge.
    pub(crate) fn check_free(&self) -> Result<()> {
        if self.0.controlled.load(Ordering::Relaxed) {
            return Err(Error::Unsupported {
                what: "a guard in this memory",
                why: "a region controls it, whose traps would be lost: use separate memory for guards",
            });
        }
        Ok(())
    }

    pub(crate) fn is_file(&self) -> bool {
        matches!(self.0.backing, Backing::File | Backing::PrivateFile)
    }

    pub(crate) fn is_private_anonymous(&self) -> bool {
        self.0.backing == Backing::Anonymous
    }

    /// The addresses of a range of whole pages, given in bytes from the start.
    #[inline]
    pub(crate) fn addresses(&self, range: &Range<usize>) -> Result<Range<usize>> {
        let whole = range.start.is_multiple_of(self.page_bytes()) && range.end.is_multiple_of(self.page_bytes());
        if !whole || range.start > range.end || range.end > self.bytes() {
            return Err(Error::Range { range: range.clone(), bytes: self.bytes(), page_bytes: self.page_bytes() });
        }
        Ok(self.start() + range.start..self.start() + range.end)
    }
}

impl Drop for OwnedMapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and it is unmapped once.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// A second mapping of a [`Memory`], without traps, unmapped on drop.
#[derive(Debug)]
pub struct Alias {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and is accessed through raw pointers
// only.
unsafe impl Send for Alias {}
// SAFETY: its fields are immutable, and its contents are accessed through raw pointers only.
unsafe impl Sync for Alias {}

impl Alias {
    /// Pointer to the first byte.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Size in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Alias {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and it is unmapped once.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

fn map_at(fd: impl AsFd, offset: u64, bytes: usize, flags: MapFlags) -> Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address chosen by the kernel replaces no other memory.
    let start = unsafe { mmap(ptr::null_mut(), bytes, read_write(), flags, fd, offset) };
    start.map(|start| not_null(start.cast())).map_err(|errno| Error::system("mmap", 0, bytes, errno))
}

fn read_write() -> ProtFlags {
    ProtFlags::READ | ProtFlags::WRITE
}

/// A mapping's start, which is never 0.
fn not_null(start: *mut u8) -> NonNull<u8> {
    NonNull::new(start).unwrap_or(NonNull::dangling())
}

fn rounded(bytes: usize, page_bytes: usize) -> Result<usize> {
    let rounded = bytes.max(1).checked_next_multiple_of(page_bytes).filter(|&bytes| isize::try_from(bytes).is_ok());
    rounded.ok_or_else(|| Error::system("mmap", 0, bytes, rustix::io::Errno::NOMEM))
}
