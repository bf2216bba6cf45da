//! Exact placement: for programs that see memory which is mapped, or resident, ahead of its use.
//!
//! - mlockall(2) counts all that is mapped against `RLIMIT_MEMLOCK`, and makes it resident.
//! - A userfaultfd of the program's own serves faults on missing pages. A neighbour's huge page would bring them.
//!
//! From the first such call on nothing is mapped or populated ahead: slack and what is left of the reserve are unmapped, and each
//! request maps its own pages. With a userfaultfd they are small ones.
//!
//! Memory that the program mapped earlier may have become resident with a huge page. When the program registers it for
//! missing pages, those that read as zeroes in a huge page are made missing. A page that the program has filled with zeroes
//! cannot be told from them.

#![allow(unsafe_code, reason = "makes the program's own calls, and reads its memory")]

use linux_raw_sys::general as uapi;
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER};

use fieldstone_wire::PageKind;

use crate::place::{self, granules, part};
use crate::raw::{self, Raw};
use crate::state::{TABLE, address_of, is_exact, set_exact, set_kind};
use crate::table::{PAGE, State};
use crate::{heap, small};

/// `UFFDIO_REGISTER_MODE_MISSING`: the generated headers leave shifted constants out.
const MISSING: usize = 1;
/// `_IOWR('f', 16, struct pm_scan_arg)`, Linux 6.7.
const PAGEMAP_SCAN: usize = 0xc060_6610;

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
        Ok(UFFDIO_API) => {
            begin();
            set_kind(PageKind::Small4k);
        }
        Ok(UFFDIO_REGISTER) => before_register(argument),
        _ => {}
    }
    pass(fd, request, argument)
}

fn pass(fd: usize, request: usize, argument: usize) -> Raw {
    // SAFETY: the program's own call, or one that reads the page tables.
    unsafe { raw::syscall(libc::SYS_ioctl, [fd, request, argument, 0, 0, 0]) }
}

/// Makes pages missing in memory that is about to be registered for missing ones: registering part of a huge page splits
/// it, and then nothing shows that a page came with it.
fn before_register(argument: usize) {
    let mut words = [0_u64; size_of::<uapi::uffdio_register>() / 8];
    let whole = copy(argument, &mut words);
    let [start, bytes, mode, _] = words.map(|word| word as usize);
    if !whole || mode & MISSING == 0 {
        return;
    }
    for granule in granules(start, bytes).filter(|&granule| !TABLE.state(granule).is_hugetlb()) {
        let (first, count) = part(granule, start, bytes);
        let start = address_of(granule) + first * PAGE;
        if is_huge(start) {
            (start..start + count * PAGE).step_by(PAGE).filter(|&page| is_zero(page)).for_each(make_missing);
        }
    }
}

/// Whether a page of the program's is a part of a huge page; false before Linux 6.7.
fn is_huge(address: usize) -> bool {
    let mut found = uapi::page_region { start: 0, end: 0, categories: 0 };
    let mut scan = uapi::pm_scan_arg {
        size: size_of::<uapi::pm_scan_arg>() as u64,
        flags: 0,
        start: address as u64,
        end: (address + PAGE) as u64,
        walk_end: 0,
        vec: (&raw mut found) as u64,
        vec_len: 1,
        max_pages: 0,
        category_inverted: 0,
        category_mask: u64::from(uapi::PAGE_IS_HUGE),
        category_anyof_mask: 0,
        return_mask: u64::from(uapi::PAGE_IS_HUGE),
    };
    // SAFETY: a C string.
    let pagemap = unsafe { raw::open(c"/proc/self/pagemap".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if raw::failed(pagemap) {
        return false;
    }
    let regions = pass(pagemap.cast_unsigned(), PAGEMAP_SCAN, (&raw mut scan) as usize);
    raw::close(pagemap as i32);
    regions == 1
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

fn make_missing(address: usize) {
    // SAFETY: the page reads as zeroes, and does so after this.
    unsafe { raw::madvise(address, PAGE, libc::MADV_DONTNEED) };
}
