//! Exact placement: for programs that observe memory which is mapped or resident ahead of its use.
//!
//! - mlockall(2) counts all mapped memory against `RLIMIT_MEMLOCK`, and makes it resident.
//! - A userfaultfd of the program handles faults on missing pages. A neighbour's huge page would
//!   make them present.
//!
//! From the first such call on, nothing is mapped or touched ahead: slack and the unused reserve
//! are unmapped, and each request maps its own pages. With a userfaultfd they are small pages.
//!
//! Memory that was mapped earlier may be resident because of a neighbour's huge page, or because of
//! `--prefault`. When the program registers it for missing pages, its pages that read as zeroes are
//! discarded. Limit: pages that the program itself filled with zeroes are discarded too.

#![allow(unsafe_code, reason = "makes the program's own calls, and reads its memory")]

use linux_raw_sys::general as uapi;
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER};

use fieldstone_wire::PageKind;

use crate::placement::{self, granules, pages_in};
use crate::raw::{self, RawResult};
use crate::state::{TABLE, address_of, base, is_exact, is_prefault, kind, set_exact, set_kind};
use crate::table::{GRANULE, GranuleState, PAGE};
use crate::{heap, small};

/// `UFFDIO_REGISTER_MODE_MISSING`; the generated headers lack shifted constants.
const MISSING: usize = 1;

/// Makes placement exact.
pub(crate) fn enable() {
    if is_exact() {
        return;
    }
    set_exact();
    placement::drop_reserve(GranuleState::Reserved);
    placement::drop_reserve(GranuleState::ReservedHuge);
    small::drop_slack();
    heap::drop_slack();
}

/// `mlockall(2)`.
pub(crate) fn mlockall(flags: usize) -> RawResult {
    enable();
    // SAFETY: the program makes this call with these flags itself.
    unsafe { raw::syscall(libc::SYS_mlockall, [flags, 0, 0, 0, 0, 0]) }
}

/// `ioctl(2)`.
pub(crate) fn ioctl(fd: usize, request: usize, argument: usize) -> RawResult {
    match u32::try_from(request) {
        // A program makes this request first on a new userfaultfd.
        Ok(UFFDIO_API) if kind() != PageKind::Small4k || is_prefault() && !is_exact() => enable_with_small_pages(),
        Ok(UFFDIO_REGISTER) => discard_zero_pages(argument),
        _ => {}
    }
    // SAFETY: the program makes this call with these arguments itself.
    unsafe { raw::syscall(libc::SYS_ioctl, [fd, request, argument, 0, 0, 0]) }
}

/// Makes placement exact and uses small pages. Not needed with 4 KiB pages: a neighbour makes no
/// page present.
fn enable_with_small_pages() {
    enable();
    small::mark_used();
    set_kind(PageKind::Small4k);
    // SAFETY: the advice changes no contents. The kernel skips unmapped addresses.
    unsafe { raw::madvise(base(), TABLE.high() * GRANULE, libc::MADV_NOHUGEPAGE) };
}

/// Discards zero pages in memory that is about to be registered for missing pages.
fn discard_zero_pages(argument: usize) {
    let mut words = [0_u64; size_of::<uapi::uffdio_register>() / 8];
    let is_complete = read_program_memory(argument, &mut words);
    let [start, bytes, mode, _] = words.map(|word| word as usize);
    if !is_complete || mode & MISSING == 0 {
        return;
    }
    for granule in granules(start, bytes) {
        let (first, count) = pages_in(granule, start, bytes);
        for page in (first..first + count).filter(|&page| small::is_marked(granule, page)) {
            let address = address_of(granule) + page * PAGE;
            if is_zero(address) {
                // SAFETY: the page reads as zeroes before and after the call.
                unsafe { raw::madvise(address, PAGE, libc::MADV_DONTNEED) };
            }
        }
    }
}

/// Whether a page reads as zeroes; false if it is not readable.
fn is_zero(address: usize) -> bool {
    let mut page = [0_u64; PAGE / 8];
    read_program_memory(address, &mut page) && page.iter().all(|&word| word == 0)
}

/// Copies memory of the program that may be unmapped; false if it cannot be read.
fn read_program_memory(address: usize, to: &mut [u64]) -> bool {
    let bytes = size_of_val(to);
    let into = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: bytes };
    let from = libc::iovec { iov_base: core::ptr::with_exposed_provenance_mut(address), iov_len: bytes };
    let arguments = [raw::getpid() as usize, (&raw const into) as usize, 1, (&raw const from) as usize, 1, 0];
    // SAFETY: the kernel writes at most `bytes` bytes, the size of `to`.
    unsafe { raw::syscall(libc::SYS_process_vm_readv, arguments) == bytes.cast_signed() }
}
