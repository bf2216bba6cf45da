//! Keep a standard stream closed in the program that was closed when this command started.
//!
//! Rust's runtime opens `/dev/null` in place of a closed standard stream before `main`. A program would inherit that, and write
//! without an error where it fails natively. So a constructor, which runs before the runtime, notes what is closed; the child
//! closes it again before exec.
#![allow(unsafe_code, reason = "a constructor, and calls between fork and exec")]

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether the streams 0 to 2 were closed when this command started.
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

#[used]
// SAFETY: the loader calls each entry of this section once, as a C function, before `main`.
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    for (stream, closed) in (0..).zip(&CLOSED) {
        // SAFETY: a bare system call that reads a descriptor's flags.
        closed.store(unsafe { libc::fcntl(stream, libc::F_GETFD) } < 0, Relaxed);
    }
}

/// Closes these streams again. May be called between fork and exec.
pub(crate) fn close_again() {
    for (stream, _) in (0..).zip(&CLOSED).filter(|(_, closed)| closed.load(Relaxed)) {
        // SAFETY: the descriptor is the runtime's stand-in, which nothing uses between here and exec.
        unsafe { libc::close(stream) };
    }
}
