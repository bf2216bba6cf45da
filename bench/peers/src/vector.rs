//! Vectors on a given page size; a plain vector gets the system's default.

#![allow(unsafe_code, reason = "advises the kernel about a vector's memory")]

use fieldstone_blocks::PageKind;
use rustix::mm::{Advice, madvise};

const PAGE_BYTES: usize = 4096;

/// An empty vector with memory for `capacity` elements, on 4 KiB pages or on transparent huge
/// pages. Only whole pages are advised; a large vector comes from mmap.
#[must_use]
pub fn with_capacity(capacity: usize, kind: PageKind) -> Vec<u64> {
    let vector = Vec::<u64>::with_capacity(capacity);
    let start = vector.as_ptr().addr().next_multiple_of(PAGE_BYTES);
    let end = (vector.as_ptr().addr() + 8 * capacity) / PAGE_BYTES * PAGE_BYTES;
    if start < end {
        let advice = if kind == PageKind::Small4k { Advice::LinuxNoHugepage } else { Advice::LinuxHugepage };
        let pages = vector.as_ptr().with_addr(start).cast_mut().cast();
        // SAFETY: these are whole pages of the vector's own memory, and the advice keeps their
        // contents. A kernel without this advice returns an error, and the pages stay as they are.
        let _ = unsafe { madvise(pages, end - start, advice) };
    }
    vector
}

/// [`with_capacity`], with every page touched.
#[must_use]
pub fn prefaulted(capacity: usize, kind: PageKind) -> Vec<u64> {
    let mut vector = with_capacity(capacity, kind);
    vector.resize(capacity, 0);
    vector.clear();
    vector
}
