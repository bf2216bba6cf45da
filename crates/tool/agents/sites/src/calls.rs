//! What each call of the malloc family, and of mmap, means for the record.
//!
//! A free is announced before the block goes back, an allocation after it came, so that no other thread can get, and
//! announce, the same address in between. A realloc is both.
//!
//! Of mmap, only private anonymous memory is announced that the program maps itself. An allocator may hold its locks there:
//! nothing is allocated, and no lock waited for, neither here nor below.

#![allow(unsafe_code, reason = "stands in place of libc's functions")]

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::Relaxed;

use fieldstone_wire::sites::{Announcement, LossReason, Sites};

use crate::real::{Block, One, Real, Two, real};
use crate::stack::{self, StackPointer};
use crate::thread::{Thread, in_allocator};
use crate::{arena, modules, start};

/// What is shorter is not announced.
const PAGE_BYTES: usize = 4096;

/// Announces a block that the caller at `sp` got.
fn allocated(block: Block, bytes: usize, sp: StackPointer) {
    if block.is_null() {
        return;
    }
    let Some((sites, thread)) = start::sites().zip(Thread::enter()) else { return };
    let site = counted_site(sites, &thread, block, bytes, sp);
    thread.letter().announce(Announcement::Alloc { address: block as u64, bytes: bytes as u64, site });
}

/// The site that calls from `sp`, where the block is counted, and in a real run perhaps remembered.
fn counted_site(sites: &Sites, thread: &Thread, block: Block, bytes: usize, sp: StackPointer) -> u32 {
    let site = stack::site(sites, thread, sp);
    match sites.entries.get(site as usize) {
        Some(entry) if site != 0 => {
            let counted = entry.count(bytes as u64);
            if sites.wanted_page_bytes.load(Relaxed) != 0 {
                // SAFETY: a bare system call that cannot fail.
                entry.sample(block as u64, &counted, || unsafe { libc::getpid() } as u32);
            }
        }
        _ => sites.count_loss(LossReason::TableFull),
    }
    site
}

/// Announces that a block goes back.
fn freed(block: Block) {
    if block.is_null() {
        return;
    }
    if let Some(thread) = Thread::enter() {
        thread.letter().announce(Announcement::Free { address: block as u64 });
    }
}

/// As malloc(3).
pub(crate) unsafe extern "C" fn malloc(bytes: usize, sp: StackPointer) -> Block {
    // SAFETY: the caller's word.
    unsafe { sized(|real| Some(real.malloc), bytes, sp) }
}

/// As valloc(3).
pub(crate) unsafe extern "C" fn valloc(bytes: usize, sp: StackPointer) -> Block {
    // SAFETY: the caller's word.
    unsafe { sized(|real| real.valloc, bytes, sp) }
}

/// As pvalloc(3).
pub(crate) unsafe extern "C" fn pvalloc(bytes: usize, sp: StackPointer) -> Block {
    // SAFETY: the caller's word.
    unsafe { sized(|real| real.pvalloc, bytes, sp) }
}

unsafe fn sized(function: impl Fn(&Real) -> Option<One>, bytes: usize, sp: StackPointer) -> Block {
    let Some(real) = real() else { return arena::alloc(bytes) };
    // SAFETY: the caller's word.
    let block = function(real).map_or(null_mut(), |function| in_allocator(|| unsafe { function(bytes) }));
    allocated(block, bytes, sp);
    block
}

/// As calloc(3).
pub(crate) unsafe extern "C" fn calloc(count: usize, bytes: usize, sp: StackPointer) -> Block {
    let whole = count.saturating_mul(bytes);
    let Some(real) = real() else { return arena::alloc(whole) };
    // SAFETY: the caller's word.
    let block = in_allocator(|| unsafe { (real.calloc)(count, bytes) });
    allocated(block, whole, sp);
    block
}

/// As memalign(3).
pub(crate) unsafe extern "C" fn memalign(alignment: usize, bytes: usize, sp: StackPointer) -> Block {
    // SAFETY: the caller's word.
    unsafe { aligned(|real| real.memalign, alignment, bytes, sp) }
}

/// As aligned_alloc(3).
pub(crate) unsafe extern "C" fn aligned_alloc(alignment: usize, bytes: usize, sp: StackPointer) -> Block {
    // SAFETY: the caller's word.
    unsafe { aligned(|real| real.aligned_alloc, alignment, bytes, sp) }
}

/// The arena has no room for alignments, and whoever searches a function asks for none.
unsafe fn aligned(function: impl Fn(&Real) -> Option<Two>, alignment: usize, bytes: usize, sp: StackPointer) -> Block {
    // SAFETY: the caller's word.
    let call = |function: Two| in_allocator(|| unsafe { function(alignment, bytes) });
    let block = real().and_then(function).map_or(null_mut(), call);
    allocated(block, bytes, sp);
    block
}

/// As posix_memalign(3).
pub(crate) unsafe extern "C" fn posix_memalign(
    into: *mut Block,
    alignment: usize,
    bytes: usize,
    sp: StackPointer,
) -> c_int {
    let Some(function) = real().and_then(|real| real.posix_memalign) else { return libc::ENOMEM };
    // SAFETY: the caller's word.
    let error = in_allocator(|| unsafe { function(into, alignment, bytes) });
    if error == 0 {
        // SAFETY: the call has just written it.
        allocated(unsafe { *into }, bytes, sp);
    }
    error
}

/// As realloc(3).
pub(crate) unsafe extern "C" fn realloc(block: Block, bytes: usize, sp: StackPointer) -> Block {
    // SAFETY: the caller's word.
    unsafe { resized(block, bytes, sp, |real| (real.realloc)(block, bytes)) }
}

/// As reallocarray(3).
pub(crate) unsafe extern "C" fn reallocarray(block: Block, count: usize, bytes: usize, sp: StackPointer) -> Block {
    let whole = count.saturating_mul(bytes);
    // SAFETY: the caller's word. Where there is no such function, an overflow asks for more than there is, as it has to.
    unsafe {
        resized(block, whole, sp, |real| match real.reallocarray {
            Some(reallocarray) => reallocarray(block, count, bytes),
            None => (real.realloc)(block, whole),
        })
    }
}

unsafe fn resized(block: Block, bytes: usize, sp: StackPointer, resize: impl FnOnce(&Real) -> Block) -> Block {
    if real().is_none() || arena::owns(block) {
        // SAFETY: the caller's word.
        return unsafe { out_of_the_arena(block, bytes, sp) };
    }
    let Some(real) = real() else { return null_mut() };
    freed(block);
    let moved = in_allocator(|| resize(real));
    if moved.is_null() && bytes != 0 && !block.is_null() {
        // SAFETY: a resize that fails leaves the block as it is.
        let held = real.usable_size.map_or(0, |usable_size| unsafe { usable_size(block) });
        allocated(block, held, sp);
    } else {
        allocated(moved, bytes, sp);
    }
    moved
}

/// A block that was given before the real functions were known, or is asked for now.
unsafe fn out_of_the_arena(block: Block, bytes: usize, sp: StackPointer) -> Block {
    // SAFETY: the caller's word.
    let moved = unsafe { malloc(bytes, sp) };
    if !block.is_null() && !moved.is_null() {
        // SAFETY: both are at least as long, and the new one is nobody's yet.
        unsafe { core::ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast(), arena::bytes(block).min(bytes)) };
    }
    moved
}

/// As free(3).
pub(crate) unsafe fn free(block: Block) {
    if arena::owns(block) {
        return;
    }
    freed(block);
    if let Some(real) = real() {
        // SAFETY: the caller's word.
        in_allocator(|| unsafe { (real.free)(block) });
    }
}

/// As mmap(2), but that access (low half) and flags come as one.
pub(crate) unsafe extern "C" fn mmap(
    wanted: *mut c_void,
    bytes: usize,
    access_and_flags: u64,
    sp: StackPointer,
    fd: c_int,
    offset: libc::off64_t,
) -> *mut c_void {
    let (access, flags) = (access_and_flags as c_int, (access_and_flags >> 32) as c_int);
    // SAFETY: the caller's word.
    let mapped = unsafe {
        match real().and_then(|real| real.mmap) {
            Some(mmap) => mmap(wanted, bytes, access, flags, fd, offset),
            None => start::system_mmap(wanted, bytes, access, flags, fd, offset),
        }
    };
    let is_private = flags & libc::MAP_TYPE == libc::MAP_PRIVATE && flags & libc::MAP_ANONYMOUS != 0;
    if mapped != libc::MAP_FAILED && is_private && bytes >= PAGE_BYTES && modules::is_lock_free() {
        program_mapped(mapped, bytes, sp);
    }
    mapped
}

/// Announces memory that the caller at `sp` mapped, unless that is a part of an allocator's work.
fn program_mapped(mapped: *mut c_void, bytes: usize, sp: StackPointer) {
    let Some((sites, thread)) = start::sites().zip(Thread::enter_outside_allocators()) else { return };
    let site = counted_site(sites, &thread, mapped, bytes, sp);
    thread.letter().announce(Announcement::Map { address: mapped as u64, bytes: bytes as u64, site });
}
