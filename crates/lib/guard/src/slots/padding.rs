//! The bytes of an object's pages before and behind it: filled at allocation, checked at free.
//!
//! Alignment leaves up to 15 bytes between an object and the guard behind it, and the rest of the
//! page on its other side. A write there raises no fault. The check at free finds it, unless the
//! write stored the pattern itself.
//!
//! Cost: one pass over at most a page for each, about 100 ns.

#![allow(unsafe_code, reason = "accesses memory beside objects")]

use core::ops::Range;

/// Differs from zero, from ASCII, and from the usual fill bytes of allocators and debuggers.
const PATTERN: u8 = 0xA7;
const WORD: u64 = u64::from_le_bytes([PATTERN; 8]);
/// Bytes that are compared together.
const LINE: usize = 64;

/// Fills bytes.
///
/// # Safety
/// The bytes are accessible, and belong to the caller.
pub(crate) unsafe fn fill(bytes: Range<usize>) {
    let start = core::ptr::with_exposed_provenance_mut::<u8>(bytes.start);
    // SAFETY: the caller owns the bytes.
    unsafe { start.write_bytes(PATTERN, bytes.len()) };
}

/// The address of the first byte that is not as filled.
///
/// # Safety
/// The bytes are accessible. Other threads may write them: the program has an error then, and the
/// result is one of the possible ones.
pub(crate) unsafe fn first_changed(bytes: Range<usize>) -> Option<usize> {
    let byte = |address: usize| {
        // SAFETY: the address is in the range. A volatile read assumes nothing about other threads.
        unsafe { core::ptr::with_exposed_provenance::<u8>(address).read_volatile() }
    };
    let changed_bits = |address: usize| {
        // SAFETY: the word is aligned and in the range.
        (unsafe { core::ptr::with_exposed_provenance::<u64>(address).read_volatile() }) ^ WORD
    };
    // Lines of 8 words without a branch for each word. A changed line is searched byte by byte, with
    // all that follow.
    let lines = bytes.start.next_multiple_of(8).min(bytes.end)..bytes.end;
    let lines = lines.start..lines.start + lines.len() / LINE * LINE;
    let is_changed = |&line: &usize| (line..line + LINE).step_by(8).fold(0, |bits, at| bits | changed_bits(at)) != 0;
    let head = bytes.start..lines.start;
    let body = lines.clone().step_by(LINE).find(is_changed).unwrap_or(lines.end);
    head.chain(body..bytes.end).find(|&address| byte(address) != PATTERN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_changed_byte_is_found_at_each_alignment() {
        let mut buffer = [0_u8; 256];
        let base = buffer.as_mut_ptr().expose_provenance();
        for start in 0..16 {
            for end in (start..48).chain([100, 135, 136, 137, 200]) {
                let range = base + start..base + end;
                // SAFETY: the range is in the buffer.
                unsafe { fill(range.clone()) };
                // SAFETY: the range is in the buffer.
                assert_eq!(unsafe { first_changed(range.clone()) }, None, "{start} to {end}");
                for changed in range.clone() {
                    let byte = core::ptr::with_exposed_provenance_mut::<u8>(changed);
                    // SAFETY: the byte is in the buffer.
                    let found = unsafe {
                        byte.write_volatile(0);
                        let found = first_changed(range.clone());
                        byte.write_volatile(PATTERN);
                        found
                    };
                    assert_eq!(found, Some(changed), "{start} to {end}");
                }
            }
        }
    }
}
