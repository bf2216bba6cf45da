//! The unit of the file: 4 KiB pages, each with its number and a check.
//!
//! ```text
//!  0  check    of the rest, seeded with the store and the page number
//!  8  number
//! 12  kind     node of a tree, map of the pages in use, or objects
//! 13  …        as the kind says
//! ```
//! All numbers are little-endian.

#![allow(unsafe_code, reason = "an instruction that brings memory into the cache")]

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// Bytes of the check with which a page begins.
pub(crate) const CHECK: usize = 8;
/// Bytes of a line of the cache of the processor, and such lines of a page.
pub(crate) const LINE: usize = 64;
pub(crate) const LINES: usize = PAGE / LINE;

/// The contents of a page.
pub(crate) type Page = [u8; PAGE];

/// The kind of page that a tree consists of.
pub(crate) const NODE: u8 = 1;
/// The kind of page that says which pages are in use.
pub(crate) const MAP: u8 = 2;
/// The kind of page that has objects of one type.
pub(crate) const OBJECT: u8 = 3;

const KIND: usize = 12;

#[inline]
pub(crate) fn u16_at(page: &[u8], at: usize) -> usize {
    u16::from_le_bytes([page[at], page[at + 1]]).into()
}

#[inline]
pub(crate) fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]])
}

#[inline]
pub(crate) fn u64_at(page: &[u8], at: usize) -> u64 {
    u64::from(u32_at(page, at)) | u64::from(u32_at(page, at + 4)) << 32
}

/// Writes a number that is known to fit: an offset in a page, or a count of what is in it.
pub(crate) fn set_u16(page: &mut [u8], at: usize, number: usize) {
    page[at..at + 2].copy_from_slice(&(number as u16).to_le_bytes());
}

pub(crate) fn set_u32(page: &mut [u8], at: usize, number: u32) {
    page[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

pub(crate) fn set_u64(page: &mut [u8], at: usize, number: u64) {
    page[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

#[inline]
pub(crate) fn kind(page: &Page) -> u8 {
    page[KIND]
}

pub(crate) fn set_kind(page: &mut Page, kind: u8) {
    page[KIND] = kind;
}

/// Where a page is in the file.
pub(crate) fn offset_of(number: u32) -> u64 {
    u64::from(number) * PAGE as u64
}

/// The check that a page contains.
pub(crate) fn check_of(page: &Page) -> u64 {
    u64_at(page, 0)
}

/// Replaces the check of a page.
pub(crate) fn set_check(page: &mut Page, check: u64) {
    set_u64(page, 0, check);
}

/// Brings a line of a page into the cache of the processor, without waiting for it.
#[inline]
pub(crate) fn prefetch(page: &Page, line: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction reads nothing and never faults, whatever its address is.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(page.as_ptr().wrapping_add(line * LINE).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (page, line);
}

/// Prepares a page for its place in a file.
pub(crate) fn seal(page: &mut Page, number: u32, store: u64) {
    set_u32(page, 8, number);
    let check = check(page, number, store);
    set_check(page, check);
}

/// Whether a page is the one that was sealed for this place.
pub(crate) fn is_sealed(page: &Page, number: u32, store: u64) -> bool {
    u32_at(page, 8) == number && check_of(page) == check(page, number, store)
}

fn check(page: &Page, number: u32, store: u64) -> u64 {
    xxh3_64_with_seed(&page[CHECK..], store ^ u64::from(number) << 32)
}
