//! Growing stacks for Rust: a call that makes sure of its stack, and goes on in another segment where there is too little.
//!
//! Rust's compiler puts no checks in prologues, so that recursive functions ask by themselves. The check is one comparison with the
//! guard word. Where it fails, a function that looks as if it had been compiled for split stacks calls `__morestack`: there is
//! one way to grow, for all languages.
//!
//! Code that does not ask has what it asks for as `red_zone`, beyond the headroom that lies under every guard: 40 KiB, 24 in a coroutine's first block.

#![allow(unsafe_code, reason = "runs a closure on another stack")]

use core::arch::{asm, naked_asm};
use core::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::thread;

/// What [`grow`] makes sure of: enough for code that formats, allocates and calls the system.
pub const RED_ZONE_BYTES: usize = 12 << 10;

/// Calls `f` with at least [`RED_ZONE_BYTES`] of stack, and the headroom: on this stack if there is so much, else on another
/// segment. A recursive function whose calls go through here is bounded by memory alone, or by the thread's limit.
///
/// # Cost
/// A comparison; some 3 ns in a function that runs since before its thread was known ([`adopt`](crate::adopt)). Where the stack has to go on
/// elsewhere: some 10 ns if that was there before, a microsecond if not.
///
/// # Panics
/// If `f` does; the panic goes on to the caller.
#[inline(always)]
pub fn grow<R>(f: impl FnOnce() -> R) -> R {
    if is_within(room_beyond::<RED_ZONE_BYTES>()) { f() } else { elsewhere(RED_ZONE_BYTES, f) }
}

/// As [`grow`], with at least `red_zone` bytes.
///
/// # Panics
/// As [`grow`].
#[inline(always)]
pub fn grow_with<R>(red_zone: usize, f: impl FnOnce() -> R) -> R {
    if is_within(room_beyond::<0>().wrapping_sub(red_zone)) { f() } else { elsewhere(red_zone, f) }
}

/// Whether a distance above the guard is one. A thread that is not known has a guard of 0: the difference is an address then, and one
/// of a stack is larger than any segment.
#[inline(always)]
const fn is_within(distance: usize) -> bool {
    const LARGEST_BITS: u32 = 44;
    distance >> LARGEST_BITS == 0
}

/// How far above the guard the stack pointer is, less `BYTES`: in two instructions, since each call asks.
///
/// The compiler may ask once where a function asks often, in a loop or in what it made a loop of: while a function runs its stack
/// pointer stays, and its segment's guard moves down only. Who changes the guard for another stack's must not be inlined.
#[inline(always)]
fn room_beyond<const BYTES: usize>() -> usize {
    let room;
    // SAFETY: reads a register and the guard word, which is no memory that Rust knows. Asked too early, before the thread was known
    // or the segment grew, the answer is too small, and `elsewhere` asks again.
    unsafe {
        asm!(
            "lea {room}, [rsp - {bytes}]",
            "sub {room}, qword ptr fs:[0x70]",
            room = out(reg) room,
            bytes = const BYTES,
            options(nostack, pure, nomem),
        );
    }
    room
}

/// Calls `f` where there is room.
#[cold]
#[inline(never)]
fn elsewhere<R, F: FnOnce() -> R>(bytes: usize, f: F) -> R {
    if remaining() >= bytes {
        return f();
    }
    let mut work = Work { f: Some(f), result: MaybeUninit::uninit() };
    // SAFETY: `run::<R, F>` takes a work of this type, which outlives the call.
    unsafe { split((&raw mut work).cast(), run::<R, F>, bytes.min(u32::MAX as usize)) };
    // SAFETY: `run` has written it.
    match unsafe { work.result.assume_init() } {
        Ok(result) => result,
        Err(panic) => resume_unwind(panic),
    }
}

struct Work<R, F> {
    f: Option<F>,
    result: MaybeUninit<std::thread::Result<R>>,
}

/// # Safety
/// `work` is a `Work<R, F>` that has not run.
unsafe extern "C" fn run<R, F: FnOnce() -> R>(work: *mut u8) {
    // SAFETY: by contract.
    let work = unsafe { &mut *work.cast::<Work<R, F>>() };
    if let Some(f) = work.f.take() {
        work.result.write(catch_unwind(AssertUnwindSafe(f)));
    }
}

/// A function as if compiled for split stacks, with a frame of `bytes`: calls `function` with `data`.
#[unsafe(naked)]
unsafe extern "C" fn split(data: *mut u8, function: unsafe extern "C" fn(*mut u8), bytes: usize) {
    naked_asm!(
        ".cfi_startproc",
        "mov r10, rdx",
        "xor r11d, r11d",
        "call __morestack",
        "ret",
        // The body: the stack is as at a function's first instruction.
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call rsi",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
    )
}

/// Bytes of stack that are left before a call goes on in another segment; in a thread that never grew, before it is known.
#[must_use]
pub fn remaining() -> usize {
    thread::begin();
    thread::stack_pointer().saturating_sub(thread::guard())
}
