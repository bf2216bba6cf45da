//! The unit of the file: 4 KiB pages, each with its number and a check.
//!
//! ```text
//!  0  check    of the rest, seeded with the store and the page number
//!  8  number
//! 12  kind     node of a tree, or map of the pages in use
//! 13  …        as the kind says
//! ```
//! All numbers are little-endian.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// Bytes of the check with which a page begins.
pub(crate) const CHECK: usize = 8;

/// The contents of a page.
pub(crate) type Page = [u8; PAGE];

/// The kind of page that a tree consists of.
pub(crate) const NODE: u8 = 1;
/// The kind of page that says which pages are in use.
pub(crate) const MAP: u8 = 2;

const KIND: usize = 12;

pub(crate) fn u16_at(page: &[u8], at: usize) -> usize {
    u16::from_le_bytes([page[at], page[at + 1]]).into()
}

pub(crate) fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]])
}

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
