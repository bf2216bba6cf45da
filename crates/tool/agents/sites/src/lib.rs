//! The site recorder: tells which code of a traced program allocated what.
//!
//! Loaded into the program by `LD_PRELOAD`, it stands before the malloc family and mmap, calls the functions that would have been
//! called without it, and announces each block with the stack of its caller: see `fieldstone_wire::sites` for the record
//! and the mailbox. The program gets the same blocks at the same addresses in the same order.
//!
//! ```text
//! program -- malloc --> entries --> calls --> real: libc's malloc, or whatever the program was linked to
//!                                     |
//!                                     +--> thread: this thread's letter, and that we are not in here already
//!                                     +--> stack: the site, from the cache, else by unwind and modules
//!                                     +--> the letter's bell
//! ```
//!
//! | file | what |
//! |---|---|
//! | `start`, `environment` | the constructor: takes its variables, opens the record, maps the mailbox |
//! | `entries` | the exported functions: they note where their caller's stack is |
//! | `calls` | what each function means for the record |
//! | `real`, `arena` | the functions behind us, and memory for the time before they are known |
//! | `thread` | a letter for each thread |
//! | `stack`, `unwind`, `modules` | from a stack pointer to a site |
//!
//! What a program maps itself, by a call of mmap, is announced too, as long as it is private and anonymous. What an allocator
//! behind us maps is its own: the blocks in it have sites.
//!
//! In a real run, beside the region's agent, nobody reads the letters. There each site keeps a few places of what it gave out
//! (`fieldstone_wire::sites::SampledAddress`), and the watcher looks on what pages they lie. The region's agent stands behind this one and
//! starts before it, so what libraries allocate in their constructors is not recorded there.
//!
//! What it does not see: blocks of allocators that are linked into the program (but the memory that these map), the calls that
//! glibc makes inside itself without going through a symbol, malloc's mmap among them, and system calls without libc.
//! Operators new and delete of libstdc++ call malloc and free, and are a frame of the stack.
//!
//! Inside another program there is no allocation, no thread-local storage, no lock of ours and no panic. The unwinder is
//! the program's libgcc; what it allocates is passed through. x86-64 only, as the traced programs are.
#![no_std]
#![cfg_attr(not(target_arch = "x86_64"), allow(unused, reason = "there is nothing for other machines yet"))]
#![allow(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "64-bit Linux: an address, a size and a word of the record are one and the same register"
)]

// As it ships, the agent aborts on a panic and needs nothing but libc. In any other profile std brings the handler.
#[cfg(any(test, not(panic = "abort")))]
extern crate std;

#[cfg(target_arch = "x86_64")]
mod arena;
#[cfg(target_arch = "x86_64")]
mod calls;
#[cfg(target_arch = "x86_64")]
mod entries;
mod environment;
#[cfg(target_arch = "x86_64")]
mod modules;
#[cfg(target_arch = "x86_64")]
mod real;
#[cfg(target_arch = "x86_64")]
mod stack;
#[cfg(target_arch = "x86_64")]
mod start;
#[cfg(target_arch = "x86_64")]
mod thread;
#[cfg(target_arch = "x86_64")]
mod unwind;

/// The loader's hook; a test binary does not run it on itself.
mod hooks {
    #![allow(unsafe_code, reason = "places the function where the loader looks for it")]

    /// There is no panic here that a test has not shown; one that happens all the same ends the program at once.
    #[cfg(all(panic = "abort", not(test)))]
    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        // SAFETY: ends the process.
        unsafe { libc::abort() }
    }

    #[cfg(target_arch = "x86_64")]
    #[used]
    #[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
    static START: unsafe extern "C" fn(core::ffi::c_int, *const *const core::ffi::c_char, *mut *mut core::ffi::c_char) =
        crate::start::start;
}
