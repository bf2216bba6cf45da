//! The guest's memory, which lies in this process: looked at by way of the kernel, since it may be gone.

#![allow(unsafe_code, reason = "asks the kernel for a look at memory")]

use std::ffi::c_void;

const PAGE_BYTES: u64 = 4096;

/// Reads what lies at `place` in this process into `into`. False where not all of it is there.
pub(crate) fn read(place: u64, into: &mut [u8]) -> bool {
    call(&[there(place, into.len())], into) == into.len()
}

/// Reads `BYTES` at each of the `places`, of which there are `MOST` at most, none across the end of a page: in one call if all of them are
/// there. None for those that are not.
pub(crate) fn read_each<const BYTES: usize, const MOST: usize>(
    places: impl Iterator<Item = u64>,
) -> [Option<[u8; BYTES]>; MOST] {
    let mut pieces = [there(0, BYTES); MOST];
    let count = pieces.iter_mut().zip(places).map(|(piece, place)| *piece = there(place, BYTES)).count();
    let mut bytes = [[0; BYTES]; MOST];
    let mut found = [None; MOST];
    let mut at = 0;
    while at < count {
        let whole = call(&pieces[at..count], bytes[at..count].as_flattened_mut()) / BYTES;
        (at..at + whole).for_each(|at| found[at] = Some(bytes[at]));
        // The next one is not there.
        at += whole + 1;
    }
    found
}

/// Where to read from.
fn there(place: u64, bytes: usize) -> libc::iovec {
    let start = usize::try_from(place).unwrap_or(usize::MAX);
    libc::iovec { iov_base: std::ptr::without_provenance_mut(start), iov_len: bytes }
}

/// Reads from `there` into `into` up to the first piece that is not there; the bytes that were read.
fn call(there: &[libc::iovec], into: &mut [u8]) -> usize {
    let here = libc::iovec { iov_base: into.as_mut_ptr().cast::<c_void>(), iov_len: into.len() };
    let pieces = there.len() as libc::c_ulong;
    // SAFETY: the kernel writes `into`, which is that long, and answers with an error where nothing is mapped.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, there.as_ptr(), pieces, 0) };
    usize::try_from(read).unwrap_or(0)
}

/// Reads a string of C at `place`, as much of it as `into` takes; its length.
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
    fn each_place_is_read_or_gone() {
        let here = [1_u64.to_le_bytes(), 2_u64.to_le_bytes()];
        let [first, second] = [0, 1].map(|at| here[at].as_ptr().addr() as u64);
        let found = read_each::<8, 4>([second, 16, first, second].into_iter());
        assert_eq!(found, [Some(here[1]), None, Some(here[0]), Some(here[1])]);
        assert_eq!(read_each::<8, 2>([16, 32].into_iter()), [None; 2]);
        assert_eq!(read_each::<8, 2>([first].into_iter()), [Some(here[0]), None]);
    }

    #[test]
    fn a_string_ends_at_its_end_or_where_memory_does() {
        let text = c"/usr/bin/python3";
        let mut into = [0xff; 64];
        assert_eq!(read_string(text.as_ptr().addr() as u64, &mut into), text.count_bytes());
        assert_eq!(&into[..text.count_bytes()], text.to_bytes());
        assert_eq!(read_string(text.as_ptr().addr() as u64, &mut into[..4]), 4);
        assert_eq!(read_string(16, &mut into), 0, "nothing is mapped there");
    }
}
