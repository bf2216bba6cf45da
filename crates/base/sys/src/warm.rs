//! Touches memory in advance. The kernel then drops cached files for it, and a virtual machine's
//! host backs it.
//!
//! A hypervisor backs a guest's memory at the first access, and reclaims what the guest has freed
//! (free page reporting, ballooning), whole huge pages first. A first access then costs several
//! microseconds per page, unequally for the two sides of a comparison. Recently touched memory is
//! still backed, and the kernel allocates it first. It is touched as huge pages, the unit of
//! reclaim.

#![allow(unsafe_code, reason = "maps memory of its own, touches it and unmaps it")]

use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::cgroup::cgroup_memory;
use crate::machine::machine;

/// Touches and frees `bytes` bytes, at most three quarters of the available memory and of what the
/// control group still permits, so that the next allocations find free memory that has backing.
///
/// Cost: 0.25 s per 2 GiB that is backed, seconds per 2 GiB that is not. Without enough memory it
/// does nothing.
pub fn warm(bytes: u64) {
    let permitted = cgroup_memory().and_then(|group| Some(group.limit_bytes?.saturating_sub(group.usage_bytes?)));
    let most = machine().memory_available_bytes.min(permitted.unwrap_or(u64::MAX)) / 4 * 3;
    let Ok(bytes) = usize::try_from(bytes.min(most)) else { return };
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: without a requested address mmap replaces no mapping.
    let Ok(start) = (unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }) else { return };
    // SAFETY: this call owns the mapping, and no reference to it exists. An unknown advice fails
    // without effect; the mapping is unmapped once.
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
    fn memory_is_touched_and_freed() {
        // The peak resident size proves that the pages were present.
        let read_status = || std::fs::read_to_string("/proc/self/status").unwrap();
        let kib = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        warm(512 << 20);
        let status = read_status();
        assert!(kib(&status, "VmHWM:") >= 512 << 10, "touched");
        assert!(kib(&status, "VmRSS:") < 512 << 10, "freed");
    }
}
