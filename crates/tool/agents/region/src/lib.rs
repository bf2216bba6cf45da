//! The region agent: places an unmodified program's private anonymous memory in one primary region.
//!
//! The loader loads it by `LD_PRELOAD`; the `fieldstone` command starts the program and reads the
//! counters.
//!
//! ```text
//! base                                                                      limit = base + 4 TiB
//! | heap (brk) grows ->    | reserve (--reserve)   | mappings, lowest free address first ->    |
//! ```
//! The region is an address range, not one mapping: it is mapped piece by piece, so that limits,
//! faults and overcommit work as without the agent. The kernel backs it with the largest
//! pages that it has. A reserve is mapped at the start and used first. Unmapped memory returns to
//! the system.
//!
//! Source: Basu et al., *Efficient Virtual Memory for Big Memory Servers*: a primary region holds
//! all anonymous read-write memory of the primary process, reserved at its start. That design backs
//! the region with a direct segment, which no processor has.
//!
//! | file | purpose |
//! |---|---|
//! | `start` | the constructor: session, region, patches |
//! | `environment`, `exec` | hide the agent's variables; pass them to started programs |
//! | `elf`, `patch`, `entries` | redirect functions of libc to the agent |
//! | `calls`, `remap`, `heap` | each redirected call; whether its memory goes into the region |
//! | `multi_mapping` | one mapping of the program that is several in the kernel |
//! | `shared_memory` | `shmat(2)` at an address of the region |
//! | `placement` | requests of 2 MiB or more: chooses the addresses and the page kind, and maps them |
//! | `small` | smaller requests: maps granules of 2 MiB that they share |
//! | `table`, `bits` | which granules are in use; which pages of a granule |
//! | `exact` | programs that observe memory mapped ahead of its use |
//! | `growth` | collapses the last small pages of a growing mapping into a huge page; maps nothing |
//! | `hugetlb` | hugetlb pages |
//! | `migration`, `write_protection`, `pin_detection` | move memory off hugetlb pages while the program runs |
//! | `descriptors` | descriptors opened at the start, for programs that drop privileges later |
//! | `numa_policy` | NUMA policies of memory that moves |
//! | `globals`, `main_stack`, `in_place` | memory that stays outside the region and gets huge pages in place |
//! | `spans` | records which ranges are reserved or outside the region, and the reason |
//! | `state`, `raw` | shared state, system calls |
//! | `arch` | what differs between x86-64 and AArch64 |
//!
//! Invariants: the agent runs inside another program. It uses no allocator, no thread-local
//! storage, no lock, no panic and no libc function that could be interposed.
#![no_std]
#![allow(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "64-bit Linux: an address, a size and a system call's word are one and the same register"
)]

// The shipped agent aborts on a panic and needs only libc. In other profiles std provides the panic
// handler.
#[cfg(any(test, not(panic = "abort")))]
extern crate std;

#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "arch/aarch64.rs")]
mod arch;
mod bits;
mod calls;
mod descriptors;
mod elf;
mod entries;
mod environment;
mod exact;
mod exec;
mod globals;
mod growth;
mod heap;
mod hugetlb;
mod in_place;
mod main_stack;
mod migration;
#[cfg(test)]
mod model;
mod multi_mapping;
mod numa_policy;
mod patch;
mod pin_detection;
mod placement;
mod raw;
mod remap;
mod shared_memory;
mod small;
mod spans;
mod start;
mod state;
mod table;
mod write_protection;

/// The loader's constructor and destructor arrays. A test binary does not run them.
mod hooks {
    #![allow(unsafe_code, reason = "places the functions where the loader looks for them")]

    use core::ffi::{c_char, c_int};

    fieldstone_preload::abort_on_panic!();

    #[used]
    #[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
    static START: unsafe extern "C" fn(c_int, *const *const c_char, *mut *mut c_char) = crate::start::start;

    #[used]
    #[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
    static FINISH: extern "C" fn() = crate::start::finish;
}
