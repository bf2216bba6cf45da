//! The site recorder: records which code of a traced program allocates which memory.
//!
//! The loader loads it by `LD_PRELOAD`. It interposes the malloc family and mmap, calls the next
//! functions of these names, and announces each block with the stack of its caller
//! (`fieldstone_wire::sites` defines record and mailbox). The program gets the same blocks at the
//! same addresses in the same order.
//!
//! ```text
//! program -- malloc --> entries --> calls --> allocator: malloc of libc, or of another library
//!                                     |
//!                                     +--> thread: the mailbox of this thread; refuses a nested entry
//!                                     +--> stack: the site, from the cache, else by unwind and modules
//!                                     +--> the doorbell of the mailbox
//! ```
//!
//! | file | purpose |
//! |---|---|
//! | `start`, `environment` | the constructor: takes its variables, opens the record, maps the mailboxes |
//! | `entries` | the exported functions: pass the stack pointer of the caller |
//! | `calls` | what each function records |
//! | `allocator` | the interposed functions |
//! | `thread` | a mailbox for each thread |
//! | `stack`, `unwind`, `modules` | from a stack pointer to a site |
//!
//! Memory that the program maps itself by mmap is announced if it is private and anonymous. Memory
//! that an interposed allocator maps is not: the blocks in it have sites.
//!
//! In a measured run, beside the region agent, no tracer reads the mailboxes. There each site
//! samples the addresses of some blocks (`fieldstone_wire::sites::SampledAddress`), and the supervisor reads
//! on which pages they are. The region agent is loaded after this library but starts first, so
//! allocations in constructors of libraries are not recorded there.
//!
//! Limits: not recorded are blocks of allocators linked into the program (only the memory that
//! these map), calls inside glibc that bypass symbols (malloc's mmap among them), and system calls
//! without libc. Operators new and delete of libstdc++ call malloc and free, and are frames of the
//! stack. x86-64 only, as traced programs are.
//!
//! Invariants: the recorder runs inside another program. It uses no allocator, no thread-local
//! storage, no lock and no panic. The unwinder is the program's libgcc; its allocations are passed
//! through.
#![cfg(target_arch = "x86_64")]
#![no_std]
#![allow(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "64-bit Linux: an address, a size and a word of the record are one and the same register"
)]

// The shipped recorder aborts on a panic and needs only libc. In other profiles std provides the
// panic handler.
#[cfg(any(test, not(panic = "abort")))]
extern crate std;

mod allocator;
mod calls;
mod entries;
mod environment;
mod modules;
mod stack;
mod start;
mod thread;
mod unwind;

/// The loader's constructor array. A test binary does not run it.
mod hooks {
    #![allow(unsafe_code, reason = "places the function where the loader looks for it")]

    fieldstone_preload::abort_on_panic!();

    #[used]
    #[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
    static START: unsafe extern "C" fn(core::ffi::c_int, *const *const core::ffi::c_char, *mut *mut core::ffi::c_char) =
        crate::start::start;
}
