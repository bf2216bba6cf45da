//! Chunks from the kernel, by `mmap`.
//!
//! ```text
//! span   | rw | rw | rw |      reserved, no access             |     64 MiB, each next span twice as large, up to 64 GiB
//!        chunks in use   ^ next
//! ```
//! The frames reserve address space in spans and open them chunk by chunk from the low end. Blocks
//! therefore come in address order, and a span is two mappings regardless of its chunks. A released
//! chunk loses its memory and keeps its address, which is reused first. If a limit forbids a span,
//! smaller sizes are tried, down to the requested one.
//!
//! | page kind | how it is requested |
//! |---|---|
//! | `4k`, `thp` | `madvise` on the span |
//! | `folio-64k` | the same advice as `thp`; the system must enable 64 KiB folios and no larger ones |
//! | `hugetlb` | a page of the hugetlb pool for each chunk; transparent pages when the pool is empty |
//! | `hugetlb-1g` | spans of whole 1 GiB pages, which are kept |
//!
//! [`crate::Pool::placement`] reports which pages the kernel used.

#![allow(unsafe_code, reason = "maps memory")]

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use std::collections::BTreeSet;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use rustix::mm::{madvise, mmap_anonymous, mprotect, mremap_fixed, munmap};

pub use fieldstone_wire::PageKind;

use super::{CHUNK_BYTES, Frames, bytes_of};
use crate::error::{Error, Result};
use crate::sync::Lock;

const FIRST_SPAN_BYTES: usize = 64 << 20;
const LAST_SPAN_BYTES: usize = 64 << 30;
const GIB: usize = 1 << 30;

/// Chunks from the kernel, with one kind of pages.
#[derive(Debug)]
pub struct MmapFrames {
    kind: PageKind,
    state: Lock<SpanState>,
}

#[derive(Debug, Default)]
struct SpanState {
    /// Every span with its size in bytes, for `munmap`.
    spans: Vec<(NonNull<u8>, usize)>,
    /// The unopened part of the last span is `next..end`.
    next: usize,
    end: usize,
    next_span_bytes: usize,
    /// Released chunks.
    free: BTreeSet<NonNull<u8>>,
}

// SAFETY: the pointers name mappings that belong to this value, not to a thread; the lock
// serialises access.
unsafe impl Send for SpanState {}

impl MmapFrames {
    /// Creates frames with pages of `kind`. Nothing is mapped yet.
    #[must_use]
    pub fn new(kind: PageKind) -> Self {
        let next_span_bytes = if kind == PageKind::Hugetlb1g { GIB } else { FIRST_SPAN_BYTES };
        Self { kind, state: Lock::new(SpanState { next_span_bytes, ..SpanState::default() }) }
    }

    /// The requested kind of pages.
    #[must_use]
    pub const fn kind(&self) -> PageKind {
        self.kind
    }

    /// Maps reserved or released chunks for use.
    fn open(&self, start: NonNull<u8>, bytes: usize) -> Result<()> {
        let place = start.as_ptr().cast();
        if self.kind == PageKind::Hugetlb2m && open_hugetlb(place, bytes) {
            return Ok(());
        }
        if self.kind == PageKind::Hugetlb1g {
            return Ok(());
        }
        // SAFETY: the range is in a span of this value; the call only adds access rights.
        unsafe { mprotect(place, bytes, MprotectFlags::READ | MprotectFlags::WRITE) }
            .map_err(|errno| system("mprotect", bytes, errno))
    }
}

impl SpanState {
    fn take(&mut self, kind: PageKind, bytes: usize) -> Result<NonNull<u8>> {
        if let Some(start) = self.take_free(bytes) {
            return Ok(start);
        }
        while self.end - self.next < bytes {
            self.retire_span();
            self.reserve(kind, bytes)?;
        }
        let (last, span_bytes) = self.spans.last().ok_or(Error::NoRun { blocks: bytes })?;
        let offset = self.next - last.addr().get();
        debug_assert!(offset + bytes <= *span_bytes, "within the span");
        // SAFETY: `next + bytes` is at most `end`, which is the end of the last span.
        let start = unsafe { last.add(offset) };
        self.next += bytes;
        Ok(start)
    }

    /// Takes the lowest released chunks that are contiguous.
    fn take_free(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let chunks = bytes / CHUNK_BYTES;
        let (mut first, mut count, mut last) = (None, 0, 0);
        for &chunk in &self.free {
            let follows = count > 0 && chunk.addr().get() == last + CHUNK_BYTES;
            (first, count) = if follows { (first, count + 1) } else { (Some(chunk), 1) };
            last = chunk.addr().get();
            if count == chunks {
                break;
            }
        }
        let start = first.filter(|_| count == chunks)?;
        for chunk in 0..chunks {
            // SAFETY: the loop above found these chunks to be contiguous, in one mapping.
            self.free.remove(&unsafe { start.add(chunk * CHUNK_BYTES) });
        }
        Some(start)
    }

    /// Moves the unopened rest of a span that is too small for a request to the free set.
    fn retire_span(&mut self) {
        let Some(&(start, _)) = self.spans.last() else { return };
        while self.next < self.end {
            // SAFETY: `next` is below the span's end.
            self.free.insert(unsafe { start.add(self.next - start.addr().get()) });
            self.next += CHUNK_BYTES;
        }
    }

    /// Reserves a span of at least `least` bytes.
    fn reserve(&mut self, kind: PageKind, least: usize) -> Result<()> {
        let unit = if kind == PageKind::Hugetlb1g { GIB } else { CHUNK_BYTES };
        let least = least.next_multiple_of(unit);
        let mut bytes = self.next_span_bytes.max(least);
        let start = loop {
            match map_span(kind, bytes) {
                Ok(start) => break start,
                Err(error) if bytes == least => return Err(error),
                Err(_) => bytes = (bytes / 2).next_multiple_of(unit).max(least),
            }
        };
        self.spans.push((start, bytes));
        (self.next, self.end) = (start.addr().get(), start.addr().get() + bytes);
        if kind != PageKind::Hugetlb1g {
            self.next_span_bytes = (2 * bytes).min(LAST_SPAN_BYTES);
        }
        Ok(())
    }
}

/// Maps a span, aligned to [`CHUNK_BYTES`].
fn map_span(kind: PageKind, bytes: usize) -> Result<NonNull<u8>> {
    if kind == PageKind::Hugetlb1g {
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_1GB;
        return map(bytes, read_write(), flags);
    }
    let slack = bytes + CHUNK_BYTES;
    let start = map(slack, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)?;
    let before = start.as_ptr().align_offset(CHUNK_BYTES);
    // SAFETY: the mapping is new and owned here; the two ends that are unmapped are unused, and
    // `before` is less than a chunk.
    let start = unsafe {
        if before > 0 {
            let _ = munmap(start.as_ptr().cast(), before);
        }
        let start = start.add(before);
        let after = slack - before - bytes;
        if after > 0 {
            let _ = munmap(start.add(bytes).as_ptr().cast(), after);
        }
        start
    };
    let advice = match kind {
        PageKind::Small4k => Advice::LinuxNoHugepage,
        _ => Advice::LinuxHugepage,
    };
    // SAFETY: the span is owned here, and the advice changes no contents. A kernel without huge
    // pages refuses it, which is harmless.
    let _ = unsafe { madvise(start.as_ptr().cast(), bytes, advice) };
    Ok(start)
}

/// Maps pages of the hugetlb pool at `place` in a span. Returns false, and changes nothing, when
/// the pool has none.
///
/// The pages are mapped elsewhere and moved: a failing `MAP_FIXED` at `place` would already have
/// removed the reservation there, so another mapping could take the address.
fn open_hugetlb(place: *mut c_void, bytes: usize) -> bool {
    let Ok(pages) = map(bytes, read_write(), MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB) else {
        return false;
    };
    let pages = pages.as_ptr().cast();
    // SAFETY: the pages are new and owned here; `place` is in a span of this value and is unused,
    // so its contents may go.
    let moved = unsafe { mremap_fixed(pages, bytes, bytes, MremapFlags::MAYMOVE, place) }.is_ok();
    if !moved {
        // SAFETY: the pages are new and nothing points to them.
        let _ = unsafe { munmap(pages, bytes) };
    }
    moved
}

fn map(bytes: usize, access: ProtFlags, flags: MapFlags) -> Result<NonNull<u8>> {
    // SAFETY: the kernel chooses the address, so no existing mapping changes.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, flags) };
    let start = start.map_err(|errno| system("mmap", bytes, errno))?;
    NonNull::new(start.cast()).ok_or(system("mmap", bytes, Errno::NOMEM))
}

const fn read_write() -> ProtFlags {
    ProtFlags::READ.union(ProtFlags::WRITE)
}

const fn system(operation: &'static str, bytes: usize, errno: Errno) -> Error {
    Error::System { operation, bytes, errno: errno.raw_os_error() }
}

// SAFETY: chunks are in spans that stay mapped until the value is dropped, and `open` makes them
// readable and writable. A chunk in use is neither in the free set nor above `next`, so it is
// returned once.
unsafe impl Frames for MmapFrames {
    fn take(&self, chunks: usize) -> Result<NonNull<u8>> {
        let bytes = bytes_of(chunks)?;
        let start = self.state.with(|state| state.take(self.kind, bytes))?;
        self.open(start, bytes).inspect_err(|_| {
            // SAFETY: the chunks were just taken and nothing uses them.
            unsafe { self.release(start, chunks) }
        })?;
        Ok(start)
    }

    unsafe fn release(&self, start: NonNull<u8>, chunks: usize) {
        let bytes = chunks * CHUNK_BYTES;
        if self.kind != PageKind::Hugetlb1g {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            let place = start.as_ptr().cast();
            // SAFETY: by contract nothing uses these chunks any more, so an empty mapping may
            // replace them.
            let emptied = unsafe { mmap_anonymous(place, bytes, ProtFlags::empty(), flags) };
            if emptied.is_ok() && self.kind != PageKind::Small4k {
                // SAFETY: the new mapping is empty and owned here. The advice lets it merge with
                // the rest of the span.
                let _ = unsafe { madvise(place, bytes, Advice::LinuxHugepage) };
            }
        }
        self.state.with(|state| {
            for chunk in 0..chunks {
                // SAFETY: the chunk is within the released range.
                state.free.insert(unsafe { start.add(chunk * CHUNK_BYTES) });
            }
        });
    }

    unsafe fn prefault(&self, start: NonNull<u8>, bytes: usize) -> Result<()> {
        // SAFETY: by contract the range is mapped; populating changes no contents.
        unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) }
            .map_err(|errno| system("madvise(POPULATE_WRITE)", bytes, errno))
    }
}

impl Drop for MmapFrames {
    fn drop(&mut self) {
        self.state.with(|state| {
            for &(start, bytes) in &state.spans {
                // SAFETY: the pool has dropped its blocks; the span is owned here and is unmapped
                // once.
                let _ = unsafe { munmap(start.as_ptr().cast(), bytes) };
            }
        });
    }
}
