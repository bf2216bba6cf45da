//! A pool of fixed-size blocks, the unit of all allocation.
//!
//! ```text
//! chunk (2 MiB, aligned)   |block|block|block| ... |     a power of two from 4 KiB to 2 MiB, which is the default
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `chunk` | which blocks of a chunk are free |
//! | `lane` | which chunk a thread allocates from |
//! | `table` | finds a chunk by number, by address, or with a free block |
//! | `run` | runs of adjacent blocks |
//! | `placement` | which pages back the memory |
//! | `stats` | counts on demand |
//!
//! Source: Zagieboylo, Suh and Myers, *The Cost of Software-Based Memory Management Without Virtual
//! Memory*, section 3: the system segments memory into fixed-size blocks as the minimum unit of
//! allocation. The paper finds that the block size matters little. Measurements here show that
//! block *order* matters more than size, so the pool returns the lowest free address first.
//!
//! # Algorithm
//! Each thread takes blocks from a chunk that its lane owns (`lane`), by clearing the lowest set
//! bit of the chunk's free bits (`chunk`), without a lock. When the chunk is full, the lane takes
//! the lowest other chunk that has free blocks and no owner (`table`). If there is none, it takes a
//! new chunk from the frames, under a lock. A two-level map finds a block by its address, so a
//! foreign address or a double free is an error in release builds too.
//!
//! # Cost
//! Allocating and freeing take about 10 ns without contention. A chunk costs about a microsecond
//! from the kernel, and page faults at the first access to its blocks (see
//! [`Pool::reserve_prefault`]). Records take 0.1 KiB a chunk.

#![allow(unsafe_code, reason = "frees raw blocks, which only their holder knows to be unused")]

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

use chunk::ChunkRecord;
use lane::{LANES, PoolLane};
use table::ChunkTable;

use crate::error::{Error, Result};
use crate::frames::{CHUNK_BYTES, Frames};
use crate::sync::{Arc, AtomicUsize, Lock, Ordering};

#[cfg(feature = "std")]
pub use placement::PoolPlacement;
pub use stats::PoolStats;

/// The default block size, 2 MiB: a huge page.
///
/// With blocks in order, every size scans equally fast. Random access decides: the directory, 8
/// bytes a block, should stay in the first cache levels. For 4 GiB it has 16 KiB with 2 MiB blocks,
/// and 512 KiB with 64 KiB blocks, which took a tenth more time. Many arrays of a few MiB, or
/// snapshots with scattered writes, need smaller blocks.
pub const DEFAULT_BLOCK_BYTES: usize = 2 << 20;

/// A pool of blocks. Clones are handles of the same pool, which is freed when the last handle,
/// array and heap of it is dropped.
#[derive(Clone)]
pub struct Pool(Arc<PoolState>);

struct PoolState {
    block_shift: u32,
    limit_chunks: AtomicUsize,
    table: ChunkTable,
    lanes: [PoolLane; LANES],
    growth: Lock<Growth>,
    frames: Box<dyn Frames>,
}

/// The state that the lock guards.
#[derive(Debug, Default)]
struct Growth {
    /// Chunks held.
    chunks: usize,
    /// Numbers of records without a chunk.
    vacant: Vec<u32>,
}

impl Pool {
    /// Creates a pool of blocks of the default size, with memory from `frames`.
    ///
    /// # Errors
    /// [`Error::Table`] when there is no memory for the tables.
    pub fn new(frames: impl Frames + 'static) -> Result<Self> {
        Self::with_block_bytes(frames, DEFAULT_BLOCK_BYTES)
    }

    /// Creates a pool of blocks of `block_bytes`, with memory from `frames`.
    ///
    /// # Errors
    /// [`Error::BlockSize`] unless it is a power of two from 4 KiB to 2 MiB; [`Error::Table`] when
    /// there is no memory for the tables.
    pub fn with_block_bytes(frames: impl Frames + 'static, block_bytes: usize) -> Result<Self> {
        if !block_bytes.is_power_of_two() || !(CHUNK_BYTES / (64 * chunk::WORDS)..=CHUNK_BYTES).contains(&block_bytes) {
            return Err(Error::BlockSize { bytes: block_bytes });
        }
        Ok(Self(Arc::new(PoolState {
            block_shift: block_bytes.trailing_zeros(),
            limit_chunks: AtomicUsize::new(usize::MAX),
            table: ChunkTable::new()?,
            lanes: core::array::from_fn(|_| PoolLane::new()),
            growth: Lock::new(Growth::default()),
            frames: Box::new(frames),
        })))
    }

    /// The default pool of arrays: 2 MiB blocks on transparent huge pages, without a limit.
    ///
    /// # Panics
    /// When there is no memory for the pool's tables at the first call.
    #[cfg(all(feature = "std", not(loom)))]
    pub fn global() -> &'static Self {
        static GLOBAL: std::sync::OnceLock<Pool> = std::sync::OnceLock::new();
        GLOBAL.get_or_init(|| {
            let frames = crate::MmapFrames::new(crate::PageKind::Thp);
            Self::new(frames).unwrap_or_else(|error| panic!("cannot create the default pool: {error}"))
        })
    }

    /// Bytes of a block, which is also its alignment.
    #[must_use]
    #[inline]
    pub fn block_bytes(&self) -> usize {
        1 << self.0.block_shift
    }

    /// Limits the memory that the pool takes from its frames, rounded down to chunks of 2 MiB.
    /// Releases nothing.
    pub fn set_limit(&self, bytes: usize) {
        self.0.limit_chunks.store(bytes / CHUNK_BYTES, Ordering::Relaxed);
    }

    /// Allocates a block: the lowest free one of this thread's chunk. Its contents are undefined.
    ///
    /// # Errors
    /// [`Error::Exhausted`] at the limit or when the frames are empty; [`Error::System`] when a
    /// system call fails.
    #[inline]
    pub fn alloc(&self) -> Result<NonNull<u8>> {
        self.alloc_in(lane::current())
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
                // Other lanes own all remaining chunks: take a block out of order rather than fail.
                Err(error) => return self.steal().ok_or(error),
            }
        }
    }

    /// Frees a block. If it is shared, its holder count falls by one and the block stays in use.
    ///
    /// # Errors
    /// [`Error::Foreign`] when the address is not the start of a block of this pool,
    /// [`Error::DoubleFree`] when the block is free.
    ///
    /// # Safety
    /// The caller holds the block and does not use it afterwards.
    pub unsafe fn free(&self, block: NonNull<u8>) -> Result<()> {
        let (number, index) = self.find(block)?;
        let chunk = self.0.table.chunk(number);
        if !chunk.unshare(index) {
            return Ok(());
        }
        if !chunk.free(index) {
            return Err(Error::DoubleFree { address: block.addr().get() });
        }
        self.0.table.mark_free(number);
        Ok(())
    }

    /// Adds a holder to a block: it needs one more [`Pool::free`].
    ///
    /// # Errors
    /// As [`Pool::free`]; [`Error::Table`] when there is no memory for the chunk's counts.
    pub(crate) fn share(&self, block: NonNull<u8>) -> Result<()> {
        let (number, index) = self.find(block)?;
        self.0.table.chunk(number).share(index, self.chunk_blocks())
    }

    /// Whether a block has more than one holder.
    pub(crate) fn is_shared(&self, block: NonNull<u8>) -> bool {
        self.find(block).is_ok_and(|(number, index)| self.0.table.chunk(number).is_shared(index))
    }

    /// Removes the caller as a holder of a shared block. Returns false, and changes nothing, if it
    /// is the only holder.
    pub(crate) fn unshare(&self, block: NonNull<u8>) -> bool {
        self.find(block).is_ok_and(|(number, index)| !self.0.table.chunk(number).unshare(index))
    }

    /// Whether an address is in a chunk of this pool.
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

    /// Makes `bytes` of free blocks resident, so that allocating and accessing them neither calls
    /// the kernel nor faults. Other threads may allocate them.
    ///
    /// # Errors
    /// [`Error::Exhausted`] or [`Error::System`] when memory runs out; what was obtained stays in
    /// the pool.
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
            self.publish(number, chunk::NO_OWNER);
            ready += self.prefault_chunk(number)?;
        }
        Ok(())
    }

    /// Makes blocks resident.
    ///
    /// # Errors
    /// As [`Frames::prefault`].
    ///
    /// # Safety
    /// The caller holds the blocks.
    pub(crate) unsafe fn prefault(&self, start: NonNull<u8>, bytes: usize) -> Result<()> {
        // SAFETY: the caller holds the blocks, so their chunks are taken and not released.
        unsafe { self.0.frames.prefault(start, bytes) }
    }

    /// Makes a chunk resident. Returns the bytes of its free blocks.
    fn prefault_chunk(&self, number: u32) -> Result<usize> {
        let chunk = self.0.table.chunk(number);
        // Holding a block keeps another thread from releasing the chunk.
        let Some(held) = chunk.take_lowest() else { return Ok(0) };
        let found = chunk.base().map(|base| {
            // SAFETY: the held block keeps the chunk in this pool.
            unsafe { self.0.frames.prefault(base, CHUNK_BYTES) }
        });
        chunk.put_back(held, 1);
        self.0.table.mark_free(number);
        found.transpose()?;
        Ok(chunk.free_blocks() as usize * self.block_bytes())
    }

    /// Releases chunks without a block in use to the frames. Returns their bytes.
    pub fn release_free(&self) -> usize {
        let blocks = self.chunk_blocks();
        let mut chunks = 0;
        for number in 0..self.0.table.count() {
            let chunk = self.0.table.chunk(number);
            if !chunk.take_all(blocks) {
                // While all blocks were taken here, another thread may have marked the chunk full.
                if chunk.has_free() {
                    self.0.table.mark_free(number);
                }
                continue;
            }
            // Read the base only now: until all blocks were taken, the record could have changed to
            // another chunk.
            let Some(base) = chunk.base() else { continue };
            self.0.growth.with(|growth| {
                self.0.table.remove(base);
                chunk.vacate(blocks);
                growth.vacant.push(number);
                growth.chunks -= 1;
            });
            // SAFETY: every block of the chunk was free and is now held here, and no record refers
            // to the chunk.
            unsafe { self.0.frames.release(base, 1) };
            chunks += 1;
        }
        chunks * CHUNK_BYTES
    }

    /// Blocks in a chunk.
    fn chunk_blocks(&self) -> u32 {
        1 << (CHUNK_BYTES.trailing_zeros() - self.0.block_shift)
    }

    fn take_lowest(&self, number: u32) -> Option<NonNull<u8>> {
        let chunk = self.0.table.chunk(number);
        let index = chunk.take_lowest()?;
        Some(self.block_at(chunk, index))
    }

    fn block_at(&self, chunk: &ChunkRecord, index: u32) -> NonNull<u8> {
        let base = chunk.base().expect("a record with a block in use has a chunk");
        // SAFETY: the index is below the chunk's number of blocks.
        unsafe { base.add((index as usize) << self.0.block_shift) }
    }

    /// The number of a block's chunk, and the block's index in it.
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

    /// Finds another chunk for a lane: the lowest with a free block and no owner, else a new one.
    /// Returns its number.
    fn next_chunk(&self, lane: usize) -> Result<u32> {
        if let Some(number) = self.claim(lane) {
            return Ok(number);
        }
        let grown = self.0.growth.with(|growth| {
            // Another thread may have added a chunk while this one waited for the lock.
            self.claim(lane)
                .map_or_else(|| self.grow(growth).map(|number| (number, true)), |number| Ok((number, false)))
        });
        let (number, is_new) = grown?;
        if is_new {
            self.publish(number, owner_id(lane));
        }
        Ok(number)
    }

    fn claim(&self, lane: usize) -> Option<u32> {
        self.0.table.with_free().find(|&number| {
            let chunk = self.0.table.chunk(number);
            if !chunk.claim(owner_id(lane)) {
                return false;
            }
            let has_free = chunk.has_free();
            if !has_free {
                chunk.disown(owner_id(lane));
                self.0.table.mark_full(number);
            }
            has_free
        })
    }

    /// Makes `next` the lane's chunk, and releases ownership of the previous one unless it is the
    /// same.
    fn enter(&self, lane: usize, next: u32) {
        if let Some(old) = self.0.lanes[lane].enter(next).filter(|&old| old != next) {
            self.0.table.chunk(old).disown(owner_id(lane));
        }
    }

    fn steal(&self) -> Option<NonNull<u8>> {
        self.0.table.with_free().find_map(|number| self.take_lowest(number))
    }

    /// Takes a chunk from the frames, with all blocks in use. Returns its number.
    fn grow(&self, growth: &mut Growth) -> Result<u32> {
        self.check_limit(growth, 1)?;
        let base = self.0.frames.take(1)?;
        self.register(growth, base).inspect_err(|_| {
            // SAFETY: the chunk was just taken, and `register` failed, so no record refers to it.
            unsafe { self.0.frames.release(base, 1) }
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
        // Reserve space for every number, so that `release_free` never allocates.
        let count = self.0.table.count() as usize + 1;
        let more = count.saturating_sub(growth.vacant.len());
        growth.vacant.try_reserve(more).map_err(|_| Error::Table { bytes: more * size_of::<u32>() })?;
        let lowest = growth.vacant.iter().enumerate().min_by_key(|&(_, number)| number).map(|(at, _)| at);
        let number = match lowest {
            Some(at) => growth.vacant.swap_remove(at),
            None => self.0.table.add()?,
        };
        if let Err(error) = self.0.table.insert(base, number) {
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
        if owner != chunk::NO_OWNER {
            chunk.claim(owner);
        }
        chunk.put_back(0, self.chunk_blocks());
        self.0.table.mark_free(number);
    }
}

/// The nonzero owner value of a lane.
fn owner_id(lane: usize) -> u32 {
    u32::try_from(lane).map_or(u32::MAX, |lane| lane + 1)
}

impl Drop for PoolState {
    fn drop(&mut self) {
        let blocks = 1 << (CHUNK_BYTES.trailing_zeros() - self.block_shift);
        for number in 0..self.table.count() {
            let chunk = self.table.chunk(number);
            chunk.drop_shares(blocks);
            if let Some(base) = chunk.base() {
                // SAFETY: no handle is left, so nothing uses a block of the pool.
                unsafe { self.frames.release(base, 1) };
            }
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("block_bytes", &self.block_bytes()).field("stats", &self.stats()).finish()
    }
}
