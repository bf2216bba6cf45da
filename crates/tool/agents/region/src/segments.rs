//! `shmat(2)` at an address of the region: a segment of shared memory, with `SHM_REMAP` in the place of private memory.
//!
//! The kernel replaces a part of a hugetlb page no more than it unmaps one, so the range is moved to ordinary pages first.
//! After shmdt(2), which the agent does not see, the addresses are not used again.

#![allow(unsafe_code, reason = "passes the program's own calls on to the kernel")]

use core::mem::MaybeUninit;

use fieldstone_wire::PlacementReason;

use crate::calls::{NO_MEMORY, whole_pages};
use crate::demote::make_ordinary;
use crate::place::adopt;
use crate::raw::{self, Raw};
use crate::spans::KNOWN;
use crate::state::touches;
use crate::table::PAGE;

/// `shmat(2)`.
pub(crate) fn shmat(id: i32, address: usize, flags: i32) -> Raw {
    let start = if flags & libc::SHM_RND != 0 { address / PAGE * PAGE } else { address };
    // Zero where the kernel chooses the address, or refuses the call.
    let bytes = if address == 0 { 0 } else { segment_bytes(id) };
    let in_region = touches(start, bytes);
    if in_region && flags & libc::SHM_REMAP != 0 && !make_ordinary(start, bytes, PlacementReason::DemotedByCall) {
        return NO_MEMORY;
    }
    // SAFETY: the program's own call, on pages that take it.
    let result = unsafe { raw::syscall(libc::SYS_shmat, [id as usize, address, flags as usize, 0, 0, 0]) };
    if in_region && !raw::failed(result) {
        KNOWN.forget(start, bytes);
        adopt(start, bytes);
    }
    result
}

/// The size of a segment in bytes, in whole pages; zero where there is none or this user may not read it.
fn segment_bytes(id: i32) -> usize {
    let mut status = MaybeUninit::<libc::shmid_ds>::zeroed();
    let arguments = [id as usize, libc::IPC_STAT as usize, status.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel fills the record, or leaves the zeroes, which are a valid one.
    let status = unsafe {
        raw::syscall(libc::SYS_shmctl, arguments);
        status.assume_init()
    };
    whole_pages(status.shm_segsz).unwrap_or(0)
}
