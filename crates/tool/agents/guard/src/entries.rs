//! The functions of the malloc family that the program calls in place of its allocator's.
//!
//! ```text
//! malloc ──→ key of the site ──→ the thread's cache: same tag, and the countdown has not ended?
//!                                   │ yes                        │ no
//!                                   ▼                            ▼
//!                        next allocator (a jump)        calls::malloc: guards the object, or
//!                                                       returns null: next allocator
//! free   ──→ address in the range of guarded objects?  no: next allocator   yes: calls::free
//! ```
//! The key of a site is (return address + (thread pointer − stack pointer) · 2²⁰) · odd constant. The
//! depth of the stack distinguishes the callers of a wrapper of malloc. The upper 9 bits of the key
//! select an entry of the cache, and the lower 32 bits, made odd, are its tag. A thread without a
//! cache uses [`NO_CACHE`], whose tags are 0, so that the fast path has no test for it.
//!
//! Cost: 19 instructions for an allocation and 5 for a free; no store but the countdown.

#![allow(unsafe_code, reason = "interposes libc's functions; reads the stack pointer, which Rust cannot")]
#![cfg_attr(test, allow(dead_code, reason = "a test binary keeps its own malloc"))]

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};

use crate::calls;
use crate::next;
use crate::range::{BASE, SPAN};
use crate::thread::NO_CACHE;

/// The multiplier of site keys: odd, so that different sums have different keys.
pub(crate) static KEY_MULTIPLIER: usize = 0x9e37_79b9_7f4a_7c15;

/// Defines an exported function that allocates. `$slow` gets the arguments, then the address of the
/// return address in `$sp` and the frame pointer in `$bp`. `$done` is executed before the return of
/// a guarded object.
macro_rules! allocation {
    ($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $slow:path, $next:path, $sp:literal, $bp:literal, $done:literal) => {
        /// Interposes the function of this name.
        ///
        /// # Safety
        /// The caller upholds the contract of the interposed function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            naked_asm!(
                "mov r10, qword ptr [rsp]",         // the return address
                "mov r11, qword ptr fs:[0]",
                "sub r11, rsp",                     // the depth of the stack
                "shl r11, 20",
                "add r10, r11",
                "imul r10, qword ptr [rip + {multiplier}]",
                "mov rax, qword ptr [rip + fieldstone_guard_thread@GOTTPOFF]",
                "mov rax, qword ptr fs:[rax]",      // the thread's cache, relative to NO_CACHE
                "lea r11, [rip + {no_cache}]",
                "add rax, r11",
                "mov r11, r10",
                "shr r11, 55",
                "lea rax, [rax + 8*r11]",           // the entry
                "or r10d, 1",
                "cmp dword ptr [rax], r10d",
                "jne 2f",
                "dec dword ptr [rax + 4]",
                "jle 2f",
                "jmp qword ptr [rip + {next}]",
                "2:",
                "push rdi",
                "push rsi",
                "push rdx",                         // the stack is aligned to 16 bytes again
                concat!("lea ", $sp, ", [rsp + 24]"),
                concat!("mov ", $bp, ", rbp"),
                "call {slow}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "test rax, rax",
                "jz 3f",
                $done,
                "ret",
                "3:",
                "jmp qword ptr [rip + {next}]",
                multiplier = sym KEY_MULTIPLIER,
                no_cache = sym NO_CACHE,
                next = sym $next,
                slow = sym $slow,
            )
        }
    };
}
pub(crate) use allocation;

/// Defines an exported function whose first argument may be a guarded object. `$own` handles
/// those, with the return address's address in `$sp` and the frame pointer in `$bp`; other blocks
/// continue at `$other`.
macro_rules! block_function {
    ($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $span:path, $own:path, $other:literal, $symbol:path, $sp:literal, $bp:literal) => {
        /// Interposes the function of this name.
        ///
        /// # Safety
        /// The caller upholds the contract of the interposed function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            naked_asm!(
                "mov rax, rdi",
                "sub rax, qword ptr [rip + {base}]",
                "cmp rax, qword ptr [rip + {span}]",
                "jb 2f",
                concat!("jmp ", $other),
                "2:",
                concat!("mov ", $sp, ", rsp"),
                concat!("mov ", $bp, ", rbp"),
                "jmp {own}",
                base = sym BASE,
                span = sym $span,
                own = sym $own,
                other = sym $symbol,
            )
        }
    };
}
pub(crate) use block_function;

type Block = *mut c_void;

allocation!(malloc(_bytes: usize) -> Block, calls::malloc, next::MALLOC, "rsi", "rdx", "");
allocation!(calloc(_count: usize, _bytes: usize) -> Block, calls::calloc, next::CALLOC, "rdx", "rcx", "");
allocation!(memalign(_alignment: usize, _bytes: usize) -> Block, calls::memalign, next::MEMALIGN, "rdx", "rcx", "");
allocation!(aligned_alloc(_alignment: usize, _bytes: usize) -> Block, calls::memalign, next::ALIGNED_ALLOC, "rdx", "rcx", "");
allocation!(posix_memalign(_into: *mut Block, _alignment: usize, _bytes: usize) -> c_int, calls::posix_memalign, next::POSIX_MEMALIGN, "rcx", "r8", "xor eax, eax");
allocation!(valloc(_bytes: usize) -> Block, calls::valloc, next::VALLOC, "rsi", "rdx", "");
allocation!(pvalloc(_bytes: usize) -> Block, calls::pvalloc, next::PVALLOC, "rsi", "rdx", "");

block_function!(free(_block: Block) -> (), SPAN, calls::free, "qword ptr [rip + {other}]", next::FREE, "rsi", "rdx");
block_function!(cfree(_block: Block) -> (), SPAN, calls::free, "qword ptr [rip + {other}]", next::FREE, "rsi", "rdx");
block_function!(malloc_usable_size(_block: Block) -> usize, SPAN, calls::usable_size, "qword ptr [rip + {other}]", next::USABLE_SIZE, "rsi", "rdx");
block_function!(realloc(_block: Block, _bytes: usize) -> Block, SPAN, calls::realloc, "{other}", realloc_other, "rdx", "rcx");
block_function!(reallocarray(_block: Block, _count: usize, _bytes: usize) -> Block, SPAN, calls::reallocarray, "{other}", reallocarray_other, "rcx", "r8");

/// The part of realloc for blocks that are not guarded, and for null.
mod other {
    use super::{Block, KEY_MULTIPLIER, NO_CACHE, calls, naked_asm, next};

    allocation!(fieldstone_guard_realloc(_block: Block, _bytes: usize) -> Block, calls::realloc_other, next::REALLOC, "rdx", "rcx", "");
    allocation!(fieldstone_guard_reallocarray(_block: Block, _count: usize, _bytes: usize) -> Block, calls::reallocarray_other, next::REALLOCARRAY, "rcx", "r8", "");
}
use other::{fieldstone_guard_realloc as realloc_other, fieldstone_guard_reallocarray as reallocarray_other};
