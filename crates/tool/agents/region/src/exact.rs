//! Exact placement: for programs that see memory which is mapped, or resident, ahead of its use.
//!
//! - mlockall(2) counts all that is mapped against `RLIMIT_MEMLOCK`, and makes it resident.
//! - A userfaultfd of the program's own serves faults on missing pages. A neighbour's huge page would bring them.
//!
//! From the first such call on nothing is mapped or populated ahead: slack and what is left of the reserve are unmapped, and each
//! request maps its own pages. With a userfaultfd they are small ones.
//!
//! What was given earlier may have become resident with a neighbour's huge page, or by `--prefault`. When the program registers
//! it for missing pages, its pages that read as zeroes are made missing. A page that the program has filled with zeroes
//! cannot be told from them.

#![allow(unsafe_code, reason = "makes the program's own calls, and reads its memory")]

use linux_raw_sys::general as uapi;
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER};

use fieldstone_wire::PageKind;

use crate::place::{self, granules, part};
use crate::raw::{self, Raw};
use crate::state::{TABLE, address_of, base, is_exact, kind, prefault, set_exact, set_kind};
use crate::table::{GRANULE, PAGE, State};
use crate::{heap, small};

/// `UFFDIO_REGISTER_MODE_MISSING`: the generated headers leave shifted constants out.
const MISSING: usize = 1;

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
    match u32::try_from(request) {
        // The first that a program does with a userfaultfd.
        Ok(UFFDIO_API) if kind() != PageKind::Small4k || prefault() && !is_exact() => begin_small(),
        Ok(UFFDIO_REGISTER) => before_register(argument),
        _ => {}
    }
    // SAFETY: the program's own call.
    unsafe { raw::syscall(libc::SYS_ioctl, [fd, request, argument, 0, 0, 0]) }
}

/// Makes placement exact, and on small pages. Not needed on 4 KiB pages, where nothing comes with a neighbour's page.
fn begin_small() {
    begin();
    small::mark_given();
    set_kind(PageKind::Small4k);
    // SAFETY: changes no contents. The kernel passes over addresses where nothing is mapped.
    unsafe { raw::madvise(base(), TABLE.high() * GRANULE, libc::MADV_NOHUGEPAGE) };
}

/// Makes pages missing in memory that is about to be registered for missing ones.
fn before_register(argument: usize) {
    let mut words = [0_u64; size_of::<uapi::uffdio_register>() / 8];
    let whole = copy(argument, &mut words);
    let [start, bytes, mode, _] = words.map(|word| word as usize);
    if !whole || mode & MISSING == 0 {
        return;
    }
    for granule in granules(start, bytes) {
        let (first, count) = part(granule, start, bytes);
        for page in (first..first + count).filter(|&page| small::is_marked(granule, page)) {
            let address = address_of(granule) + page * PAGE;
            if is_zero(address) {
                // SAFETY: the page reads as zeroes, and does so after this.
                unsafe { raw::madvise(address, PAGE, libc::MADV_DONTNEED) };
            }
        }
    }
}

/// Whether a page reads as zeroes; false where it is not readable.
fn is_zero(address: usize) -> bool {
    let mut page = [0_u64; PAGE / 8];
    copy(address, &mut page) && page.iter().all(|&word| word == 0)
}

/// Copies memory of the program's that may not be there; false where it is not.
fn copy(address: usize, to: &mut [u64]) -> bool {
    let bytes = size_of_val(to);
    let into = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: bytes };
    let from = libc::iovec { iov_base: core::ptr::with_exposed_provenance_mut(address), iov_len: bytes };
    let arguments = [raw::getpid() as usize, (&raw const into) as usize, 1, (&raw const from) as usize, 1, 0];
    // SAFETY: the kernel writes into `to` at most as many bytes as it has.
    unsafe { raw::syscall(libc::SYS_process_vm_readv, arguments) == bytes.cast_signed() }
}
