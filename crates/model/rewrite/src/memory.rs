//! Memory of the program: its code and, for walks, its data.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use crate::page::PAGE_BYTES;

/// Memory that can be read. Reads are many and small, so an implementation by system calls should
/// cache pages.
pub trait ReadableMemory {
    /// Reads from `address` into `into` up to the first unmapped byte. Returns the number of bytes
    /// read.
    fn read(&self, address: u64, into: &mut [u8]) -> usize;
}

/// A function that reads as [`ReadableMemory::read`] does.
impl<F: Fn(u64, &mut [u8]) -> usize> ReadableMemory for F {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        self(address, into)
    }
}

/// A copy of memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryImage {
    /// Its first address.
    pub start: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl ReadableMemory for MemoryImage {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let from = address.checked_sub(self.start).and_then(|offset| usize::try_from(offset).ok());
        let Some(rest) = from.and_then(|from| self.bytes.get(from..)) else { return 0 };
        let got = rest.len().min(into.len());
        into[..got].copy_from_slice(&rest[..got]);
        got
    }
}

/// A cache of whole pages of another memory. Each page is read once.
pub struct CachedMemory<'a> {
    memory: &'a dyn ReadableMemory,
    /// Contents of the pages, by address.
    kept: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl<'a> CachedMemory<'a> {
    /// A cache of `memory`. A page keeps the contents of its first read.
    #[must_use]
    pub fn of(memory: &'a dyn ReadableMemory) -> Self {
        Self { memory, kept: RefCell::default() }
    }
}

impl fmt::Debug for CachedMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("kept", &self.kept.borrow().len()).finish_non_exhaustive()
    }
}

impl ReadableMemory for CachedMemory<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let mut kept = self.kept.borrow_mut();
        let mut got = 0;
        while got < into.len() {
            let at = address.wrapping_add(got as u64);
            let page = at & !(PAGE_BYTES - 1);
            let bytes = kept.entry(page).or_insert_with(|| {
                let mut bytes = vec![0; PAGE];
                let there = self.memory.read(page, &mut bytes);
                bytes.truncate(there);
                bytes
            });
            let offset = usize::try_from(at - page).unwrap_or(PAGE);
            let rest = bytes.get(offset..).unwrap_or_default();
            let now = rest.len().min(into.len() - got);
            into[got..got + now].copy_from_slice(&rest[..now]);
            got += now;
            if now == 0 {
                break;
            }
        }
        got
    }
}

const PAGE: usize = 4096;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::{CachedMemory, MemoryImage, ReadableMemory};

    struct Counted(MemoryImage, Cell<u32>);

    impl ReadableMemory for Counted {
        fn read(&self, address: u64, into: &mut [u8]) -> usize {
            self.1.set(self.1.get() + 1);
            self.0.read(address, into)
        }
    }

    #[test]
    fn pages_are_read_once_and_end_with_the_memory() {
        let image = MemoryImage { start: 0x1000, bytes: (0..=255).cycle().take(4096 + 100).collect() };
        let counted = Counted(image.clone(), Cell::new(0));
        let pages = CachedMemory::of(&counted);
        for (address, bytes) in [(0x1000, 8), (0x1ffe, 8), (0x1ffe, 200), (0x2000 + 96, 8), (0x3000, 8), (0x1004, 4)] {
            let (mut one, mut other) = (vec![0; bytes], vec![0; bytes]);
            assert_eq!(pages.read(address, &mut one), image.read(address, &mut other), "{address:#x}");
            assert_eq!(one, other);
        }
        assert_eq!(counted.1.get(), 3, "one for each page, and one that is not there");
    }

    #[test]
    fn an_image_has_no_bytes_outside_of_it() {
        let image = MemoryImage { start: 0x1000, bytes: (0..100).collect() };
        let mut into = [0xff; 4];
        assert_eq!((image.read(0x1000 + 98, &mut into), into), (2, [98, 99, 0xff, 0xff]));
        for outside in [0xfff, 0x1000 + 100, u64::MAX] {
            assert_eq!(image.read(outside, &mut into), 0);
        }
    }
}
