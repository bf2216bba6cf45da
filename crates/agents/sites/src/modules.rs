//! Which file each frame lies in, from the loader's list. Asked for new sites only.

#![allow(unsafe_code, reason = "reads what the loader lends")]

use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;

use fieldstone_wire::sites::{FRAMES, NO_MODULE};

use crate::start;

/// The kernel's longest path.
const PATH_BYTES: usize = 4096;

struct Search<'a> {
    frames: &'a [u64],
    modules: [u16; FRAMES],
}

/// The number of each frame's module, entered in the record if it is new.
pub(crate) fn of(frames: &[u64]) -> [u16; FRAMES] {
    let mut search = Search { frames, modules: [NO_MODULE; FRAMES] };
    // SAFETY: the callback gets the search that lives here, and only during the call.
    unsafe { libc::dl_iterate_phdr(Some(look_for_frames), (&raw mut search).cast()) };
    search.modules
}

unsafe extern "C" fn look_for_frames(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader's record, lent for the call, and what `of` passed.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    let range = range(info);
    for (module, frame) in search.modules.iter_mut().zip(search.frames) {
        // A frame is the address behind a call, which may be the last instruction of all.
        if range.contains(&(frame - 1)) && *module == NO_MODULE {
            *module = number(info, range.clone());
        }
    }
    GO_ON
}

const GO_ON: c_int = 0;
const STOP: c_int = 1;

fn number(info: &libc::dl_phdr_info, range: Range<u64>) -> u16 {
    let Some(sites) = start::sites() else { return NO_MODULE };
    let mut own = [0u8; PATH_BYTES];
    // SAFETY: null or the loader's C string.
    let name = if info.dlpi_name.is_null() { &[][..] } else { unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes() };
    // The main program has no name in the list.
    let path = if name.is_empty() { executable(&mut own) } else { name };
    sites.intern_module(info.dlpi_addr, range, path)
}

/// The running program's file; empty where it cannot be read.
fn executable(path: &mut [u8; PATH_BYTES]) -> &[u8] {
    // SAFETY: the call writes at most the length that it is told.
    let read = unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), path.as_mut_ptr().cast(), PATH_BYTES) };
    path.get(..read.cast_unsigned()).unwrap_or(&[])
}

/// From the first to past the last of the addresses that the file is mapped at.
fn range(info: &libc::dl_phdr_info) -> Range<u64> {
    // SAFETY: as many headers as the record says.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let start = loaded().map(|header| header.p_vaddr).min().unwrap_or(0);
    let end = loaded().map(|header| header.p_vaddr + header.p_memsz).max().unwrap_or(0);
    info.dlpi_addr.wrapping_add(start)..info.dlpi_addr.wrapping_add(end)
}

/// Where the recorder itself lies.
pub(crate) fn ours() -> Range<u64> {
    let mut range = of as *const () as u64..0;
    // SAFETY: the callback gets the range that lives here, and only during the call.
    unsafe { libc::dl_iterate_phdr(Some(look_for_us), (&raw mut range).cast()) };
    range
}

unsafe extern "C" fn look_for_us(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: the loader's record, lent for the call, and what `ours` passed.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Range<u64>>()) };
    let range = range(info);
    if !range.contains(&found.start) {
        return GO_ON;
    }
    *found = range;
    STOP
}
