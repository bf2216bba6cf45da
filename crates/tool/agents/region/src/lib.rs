//! The region agent: places an unmodified program's private anonymous memory in one primary region.
//!
//! Loaded into the program by `LD_PRELOAD`; the supervisor's half is `fieldstone-supervise`. Source: Basu et al.,
//! *Efficient Virtual Memory for Big Memory Servers* (a primary region holds all anonymous read-write memory of the
//! primary process, reserved at its start, grown and shrunk). We differ: the region is an address range that is mapped
//! piece by piece, because limits, faults and overcommit have to keep their meaning for an unmodified program; and what
//! backs it is pages as large as the kernel gives, since no processor has a direct segment. A reserve is mapped at the
//! start and given first, to mappings where it lies, to the heap by moving it; what the program gives back is the
//! system's.
//!
//! ```text
//! base                                                                      limit = base + 4 TiB
//! | heap (brk) grows ->    | reserve, if asked for | mappings, lowest free address first -> |
//! ```
//!
//! | file | what |
//! |---|---|
//! | `start` | the constructor: session, region, patches |
//! | `environment`, `exec` | the program does not see how the agent came, and takes it along |
//! | `elf`, `patch`, `entries` | libc's entries become ours |
//! | `calls`, `remap`, `pieces`, `heap` | what each call means |
//! | `place`, `small`, `table`, `bits` | who has which address |
//! | `exact` | programs that see what is mapped ahead |
//! | `grown` | a mapping that grows in steps gets large pages too |
//! | `huge` | pages that the kernel takes as a whole only |
//! | `demote`, `userfault`, `pinned` | memory moves off hugetlb pages while the program runs |
//! | `kept` | descriptors that stay open, for when the program gives up the right to open them |
//! | `policy` | memory that moves keeps its nodes |
//! | `globals`, `first_stack`, `in_place` | what cannot lie in the region, advised where it is |
//! | `spans` | what is reserved or lies outside, and why |
//! | `state`, `raw` | what all share |
//!
//! Inside another program there is no allocation, no thread-local storage, no lock, no panic and no call of libc that
//! could be interposed.
#![no_std]
#![allow(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "64-bit Linux: an address, a size and a system call's word are one and the same register"
)]

// As it ships, the agent aborts on a panic and needs nothing but libc. In any other profile std brings the handler.
#[cfg(any(test, not(panic = "abort")))]
extern crate std;

mod bits;
mod calls;
mod demote;
mod elf;
mod entries;
mod environment;
mod exact;
mod exec;
mod first_stack;
mod globals;
mod grown;
mod heap;
mod huge;
mod in_place;
mod kept;
#[cfg(test)]
mod model;
mod patch;
mod pieces;
mod pinned;
mod place;
mod policy;
mod raw;
mod remap;
mod segments;
mod small;
mod spans;
mod start;
mod state;
mod table;
mod userfault;

/// The loader's hooks; a test binary does not run them on itself.
mod hooks {
    #![allow(unsafe_code, reason = "places the functions where the loader looks for them")]

    use core::ffi::{c_char, c_int};

    /// There is no panic here that a test has not shown; one that happens all the same ends the program at once, since
    /// its memory can no longer be vouched for.
    #[cfg(all(panic = "abort", not(test)))]
    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        // SAFETY: ends the process.
        unsafe { libc::abort() }
    }

    #[used]
    #[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
    static START: unsafe extern "C" fn(c_int, *const *const c_char, *mut *mut c_char) = crate::start::start;

    #[used]
    #[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
    static FINISH: extern "C" fn() = crate::start::finish;
}
