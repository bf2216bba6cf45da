//! Stores of compressed pages in memory.
//!
//! ```text
//! page ─→ workspace: a codec and its output ─→ slab: | length | compressed page |      a key is a block
//! ```
//! Several threads compress at one time, each in a workspace. The slab's lock is held to take and
//! free blocks only.

#![allow(unsafe_code, reason = "reads and writes blocks of the slab")]

use core::slice;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::kernel::PAGE;
use crate::lock::{Held, Lock};
use crate::slab::Slab;
use crate::store::{Page, Store, StoreError};

/// A page that is longer than this after compression goes to the next store: it gains too little.
pub(crate) const MAX_COMPRESSED: usize = PAGE * 3 / 4;
/// Bytes before the compressed page: its length.
const HEADER: usize = 2;
/// The largest output of a codec for a page: that of lz4.
pub(crate) const MAX_OUTPUT: usize = lz4_flex::block::get_maximum_output_size(PAGE);
/// Threads that compress at one time.
const WORKSPACES: usize = 4;

/// A compression of single pages, with the tables that it uses.
pub trait Codec: Send + 'static {
    /// The name of its store.
    const NAME: &'static str;

    /// Bytes of memory for its tables.
    fn table_bytes() -> usize;

    /// A codec with tables in `memory`, which has that size and starts at a page.
    fn new(memory: &'static mut [u8]) -> Self;

    /// Compresses a page. Returns the length; `None` if the page becomes no smaller.
    fn compress(&mut self, page: &Page, output: &mut [u8; MAX_OUTPUT]) -> Option<usize>;

    /// Restores a page; whether the input is one.
    fn decompress(&mut self, compressed: &[u8], page: &mut Page) -> bool;
}

struct Workspace<C> {
    codec: C,
    output: [u8; MAX_OUTPUT],
}

type Workspaces<C> = [&'static Lock<Workspace<C>>; WORKSPACES];

/// Compressed pages in memory. Pages that become no smaller than three quarters are left to the next
/// store.
pub struct Compressed<C: Codec> {
    slab: Lock<Slab>,
    /// `None` without memory for them: then the store is always full.
    workspaces: Option<Workspaces<C>>,
    limit: u64,
    /// Whether a page found no room, and none was freed since: then no page is compressed in vain.
    is_full: AtomicBool,
    /// The memory of a store that a program made; unmapped last.
    _arena: Option<Arena>,
}

impl<C: Codec> core::fmt::Debug for Compressed<C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct(C::NAME).field("limit", &self.limit).field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl<C: Codec> Compressed<C> {
    /// One that takes at most `bytes`, in the pager's own memory.
    pub(crate) fn new(arena: &Arena, bytes: usize) -> Result<Self> {
        let slab = Slab::new(arena, bytes).ok_or(Error::Full { bytes: arena.range().len() })?;
        Ok(Self::from_parts(slab, workspaces(arena), bytes, None))
    }

    /// One that takes at most `bytes` of compressed pages, in whole units of 64 KiB, up to 32 GiB. It
    /// takes none if the limits of the process allow no such memory.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn limit(bytes: usize) -> Self {
        let workspace =
            size_of::<Lock<Workspace<C>>>().next_multiple_of(PAGE) + C::table_bytes().next_multiple_of(PAGE);
        let arena = Arena::reserve(Slab::arena_bytes(bytes) + WORKSPACES * workspace).ok();
        // In this order: a smaller arena than was asked for has room for the workspaces.
        let workspaces = arena.as_ref().and_then(workspaces);
        let slab = arena.as_ref().and_then(|arena| Slab::new(arena, bytes)).unwrap_or(Slab::NONE);
        Self::from_parts(slab, workspaces, bytes, arena)
    }

    const fn from_parts(slab: Slab, workspaces: Option<Workspaces<C>>, bytes: usize, arena: Option<Arena>) -> Self {
        let (slab, is_full) = (Lock::new(slab), AtomicBool::new(false));
        Self { slab, workspaces, limit: bytes as u64, is_full, _arena: arena }
    }

    fn workspace(&self) -> Option<Held<'_, Workspace<C>>> {
        let workspaces = self.workspaces.as_ref()?;
        let free = workspaces.iter().find_map(|workspace| workspace.try_acquire());
        Some(free.unwrap_or_else(|| workspaces[0].acquire()))
    }

    fn put_page(&self, page: &Page) -> core::result::Result<u32, StoreError> {
        if self.is_full.load(Relaxed) {
            return Err(StoreError::Full);
        }
        let mut workspace = self.workspace().ok_or(StoreError::Full)?;
        let Workspace { codec, output } = &mut *workspace;
        let compressed = codec.compress(page, output);
        let length = compressed.filter(|&length| length <= MAX_COMPRESSED).ok_or(StoreError::Full)?;
        let mut slab = self.slab.acquire();
        let Some(key) = slab.take(HEADER + length) else {
            self.is_full.store(true, Relaxed);
            return Err(StoreError::Full);
        };
        let block = slab.at(key);
        drop(slab);
        // SAFETY: the block was just taken and has room for both; nothing else knows it.
        unsafe {
            block.cast::<u16>().write(length as u16);
            core::ptr::copy_nonoverlapping(output.as_ptr(), block.add(HEADER).as_ptr(), length);
        }
        Ok(key)
    }
}

/// Workspaces in the arena: they are too large for the stack of a pager. `None` when the arena is used up.
fn workspaces<C: Codec>(arena: &Arena) -> Option<Workspaces<C>> {
    let mut all = [None; WORKSPACES];
    for workspace in &mut all {
        let (place, bytes) = (arena.take(size_of::<Lock<Workspace<C>>>())?.cast(), C::table_bytes());
        let tables = arena.take(bytes)?.as_ptr();
        // SAFETY: the pages are fresh and large enough, and aligned to pages. The arena is unmapped after
        // the store, its only user.
        unsafe {
            let codec = C::new(slice::from_raw_parts_mut(tables, bytes));
            place.write(Lock::new(Workspace { codec, output: [0; MAX_OUTPUT] }));
            *workspace = Some(place.as_ref());
        }
    }
    Some(all.map(|workspace| workspace.expect("each was placed")))
}

impl<C: Codec> Store for Compressed<C> {
    fn name(&self) -> &'static str {
        C::NAME
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
            let mut workspace = self.workspace().ok_or(StoreError::Damaged)?;
            if !workspace.codec.decompress(compressed, page) {
                return Err(StoreError::Damaged);
            }
        }
        Ok(())
    }

    fn forget(&self, keys: &[u32]) {
        let mut slab = self.slab.acquire();
        keys.iter().for_each(|&key| slab.free(key));
        self.is_full.store(false, Relaxed);
    }

    fn bytes(&self) -> u64 {
        self.slab.acquire().bytes() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lz4::Lz4;
    use crate::store::MAX_KEY;

    #[test]
    fn pages_that_compress_come_back_and_others_are_refused() {
        let arena = Arena::reserve(256 << 20).unwrap().settle().unwrap();
        keeps_pages(&Lz4::new(arena, 16 << 20).unwrap());
        #[cfg(feature = "zstd")]
        keeps_pages(&crate::Zstd::new(arena, 16 << 20).unwrap());
    }

    fn keeps_pages<C: Codec>(store: &Compressed<C>) {
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
