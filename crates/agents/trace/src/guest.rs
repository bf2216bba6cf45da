//! The guest's memory, which lies in this process: looked at by way of the kernel, since it may be gone.

#![allow(unsafe_code, reason = "asks the kernel for a look at memory")]

use std::ffi::c_void;

const PAGE_BYTES: u64 = 4096;

/// Reads what lies at `place` in this process into `into`. False where not all of it is there.
pub(crate) fn read(place: u64, into: &mut [u8]) -> bool {
    let Ok(start) = usize::try_from(place) else { return false };
    let here = libc::iovec { iov_base: into.as_mut_ptr().cast::<c_void>(), iov_len: into.len() };
    let there = libc::iovec { iov_base: std::ptr::without_provenance_mut(start), iov_len: into.len() };
    // SAFETY: the kernel writes `into`, which is that long, and answers with an error where nothing is mapped.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
    read == into.len().cast_signed()
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
    fn a_string_ends_at_its_end_or_where_memory_does() {
        let text = c"/usr/bin/python3";
        let mut into = [0xff; 64];
        assert_eq!(read_string(text.as_ptr().addr() as u64, &mut into), text.count_bytes());
        assert_eq!(&into[..text.count_bytes()], text.to_bytes());
        assert_eq!(read_string(text.as_ptr().addr() as u64, &mut into[..4]), 4);
        assert_eq!(read_string(16, &mut into), 0, "nothing is mapped there");
    }
}
