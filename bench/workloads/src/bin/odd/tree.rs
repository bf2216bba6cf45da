//! A parent with three children, the second of which has most of the memory: which process should a
//! tool report?

#![allow(unsafe_code, reason = "fork, prctl and waitpid")]

use fieldstone_workloads::{
    Error,
    fill::fill,
    random::{SplitMix64, mix},
};
use std::{ffi::CStr, hint::black_box};

const NAMES: [&CStr; 3] = [c"odd-first", c"odd-second", c"odd-third"];
/// Enough updates for an observing tool to see the children.
const UPDATES: usize = 16_000_000;

/// Forks three children, then waits for them.
pub(crate) fn fork_tree(size: usize) -> Result<u64, Error> {
    let sizes = [size / 16, size, size / 16];
    let mut children = Vec::new();
    for (name, size) in NAMES.into_iter().zip(sizes) {
        // SAFETY: this process has one thread, so the child's memory is consistent; it ends by
        // _exit.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: `name` is a C string; _exit ends the child without the parent's
                // destructors.
                unsafe {
                    libc::prctl(libc::PR_SET_NAME, name.as_ptr());
                    libc::_exit(work(size).map_or(2, |is_right| i32::from(!is_right)))
                }
            }
            -1 => return Err(Error::system("fork")),
            child => children.push(child),
        }
    }
    for (child, name) in children.into_iter().zip(NAMES) {
        let mut status = 0;
        // SAFETY: `status` is a local integer that the kernel writes; the child was created above.
        if unsafe { libc::waitpid(child, &raw mut status, 0) } != child || status != 0 {
            return Err(Error::wrong(format!("{} ended with status {status:#x}", name.to_string_lossy())));
        }
    }
    Ok(mix(size as u64))
}

/// Writes at random indices; returns whether all writes are there.
fn work(size: usize) -> Result<bool, Error> {
    let mut words = fill((size / 8).max(1), |_| 0_u64)?;
    let mut random = SplitMix64::new(size as u64);
    let mut written = 0;
    for _ in 0..UPDATES {
        let draw = random.draw();
        let index = random.below(words.len());
        words[index] ^= draw;
        written ^= draw;
    }
    Ok(black_box(&words).iter().fold(0, |xor, word| xor ^ word) == written)
}
