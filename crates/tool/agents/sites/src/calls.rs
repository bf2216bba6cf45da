//! What each call of the malloc family, and of mmap, records.
//!
//! A free is announced before the block is freed, an allocation after it is returned. So no other
//! thread can get and announce the same address in between. A realloc announces both.
//!
//! Of mmap, private anonymous memory is announced that the program maps itself. An allocator may
//! hold its locks during the call: nothing is allocated, and no lock is taken, here or in called
//! code.

#![allow(unsafe_code, reason = "stands in place of libc's functions")]

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::Relaxed;

use fieldstone_preload::{arena, loader};
use fieldstone_wire::sites::{Announcement, LossReason, Sites};

use crate::allocator::{AllocatorFunctions, BlockAddress, PairFunction, SizedFunction, functions};
use crate::thread::{ThreadGuard, in_allocator};
use crate::unwind::StackPointer;
use crate::{stack, start};

/// Shorter mappings are not announced.
const PAGE_BYTES: usize = 4096;

/// Announces a block that was returned to the caller at `sp`.
fn announce_allocation(block: BlockAddress, bytes: usize, sp: StackPointer) {
    if block.is_null() {
        return;
    }
    let Some((sites, thread)) = start::sites().zip(ThreadGuard::enter()) else { return };
    let site = count_at_site(sites, &thread, block, bytes, sp);
    thread.mailbox().announce(Announcement::Alloc { address: block as u64, bytes: bytes as u64, site });
}

/// The site that calls from `sp`. Counts the block there, and in a measured run may sample its
/// address.
fn count_at_site(sites: &Sites, thread: &ThreadGuard, block: BlockAddress, bytes: usize, sp: StackPointer) -> u32 {
    let site = stack::site(sites, thread, sp);
    match sites.entries.get(site as usize) {
        Some(entry) if site != 0 => {
            let count = entry.count(bytes as u64);
            if sites.wanted_page_bytes.load(Relaxed) != 0 {
                // SAFETY: `getpid` has no arguments and cannot fail.
                entry.sample(block as u64, &count, || unsafe { libc::getpid() } as u32);
            }
        }
        _ => sites.count_loss(LossReason::TableFull),
    }
    site
}

/// Announces that a block is freed.
fn announce_free(block: BlockAddress) {
    if block.is_null() {
        return;
    }
    if let Some(thread) = ThreadGuard::enter() {
        thread.mailbox().announce(Announcement::Free { address: block as u64 });
    }
}

/// Records malloc(3).
pub(crate) unsafe extern "C" fn malloc(bytes: usize, sp: StackPointer) -> BlockAddress {
    // SAFETY: the caller passes the arguments of malloc.
    unsafe { allocate_sized(|allocator| Some(allocator.malloc), bytes, sp) }
}

/// Records valloc(3).
pub(crate) unsafe extern "C" fn valloc(bytes: usize, sp: StackPointer) -> BlockAddress {
    // SAFETY: the caller passes the arguments of valloc.
    unsafe { allocate_sized(|allocator| allocator.valloc, bytes, sp) }
}

/// Records pvalloc(3).
pub(crate) unsafe extern "C" fn pvalloc(bytes: usize, sp: StackPointer) -> BlockAddress {
    // SAFETY: the caller passes the arguments of pvalloc.
    unsafe { allocate_sized(|allocator| allocator.pvalloc, bytes, sp) }
}

unsafe fn allocate_sized(
    function: impl Fn(&AllocatorFunctions) -> Option<SizedFunction>,
    bytes: usize,
    sp: StackPointer,
) -> BlockAddress {
    let Some(allocator) = functions() else { return arena::alloc(bytes) };
    // SAFETY: the caller upholds the contract of `function`, which takes a size.
    let block = function(allocator).map_or(null_mut(), |function| in_allocator(|| unsafe { function(bytes) }));
    announce_allocation(block, bytes, sp);
    block
}

/// Records calloc(3).
pub(crate) unsafe extern "C" fn calloc(count: usize, bytes: usize, sp: StackPointer) -> BlockAddress {
    let total = count.saturating_mul(bytes);
    let Some(allocator) = functions() else { return arena::alloc(total) };
    // SAFETY: the caller passes the arguments of calloc.
    let block = in_allocator(|| unsafe { (allocator.calloc)(count, bytes) });
    announce_allocation(block, total, sp);
    block
}

/// Records memalign(3).
pub(crate) unsafe extern "C" fn memalign(alignment: usize, bytes: usize, sp: StackPointer) -> BlockAddress {
    // SAFETY: the caller passes the arguments of memalign.
    unsafe { allocate_aligned(|allocator| allocator.memalign, alignment, bytes, sp) }
}

/// Records aligned_alloc(3).
pub(crate) unsafe extern "C" fn aligned_alloc(alignment: usize, bytes: usize, sp: StackPointer) -> BlockAddress {
    // SAFETY: the caller passes the arguments of aligned_alloc.
    unsafe { allocate_aligned(|allocator| allocator.aligned_alloc, alignment, bytes, sp) }
}

/// Returns null until the functions are found: the search for them requests no aligned memory.
unsafe fn allocate_aligned(
    function: impl Fn(&AllocatorFunctions) -> Option<PairFunction>,
    alignment: usize,
    bytes: usize,
    sp: StackPointer,
) -> BlockAddress {
    // SAFETY: the caller upholds the contract of `function`.
    let call = |function: PairFunction| in_allocator(|| unsafe { function(alignment, bytes) });
    let block = functions().and_then(function).map_or(null_mut(), call);
    announce_allocation(block, bytes, sp);
    block
}

/// Records posix_memalign(3).
pub(crate) unsafe extern "C" fn posix_memalign(
    into: *mut BlockAddress,
    alignment: usize,
    bytes: usize,
    sp: StackPointer,
) -> c_int {
    let Some(function) = functions().and_then(|allocator| allocator.posix_memalign) else { return libc::ENOMEM };
    // SAFETY: the caller passes the arguments of posix_memalign.
    let error = in_allocator(|| unsafe { function(into, alignment, bytes) });
    if error == 0 {
        // SAFETY: the successful call wrote the block to `into`.
        announce_allocation(unsafe { *into }, bytes, sp);
    }
    error
}

/// Records realloc(3).
pub(crate) unsafe extern "C" fn realloc(block: BlockAddress, bytes: usize, sp: StackPointer) -> BlockAddress {
    // SAFETY: the caller passes the arguments of realloc.
    unsafe { resize_block(block, bytes, sp, |allocator| (allocator.realloc)(block, bytes)) }
}

/// Records reallocarray(3).
pub(crate) unsafe extern "C" fn reallocarray(
    block: BlockAddress,
    count: usize,
    bytes: usize,
    sp: StackPointer,
) -> BlockAddress {
    let total = count.saturating_mul(bytes);
    // SAFETY: the caller passes the arguments of reallocarray; on overflow `total` is too large to
    // allocate.
    unsafe {
        resize_block(block, total, sp, |allocator| match allocator.reallocarray {
            Some(reallocarray) => reallocarray(block, count, bytes),
            None => (allocator.realloc)(block, total),
        })
    }
}

unsafe fn resize_block(
    block: BlockAddress,
    bytes: usize,
    sp: StackPointer,
    resize: impl FnOnce(&AllocatorFunctions) -> BlockAddress,
) -> BlockAddress {
    if functions().is_none() || arena::owns(block) {
        // SAFETY: the caller passes a block of this family, or null.
        return unsafe { move_from_arena(block, bytes, sp) };
    }
    let Some(allocator) = functions() else { return null_mut() };
    announce_free(block);
    let moved = in_allocator(|| resize(allocator));
    if moved.is_null() && bytes != 0 && !block.is_null() {
        // SAFETY: a failed resize leaves the block valid.
        let bytes = allocator.usable_size.map_or(0, |usable_size| unsafe { usable_size(block) });
        announce_allocation(block, bytes, sp);
    } else {
        announce_allocation(moved, bytes, sp);
    }
    moved
}

/// Reallocates a block of the arena, or allocates before the functions are found.
unsafe fn move_from_arena(block: BlockAddress, bytes: usize, sp: StackPointer) -> BlockAddress {
    // SAFETY: the caller passes a valid size.
    let moved = unsafe { malloc(bytes, sp) };
    if !block.is_null() && !moved.is_null() {
        // SAFETY: both blocks are at least this long, and the new one is not shared yet.
        unsafe { core::ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast(), arena::bytes(block).min(bytes)) };
    }
    moved
}

/// Records free(3).
pub(crate) unsafe fn free(block: BlockAddress) {
    if arena::owns(block) {
        return;
    }
    announce_free(block);
    if let Some(allocator) = functions() {
        // SAFETY: the caller passes a block of this family, or null.
        in_allocator(|| unsafe { (allocator.free)(block) });
    }
}

/// Records mmap(2), with access (low half) and flags (high half) in one argument.
pub(crate) unsafe extern "C" fn mmap(
    wanted: *mut c_void,
    bytes: usize,
    access_and_flags: u64,
    sp: StackPointer,
    fd: c_int,
    offset: libc::off64_t,
) -> *mut c_void {
    let (access, flags) = (access_and_flags as c_int, (access_and_flags >> 32) as c_int);
    // SAFETY: the caller passes the arguments of mmap.
    let mapped = unsafe {
        match functions().and_then(|allocator| allocator.mmap) {
            Some(mmap) => mmap(wanted, bytes, access, flags, fd, offset),
            None => start::system_mmap(wanted, bytes, access, flags, fd, offset),
        }
    };
    let is_private = flags & libc::MAP_TYPE == libc::MAP_PRIVATE && flags & libc::MAP_ANONYMOUS != 0;
    if mapped != libc::MAP_FAILED && is_private && bytes >= PAGE_BYTES && loader::is_available() {
        announce_mapping(mapped, bytes, sp);
    }
    mapped
}

/// Announces memory that the caller at `sp` mapped, unless an allocator maps it.
fn announce_mapping(mapped: *mut c_void, bytes: usize, sp: StackPointer) {
    let Some((sites, thread)) = start::sites().zip(ThreadGuard::enter_outside_allocators()) else { return };
    let site = count_at_site(sites, &thread, mapped, bytes, sp);
    thread.mailbox().announce(Announcement::Map { address: mapped as u64, bytes: bytes as u64, site });
}
