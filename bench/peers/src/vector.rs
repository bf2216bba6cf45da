//! Vectors on a kind of pages that is named, since a vector takes what the system gives.

#![allow(unsafe_code, reason = "advises the kernel about a vector's room")]

use fieldstone_blocks::PageKind;
use rustix::mm::{Advice, madvise};

const PAGE_BYTES: usize = 4096;

/// An empty vector with room for `capacity` elements, on 4 KiB pages or on transparent huge ones. The room is from mmap when it is
/// large, which is when it matters; whole pages of it are advised.
#[must_use]
pub fn with_capacity(capacity: usize, kind: PageKind) -> Vec<u64> {
    let vector = Vec::<u64>::with_capacity(capacity);
    let start = vector.as_ptr().addr().next_multiple_of(PAGE_BYTES);
    let end = (vector.as_ptr().addr() + 8 * capacity) / PAGE_BYTES * PAGE_BYTES;
    if start < end {
        let advice = if kind == PageKind::Small4k { Advice::LinuxNoHugepage } else { Advice::LinuxHugepage };
        let place = vector.as_ptr().with_addr(start).cast_mut().cast();
        // SAFETY: whole pages of the vector's own room; the advice changes no contents. Where it is not known, pages stay as they are.
        let _ = unsafe { madvise(place, end - start, advice) };
    }
    vector
}

/// The same, with every page of the room touched.
#[must_use]
pub fn prefaulted(capacity: usize, kind: PageKind) -> Vec<u64> {
    let mut vector = with_capacity(capacity, kind);
    vector.resize(capacity, 0);
    vector.clear();
    vector
}
