//! The slow paths of the malloc family: what an entry calls when an allocation may be guarded, or a
//! block is a guarded object.
//!
//! A function that allocates returns a guarded object, or null: then its entry jumps to the next
//! allocator, as if the agent were not there. So failures, new handlers and exceptions are the
//! program's own.
//!
//! Invariants: errno does not change, except where the next allocator sets it. A thread that is
//! inside the agent (a signal handler) is passed on.

#![allow(unsafe_code, reason = "stands in place of libc's functions")]

use core::alloc::Layout;
use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};

use fieldstone_guard::{Slots, Trace};
use fieldstone_wire::guard::UnguardedReason;

use crate::next::{self, SizedFunction, UsableFunction};
use crate::private_stack::{self, OnPrivateStack};
use crate::thread::{self, Inside};
use crate::unwind::{self, Caller};
use crate::{budget, foreign, operators, range, report, sites, start};

type Block = *mut c_void;

/// The alignment that malloc promises.
const ALIGNMENT: usize = 16;
const PAGE: usize = 4096;
/// Return addresses recorded for an allocation and for a free.
const FRAMES: usize = 24;

/// A stack as the objects keep it: the number of the site, then the return addresses.
pub(crate) struct Recorded {
    words: [usize; FRAMES + 1],
    count: usize,
}

impl Recorded {
    /// The stack of `caller`, with the number of a site; 0 for a free.
    pub(crate) fn of(caller: Caller, site: u32, own: Option<&OnPrivateStack>) -> Self {
        let mut words = [0; FRAMES + 1];
        words[0] = site as usize;
        let count = 1 + unwind::stack(caller, &mut words[1..], own);
        Self { words, count }
    }

    fn trace(&self) -> Trace<'_> {
        Trace { thread: thread::number(), frames: &self.words[..self.count] }
    }
}

/// A guarded object of `layout` for the caller; null if the allocation is not guarded.
fn guard(layout: Option<Layout>, caller: Caller) -> Block {
    let (Some(slots), Some(settings), Some(layout)) = (range::slots(), start::settings(), layout) else {
        start::begin();
        return null_mut();
    };
    let Some(inside) = Inside::enter() else {
        start::count_unguarded(UnguardedReason::Nested);
        return null_mut();
    };
    let Some(site) = sites::select(&inside, &caller, settings) else { return null_mut() };
    let side = settings.side_of(sites::counts(site).1);
    let allocate = |own: Option<&_>| slots.alloc_at(layout, side, Recorded::of(caller, site, own).trace());
    let object = budget::charge(|| private_stack::run(allocate));
    let Some(object) = object else {
        start::count_unguarded(UnguardedReason::Memory);
        sites::postpone(&inside, &caller);
        return null_mut();
    };
    sites::count_guarded(site);
    object.as_ptr().cast()
}

/// An object has at least one byte, so that its address is inside its slot.
fn layout(bytes: usize, alignment: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), alignment).ok()
}

/// The layout with an alignment that the caller passes; `None` for one that the next allocator
/// refuses or rounds.
fn aligned_layout(bytes: usize, alignment: usize) -> Option<Layout> {
    if alignment.is_power_of_two() { layout(bytes, alignment.max(ALIGNMENT)) } else { None }
}

/// malloc(3).
pub(crate) unsafe extern "C" fn malloc(bytes: usize, sp: *const usize, bp: usize) -> Block {
    // SAFETY: the entry passes its caller's registers.
    guard(layout(bytes, ALIGNMENT), unsafe { Caller::new(sp, bp) })
}

/// calloc(3). Guarded memory is zero.
pub(crate) unsafe extern "C" fn calloc(count: usize, bytes: usize, sp: *const usize, bp: usize) -> Block {
    let layout = count.checked_mul(bytes).and_then(|bytes| layout(bytes, ALIGNMENT));
    // SAFETY: the entry passes its caller's registers.
    guard(layout, unsafe { Caller::new(sp, bp) })
}

/// memalign(3) and aligned_alloc(3).
pub(crate) unsafe extern "C" fn memalign(alignment: usize, bytes: usize, sp: *const usize, bp: usize) -> Block {
    // SAFETY: the entry passes its caller's registers.
    guard(aligned_layout(bytes, alignment), unsafe { Caller::new(sp, bp) })
}

/// Operator new with an alignment.
pub(crate) unsafe extern "C" fn aligned_new(bytes: usize, alignment: usize, sp: *const usize, bp: usize) -> Block {
    // SAFETY: the entry passes its caller's registers.
    guard(aligned_layout(bytes, alignment), unsafe { Caller::new(sp, bp) })
}

/// A form of operator new that calls the basic one, which the program may define itself.
pub(crate) unsafe extern "C" fn derived_new(bytes: usize, sp: *const usize, bp: usize) -> Block {
    // SAFETY: the entry passes its caller's registers.
    if operators::is_new_replaced() { null_mut() } else { unsafe { malloc(bytes, sp, bp) } }
}

/// A form of operator new that calls the basic one with an alignment.
pub(crate) unsafe extern "C" fn derived_aligned_new(
    bytes: usize,
    alignment: usize,
    sp: *const usize,
    bp: usize,
) -> Block {
    // SAFETY: the entry passes its caller's registers.
    if operators::is_aligned_new_replaced() { null_mut() } else { unsafe { aligned_new(bytes, alignment, sp, bp) } }
}

/// posix_memalign(3). Returns null unless the object is stored in `into`.
pub(crate) unsafe extern "C" fn posix_memalign(
    into: *mut Block,
    alignment: usize,
    bytes: usize,
    sp: *const usize,
    bp: usize,
) -> Block {
    if !alignment.is_power_of_two() || alignment < size_of::<Block>() {
        return null_mut();
    }
    // SAFETY: the entry passes its caller's registers.
    let object = guard(layout(bytes, alignment.max(ALIGNMENT)), unsafe { Caller::new(sp, bp) });
    if !object.is_null() {
        // SAFETY: the caller passes a place for the address.
        unsafe { into.write(object) };
    }
    object
}

/// valloc(3).
pub(crate) unsafe extern "C" fn valloc(bytes: usize, sp: *const usize, bp: usize) -> Block {
    // SAFETY: the entry passes its caller's registers.
    guard(layout(bytes, PAGE), unsafe { Caller::new(sp, bp) })
}

/// pvalloc(3): whole pages.
pub(crate) unsafe extern "C" fn pvalloc(bytes: usize, sp: *const usize, bp: usize) -> Block {
    let layout = bytes.max(1).checked_next_multiple_of(PAGE).and_then(|bytes| layout(bytes, PAGE));
    // SAFETY: the entry passes its caller's registers.
    guard(layout, unsafe { Caller::new(sp, bp) })
}

/// free(3) of an address in the range of guarded objects.
pub(crate) unsafe extern "C" fn free(block: Block, sp: *const usize, bp: usize) {
    // SAFETY: the entry passes its caller's registers, and checked the range.
    unsafe { free_object(block, Caller::new(sp, bp)) };
}

/// # Safety
/// The program gives up the object.
unsafe fn free_object(block: Block, caller: Caller) {
    let (Some(slots), Some(object)) = (range::slots(), NonNull::new(block.cast::<u8>())) else { return };
    // A signal handler that frees while its thread is inside the agent could find its lists locked:
    // the object stays.
    let Some(inside) = Inside::enter() else { return };
    // SAFETY: the caller gives up the object; the objects refuse other addresses.
    let free = |own: Option<&_>| unsafe { slots.free_traced(object, Recorded::of(caller, 0, own).trace()) };
    let freed = private_stack::run(free);
    drop(inside);
    if let Err(finding) = freed {
        report::refused_free(slots, &finding, caller);
    }
}

/// malloc_usable_size(3) of an address in the range: the bytes that were requested, so that a
/// program that uses them all finds no others.
pub(crate) unsafe extern "C" fn usable_size(block: Block, _sp: *const usize, _bp: usize) -> usize {
    let object = NonNull::new(block.cast::<u8>());
    range::slots().zip(object).and_then(|(slots, object)| slots.bytes_of(object)).unwrap_or(0)
}

/// realloc(3) of an address in the range. The object always moves, so that old pointers to it are
/// found.
pub(crate) unsafe extern "C" fn realloc(block: Block, bytes: usize, sp: *const usize, bp: usize) -> Block {
    // SAFETY: the entry passes its caller's registers.
    let caller = unsafe { Caller::new(sp, bp) };
    let Some(slots) = range::slots() else { return null_mut() };
    let old = NonNull::new(block.cast::<u8>()).and_then(|object| slots.bytes_of(object));
    let Some(old) = old.filter(|_| bytes != 0) else {
        // As in glibc, size 0 frees. An address without an object is reported.
        // SAFETY: the caller gives up the object.
        unsafe { free_object(block, caller) };
        return if bytes == 0 { null_mut() } else { allocate(bytes, caller) };
    };
    let moved = allocate(bytes, caller);
    if !moved.is_null() {
        // SAFETY: both are at least that long, and the new one is not shared yet. The caller gives
        // up the old one.
        unsafe {
            core::ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast(), old.min(bytes));
            free_object(block, caller);
        }
    }
    moved
}

/// A guarded object, or a block of the next allocator; null with errno set if there is no memory.
fn allocate(bytes: usize, caller: Caller) -> Block {
    let guarded = guard(layout(bytes, ALIGNMENT), caller);
    if !guarded.is_null() {
        return guarded;
    }
    // SAFETY: malloc takes every size, and returns null for one that it does not have.
    unsafe { next::MALLOC.function::<SizedFunction>()(bytes) }
}

/// reallocarray(3) of an address in the range.
pub(crate) unsafe extern "C" fn reallocarray(
    block: Block,
    count: usize,
    bytes: usize,
    sp: *const usize,
    bp: usize,
) -> Block {
    // A product that overflows is a size that no allocator has: errno is set and the object stays.
    // SAFETY: the entry passes its caller's registers and block.
    unsafe { realloc(block, count.saturating_mul(bytes), sp, bp) }
}

/// realloc(3) of any other block, or of null. A block of the next allocator is moved to a guarded
/// object when its turn has come.
pub(crate) unsafe extern "C" fn realloc_other(block: Block, bytes: usize, sp: *const usize, bp: usize) -> Block {
    if !block.is_null() && bytes == 0 {
        return null_mut();
    }
    // SAFETY: the entry passes its caller's registers.
    let object = guard(layout(bytes, ALIGNMENT), unsafe { Caller::new(sp, bp) });
    if !object.is_null() && !block.is_null() {
        // SAFETY: the block has that many usable bytes, and the object `bytes`. The caller gives up
        // the block, which is not guarded.
        unsafe {
            let usable = next::USABLE_SIZE.function::<UsableFunction>()(block);
            core::ptr::copy_nonoverlapping(block.cast::<u8>(), object.cast(), usable.min(bytes));
            foreign::free(block);
        }
    }
    object
}

/// reallocarray(3) of any other block, or of null.
pub(crate) unsafe extern "C" fn reallocarray_other(
    block: Block,
    count: usize,
    bytes: usize,
    sp: *const usize,
    bp: usize,
) -> Block {
    match count.checked_mul(bytes) {
        // SAFETY: the entry passes its caller's registers and block.
        Some(bytes) => unsafe { realloc_other(block, bytes, sp, bp) },
        None => null_mut(),
    }
}

/// Whether `frames` of an object starts with the number of a site; the number and the return
/// addresses.
pub(crate) fn split<'a>(slots: &Slots, stack: fieldstone_guard::StackId, into: &'a mut [usize]) -> (u32, &'a [usize]) {
    let count = slots.frames(stack, into);
    match into[..count].split_first() {
        Some((site, frames)) => (*site as u32, frames),
        None => (0, &[]),
    }
}
