//! A wrapper with three children, the second of which has the memory: which process of the tree is the one to look at?

#![allow(unsafe_code, reason = "fork, prctl and waitpid")]

use fieldstone_workloads::{
    Error,
    fill::fill,
    random::{SplitMix64, mix},
};
use std::{ffi::CStr, hint::black_box};

const NAMES: [&CStr; 3] = [c"odd-first", c"odd-second", c"odd-third"];
/// As many as whoever looks on has time to see.
const UPDATES: usize = 16_000_000;

/// Forks all three, then waits for all three.
pub(crate) fn fork_tree(size: usize) -> Result<u64, Error> {
    let sizes = [size / 16, size, size / 16];
    let mut children = Vec::new();
    for (name, size) in NAMES.into_iter().zip(sizes) {
        // SAFETY: this process has one thread, so the child is whole; it leaves by _exit.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: `name` is a C string; _exit ends the child without the parent's destructors.
                unsafe {
                    libc::prctl(libc::PR_SET_NAME, name.as_ptr());
                    libc::_exit(work(size).map_or(2, |right| i32::from(!right)))
                }
            }
            -1 => return Err(Error::system("fork")),
            child => children.push(child),
        }
    }
    for (child, name) in children.into_iter().zip(NAMES) {
        let mut status = 0;
        // SAFETY: `status` is a place for the result; the child is our own.
        if unsafe { libc::waitpid(child, &raw mut status, 0) } != child || status != 0 {
            return Err(Error::wrong(format!("{} ended with status {status:#x}", name.to_string_lossy())));
        }
    }
    Ok(mix(size as u64))
}

/// Writes at random for a while; whether all writes are there.
fn work(size: usize) -> Result<bool, Error> {
    let mut words = fill((size / 8).max(1), |_| 0_u64)?;
    let mut random = SplitMix64::new(size as u64);
    let mut written = 0;
    for _ in 0..UPDATES {
        let draw = random.draw();
        let place = random.below(words.len());
        words[place] ^= draw;
        written ^= draw;
    }
    Ok(black_box(&words).iter().fold(0, |xor, word| xor ^ word) == written)
}
