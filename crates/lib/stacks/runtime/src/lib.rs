//! libfieldstone_stacks.a: `fieldstone-stacks` for programs not written in Rust. Provides what a
//! library without std needs: memory for the pool's tables, and a panic handler.
//!
//! The tables may be allocated in a signal handler that interrupted libc's malloc. So their memory
//! comes from mmap directly.
//!
//! | module | content |
//! |---|---|
//! | `abi` | the symbols of gcc's run-time library, and Fieldstone's own |
//! | `contexts` | the nine functions `__splitstack_…` for separate stacks |
//! | `freestanding` | memory for tables, and the panic handler |

#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#![no_std]

// In its shipped form the library aborts on a panic and needs only libc. In other profiles std
// provides the handler.
#[cfg(any(test, not(panic = "abort")))]
extern crate std;

mod abi;
mod contexts;

#[cfg(all(panic = "abort", not(test)))]
mod freestanding {
    #![allow(unsafe_code, reason = "implements an allocator")]

    use core::alloc::{GlobalAlloc, Layout};
    use core::arch::global_asm;
    use core::ptr::null_mut;

    /// Maps whole pages for each table: tables are few and large.
    struct PageAllocator;

    #[global_allocator]
    static ALLOCATOR: PageAllocator = PageAllocator;

    // SAFETY: each mapping is new, zeroed, aligned to a page, and unmapped when it is freed.
    unsafe impl GlobalAlloc for PageAllocator {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: the kernel chooses the address, so no existing mapping changes.
            let mapped = unsafe { libc::mmap(null_mut(), layout.size(), protection, flags, -1, 0) };
            if mapped == libc::MAP_FAILED { null_mut() } else { mapped.cast() }
        }

        unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
            // SAFETY: by contract it came from `alloc` with this layout.
            unsafe { libc::munmap(memory.cast(), layout.size()) };
        }

        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            // SAFETY: the contract of `alloc` is the same; fresh pages are zero.
            unsafe { self.alloc(layout) }
        }
    }

    // Rust's libraries refer to a personality. Panics never unwind, and foreign unwinding (at a
    // thread's end) continues.
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

    /// Aborts. Only a bug of this library can panic.
    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        // SAFETY: the call ends the process.
        unsafe { libc::abort() }
    }
}
