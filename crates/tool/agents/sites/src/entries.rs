//! The functions that the program calls in place of libc's.
//!
//! Each adds one argument, the stack pointer at the call, and goes on in `calls`. There the caller's return address lies:
//!
//! ```text
//! higher | the caller's frame ...
//!        | return address into the caller   <- stack pointer at the entry
//! lower  | the frame of `calls`
//! ```
//!
//! Nothing is pushed, so that the frame of `calls` is, for the unwinder too, directly below the caller's.

#![allow(unsafe_code, reason = "stands in place of libc's functions; reads the stack pointer, which Rust cannot")]
#![cfg_attr(test, allow(dead_code, reason = "a test binary keeps its own malloc"))]

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};

use crate::calls;
use crate::real::Block;

/// An exported function that goes on in `calls`, the stack pointer in `$register`: its first free argument.
macro_rules! entry {
    ($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $register:literal) => {
        /// As libc's.
        ///
        /// # Safety
        /// As libc's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            naked_asm!(
                concat!("mov ", $register, ", rsp"), // the return address lies there
                "jmp {goes_on}",                     // and stays there: a jump pushes nothing
                goes_on = sym calls::$name,
            )
        }
    };
}

entry!(malloc(_bytes: usize) -> Block, "rsi");
entry!(calloc(_count: usize, _bytes: usize) -> Block, "rdx");
entry!(realloc(_block: Block, _bytes: usize) -> Block, "rdx");
entry!(reallocarray(_block: Block, _count: usize, _bytes: usize) -> Block, "rcx");
entry!(memalign(_alignment: usize, _bytes: usize) -> Block, "rdx");
entry!(aligned_alloc(_alignment: usize, _bytes: usize) -> Block, "rdx");
entry!(posix_memalign(_into: *mut Block, _alignment: usize, _bytes: usize) -> c_int, "rcx");
entry!(valloc(_bytes: usize) -> Block, "rsi");
entry!(pvalloc(_bytes: usize) -> Block, "rsi");

/// An exported mmap. It has as many arguments as there are registers for them: two that are half a register long share one.
macro_rules! map_entry {
    ($name:ident) => {
        /// As libc's.
        ///
        /// # Safety
        /// As libc's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name(
            _wanted: *mut c_void,
            _bytes: usize,
            _access: c_int,
            _flags: c_int,
            _fd: c_int,
            _offset: libc::off64_t,
        ) -> *mut c_void {
            naked_asm!(
                "mov edx, edx",   // the access, its upper half cleared
                "shl rcx, 32",    // the flags
                "or rdx, rcx",    // both in the third register
                "mov rcx, rsp",   // and the return address's place in the fourth
                "jmp {goes_on}",
                goes_on = sym calls::mmap,
            )
        }
    };
}

map_entry!(mmap);
map_entry!(mmap64);

/// As libc's. It has no site, so its stack does not matter.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn free(block: Block) {
    // SAFETY: the caller's word.
    unsafe { calls::free(block) }
}
