//! A mapping owned by a test, unmapped on drop.
#![allow(dead_code, reason = "each test program uses its part")]

use std::ops::Range;
use std::ptr;

/// Private read-write memory.
pub(crate) struct Mapped {
    outer: *mut libc::c_void,
    outer_bytes: usize,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping is plain memory; tests order their accesses by joining threads or by atomics.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps anonymous memory whose start is a multiple of `align_bytes`.
    pub(crate) fn anonymous(bytes: u64, align_bytes: u64) -> Self {
        let (bytes, align) = (usize::try_from(bytes).unwrap(), usize::try_from(align_bytes).unwrap());
        let outer_bytes = bytes + align;
        // SAFETY: a fresh anonymous mapping at an address chosen by the kernel replaces no other
        // memory.
        let outer = unsafe { map(outer_bytes, libc::PROT_READ | libc::PROT_WRITE, 0) }.expect("mmap");
        let skip = outer.cast::<u8>().align_offset(align);
        // SAFETY: skip is less than align, so start and its bytes are inside the mapping.
        let start = unsafe { outer.cast::<u8>().add(skip) };
        Self { outer, outer_bytes, start, bytes }
    }

    /// Maps hugetlb pages of the given size, or returns the error.
    pub(crate) fn hugetlb(bytes: u64, page_bytes: u64) -> Result<Self, std::io::Error> {
        let size_flag = i32::try_from(page_bytes.trailing_zeros()).unwrap() << libc::MAP_HUGE_SHIFT;
        let bytes = usize::try_from(bytes).unwrap();
        // SAFETY: a fresh mapping without MAP_FIXED replaces no other memory.
        let outer = unsafe { map(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_HUGETLB | size_flag) }?;
        Ok(Self { outer, outer_bytes: bytes, start: outer.cast(), bytes })
    }

    pub(crate) fn range(&self) -> Range<u64> {
        let start = self.start.addr() as u64;
        start..start + self.bytes as u64
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Calls madvise(2) for all of it.
    pub(crate) fn advise(&self, advice: i32) {
        self.try_advise(advice).expect("madvise");
    }

    pub(crate) fn try_advise(&self, advice: i32) -> Result<(), std::io::Error> {
        // SAFETY: the range is this mapping's, which holds only bytes that the test wrote.
        let result = unsafe { libc::madvise(self.start.cast(), self.bytes, advice) };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Writes a byte on every page.
    pub(crate) fn touch(&self) {
        for offset in (0..self.bytes).step_by(rustix::param::page_size()) {
            self.write(offset as u64, 1);
        }
    }

    pub(crate) fn write(&self, offset: u64, value: u8) {
        let offset = usize::try_from(offset).unwrap();
        assert!(offset < self.bytes);
        // SAFETY: the offset is inside the mapping, which is writable.
        unsafe { self.start.add(offset).write_volatile(value) }
    }

    pub(crate) fn read(&self, offset: u64) -> u8 {
        let offset = usize::try_from(offset).unwrap();
        assert!(offset < self.bytes);
        // SAFETY: the offset is inside the mapping, which is readable.
        unsafe { self.start.add(offset).read_volatile() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and it is not used after the drop.
        unsafe { libc::munmap(self.outer, self.outer_bytes) };
    }
}

/// mmap(2), private and anonymous.
///
/// # Safety
/// `flags` must not hold MAP_FIXED.
pub(crate) unsafe fn map(bytes: usize, protection: i32, flags: i32) -> Result<*mut libc::c_void, std::io::Error> {
    // SAFETY: without MAP_FIXED, which the caller guarantees, mmap replaces nothing.
    let address = unsafe {
        libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags, -1, 0)
    };
    if address == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(address) }
}
