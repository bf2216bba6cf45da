//! libfieldstone_stacks.a: `fieldstone-stacks` for programs that are not Rust's. What a library without std has to bring: memory
//! for the pool's tables, and an end for panics.
//!
//! The tables are made when a segment is needed, which may be in a signal handler that came while libc's malloc was at work: so
//! they come from the system directly, a piece after the other, and stay as long as the process.

#![no_std]

// As it ships, the library aborts on a panic and needs nothing but libc. In any other profile std brings the handler.
#[cfg(any(test, not(panic = "abort")))]
extern crate std;

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod abi;
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod contexts;

#[cfg(all(panic = "abort", not(test)))]
mod alone {
    #![allow(unsafe_code, reason = "gives out memory")]

    use core::alloc::{GlobalAlloc, Layout};
    use core::arch::global_asm;
    use core::ptr::null_mut;

    /// Whole pages for each table: they are few and large.
    struct Pages;

    #[global_allocator]
    static PAGES: Pages = Pages;

    // SAFETY: each mapping is new, zeroed, aligned to a page, and unmapped when it is freed.
    unsafe impl GlobalAlloc for Pages {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: the mapping replaces nothing.
            let mapped = unsafe { libc::mmap(null_mut(), layout.size(), protection, flags, -1, 0) };
            if mapped == libc::MAP_FAILED { null_mut() } else { mapped.cast() }
        }

        unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
            // SAFETY: by contract it came from `alloc` with this layout.
            unsafe { libc::munmap(memory.cast(), layout.size()) };
        }

        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            // SAFETY: as `alloc`; fresh pages are zero.
            unsafe { self.alloc(layout) }
        }
    }

    // Rust's own libraries name a personality. No panic is ever unwound, and what else comes through (a thread's end) goes on.
    global_asm!(
        ".pushsection .text.rust_eh_personality, \"ax\", @progbits",
        ".weak rust_eh_personality",
        ".hidden rust_eh_personality",
        ".type rust_eh_personality, @function",
        "rust_eh_personality:",
        "mov eax, 8",
        "ret",
        ".popsection",
    );

    /// There is no panic here that a test has not shown; one that happens all the same ends the program at once.
    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        // SAFETY: ends the process.
        unsafe { libc::abort() }
    }
}
