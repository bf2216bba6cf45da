//! Growing stacks for Rust: `grow` runs a closure with enough stack, on another segment if needed.
//!
//! Rust's compiler emits no checks in prologues, so recursive functions call `grow`. The check
//! compares the stack pointer with the guard word. If it fails, a function in the form of code
//! compiled for split stacks calls `__morestack`: all languages grow stacks the same way.
//!
//! Code that does not check has the `red_zone` plus the headroom under every guard: 40 KiB, and 24
//! KiB in a coroutine's first block.

#![allow(unsafe_code, reason = "runs a closure on another stack")]

use core::arch::{asm, naked_asm};
use core::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::thread;

/// The stack that [`grow`] guarantees: enough for code that formats, allocates and calls the
/// system.
pub const RED_ZONE_BYTES: usize = 12 << 10;

/// Calls `f` with at least [`RED_ZONE_BYTES`] of stack plus the headroom: on this stack if it has
/// enough, else on another segment. Memory or the thread's limit alone bounds a recursive function
/// whose calls pass through here.
///
/// # Cost
/// A comparison. About 3 ns in a function that was entered before its thread was initialised
/// ([`adopt`](crate::adopt)). Switching to another segment takes about 10 ns if that is allocated,
/// a microsecond if not.
///
/// # Panics
/// If `f` panics; the panic propagates to the caller.
#[inline(always)]
pub fn grow<R>(f: impl FnOnce() -> R) -> R {
    if is_above_guard(bytes_above_guard::<RED_ZONE_BYTES>()) { f() } else { call_on_segment(RED_ZONE_BYTES, f) }
}

/// As [`grow`], with at least `red_zone` bytes.
///
/// # Panics
/// As [`grow`].
#[inline(always)]
pub fn grow_with<R>(red_zone: usize, f: impl FnOnce() -> R) -> R {
    if is_above_guard(bytes_above_guard::<0>().wrapping_sub(red_zone)) { f() } else { call_on_segment(red_zone, f) }
}

/// Whether the distance is not negative. A thread that is not initialised has a guard of 0; the
/// distance is then an address, and a stack's address is larger than any segment.
#[inline(always)]
const fn is_above_guard(distance: usize) -> bool {
    const LARGEST_BITS: u32 = 44;
    distance >> LARGEST_BITS == 0
}

/// The distance of the stack pointer above the guard, less `BYTES`, in two instructions, since each
/// call executes them.
///
/// The compiler may read the distance once for several calls in a function. That is correct while
/// the function runs: its stack pointer stays, and its segment's guard only moves down. Code that
/// sets the guard of another stack must not be inlined.
#[inline(always)]
fn bytes_above_guard<const BYTES: usize>() -> usize {
    let distance;
    // SAFETY: reads a register and the guard word, which Rust does not access. If it is read before
    // the thread is initialised or the segment grows, the result is too small, and
    // `call_on_segment` checks again.
    unsafe {
        asm!(
            "lea {distance}, [rsp - {bytes}]",
            "sub {distance}, qword ptr fs:[0x70]",
            distance = out(reg) distance,
            bytes = const BYTES,
            options(nostack, pure, nomem),
        );
    }
    distance
}

/// Calls `f` on this stack if it has enough space after all, else on another segment.
#[cold]
#[inline(never)]
fn call_on_segment<R, F: FnOnce() -> R>(bytes: usize, f: F) -> R {
    if remaining() >= bytes {
        return f();
    }
    let mut job = StackJob { f: Some(f), result: MaybeUninit::uninit() };
    // SAFETY: `run::<R, F>` takes a job of this type, which outlives the call.
    unsafe { split((&raw mut job).cast(), run::<R, F>, bytes.min(u32::MAX as usize)) };
    // SAFETY: `run` has written the result.
    match unsafe { job.result.assume_init() } {
        Ok(result) => result,
        Err(panic) => resume_unwind(panic),
    }
}

struct StackJob<R, F> {
    f: Option<F>,
    result: MaybeUninit<std::thread::Result<R>>,
}

/// # Safety
/// `job` points to a `StackJob<R, F>` that has not run.
unsafe extern "C" fn run<R, F: FnOnce() -> R>(job: *mut u8) {
    // SAFETY: by contract `job` points to a `StackJob<R, F>`, which only this call uses.
    let job = unsafe { &mut *job.cast::<StackJob<R, F>>() };
    if let Some(f) = job.f.take() {
        job.result.write(catch_unwind(AssertUnwindSafe(f)));
    }
}

/// Has the form of a function compiled for split stacks with a frame of `bytes`. Calls `function`
/// with `data`.
#[unsafe(naked)]
unsafe extern "C" fn split(data: *mut u8, function: unsafe extern "C" fn(*mut u8), bytes: usize) {
    naked_asm!(
        ".cfi_startproc",
        "mov r10, rdx",
        "xor r11d, r11d",
        "call __morestack",
        "ret",
        // The body: the stack is the same as at a function's first instruction.
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call rsi",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
    )
}

/// Bytes of stack left before a call switches to another segment. Initialises the thread first.
#[must_use]
pub fn remaining() -> usize {
    thread::init_thread();
    thread::stack_pointer().saturating_sub(thread::guard())
}
