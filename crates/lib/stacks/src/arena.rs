//! Where segments come from: the process's pool of 32 KiB blocks.
//!
//! The pool's chunks are taken downwards from one range of addresses, which is not reserved: each chunk is mapped when it is
//! needed, and what else the process maps keeps out of the way by itself. A stack begins with the last block of a chunk and grows
//! into the blocks below; since the next chunk lies below as well, one deep stack is contiguous to its end.
//!
//! One lock is around all of it, taken with signals blocked: a handler that needs a segment never waits for the code that it
//! interrupted, and a child of fork(2) finds it free.

#![allow(unsafe_code, reason = "maps memory and hands it out")]

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use fieldstone_blocks::{CHUNK_BYTES, Error, Frames, Pool, Result};

use crate::segment::{BLOCK_BYTES, FIRST_BLOCKS, PAGE_BYTES, Segment, blocks_for};
use crate::thread::{BlockedSignals, told};

/// Where the first chunk ends. Above the program, its data and its heap, so that a signal handler whose stack lies there finds itself
/// below the guard, and goes on in blocks where its own stack would end; below what the kernel places by itself, with room for 16 TiB.
const TOP: usize = 0x7000_0000_0000;
const BOTTOM: usize = 0x6000_0000_0000;

// Of <linux/mman.h>; older headers lack them.
const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

/// Chunks downwards from `TOP`.
#[derive(Debug)]
struct Downwards {
    end: AtomicUsize,
}

// SAFETY: what `take` maps is new memory, readable and writable, and its addresses are never given twice.
unsafe impl Frames for Downwards {
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
                // Something is there already: further down.
                Err(libc::EEXIST) => {}
                Err(errno) => return Err(Error::System { operation: "mmap", bytes, errno }),
            }
        }
    }

    unsafe fn give(&self, start: NonNull<u8>, chunks: usize) {
        // SAFETY: by contract nobody uses it any more.
        unsafe { libc::munmap(start.as_ptr().cast(), chunks * CHUNK_BYTES) };
    }
}

fn map(start: usize, bytes: usize) -> core::result::Result<NonNull<u8>, i32> {
    let executable = if stacks_are_executable() { libc::PROT_EXEC } else { 0 };
    let protection = libc::PROT_READ | libc::PROT_WRITE | executable;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the mapping replaces nothing.
    let mapped = unsafe { libc::mmap(core::ptr::without_provenance_mut(start), bytes, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        // SAFETY: the calling thread's own.
        return Err(unsafe { *libc::__errno_location() });
    }
    // A stack of one page would have a huge one otherwise.
    // SAFETY: it was just mapped.
    unsafe { libc::madvise(mapped, bytes, libc::MADV_NOHUGEPAGE) };
    NonNull::new(mapped.cast()).ok_or(libc::ENOMEM)
}

/// Whether the program asks for stacks that code may run on: gcc puts some there for a nested function whose address is taken.
fn stacks_are_executable() -> bool {
    let (headers, count) = (told(libc::AT_PHDR), told(libc::AT_PHNUM));
    let headers = core::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(headers);
    if headers.is_null() {
        return false;
    }
    // SAFETY: the kernel tells where the program's headers lie, which stay as they are.
    let mut headers = (0..count).map(|at| unsafe { &*headers.add(at) });
    headers.any(|header| header.p_type == libc::PT_GNU_STACK && header.p_flags & libc::PF_X != 0)
}

/// Has the lowest page of a segment trap, so that code without checks that is deeper than the headroom ends there. It splits no mapping.
/// Older kernels (before 6.13) refuse, and locked memory does: then nothing traps.
fn set_trap(segment: &Segment) {
    // SAFETY: the page is the segment's, and lies below every frame that ends where it may.
    unsafe { libc::madvise(core::ptr::without_provenance_mut(segment.low), PAGE_BYTES, MADV_GUARD_INSTALL) };
}

/// The page can be used again.
fn lift_trap(low: usize) {
    // SAFETY: as above.
    unsafe { libc::madvise(core::ptr::without_provenance_mut(low), PAGE_BYTES, MADV_GUARD_REMOVE) };
}

/// What is behind the lock.
struct Arena {
    is_held: AtomicBool,
    pool: UnsafeCell<Option<Pool>>,
    /// The signals of the thread that holds it over a fork.
    signals: UnsafeCell<Option<BlockedSignals>>,
}

// SAFETY: what is in the cells is reached by the holder of the lock only.
unsafe impl Sync for Arena {}

static ARENA: Arena =
    Arena { is_held: AtomicBool::new(false), pool: UnsafeCell::new(None), signals: UnsafeCell::new(None) };
/// How often a segment was taken or grown.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Takes the lock for longer than a call: over a fork.
pub(crate) fn lock(signals: BlockedSignals) {
    acquire();
    // SAFETY: the lock is held.
    unsafe { *ARENA.signals.get() = Some(signals) };
}

/// Gives it back: the signals that it was taken with.
pub(crate) fn unlock() -> Option<BlockedSignals> {
    // SAFETY: the caller holds the lock, by `lock`.
    let signals = unsafe { (*ARENA.signals.get()).take() };
    ARENA.is_held.store(false, Ordering::Release);
    signals
}

/// Tries before a thread that waits for the lock sleeps, and how long it sleeps: 50 µs. A thread of real-time priority that only
/// yields would keep a holder of a lower priority from running.
const TRIES: u32 = 100;
static NAP: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };

/// The wait ends: a holder has its signals blocked, makes a system call or two, and waits for nothing else.
fn acquire() {
    let mut tries = 0_u32;
    while ARENA.is_held.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        tries = tries.saturating_add(1);
        if tries < TRIES {
            // SAFETY: takes nothing and writes nothing.
            unsafe { libc::sched_yield() };
        } else {
            // SAFETY: reads a static and writes nothing. Not by libc's nanosleep, at which a thread can be cancelled.
            unsafe { libc::syscall(libc::SYS_nanosleep, &raw const NAP, core::ptr::null_mut::<libc::timespec>()) };
        }
    }
}

/// Runs `f` alone. The caller has its signals blocked.
fn with<R>(f: impl FnOnce(&Pool) -> Result<R>) -> Result<R> {
    acquire();
    // SAFETY: the lock is held, so nobody else has the pool.
    let pool = unsafe { &mut *ARENA.pool.get() };
    let made =
        pool.take().map_or_else(|| Pool::with_block_bytes(Downwards { end: AtomicUsize::new(TOP) }, BLOCK_BYTES), Ok);
    let result = made.and_then(|made| f(pool.insert(made)));
    ARENA.is_held.store(false, Ordering::Release);
    result
}

/// How often a segment was taken or grown in this process.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// A segment of at least 64 KiB with room for `bytes` that can grow: the last block of a chunk, and as many below it as that takes; where these are
/// taken, blocks that are neighbours somewhere.
pub(crate) fn take(bytes: usize) -> Result<NonNull<Segment>> {
    let blocks = blocks_for(bytes).max(FIRST_BLOCKS);
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    with(|pool| {
        let last = pool.alloc_last()?;
        // SAFETY: the block was just taken.
        let mut made = unsafe { Segment::of_blocks(last, 1) };
        // SAFETY: as above; nobody else has it.
        let segment = unsafe { made.as_mut() };
        let low = segment.low.saturating_sub((blocks - 1) * BLOCK_BYTES);
        extend_to(pool, segment, low)?;
        if segment.low == low {
            set_trap(segment);
            return Ok(made);
        }
        give_to(pool, segment.low, segment.blocks())?;
        take_run(pool, blocks)
    })
}

/// A segment with room for `bytes` among as many others as there may be: a coroutine's.
pub(crate) fn take_packed(bytes: usize) -> Result<NonNull<Segment>> {
    let blocks = blocks_for(bytes);
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    with(|pool| take_run(pool, blocks))
}

fn take_run(pool: &Pool, blocks: usize) -> Result<NonNull<Segment>> {
    let low = pool.alloc_run(blocks)?;
    // SAFETY: the blocks were just taken.
    let made = unsafe { Segment::of_blocks(low, blocks) };
    // SAFETY: as above; nobody else has it.
    set_trap(unsafe { made.as_ref() });
    Ok(made)
}

/// Memory of at least `bytes`, in whole blocks; its blocks.
pub(crate) fn take_plain(bytes: usize) -> Result<(NonNull<u8>, usize)> {
    let blocks = bytes.div_ceil(BLOCK_BYTES);
    with(|pool| Ok((pool.alloc_run(blocks)?, blocks)))
}

/// Grows a segment into the blocks below it while they are free, down to `enough_low` or to twice its size, not below `floor`.
pub(crate) fn extend(segment: &mut Segment, enough_low: usize, floor: usize) {
    // Twice the size, so that a deep recursion comes here seldom.
    let wanted_low = enough_low.min(segment.low.saturating_sub(segment.bytes())).max(floor);
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    // Where there is no memory, the segment stays as it is, and who needs more is told.
    let _ = with(|pool| {
        lift_trap(segment.low);
        let extended = extend_to(pool, segment, wanted_low);
        set_trap(segment);
        extended
    });
}

fn extend_to(pool: &Pool, segment: &mut Segment, wanted_low: usize) -> Result<()> {
    while segment.low > wanted_low {
        let Some(below) = NonNull::new(core::ptr::without_provenance_mut(segment.low - BLOCK_BYTES)) else { break };
        if !pool.alloc_at(below) && !next_chunk_is(pool, below)? {
            break;
        }
        segment.reach_down_to(segment.low - BLOCK_BYTES);
    }
    Ok(())
}

/// Whether the pool's next chunk ends with this block, which is then taken.
fn next_chunk_is(pool: &Pool, below: NonNull<u8>) -> Result<bool> {
    if !(below.addr().get() + BLOCK_BYTES).is_multiple_of(CHUNK_BYTES) {
        return Ok(false);
    }
    let last = pool.alloc_last()?;
    if last == below {
        return Ok(true);
    }
    // SAFETY: it was just taken, and nobody has seen it.
    unsafe { pool.free(last)? };
    Ok(false)
}

/// Gives blocks back, and their pages to the system.
///
/// # Safety
/// They were taken from here, and nobody uses them any more.
pub(crate) unsafe fn give(low: NonNull<u8>, blocks: usize) {
    // SAFETY: by contract nobody reads what was there.
    unsafe { libc::madvise(low.as_ptr().cast(), blocks * BLOCK_BYTES, libc::MADV_DONTNEED) };
    lift_trap(low.addr().get());
    // An error would be ours, and would cost no more than the blocks.
    let _ = with(|pool| give_to(pool, low.addr().get(), blocks));
}

fn give_to(pool: &Pool, low: usize, blocks: usize) -> Result<()> {
    let Some(low) = NonNull::new(core::ptr::without_provenance_mut(low)) else { return Ok(()) };
    // SAFETY: the callers have taken the blocks, and nobody uses them any more.
    unsafe { pool.free_run(low, blocks) }
}
