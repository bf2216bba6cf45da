//! The memory of the sides: arrays on 4 KiB pages; trees on 1 GiB pages if two are reserved, else
//! on transparent huge pages.
//!
//! As in the paper: "we execute the tree-based implementations of our microbenchmarks using 1 GB
//! huge pages to reduce the TLB miss rate to 0, in most cases. For the baseline contiguous array
//! implementations, we did not use huge pages." The real page kinds are read from the kernel and
//! saved with each number.

#![allow(unsafe_code, reason = "makes a slice of mapped memory")]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use anyhow::{Context, Result};
use fieldstone_blocks::{CHUNK_BYTES, Frames, MmapFrames, PageKind, Pool};
use fieldstone_sys::{huge_pages, smaps};

use crate::layout::Layout;

const GIB: u64 = 1 << 30;

/// A resident contiguous array on pages of one kind, mostly the baseline.
#[derive(Debug)]
pub struct Contiguous<T> {
    start: NonNull<T>,
    len: usize,
    /// Owns the memory.
    _frames: MmapFrames,
}

impl<T: Copy> Contiguous<T> {
    /// An array of `len` elements on 4 KiB pages; element `i` is `make(i)`.
    ///
    /// # Errors
    /// If memory is not available.
    pub fn small_pages(layout: &Layout, len: usize, make: impl FnMut(usize) -> T) -> Result<Self> {
        Self::new(PageKind::Small4k, layout, len, make)
    }

    /// An array of `len` elements on pages of `kind`; element `i` is `make(i)`. `layout` sets its
    /// offset in the first page.
    ///
    /// # Errors
    /// If memory is not available.
    pub fn new(kind: PageKind, layout: &Layout, len: usize, mut make: impl FnMut(usize) -> T) -> Result<Self> {
        const { assert!(align_of::<T>() <= 64, "elements need at most the alignment of a cache line") };
        let offset = 64 * layout.array_lines;
        let bytes = len.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset));
        let bytes = bytes.context("cannot allocate the array: its size overflows")?;
        let frames = MmapFrames::new(kind);
        let chunks = bytes.div_ceil(CHUNK_BYTES).max(1);
        let base = frames.take(chunks).with_context(|| format!("cannot allocate an array of {bytes} bytes"))?;
        // SAFETY: `take` returned the chunks, and nothing else uses them. The range is inside them.
        unsafe { frames.prefault(base, bytes.next_multiple_of(4096)) }.context("cannot make the array resident")?;
        // SAFETY: the offset is less than a page, and the chunks have `offset` bytes more than the
        // array.
        let start = unsafe { base.add(offset) }.cast::<T>();
        for at in 0..len {
            // SAFETY: the chunks have space for `len` elements from the offset, which is a multiple
            // of a cache line and so aligned.
            unsafe { start.add(at).write(make(at)) };
        }
        Ok(Self { start, len, _frames: frames })
    }

    /// The page kinds of its memory.
    #[must_use]
    pub fn pages(&self) -> String {
        let first = self.start.addr().get() as u64;
        under(first..first + (self.len * size_of::<T>()) as u64)
    }
}

impl<T> Deref for Contiguous<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` wrote `len` elements, and `_frames` keeps their memory.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Contiguous<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `new` wrote `len` elements, `_frames` keeps their memory, and `self` is borrowed
        // mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// A resident pool for about `bytes` in blocks of `block_bytes`, on the largest available pages.
///
/// # Errors
/// If memory is not available.
pub fn large_page_pool(block_bytes: usize, bytes: u64) -> Result<Pool> {
    let kind = large_page_kind(bytes);
    pool_on(kind, block_bytes, bytes)
}

/// A resident pool for about `bytes` in blocks of `block_bytes`, on pages of `kind`.
///
/// # Errors
/// If memory is not available.
pub fn pool_on(kind: PageKind, block_bytes: usize, bytes: u64) -> Result<Pool> {
    let pool = Pool::with_block_bytes(MmapFrames::new(kind), block_bytes)?;
    let bytes = usize::try_from(bytes)?;
    pool.reserve_prefault(bytes).with_context(|| format!("cannot reserve {bytes} bytes on {} pages", kind.name()))?;
    Ok(pool)
}

/// 1 GiB pages if enough of them are free, at least two; else transparent huge pages.
#[must_use]
pub fn large_page_kind(bytes: u64) -> PageKind {
    let wanted = (bytes.div_ceil(GIB) + 1).max(2);
    match huge_pages::pool(GIB) {
        Some(pool) if pool.available() >= wanted => PageKind::Hugetlb1g,
        _ => PageKind::Thp,
    }
}

/// The page kinds of a pool's memory, such as `thp 100 %`.
#[must_use]
pub fn pages_of(pool: &Pool) -> String {
    let Ok(placement) = pool.placement() else { return "unknown".to_owned() };
    words(placement.resident_bytes, placement.huge_bytes, placement.hugetlb_bytes)
}

/// The page kinds of an address range of this process.
pub(crate) fn under(range: std::ops::Range<u64>) -> String {
    let Ok(mappings) = smaps::read(std::process::id()) else { return "unknown".to_owned() };
    let (mut resident, mut huge, mut hugetlb) = (0, 0, 0);
    for mapping in mappings.iter().filter(|mapping| mapping.start < range.end && range.start < mapping.end) {
        resident += mapping.present_bytes();
        huge += mapping.anon_huge_bytes;
        hugetlb += mapping.present_bytes() - mapping.resident_bytes;
    }
    words(resident, huge, hugetlb)
}

fn words(resident: u64, huge: u64, hugetlb: u64) -> String {
    let small = resident.saturating_sub(huge + hugetlb);
    let kinds = [("hugetlb", hugetlb), ("thp", huge), ("4k", small)];
    let share = |bytes: u64| (bytes as f64 / resident.max(1) as f64 * 100.0).round();
    let kinds = kinds.iter().filter(|(_, bytes)| share(*bytes) > 0.0);
    kinds.map(|(name, bytes)| format!("{name} {} %", share(*bytes))).collect::<Vec<_>>().join(", ")
}
