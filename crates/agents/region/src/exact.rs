//! Exact placement: for programs that see memory which is mapped, or comes into memory, ahead of its use.
//!
//! - mlockall(2) counts all that is mapped against `RLIMIT_MEMLOCK`, and makes it resident.
//! - A userfaultfd of the program's own serves faults on pages that are missing. A neighbour's huge page would bring them.
//!
//! From the first such call on nothing is mapped ahead: slack and what is left of the reserve are unmapped, each request
//! maps its own pages, those that share a granule lie on small ones, and nothing is touched ahead. Requests of whole granules keep
//! their huge pages.

#![allow(unsafe_code, reason = "makes the program's own calls")]

use crate::raw::{self, Raw};
use crate::state::{is_exact, set_exact};
use crate::table::State;
use crate::{heap, place, small};

/// `_IOWR(0xaa, 0x3f, struct uffdio_api)`: the first that a program does with a userfaultfd.
const UFFDIO_API: usize = 0xc018_aa3f;

/// Makes placement exact.
pub(crate) fn begin() {
    if is_exact() {
        return;
    }
    set_exact();
    place::drop_reserve(State::Reserved);
    place::drop_reserve(State::ReservedHuge);
    small::drop_slack();
    heap::drop_slack();
}

/// `mlockall(2)`.
pub(crate) fn mlockall(flags: usize) -> Raw {
    begin();
    // SAFETY: the program's own call.
    unsafe { raw::syscall(libc::SYS_mlockall, [flags, 0, 0, 0, 0, 0]) }
}

/// `ioctl(2)`.
pub(crate) fn ioctl(fd: usize, request: usize, argument: usize) -> Raw {
    if request == UFFDIO_API {
        begin();
    }
    // SAFETY: the program's own call.
    unsafe { raw::syscall(libc::SYS_ioctl, [fd, request, argument, 0, 0, 0]) }
}
