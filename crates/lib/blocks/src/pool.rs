//! A pool of fixed-size blocks: the only thing that memory is handed out as.
//!
//! ```text
//! chunk (2 MiB, aligned)   |block|block|block| ... |     a power of two from 4 KiB to 2 MiB, which is the default
//! ```
//! Source: Zagieboylo, Suh and Myers, *The Cost of Software-Based Memory Management Without Virtual Memory*, section 3: the system
//! segments memory into fixed-size blocks as the minimum unit of allocation. They found the block size to matter little;
//! measured here, the *order* of the blocks matters more than their size, so the lowest free address goes first.
//!
//! # How
//! Each thread takes blocks from a chunk that its lane owns (`lane`), by clearing the lowest set bit of the chunk's free
//! bits (`chunk`): no lock. When the chunk is used up, the lane takes the lowest other chunk that has free blocks and no owner
//! (`table`), and when there is none, a new one from the frames, under a lock. A block is found by its address through a map of two
//! levels, so that a foreign address or a second free is an error, also in release builds.
//!
//! # Cost
//! Taking and freeing: some 10 ns without contention. A chunk: what the frames need, about a microsecond from the kernel, and the
//! page faults when its blocks are first touched (see [`Pool::reserve_prefault`]). Records: 0.1 KiB a chunk.

#![allow(unsafe_code, reason = "takes back raw blocks, which only their holder can promise to be out of use")]

pub(crate) mod chunk;
mod lane;
#[cfg(feature = "std")]
mod placement;
mod run;
mod stats;
mod table;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ptr::NonNull;

use chunk::Chunk;
use lane::{LANES, Lane};
use table::Table;

use crate::error::{Error, Result};
use crate::frames::{CHUNK_BYTES, Frames};
use crate::sync::{Arc, AtomicUsize, Lock, Ordering};

#[cfg(feature = "std")]
pub use placement::Placement;
pub use stats::PoolStats;

/// The block size that is taken unless another is named: a whole huge page. With blocks in order every size scans alike; what
/// decides is random access, where the directory, 8 bytes a block, has to stay in the near caches: for 4 GiB it is 16 KiB of 2 MiB
/// blocks, and 512 KiB of 64 KiB blocks, which took a tenth more time. Programs with many arrays of a few MiB, or with snapshots that
/// are written to here and there, take smaller blocks.
pub const DEFAULT_BLOCK_BYTES: usize = 2 << 20;

/// A pool of blocks. A handle: clones are the same pool, which lives until the last of them, and of what they handed out to
/// arrays and heaps, is dropped.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    block_shift: u32,
    limit_chunks: AtomicUsize,
    table: Table,
    lanes: [Lane; LANES],
    growth: Lock<Growth>,
    frames: Box<dyn Frames>,
}

/// What changes under the lock.
#[derive(Debug, Default)]
struct Growth {
    /// Chunks that are held.
    chunks: usize,
    /// Numbers of records that stand for none.
    vacant: Vec<u32>,
}

impl Pool {
    /// A pool of blocks of the default size, with memory from `frames`.
    ///
    /// # Errors
    /// [`Error::Table`] without memory for the tables.
    pub fn new(frames: impl Frames + 'static) -> Result<Self> {
        Self::with_block_bytes(frames, DEFAULT_BLOCK_BYTES)
    }

    /// A pool of blocks of `block_bytes`, with memory from `frames`.
    ///
    /// # Errors
    /// [`Error::BlockSize`] unless it is a power of two from 4 KiB to 2 MiB; [`Error::Table`] without memory for the tables.
    pub fn with_block_bytes(frames: impl Frames + 'static, block_bytes: usize) -> Result<Self> {
        if !block_bytes.is_power_of_two() || !(CHUNK_BYTES / (64 * chunk::WORDS)..=CHUNK_BYTES).contains(&block_bytes) {
            return Err(Error::BlockSize { bytes: block_bytes });
        }
        Ok(Self(Arc::new(Inner {
            block_shift: block_bytes.trailing_zeros(),
            limit_chunks: AtomicUsize::new(usize::MAX),
            table: Table::new()?,
            lanes: core::array::from_fn(|_| Lane::new()),
            growth: Lock::new(Growth::default()),
            frames: Box::new(frames),
        })))
    }

    /// The pool that arrays come from unless another is named: 2 MiB blocks on transparent huge pages, without a limit.
    ///
    /// # Panics
    /// Where there is no memory for the pool's tables, at its first use.
    #[cfg(all(feature = "std", not(loom)))]
    pub fn global() -> &'static Self {
        static GLOBAL: std::sync::OnceLock<Pool> = std::sync::OnceLock::new();
        GLOBAL.get_or_init(|| {
            let frames = crate::MmapFrames::new(crate::PageKind::Thp);
            Self::new(frames).unwrap_or_else(|error| panic!("the default pool cannot be made: {error}"))
        })
    }

    /// Bytes of a block, which is also its alignment.
    #[must_use]
    #[inline]
    pub fn block_bytes(&self) -> usize {
        1 << self.0.block_shift
    }

    /// Limits the memory that the pool takes from its frames from now on, rounded down to chunks of 2 MiB. It gives nothing back.
    pub fn set_limit(&self, bytes: usize) {
        self.0.limit_chunks.store(bytes / CHUNK_BYTES, Ordering::Relaxed);
    }

    /// Takes a block: the lowest free one of this thread's chunk. Its contents are not defined.
    ///
    /// # Errors
    /// [`Error::Exhausted`] at the limit or when the frames have no more; [`Error::System`] as they say.
    #[inline]
    pub fn alloc(&self) -> Result<NonNull<u8>> {
        self.alloc_in(lane::mine())
    }

    fn alloc_in(&self, lane: usize) -> Result<NonNull<u8>> {
        loop {
            if let Some(number) = self.0.lanes[lane].chunk()
                && let Some(block) = self.take_lowest(number)
            {
                return Ok(block);
            }
            match self.next_chunk(lane) {
                Ok(number) => self.enter(lane, number),
                // Others own all that is left: memory goes before order.
                Err(error) => return self.steal().ok_or(error),
            }
        }
    }

    /// Gives a block back. If it was shared, one holder goes and the block stays.
    ///
    /// # Errors
    /// [`Error::Foreign`] when the address is not the start of a block of this pool, [`Error::DoubleFree`] when the block is free.
    ///
    /// # Safety
    /// The caller holds the block, and nobody uses it in the caller's name afterwards.
    pub unsafe fn free(&self, block: NonNull<u8>) -> Result<()> {
        let (number, index) = self.find(block)?;
        let chunk = self.0.table.chunk(number);
        if !chunk.unshare(index) {
            return Ok(());
        }
        if !chunk.free(index) {
            return Err(Error::DoubleFree { address: block.addr().get() });
        }
        self.0.table.tell_free(number);
        Ok(())
    }

    /// Adds a holder to a block: it is free after one more [`Pool::free`].
    ///
    /// # Errors
    /// As [`Pool::free`]; [`Error::Table`] without memory for the chunk's counts.
    pub(crate) fn share(&self, block: NonNull<u8>) -> Result<()> {
        let (number, index) = self.find(block)?;
        self.0.table.chunk(number).share(index, self.chunk_blocks())
    }

    /// Whether a block has more than one holder.
    pub(crate) fn is_shared(&self, block: NonNull<u8>) -> bool {
        self.find(block).is_ok_and(|(number, index)| self.0.table.chunk(number).is_shared(index))
    }

    /// Takes the caller's hold of a shared block away; false, and nothing changed, when it is the only holder.
    pub(crate) fn unshare(&self, block: NonNull<u8>) -> bool {
        self.find(block).is_ok_and(|(number, index)| !self.0.table.chunk(number).unshare(index))
    }

    /// Whether an address lies in a chunk of this pool.
    #[cfg(not(loom))]
    pub(crate) fn has_chunk(&self, address: usize) -> bool {
        self.0.table.find(address).is_some()
    }

    /// Whether an address is the start of a block of this pool that is in use.
    #[cfg(not(loom))]
    pub(crate) fn is_in_use(&self, address: usize) -> bool {
        let place = NonNull::new(core::ptr::without_provenance_mut(address));
        let found = place.and_then(|block| self.find(block).ok());
        found.is_some_and(|(number, index)| !self.0.table.chunk(number).is_free(index))
    }

    /// Makes sure that `bytes` in free blocks are there and resident, so that taking and touching them neither calls the kernel nor
    /// faults. Other threads may take them.
    ///
    /// # Errors
    /// [`Error::Exhausted`] or [`Error::System`] when there is not so much memory; what could be had stays in the pool.
    pub fn reserve_prefault(&self, bytes: usize) -> Result<()> {
        let mut ready = 0;
        for number in self.0.table.with_free() {
            if ready >= bytes {
                return Ok(());
            }
            ready += self.prefault_chunk(number)?;
        }
        while ready < bytes {
            let number = self.0.growth.with(|growth| self.grow(growth))?;
            self.publish(number, chunk::NOBODY);
            ready += self.prefault_chunk(number)?;
        }
        Ok(())
    }

    /// Makes blocks resident.
    ///
    /// # Errors
    /// As the frames say.
    ///
    /// # Safety
    /// The caller holds the blocks.
    pub(crate) unsafe fn prefault(&self, start: NonNull<u8>, bytes: usize) -> Result<()> {
        // SAFETY: they are blocks in use, so their chunks are ours.
        unsafe { self.0.frames.prefault(start, bytes) }
    }

    /// Makes a chunk resident; bytes of its free blocks.
    fn prefault_chunk(&self, number: u32) -> Result<usize> {
        let chunk = self.0.table.chunk(number);
        // While a block is held here, the chunk cannot be given back under our hands.
        let Some(held) = chunk.take_lowest() else { return Ok(0) };
        let found = chunk.base().map(|base| {
            // SAFETY: the chunk is ours, and stays while we hold a block of it.
            unsafe { self.0.frames.prefault(base, CHUNK_BYTES) }
        });
        chunk.put_back(held, 1);
        self.0.table.tell_free(number);
        found.transpose()?;
        Ok(chunk.free_blocks() as usize * self.block_bytes())
    }

    /// Gives chunks without a block in use back to the frames; the bytes that were.
    pub fn release_free(&self) -> usize {
        let blocks = self.chunk_blocks();
        let mut chunks = 0;
        for number in 0..self.0.table.count() {
            let chunk = self.0.table.chunk(number);
            if !chunk.take_all(blocks) {
                // The try may have hidden free blocks from somebody who then told that there are none.
                if chunk.has_free() {
                    self.0.table.tell_free(number);
                }
                continue;
            }
            // Read only now: until its blocks were ours, another could have put another chunk here.
            let Some(base) = chunk.base() else { continue };
            self.0.growth.with(|growth| {
                self.0.table.leave(base);
                chunk.vacate(blocks);
                growth.vacant.push(number);
                growth.chunks -= 1;
            });
            // SAFETY: every block of the chunk was free and is taken by us; the record does not stand for it any more.
            unsafe { self.0.frames.give(base, 1) };
            chunks += 1;
        }
        chunks * CHUNK_BYTES
    }

    /// Blocks of a chunk.
    fn chunk_blocks(&self) -> u32 {
        1 << (CHUNK_BYTES.trailing_zeros() - self.0.block_shift)
    }

    fn take_lowest(&self, number: u32) -> Option<NonNull<u8>> {
        let chunk = self.0.table.chunk(number);
        let index = chunk.take_lowest()?;
        Some(self.block_at(chunk, index))
    }

    fn block_at(&self, chunk: &Chunk, index: u32) -> NonNull<u8> {
        let base = chunk.base().expect("a record with a block in use stands for a chunk");
        // SAFETY: the index is below the chunk's number of blocks.
        unsafe { base.add((index as usize) << self.0.block_shift) }
    }

    /// The chunk and the number of a block.
    fn find(&self, block: NonNull<u8>) -> Result<(u32, u32)> {
        let address = block.addr().get();
        let foreign = Error::Foreign { address };
        if !address.is_multiple_of(self.block_bytes()) {
            return Err(foreign);
        }
        let number = self.0.table.find(address).ok_or(foreign)?;
        let index = u32::try_from((address % CHUNK_BYTES) >> self.0.block_shift).map_err(|_| foreign)?;
        Ok((number, index))
    }

    /// Another chunk for a lane: the lowest that has a free block and no owner, else a new one.
    fn next_chunk(&self, lane: usize) -> Result<u32> {
        if let Some(number) = self.claim(lane) {
            return Ok(number);
        }
        let grown = self.0.growth.with(|growth| {
            // Somebody may have added one while we waited.
            self.claim(lane)
                .map_or_else(|| self.grow(growth).map(|number| (number, true)), |number| Ok((number, false)))
        });
        let (number, is_new) = grown?;
        if is_new {
            self.publish(number, owner(lane));
        }
        Ok(number)
    }

    fn claim(&self, lane: usize) -> Option<u32> {
        self.0.table.with_free().find(|&number| {
            let chunk = self.0.table.chunk(number);
            if !chunk.claim(owner(lane)) {
                return false;
            }
            let has_free = chunk.has_free();
            if !has_free {
                chunk.disown(owner(lane));
                self.0.table.tell_full(number);
            }
            has_free
        })
    }

    /// Goes to a chunk; the one that the lane leaves is nobody's from now on, unless it is the same.
    fn enter(&self, lane: usize, next: u32) {
        if let Some(old) = self.0.lanes[lane].enter(next).filter(|&old| old != next) {
            self.0.table.chunk(old).disown(owner(lane));
        }
    }

    fn steal(&self) -> Option<NonNull<u8>> {
        self.0.table.with_free().find_map(|number| self.take_lowest(number))
    }

    /// Takes a chunk from the frames, all its blocks in use; its number.
    fn grow(&self, growth: &mut Growth) -> Result<u32> {
        self.check_limit(growth, 1)?;
        let base = self.0.frames.take(1)?;
        self.register(growth, base).inspect_err(|_| {
            // SAFETY: the chunk was just taken, and no record of it is left.
            unsafe { self.0.frames.give(base, 1) }
        })
    }

    fn check_limit(&self, growth: &Growth, more: usize) -> Result<()> {
        let limit = self.0.limit_chunks.load(Ordering::Relaxed);
        let fits = growth.chunks.checked_add(more).is_some_and(|chunks| chunks <= limit);
        let exhausted = Error::Exhausted {
            wanted_bytes: more.saturating_mul(CHUNK_BYTES),
            held_bytes: growth.chunks * CHUNK_BYTES,
        };
        if fits { Ok(()) } else { Err(exhausted) }
    }

    fn register(&self, growth: &mut Growth, base: NonNull<u8>) -> Result<u32> {
        // Room for every number, so that giving back never needs memory.
        let count = self.0.table.count() as usize + 1;
        let more = count.saturating_sub(growth.vacant.len());
        growth.vacant.try_reserve(more).map_err(|_| Error::Table { bytes: more * size_of::<u32>() })?;
        let lowest = growth.vacant.iter().enumerate().min_by_key(|&(_, number)| number).map(|(at, _)| at);
        let number = match lowest {
            Some(at) => growth.vacant.swap_remove(at),
            None => self.0.table.add()?,
        };
        if let Err(error) = self.0.table.enter(base, number) {
            growth.vacant.push(number);
            return Err(error);
        }
        self.0.table.chunk(number).occupy(base);
        growth.chunks += 1;
        Ok(number)
    }

    /// Makes the blocks of a new chunk free.
    fn publish(&self, number: u32, owner: u32) {
        let chunk = self.0.table.chunk(number);
        if owner != chunk::NOBODY {
            chunk.claim(owner);
        }
        chunk.put_back(0, self.chunk_blocks());
        self.0.table.tell_free(number);
    }
}

/// How a lane signs.
fn owner(lane: usize) -> u32 {
    u32::try_from(lane).map_or(u32::MAX, |lane| lane + 1)
}

impl Drop for Inner {
    fn drop(&mut self) {
        let blocks = 1 << (CHUNK_BYTES.trailing_zeros() - self.block_shift);
        for number in 0..self.table.count() {
            let chunk = self.table.chunk(number);
            chunk.drop_shares(blocks);
            if let Some(base) = chunk.base() {
                // SAFETY: no handle is left, so nobody uses a block of the pool.
                unsafe { self.frames.give(base, 1) };
            }
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("block_bytes", &self.block_bytes()).field("stats", &self.stats()).finish()
    }
}
