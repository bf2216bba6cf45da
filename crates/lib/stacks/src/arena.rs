//! The source of stack segments: the process's pool of 32 KiB blocks.
//!
//! The pool takes its chunks downwards from one address range, which is not reserved: each chunk is
//! mapped when needed, and the kernel places other mappings elsewhere. A stack begins with the last
//! block of a chunk and grows into the blocks below. The next chunk is below as well, so one deep
//! stack is contiguous.
//!
//! One lock guards the pool. A thread takes it with signals blocked: a signal handler that needs a
//! segment never waits for the code it interrupted, and a child of fork(2) finds the lock free.

#![allow(unsafe_code, reason = "maps memory and allocates from it")]

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use fieldstone_blocks::{CHUNK_BYTES, Error, Frames, Pool, Result};

use crate::auxv::auxv;
use crate::segment::{BLOCK_BYTES, FIRST_BLOCKS, PAGE_BYTES, StackSegment, blocks_for};
use crate::signals::BlockedSignals;

/// The end of the first chunk. It is above the program, its data and its heap, so that a handler
/// on a stack there finds its stack pointer below the guard and continues in blocks. It is below
/// the addresses that the kernel chooses, with 16 TiB between.
const TOP: usize = 0x7000_0000_0000;
const BOTTOM: usize = 0x6000_0000_0000;

// From <linux/mman.h>; older headers lack them.
const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

/// Frames that map chunks downwards from `TOP`.
#[derive(Debug)]
struct DescendingFrames {
    end: AtomicUsize,
}

// SAFETY: `take` maps new readable and writable memory, and never returns an address twice.
unsafe impl Frames for DescendingFrames {
    fn take(&self, chunks: usize) -> Result<NonNull<u8>> {
        let bytes = chunks.checked_mul(CHUNK_BYTES).filter(|&bytes| bytes < TOP - BOTTOM);
        let all = chunks.saturating_mul(CHUNK_BYTES);
        let bytes = bytes.ok_or(Error::Exhausted { wanted_bytes: all, held_bytes: TOP - BOTTOM })?;
        loop {
            let start = self.end.load(Ordering::Relaxed).saturating_sub(bytes);
            if start < BOTTOM {
                return Err(Error::Exhausted { wanted_bytes: bytes, held_bytes: TOP - BOTTOM });
            }
            self.end.store(start, Ordering::Relaxed);
            match map(start, bytes) {
                Ok(mapped) => return Ok(mapped),
                // Another mapping is at this address: try the next lower one.
                Err(libc::EEXIST) => {}
                Err(errno) => return Err(Error::System { operation: "mmap", bytes, errno }),
            }
        }
    }

    unsafe fn release(&self, start: NonNull<u8>, chunks: usize) {
        // SAFETY: by contract nothing uses these chunks any more.
        unsafe { libc::munmap(start.as_ptr().cast(), chunks * CHUNK_BYTES) };
    }
}

fn map(start: usize, bytes: usize) -> core::result::Result<NonNull<u8>, i32> {
    let executable = if stacks_are_executable() { libc::PROT_EXEC } else { 0 };
    let protection = libc::PROT_READ | libc::PROT_WRITE | executable;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: with MAP_FIXED_NOREPLACE the mapping replaces nothing.
    let mapped = unsafe { libc::mmap(core::ptr::without_provenance_mut(start), bytes, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        // SAFETY: the pointer is to the calling thread's errno.
        return Err(unsafe { *libc::__errno_location() });
    }
    // A huge page would make a stack of one page 2 MiB. SAFETY: the range was just mapped.
    unsafe { libc::madvise(mapped, bytes, libc::MADV_NOHUGEPAGE) };
    NonNull::new(mapped.cast()).ok_or(libc::ENOMEM)
}

/// Whether the program requires executable stacks. gcc puts code there for a nested function whose
/// address is taken.
fn stacks_are_executable() -> bool {
    let (headers, count) = (auxv(libc::AT_PHDR), auxv(libc::AT_PHNUM));
    let headers = core::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(headers);
    if headers.is_null() {
        return false;
    }
    // SAFETY: the kernel reports the address and number of the program headers, which do not
    // change.
    let mut headers = (0..count).map(|at| unsafe { &*headers.add(at) });
    headers.any(|header| header.p_type == libc::PT_GNU_STACK && header.p_flags & libc::PF_X != 0)
}

/// Makes accesses to the segment's lowest page trap, so that unchecked code deeper than the
/// headroom ends there. It splits no mapping. Kernels before 6.13 refuse it, and so does locked
/// memory: then nothing traps.
fn set_trap(segment: &StackSegment) {
    // SAFETY: the page is the segment's lowest, below every frame within the headroom.
    unsafe { libc::madvise(core::ptr::without_provenance_mut(segment.low), PAGE_BYTES, MADV_GUARD_INSTALL) };
}

/// Makes the lowest page accessible again.
fn clear_trap(low: usize) {
    // SAFETY: the call only removes a guard from the page, and changes no contents.
    unsafe { libc::madvise(core::ptr::without_provenance_mut(low), PAGE_BYTES, MADV_GUARD_REMOVE) };
}

/// The pool and its lock.
struct StackArena {
    is_locked: AtomicBool,
    pool: UnsafeCell<Option<Pool>>,
    /// The signal mask of the thread that holds the lock across a fork.
    signals: UnsafeCell<Option<BlockedSignals>>,
}

// SAFETY: only the lock's holder accesses the cells.
unsafe impl Sync for StackArena {}

static ARENA: StackArena =
    StackArena { is_locked: AtomicBool::new(false), pool: UnsafeCell::new(None), signals: UnsafeCell::new(None) };
/// The number of times that a segment was allocated or extended.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Takes the lock and keeps it after return: for the duration of a fork.
pub(crate) fn lock(signals: BlockedSignals) {
    acquire();
    // SAFETY: this thread holds the lock that `acquire` took, so no other thread uses the field.
    unsafe { *ARENA.signals.get() = Some(signals) };
}

/// Releases the lock. Returns the signal mask passed to `lock`.
pub(crate) fn unlock() -> Option<BlockedSignals> {
    // SAFETY: the caller took the lock by `lock`.
    let signals = unsafe { (*ARENA.signals.get()).take() };
    ARENA.is_locked.store(false, Ordering::Release);
    signals
}

/// Attempts before a thread that waits for the lock sleeps, and the length of a sleep, 50 µs. A
/// real-time thread that only yields would keep a holder of lower priority from running.
const SPIN_TRIES: u32 = 100;
static SLEEP: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };

/// Takes the lock. The wait is bounded: a holder has its signals blocked, makes a system call or
/// two, and waits for nothing else.
fn acquire() {
    let mut tries = 0_u32;
    while ARENA.is_locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        tries = tries.saturating_add(1);
        if tries < SPIN_TRIES {
            // SAFETY: the call has no arguments and writes no memory.
            unsafe { libc::sched_yield() };
        } else {
            // SAFETY: reads a static and writes no memory. Not libc's nanosleep, which is a
            // cancellation point.
            unsafe { libc::syscall(libc::SYS_nanosleep, &raw const SLEEP, core::ptr::null_mut::<libc::timespec>()) };
        }
    }
}

/// Runs `f` on the pool under the lock. The caller has blocked signals.
fn with<R>(f: impl FnOnce(&Pool) -> Result<R>) -> Result<R> {
    acquire();
    // SAFETY: this thread holds the lock, so nothing else accesses the pool.
    let pool = unsafe { &mut *ARENA.pool.get() };
    let made = pool
        .take()
        .map_or_else(|| Pool::with_block_bytes(DescendingFrames { end: AtomicUsize::new(TOP) }, BLOCK_BYTES), Ok);
    let result = made.and_then(|made| f(pool.insert(made)));
    ARENA.is_locked.store(false, Ordering::Release);
    result
}

/// The number of times that this process allocated or extended a segment.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Allocates a segment of at least 64 KiB with space for `bytes`, which can grow: the last block of
/// a chunk and blocks below it. If those are in use, allocates a run of adjacent blocks elsewhere.
pub(crate) fn allocate(bytes: usize) -> Result<NonNull<StackSegment>> {
    let blocks = blocks_for(bytes).max(FIRST_BLOCKS);
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    with(|pool| {
        let last = pool.alloc_last()?;
        // SAFETY: the block was just allocated.
        let mut made = unsafe { StackSegment::from_blocks(last, 1) };
        // SAFETY: the segment was just created, and nothing else refers to it.
        let segment = unsafe { made.as_mut() };
        let low = segment.low.saturating_sub((blocks - 1) * BLOCK_BYTES);
        extend_to(pool, segment, low)?;
        if segment.low == low {
            set_trap(segment);
            return Ok(made);
        }
        free_to(pool, segment.low, segment.blocks())?;
        allocate_run(pool, blocks)
    })
}

/// Allocates the smallest segment with space for `bytes`, packed with others: for a coroutine.
pub(crate) fn allocate_packed(bytes: usize) -> Result<NonNull<StackSegment>> {
    let blocks = blocks_for(bytes);
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    with(|pool| allocate_run(pool, blocks))
}

fn allocate_run(pool: &Pool, blocks: usize) -> Result<NonNull<StackSegment>> {
    let low = pool.alloc_run(blocks)?;
    // SAFETY: the blocks were just allocated.
    let made = unsafe { StackSegment::from_blocks(low, blocks) };
    // SAFETY: the segment was just created, and nothing else refers to it.
    set_trap(unsafe { made.as_ref() });
    Ok(made)
}

/// Allocates at least `bytes` of memory in whole blocks. Returns the memory and its number of
/// blocks.
pub(crate) fn allocate_memory(bytes: usize) -> Result<(NonNull<u8>, usize)> {
    let blocks = bytes.div_ceil(BLOCK_BYTES);
    with(|pool| Ok((pool.alloc_run(blocks)?, blocks)))
}

/// Extends a segment into free blocks below it, down to `enough_low` or to twice its size, but not
/// below `floor`.
pub(crate) fn extend(segment: &mut StackSegment, enough_low: usize, floor: usize) {
    // Doubling the size makes extensions rare in a deep recursion.
    let wanted_low = enough_low.min(segment.low.saturating_sub(segment.bytes())).max(floor);
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    // Without memory the segment does not change, and the caller tests whether it suffices.
    let _ = with(|pool| {
        clear_trap(segment.low);
        let extended = extend_to(pool, segment, wanted_low);
        set_trap(segment);
        extended
    });
}

fn extend_to(pool: &Pool, segment: &mut StackSegment, wanted_low: usize) -> Result<()> {
    while segment.low > wanted_low {
        let Some(below) = NonNull::new(core::ptr::without_provenance_mut(segment.low - BLOCK_BYTES)) else { break };
        if !pool.alloc_at(below) && !next_chunk_is(pool, below)? {
            break;
        }
        segment.extend_down_to(segment.low - BLOCK_BYTES);
    }
    Ok(())
}

/// Whether the pool's next chunk ends with this block, which is then allocated.
fn next_chunk_is(pool: &Pool, below: NonNull<u8>) -> Result<bool> {
    if !(below.addr().get() + BLOCK_BYTES).is_multiple_of(CHUNK_BYTES) {
        return Ok(false);
    }
    let last = pool.alloc_last()?;
    if last == below {
        return Ok(true);
    }
    // SAFETY: the block was just allocated, and nothing refers to it.
    unsafe { pool.free(last)? };
    Ok(false)
}

/// Frees blocks and releases their pages to the kernel.
///
/// # Safety
/// The blocks were allocated here, and nothing uses them any more.
pub(crate) unsafe fn free(low: NonNull<u8>, blocks: usize) {
    // SAFETY: by contract nothing reads the contents.
    unsafe { libc::madvise(low.as_ptr().cast(), blocks * BLOCK_BYTES, libc::MADV_DONTNEED) };
    clear_trap(low.addr().get());
    // An error can only be a bug of this crate, and leaks the blocks at worst.
    let _ = with(|pool| free_to(pool, low.addr().get(), blocks));
}

fn free_to(pool: &Pool, low: usize, blocks: usize) -> Result<()> {
    let Some(low) = NonNull::new(core::ptr::without_provenance_mut(low)) else { return Ok(()) };
    // SAFETY: the callers allocated the blocks, and nothing uses them any more.
    unsafe { pool.free_run(low, blocks) }
}
