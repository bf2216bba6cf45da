//! The functions that the program calls in place of libc's.
//!
//! Each adds one argument, the stack pointer at the call, and continues in `calls`. The return
//! address of the caller is there:
//!
//! ```text
//! higher | the caller's frame ...
//!        | return address into the caller   <- stack pointer at the entry
//! lower  | the frame of `calls`
//! ```
//!
//! Nothing is pushed, so that the frame of `calls` is directly below the caller's, also for the
//! unwinder.

#![allow(unsafe_code, reason = "interposes libc's functions; reads the stack pointer, which Rust cannot")]
#![cfg_attr(test, allow(dead_code, reason = "a test binary keeps its own malloc"))]

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};

use crate::allocator::BlockAddress;
use crate::calls;

/// Defines an exported function that jumps to `calls` with the stack pointer in `$register`, its
/// first free argument.
macro_rules! entry {
    ($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $register:literal) => {
        /// Interposes the function of this name.
        ///
        /// # Safety
        /// The caller upholds the contract of the interposed function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            naked_asm!(
                concat!("mov ", $register, ", rsp"), // the address of the return address
                "jmp {goes_on}",                     // which stays in place: a jump pushes nothing
                goes_on = sym calls::$name,
            )
        }
    };
}

entry!(malloc(_bytes: usize) -> BlockAddress, "rsi");
entry!(calloc(_count: usize, _bytes: usize) -> BlockAddress, "rdx");
entry!(realloc(_block: BlockAddress, _bytes: usize) -> BlockAddress, "rdx");
entry!(reallocarray(_block: BlockAddress, _count: usize, _bytes: usize) -> BlockAddress, "rcx");
entry!(memalign(_alignment: usize, _bytes: usize) -> BlockAddress, "rdx");
entry!(aligned_alloc(_alignment: usize, _bytes: usize) -> BlockAddress, "rdx");
entry!(posix_memalign(_into: *mut BlockAddress, _alignment: usize, _bytes: usize) -> c_int, "rcx");
entry!(valloc(_bytes: usize) -> BlockAddress, "rsi");
entry!(pvalloc(_bytes: usize) -> BlockAddress, "rsi");

/// Defines an exported mmap. Its arguments fill all argument registers, so two that are half a
/// register long share one.
macro_rules! map_entry {
    ($name:ident) => {
        /// Interposes the function of this name.
        ///
        /// # Safety
        /// The caller upholds the contract of mmap(2).
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
                "mov rcx, rsp",   // and the address of the return address in the fourth
                "jmp {goes_on}",
                goes_on = sym calls::mmap,
            )
        }
    };
}

map_entry!(mmap);
map_entry!(mmap64);

/// Interposes free(3). It has no site, so the stack is not passed.
///
/// # Safety
/// The caller passes a block of this family, or null.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn free(block: BlockAddress) {
    // SAFETY: the caller passes a block of this family, or null.
    unsafe { calls::free(block) }
}
