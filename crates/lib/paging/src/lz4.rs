//! The store `lz4`: compressed pages in memory.

#![allow(unsafe_code, reason = "reads and writes blocks of the slab")]

use core::slice;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::kernel::{EIO, PAGE};
use crate::lock::Lock;
use crate::slab::Slab;
use crate::store::{Page, Store, StoreError};

/// A page that is longer than this after compression goes to the next store: it gains too little.
const MAX_COMPRESSED: usize = PAGE * 3 / 4;
/// Bytes before the compressed page: its length.
const HEADER: usize = 2;
/// The largest output of lz4 for a page.
const MAX_OUTPUT: usize = get_maximum_output_size(PAGE);
/// Threads that compress at one time.
const WORKSPACES: usize = 4;

struct Workspace {
    table: CompressTable,
    output: [u8; MAX_OUTPUT],
}

/// Pages in memory, compressed by lz4. Pages that lz4 makes no smaller than three quarters are left
/// to the next store.
pub struct Lz4 {
    slab: Lock<Slab>,
    workspaces: [Lock<Workspace>; WORKSPACES],
    limit: u64,
    /// The memory of a store that a program made; unmapped last.
    _arena: Option<Arena>,
}

impl core::fmt::Debug for Lz4 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Lz4").field("limit", &self.limit).field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Lz4 {
    /// One that takes at most `bytes`, in the pager's own memory.
    pub(crate) fn new(arena: &'static Arena, bytes: usize) -> Result<Self> {
        let slab = Slab::new(arena, bytes).ok_or(Error::Full { bytes: arena.range().len() })?;
        Ok(Self::from_parts(slab, bytes, None))
    }

    /// One that takes at most `bytes` of compressed pages, in whole units of 64 KiB, up to 32 GiB. It
    /// takes none if the limits of the process allow no such memory.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn limit(bytes: usize) -> Self {
        let arena = Arena::reserve(Slab::arena_bytes(bytes)).ok();
        let slab = arena.as_ref().and_then(|arena| Slab::new(arena, bytes)).unwrap_or(Slab::NONE);
        Self::from_parts(slab, bytes, arena)
    }

    fn from_parts(slab: Slab, bytes: usize, arena: Option<Arena>) -> Self {
        let workspace = || Lock::new(Workspace { table: CompressTable::small(), output: [0; MAX_OUTPUT] });
        let workspaces = core::array::from_fn(|_| workspace());
        Self { slab: Lock::new(slab), workspaces, limit: bytes as u64, _arena: arena }
    }

    fn put_page(&self, page: &Page) -> core::result::Result<u32, StoreError> {
        let mut workspace =
            self.workspaces.iter().find_map(Lock::try_acquire).unwrap_or_else(|| self.workspaces[0].acquire());
        let Workspace { table, output } = &mut *workspace;
        let length = compress_into_with_table(page, output, table).map_err(|_| StoreError::Failed(EIO))?;
        if length > MAX_COMPRESSED {
            return Err(StoreError::Full);
        }
        let mut slab = self.slab.acquire();
        let key = slab.take(HEADER + length).ok_or(StoreError::Full)?;
        let block = slab.at(key);
        drop(slab);
        // SAFETY: the block was just taken and has room for both; nothing else knows it.
        unsafe {
            block.cast::<u16>().write(length as u16);
            core::ptr::copy_nonoverlapping(workspace.output.as_ptr(), block.add(HEADER).as_ptr(), length);
        }
        Ok(key)
    }
}

impl Store for Lz4 {
    fn name(&self) -> &'static str {
        "lz4"
    }

    fn put(&self, pages: &[&Page], keys: &mut [u32]) -> core::result::Result<usize, StoreError> {
        for (done, (page, key)) in pages.iter().zip(keys).enumerate() {
            match self.put_page(page) {
                Ok(stored) => *key = stored,
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
        }
        Ok(pages.len())
    }

    fn get(&self, keys: &[u32], pages: &mut [Page]) -> core::result::Result<(), StoreError> {
        for (&key, page) in keys.iter().zip(pages) {
            let block = self.slab.acquire().at(key);
            // SAFETY: the block was filled by `put_page`, and its owner frees it only after this.
            // A length that was damaged in memory is cut to what a block can have.
            let compressed = unsafe {
                let length = usize::from(block.cast::<u16>().read()).min(MAX_COMPRESSED);
                slice::from_raw_parts(block.add(HEADER).as_ptr(), length)
            };
            match decompress_into(compressed, page) {
                Ok(PAGE) => {}
                _ => return Err(StoreError::Failed(EIO)),
            }
        }
        Ok(())
    }

    fn forget(&self, keys: &[u32]) {
        let mut slab = self.slab.acquire();
        keys.iter().for_each(|&key| slab.free(key));
    }

    fn bytes(&self) -> u64 {
        self.slab.acquire().bytes() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MAX_KEY;

    #[test]
    fn pages_that_compress_come_back_and_others_are_refused() {
        let arena = Arena::reserve(256 << 20).unwrap().settle().unwrap();
        let store = Lz4::new(arena, 16 << 20).unwrap();
        let pages: Vec<Page> = (0..64_u8).map(|seed| std::array::from_fn(|at| seed ^ (at / 9) as u8)).collect();
        let mut keys = [0; 64];
        assert_eq!(store.put(&pages.iter().collect::<Vec<_>>(), &mut keys), Ok(64));
        assert!(store.bytes() > 0 && keys.iter().all(|&key| key <= MAX_KEY));
        for (page, key) in pages.iter().zip(keys) {
            let mut back = [[0; PAGE]];
            store.get(&[key], &mut back).unwrap();
            assert!(back[0] == *page);
        }
        store.forget(&keys);
        assert_eq!(store.bytes(), 0, "empty spans are returned");
        let mut state = 1_u64;
        let noise: Page = std::array::from_fn(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        });
        assert_eq!(store.put(&[&noise], &mut keys), Err(StoreError::Full));
    }

    #[test]
    fn a_full_store_refuses_pages_until_some_are_forgotten() {
        let arena = Arena::reserve(256 << 20).unwrap().settle().unwrap();
        let store = Lz4::new(arena, 128 << 10).unwrap();
        let page: Page = std::array::from_fn(|at| (at * at % 251) as u8);
        let (mut keys, mut key) = (Vec::new(), [0]);
        while store.put(&[&page], &mut key) == Ok(1) {
            keys.push(key[0]);
        }
        assert!(keys.len() > 64 && store.bytes() <= 128 << 10);
        store.forget(&keys[..1]);
        assert_eq!(store.put(&[&page], &mut key), Ok(1));
    }
}
