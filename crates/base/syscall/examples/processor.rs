//! Prints the processor that runs this program, by getcpu(2).

#![allow(unsafe_code, reason = "makes a system call")]

use fieldstone_syscall::{failed, syscall};

const GETCPU: i64 = if cfg!(target_arch = "x86_64") { 309 } else { 168 };

fn main() {
    let mut processor = 0_u32;
    let into = (&raw mut processor).expose_provenance();
    // SAFETY: the kernel writes one 32-bit number to a live variable; the other pointers are null.
    let result = unsafe { syscall(GETCPU, [into, 0, 0, 0, 0, 0]) };
    if failed(result) {
        println!("cannot read the processor: errno {}", -result);
    } else {
        println!("processor {processor}");
    }
}
