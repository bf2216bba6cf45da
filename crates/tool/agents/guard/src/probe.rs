//! Reads words whose address may be wrong, as the unwinder finds them on a stack.
//!
//! The kernel answers whether a page is readable: `rt_sigprocmask` with an operation that does not
//! exist reads its mask, changes nothing, and fails with EFAULT or EINVAL. A load that faults would
//! be cheaper. But its signal would start at the top of an alternate signal stack on which a handler
//! of the program may be running.
//!
//! Cost: one system call for each page of a stack but the first.

#![allow(unsafe_code, reason = "reads memory that may not be mapped")]

use crate::raw;

const PAGE: u64 = 4096;

/// A reader of words. It remembers the last page that was readable.
#[derive(Default)]
pub(crate) struct Reader {
    page: u64,
}

impl Reader {
    /// A reader that knows the page of the caller's frame: nothing asks the kernel for it.
    pub(crate) fn of_stack(stack_pointer: usize) -> Self {
        Self { page: stack_pointer as u64 & !(PAGE - 1) }
    }

    /// The word at an address; `None` if the address is not aligned or not readable.
    pub(crate) fn read(&mut self, address: u64) -> Option<u64> {
        if !address.is_multiple_of(8) || address >= 1 << 47 {
            return None;
        }
        let page = address & !(PAGE - 1);
        if page != self.page {
            if !raw::is_readable(address as usize) {
                return None;
            }
            self.page = page;
        }
        // SAFETY: the page is readable. If another thread unmaps it now, the program changes the
        // stack of a running thread, and faults itself.
        Some(unsafe { core::ptr::with_exposed_provenance::<u64>(address as usize).read_volatile() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_readable_words_are_read() {
        let word = 0x1234_u64;
        let address = (&raw const word).expose_provenance() as u64;
        let closed = raw::map(4096).unwrap();
        // SAFETY: the page is this test's own.
        unsafe { libc::mprotect(closed.as_ptr().cast(), 4096, libc::PROT_NONE) };
        let mut reader = Reader::default();
        assert_eq!(reader.read(address), Some(0x1234));
        for wrong in [0, 8, 4096, address + 1, !7, closed.as_ptr() as u64] {
            assert_eq!(reader.read(wrong), None, "{wrong:#x}");
        }
        assert_eq!(reader.read(address), Some(0x1234));
    }
}
