//! The paging agent: bounds the resident memory of an unmodified program.
//!
//! The loader loads it by `LD_PRELOAD`; the `fieldstone` command starts the program and reads the
//! counters.
//!
//! ```text
//! constructor ─→ a thread with a descriptor table of its own
//!                   └─ watch: resident memory near the bound?  no: sleep
//!                                                             yes: maps ─→ Pager::adopt, then Pager::serve
//!                                                                  └─ a second thread: Pager::evict_ahead
//! ```
//! | file | purpose |
//! |---|---|
//! | `start` | the constructor: session, thread, fork |
//! | `thread` | threads without a libc |
//! | `threads` | the threads of the program |
//! | `watch` | decides when paging starts (at three quarters of the bound); adopts memory and serves its faults |
//! | `advice` | advice that the kernel does not report |
//! | `loss` | the message about a page that its store does not return |
//! | `maps` | the memory of the program, from `/proc/self` |
//! | `share` | the part of the bound that this process may use |
//! | `sites` | the instructions that wait for pages |
//! | `raw` | system calls |
//!
//! Invariants: below three quarters of the bound, the program's memory is not touched and its calls
//! cost what they cost without the agent. The threads use no allocator, no lock, no thread-local
//! storage and no descriptor of the program. x86-64 only.
#![cfg(target_arch = "x86_64")]
#![no_std]
#![allow(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "64-bit Linux: an address, a size and a word of the record are one and the same register"
)]

// The shipped agent aborts on a panic and needs only libc. In other profiles std provides the panic
// handler.
#[cfg(any(test, not(panic = "abort")))]
extern crate std;

mod advice;
mod loss;
mod maps;
mod raw;
mod share;
mod sites;
mod start;
mod thread;
mod threads;
mod watch;

/// The loader's array of constructors. A test binary does not run them.
mod hooks {
    #![allow(unsafe_code, reason = "places a function where the loader looks for it")]

    fieldstone_preload::abort_on_panic!();

    #[used]
    #[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
    static START: unsafe extern "C" fn() = crate::start::construct;
}
