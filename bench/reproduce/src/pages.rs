//! The pages that each side lies on: arrays on 4 KiB pages, trees on 1 GiB pages where two are reserved, else on transparent huge ones.
//!
//! As in the paper: "we execute the tree-based implementations of our microbenchmarks using 1 GB huge pages to reduce the TLB miss rate to
//! 0, in most cases. For the baseline contiguous array implementations, we did not use huge pages." What was really got is read from
//! the kernel and kept with each number.

#![allow(unsafe_code, reason = "makes a slice of mapped memory")]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use anyhow::{Context, Result};
use fieldstone_blocks::{CHUNK_BYTES, Frames, MmapFrames, PageKind, Pool};
use fieldstone_sys::{huge_pages, smaps};

use crate::layout::Layout;

const GIB: u64 = 1 << 30;

/// A contiguous array on pages of one kind, resident: the baseline.
#[derive(Debug)]
pub struct Contiguous<T> {
    start: NonNull<T>,
    len: usize,
    /// Keeps the memory.
    _frames: MmapFrames,
}

impl<T: Copy> Contiguous<T> {
    /// `len` elements, element `i` being `make(i)`, on 4 KiB pages.
    ///
    /// # Errors
    /// Without memory.
    pub fn small_pages(layout: &Layout, len: usize, make: impl FnMut(usize) -> T) -> Result<Self> {
        Self::new(PageKind::Small4k, layout, len, make)
    }

    /// `len` elements, element `i` being `make(i)`, on pages of `kind`. They start within their first page where `layout` says.
    ///
    /// # Errors
    /// Without memory.
    pub fn new(kind: PageKind, layout: &Layout, len: usize, mut make: impl FnMut(usize) -> T) -> Result<Self> {
        const { assert!(align_of::<T>() <= 64, "an element is aligned to a cache line at most") };
        let offset = 64 * layout.array_lines;
        let bytes = len.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset));
        let bytes = bytes.context("an array larger than any memory")?;
        let frames = MmapFrames::new(kind);
        let chunks = bytes.div_ceil(CHUNK_BYTES).max(1);
        let base = frames.take(chunks).with_context(|| format!("no room for an array of {bytes} bytes"))?;
        // SAFETY: the chunks are ours; whole pages of them become resident, no more than the array touches.
        unsafe { frames.prefault(base, bytes.next_multiple_of(4096)) }.context("the array cannot be made resident")?;
        // SAFETY: the offset is less than a page.
        let start = unsafe { base.add(offset) }.cast::<T>();
        for at in 0..len {
            // SAFETY: there is room for `len` elements; a cache line's start is aligned for them.
            unsafe { start.add(at).write(make(at)) };
        }
        Ok(Self { start, len, _frames: frames })
    }

    /// The pages that it really got.
    #[must_use]
    pub fn pages(&self) -> String {
        let first = self.start.addr().get() as u64;
        under(first..first + (self.len * size_of::<T>()) as u64)
    }
}

impl<T> Deref for Contiguous<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were written, and the frames live as long as this.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Contiguous<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` elements were written, the frames live as long as this, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// A pool of blocks of `block_bytes` for about `bytes`, resident, on the largest pages that there are: what trees lie on.
///
/// # Errors
/// Without memory.
pub fn large_page_pool(block_bytes: usize, bytes: u64) -> Result<Pool> {
    let kind = large_page_kind(bytes);
    pool_on(kind, block_bytes, bytes)
}

/// A pool of blocks of `block_bytes` for about `bytes`, resident, on pages of `kind`.
///
/// # Errors
/// Without memory.
pub fn pool_on(kind: PageKind, block_bytes: usize, bytes: u64) -> Result<Pool> {
    let pool = Pool::with_block_bytes(MmapFrames::new(kind), block_bytes)?;
    let bytes = usize::try_from(bytes)?;
    pool.reserve_prefault(bytes).with_context(|| format!("no {bytes} bytes in blocks on {} pages", kind.name()))?;
    Ok(pool)
}

/// 1 GiB pages where as many as it takes, two at least, are free; else transparent huge pages.
#[must_use]
pub fn large_page_kind(bytes: u64) -> PageKind {
    let wanted = (bytes.div_ceil(GIB) + 1).max(2);
    match huge_pages::pool(GIB) {
        Some(pool) if pool.available() >= wanted => PageKind::Hugetlb1g,
        _ => PageKind::Thp,
    }
}

/// The pages that a pool really got, such as `thp 100 %`.
#[must_use]
pub fn pages_of(pool: &Pool) -> String {
    let Ok(placement) = pool.placement() else { return "unknown".to_owned() };
    words(placement.resident_bytes, placement.huge_bytes, placement.hugetlb_bytes)
}

/// The pages under a range of addresses of this process.
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
