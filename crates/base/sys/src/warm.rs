//! Warming memory up: a virtual machine's memory may not be there until it is touched.
//!
//! A hypervisor backs a guest's memory at its first touch, and takes back what the guest has freed (free page
//! reporting, ballooning), whole huge pages first. A first touch then costs several microseconds a page that the
//! program under measurement did not ask for, on one side of a comparison more than on the other. Memory that was
//! touched a moment ago is still backed, and the kernel gives it first; it is touched as huge pages, since those are
//! what was taken back.

#![allow(unsafe_code, reason = "maps memory of its own, touches it and unmaps it")]

use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::machine::machine;

/// Touches as much memory as will be needed, and frees it: the next to ask for memory gets backed pages.
///
/// At most three quarters of what is available. Costs a quarter of a second for each 2 GiB that is backed already, and
/// seconds where it is not. Where there is no memory for it, what follows meets cold memory, as it would have.
pub fn warm(bytes: u64) {
    let most = machine().memory_available_bytes / 4 * 3;
    let Ok(bytes) = usize::try_from(bytes.min(most)) else { return };
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: no address is named, so nothing that exists is touched.
    let Ok(start) = (unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }) else { return };
    // SAFETY: the mapping is this call's own and nobody refers into it. Advice that the kernel does not know leaves small
    // pages; each page that is touched lies inside; it is unmapped once.
    unsafe {
        let _ = madvise(start, bytes, Advice::LinuxHugepage);
        let _ = madvise(start, bytes, Advice::LinuxPopulateWrite);
        let _ = munmap(start, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::warm;

    #[test]
    fn memory_is_touched_and_given_back() {
        // The largest resident size so far is the kernel's own word that the pages were there.
        let peak = || std::fs::read_to_string("/proc/self/status").unwrap();
        let kib = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        warm(512 << 20);
        let status = peak();
        assert!(kib(&status, "VmHWM:") >= 512 << 10, "touched");
        assert!(kib(&status, "VmRSS:") < 512 << 10, "and given back");
    }
}
