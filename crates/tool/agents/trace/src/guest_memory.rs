//! Reads of guest memory, which is mapped in this process, through the kernel: it may be unmapped.

#![allow(unsafe_code, reason = "reads memory by a system call")]

use std::ffi::c_void;

const PAGE_BYTES: u64 = 4096;

/// Reads the memory at host address `place` into `into`. False if a part of it is unmapped.
pub(crate) fn read(place: u64, into: &mut [u8]) -> bool {
    read_ranges(&[iovec_at(place, into.len())], into) == into.len()
}

/// Reads `BYTES` at each of the `places`, at most `MAX` of them, none across a page boundary; by
/// one call if all are mapped. `None` for those that are not.
pub(crate) fn read_each<const BYTES: usize, const MAX: usize>(
    places: impl Iterator<Item = u64>,
) -> [Option<[u8; BYTES]>; MAX] {
    let mut pieces = [iovec_at(0, BYTES); MAX];
    let count = pieces.iter_mut().zip(places).map(|(piece, place)| *piece = iovec_at(place, BYTES)).count();
    let mut bytes = [[0; BYTES]; MAX];
    let mut found = [None; MAX];
    let mut at = 0;
    while at < count {
        let whole = read_ranges(&pieces[at..count], bytes[at..count].as_flattened_mut()) / BYTES;
        (at..at + whole).for_each(|at| found[at] = Some(bytes[at]));
        // The next place is unmapped.
        at += whole + 1;
    }
    found
}

/// The range to read from.
fn iovec_at(place: u64, bytes: usize) -> libc::iovec {
    let start = usize::try_from(place).unwrap_or(usize::MAX);
    libc::iovec { iov_base: std::ptr::without_provenance_mut(start), iov_len: bytes }
}

/// Reads the ranges into `into` up to the first unmapped one. Returns the number of bytes read.
fn read_ranges(ranges: &[libc::iovec], into: &mut [u8]) -> usize {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast::<c_void>(), iov_len: into.len() };
    let pieces = ranges.len() as libc::c_ulong;
    // SAFETY: the kernel writes at most `into.len()` bytes, and returns an error for unmapped
    // ranges.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, ranges.as_ptr(), pieces, 0) };
    usize::try_from(read).unwrap_or(0)
}

/// Reads a C string at `place`, at most the length of `into`. Returns its length.
pub(crate) fn read_string(place: u64, into: &mut [u8]) -> usize {
    let mut read_bytes = 0;
    while read_bytes < into.len() {
        let at = place.wrapping_add(read_bytes as u64);
        let in_page = usize::try_from(PAGE_BYTES - at % PAGE_BYTES).unwrap_or(usize::MAX);
        let end = into.len().min(read_bytes.saturating_add(in_page));
        let piece = &mut into[read_bytes..end];
        if !read(at, piece) {
            return read_bytes;
        }
        if let Some(length) = piece.iter().position(|&byte| byte == 0) {
            return read_bytes + length;
        }
        read_bytes = end;
    }
    read_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_is_read_or_reported_unmapped() {
        let local = [1_u64.to_le_bytes(), 2_u64.to_le_bytes()];
        let [first, second] = [0, 1].map(|at| local[at].as_ptr().addr() as u64);
        let found = read_each::<8, 4>([second, 16, first, second].into_iter());
        assert_eq!(found, [Some(local[1]), None, Some(local[0]), Some(local[1])]);
        assert_eq!(read_each::<8, 2>([16, 32].into_iter()), [None; 2]);
        assert_eq!(read_each::<8, 2>([first].into_iter()), [Some(local[0]), None]);
    }

    #[test]
    fn a_string_ends_at_its_nul_or_at_unmapped_memory() {
        let text = c"/usr/bin/python3";
        let mut into = [0xff; 64];
        assert_eq!(read_string(text.as_ptr().addr() as u64, &mut into), text.count_bytes());
        assert_eq!(&into[..text.count_bytes()], text.to_bytes());
        assert_eq!(read_string(text.as_ptr().addr() as u64, &mut into[..4]), 4);
        assert_eq!(read_string(16, &mut into), 0, "nothing is mapped there");
    }
}
