//! `shmat(2)` at an address of the region: shared memory, with `SHM_REMAP` in place of private
//! memory.
//!
//! The kernel does not replace a part of a hugetlb page, so the range is moved to ordinary pages
//! first. The agent does not intercept shmdt(2): the addresses are not used again afterwards.

#![allow(unsafe_code, reason = "passes the program's own calls on to the kernel")]

use core::mem::MaybeUninit;

use fieldstone_wire::PlacementReason;

use crate::calls::{NO_MEMORY, whole_pages};
use crate::migration::make_ordinary;
use crate::placement::record_foreign_mapping;
use crate::raw::{self, RawResult};
use crate::spans::KNOWN_SPANS;
use crate::state::overlaps;
use crate::table::PAGE;

/// `shmat(2)`.
pub(crate) fn shmat(id: i32, address: usize, flags: i32) -> RawResult {
    let start = if flags & libc::SHM_RND != 0 { address / PAGE * PAGE } else { address };
    // Zero if the kernel chooses the address, or refuses the call.
    let bytes = if address == 0 { 0 } else { segment_bytes(id) };
    let in_region = overlaps(start, bytes);
    if in_region && flags & libc::SHM_REMAP != 0 && !make_ordinary(start, bytes, PlacementReason::DemotedByCall) {
        return NO_MEMORY;
    }
    // SAFETY: the program makes this call, and no page of the range is on hugetlb.
    let result = unsafe { raw::syscall(libc::SYS_shmat, [id as usize, address, flags as usize, 0, 0, 0]) };
    if in_region && !raw::failed(result) {
        KNOWN_SPANS.forget(start, bytes);
        record_foreign_mapping(start, bytes);
    }
    result
}

/// The size of a segment in bytes, rounded to whole pages; zero if it does not exist or is not
/// readable.
fn segment_bytes(id: i32) -> usize {
    let mut status = MaybeUninit::<libc::shmid_ds>::zeroed();
    let arguments = [id as usize, libc::IPC_STAT as usize, status.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel writes within the record, and all zeroes are a valid value of it.
    let status = unsafe {
        raw::syscall(libc::SYS_shmctl, arguments);
        status.assume_init()
    };
    whole_pages(status.shm_segsz).unwrap_or(0)
}
