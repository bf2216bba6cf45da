//! Blocks that are not guarded and not the allocator's: those of the arena, and addresses that
//! no allocator returned.
//!
//! The entries jump to the allocator with every block outside the range of guarded objects. Where
//! such a block needs a check, its function is replaced by one of these. So the check costs nothing
//! otherwise:
//!
//! | function | used if |
//! |---|---|
//! | `arena_free`, `arena_realloc`, `arena_usable_size` | the search for the functions allocated |
//! | `checked_free` | every allocation is guarded: an address on the stack or in a loaded file is reported |

#![allow(unsafe_code, reason = "stands in place of the allocator's functions")]

use core::arch::naked_asm;
use core::ffi::c_void;

use fieldstone_preload::arena;
use fieldstone_wire::guard::Place;

use crate::next::{self, FreeFunction, ReallocFunction, SizedFunction, UsableFunction};
use crate::unwind::Caller;
use crate::{modules, report, thread};

type Block = *mut c_void;

static REAL_FREE: next::Next = next::Next::empty();
static REAL_REALLOC: next::Next = next::Next::empty();
static REAL_USABLE_SIZE: next::Next = next::Next::empty();

/// Keeps the allocator's functions. Replaces those that need to recognise blocks of the arena, if it
/// was used.
pub(crate) fn install(is_arena_used: bool) {
    for (real, next) in
        [(&REAL_FREE, &next::FREE), (&REAL_REALLOC, &next::REALLOC), (&REAL_USABLE_SIZE, &next::USABLE_SIZE)]
    {
        real.set(next.pointer());
    }
    if is_arena_used {
        next::FREE.set(arena_free as FreeFunction as *mut c_void);
        next::REALLOC.set(arena_realloc as ReallocFunction as *mut c_void);
        next::USABLE_SIZE.set(arena_usable_size as UsableFunction as *mut c_void);
    }
}

/// Reports frees of addresses on the stack and in loaded files from now on. Finds the stack of the
/// first thread now, for programs that forbid the system calls of the search later.
pub(crate) fn check_frees() {
    let here = 0_u8;
    thread::is_on_stack(core::ptr::from_ref(&here) as usize);
    next::FREE.set(checked_free as FreeFunction as *mut c_void);
}

/// Frees a block of the program's allocator.
///
/// # Safety
/// The block has to be the allocator's, of the arena, or null.
pub(crate) unsafe extern "C" fn free(block: Block) {
    if !arena::owns(block) {
        // SAFETY: `install` stored the allocator's free; the caller passes its block or null.
        unsafe { REAL_FREE.function::<FreeFunction>()(block) };
    }
}

unsafe extern "C" fn arena_free(block: Block) {
    // SAFETY: the caller passes a block of the allocator, of the arena, or null.
    unsafe { free(block) };
}

/// Passes the caller's registers to [`check`].
#[unsafe(naked)]
unsafe extern "C" fn checked_free(block: Block) {
    naked_asm!("mov rsi, rsp", "mov rdx, rbp", "jmp {check}", check = sym check)
}

unsafe extern "C" fn check(block: Block, sp: *const usize, bp: usize) {
    match place_of(block as usize) {
        Some(place) if !arena::owns(block) => {
            // SAFETY: the entry passed its caller's registers.
            report::foreign_free(block as usize, place, unsafe { Caller::new(sp, bp) });
        }
        // SAFETY: the caller passes a block of the allocator, of the arena, or null.
        _ => unsafe { free(block) },
    }
}

/// Where an address is that no allocator returns: on this thread's stack, or in a file other than
/// the allocator's own, which may have blocks in its data.
fn place_of(address: usize) -> Option<Place> {
    if thread::is_on_stack(address) {
        return Some(Place::Stack);
    }
    let file = modules::start_of(address)?;
    (Some(file) != modules::start_of(REAL_FREE.pointer() as usize)).then_some(Place::File)
}

unsafe extern "C" fn arena_realloc(block: Block, bytes: usize) -> Block {
    if !arena::owns(block) {
        // SAFETY: the caller passes a block of the allocator or null.
        return unsafe { REAL_REALLOC.function::<ReallocFunction>()(block, bytes) };
    }
    // SAFETY: the allocator's malloc takes any size.
    let moved = unsafe { next::MALLOC.function::<SizedFunction>()(bytes) };
    if !moved.is_null() {
        // SAFETY: both blocks are at least this long, and the new one is not shared yet.
        unsafe { core::ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast(), arena::bytes(block).min(bytes)) };
    }
    moved
}

unsafe extern "C" fn arena_usable_size(block: Block) -> usize {
    if arena::owns(block) {
        return arena::bytes(block);
    }
    // SAFETY: the caller passes a block of the allocator or null.
    unsafe { REAL_USABLE_SIZE.function::<UsableFunction>()(block) }
}
