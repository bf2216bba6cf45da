//! Closes standard streams in the program that were closed when this command started.
//!
//! Rust's runtime opens `/dev/null` for a closed standard stream before `main`. A program that
//! inherits it could write without the error that it gets natively. A constructor, which runs
//! before the runtime, therefore records the closed streams, and the child closes them before exec.
#![allow(unsafe_code, reason = "a constructor, and calls between fork and exec")]

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether the streams 0 to 2 were closed when this command started.
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

#[used]
// SAFETY: the loader calls each entry of this section once, as a C function, before `main`.
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = record_closed;

extern "C" fn record_closed() {
    for (stream, closed) in (0..).zip(&CLOSED) {
        // SAFETY: F_GETFD reads the flags of a descriptor, and fails without effect if it is
        // closed.
        closed.store(unsafe { libc::fcntl(stream, libc::F_GETFD) } < 0, Relaxed);
    }
}

/// Closes the streams that were closed at the start. Async-signal-safe.
pub(crate) fn close_initially_closed() {
    for (stream, _) in (0..).zip(&CLOSED).filter(|(_, closed)| closed.load(Relaxed)) {
        // SAFETY: the descriptor is `/dev/null`, opened by the runtime. The child uses no standard
        // stream between this call and exec.
        unsafe { libc::close(stream) };
    }
}
