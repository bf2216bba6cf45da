//! `--also globals`: zero-initialised data on the requested pages, in place.
//!
//! ```text
//!  relro |  .data, from the file   |  .bss, anonymous      |
//!      ------|granule|granule|granule|granule|granule|------
//!            |     unchanged         |    advised    |       partial granules are unchanged
//! ```
//!
//! Only whole granules of anonymous memory are advised. Initialised data is a private mapping of
//! the file: a page that the program discards (`MADV_DONTNEED`) is read from the file again, which
//! no anonymous mapping does. Hugetlb pages are never used: the kernel refuses page-grained calls
//! on them.

#![allow(unsafe_code, reason = "reads the linker's records, advises the program's data")]

use core::ffi::{c_int, c_void};
use core::ops::Range;

use fieldstone_wire::span::SpanKind;
use fieldstone_wire::{PageKind, PlacementReason};

use crate::placement::apply_page_kind;
use crate::raw;
use crate::spans::KNOWN_SPANS;
use crate::state::{TABLE, count, kind};
use crate::table::{GRANULE, PAGE};

/// Advises the data segments of all loaded objects except the agent.
pub(crate) fn advise_all() {
    // SAFETY: the callback keeps no reference to the records.
    unsafe { libc::dl_iterate_phdr(Some(visit), core::ptr::null_mut()) };
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, _: *mut c_void) -> c_int {
    // SAFETY: the linker lends the record for this call.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the record gives the address and the number of the program headers.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let address = |header: &libc::Elf64_Phdr| (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
    // The part that is protected after relocation (RELRO) is at the start of its segment.
    let relro = headers.iter().filter(|header| header.p_type == libc::PT_GNU_RELRO);
    let relro_end = relro.map(|header| address(header) + header.p_memsz as usize).max().unwrap_or(0);
    let ours = core::ptr::from_ref(&TABLE).addr();
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0) {
        let start = address(header);
        let (file_end, end) = (start + header.p_filesz as usize, start + header.p_memsz as usize);
        if (start..end).contains(&ours) {
            return 0;
        }
        let start = if (start..end).contains(&relro_end) { relro_end } else { start };
        if header.p_flags & libc::PF_X == 0 {
            advise_segment(start..end, file_end.max(start));
        }
    }
    0
}

/// Advises one writable segment, whose bytes up to `file_end` are mapped from the file.
fn advise_segment(data: Range<usize>, file_end: usize) {
    let (whole, from_file) = parts(&data, file_end);
    let partial = data.len().saturating_sub(whole.len());
    if partial > 0 {
        count(PlacementReason::ShortGlobals, partial);
    }
    // Without a whole granule both ends are one range.
    record(file_end..if whole.is_empty() { data.end } else { from_file }, PlacementReason::ShortGlobals);
    record(whole.end.max(file_end)..data.end, PlacementReason::ShortGlobals);
    if whole.start < from_file {
        count(PlacementReason::FileGlobals, from_file - whole.start);
    }
    if from_file < whole.end {
        let bytes = whole.end - from_file;
        apply_page_kind(from_file, bytes, 0);
        if !matches!(kind(), PageKind::Small4k | PageKind::Folio64k) {
            // Pages that the loader touched keep the range from being huge; before Linux 6.1 it
            // stays small.
            // SAFETY: MADV_COLLAPSE keeps the contents of the pages.
            unsafe { raw::madvise(from_file, bytes, libc::MADV_COLLAPSE) };
        }
        count(PlacementReason::Globals, bytes);
        record(from_file..whole.end, PlacementReason::Globals);
    }
}

/// Records the use of a range of zero-initialised data, for the statistics.
fn record(range: Range<usize>, holding: PlacementReason) {
    if !range.is_empty() {
        KNOWN_SPANS.note(range.start, range.len(), SpanKind::Memory(holding));
    }
}

/// The whole granules of a segment, and the first address without data of the file.
fn parts(data: &Range<usize>, file_end: usize) -> (Range<usize>, usize) {
    let start = data.start.next_multiple_of(GRANULE);
    // The rest of the last page belongs to the segment.
    let end = data.end.next_multiple_of(PAGE) / GRANULE * GRANULE;
    let whole = start..end.max(start);
    let from_file = file_end.next_multiple_of(PAGE).next_multiple_of(GRANULE).clamp(whole.start, whole.end);
    (whole, from_file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_granules_of_a_segment_are_found() {
        let at = |granules: usize, bytes: usize| 0x4000_0000 + granules * GRANULE + bytes;
        assert_eq!(parts(&(at(0, 1)..at(3, 5)), at(1, 7)), (at(1, 0)..at(3, 0), at(2, 0)));
        assert_eq!(parts(&(at(0, 0)..at(2, 0)), at(2, 0)), (at(0, 0)..at(2, 0), at(2, 0)), "no .bss");
        assert_eq!(parts(&(at(0, 9)..at(3, 0)), at(0, 99)).1, at(1, 0), "the file ends before the first");
        let last = at(3, 0) - 1;
        assert_eq!(parts(&(at(1, 0)..last), at(1, 0)), (at(1, 0)..at(3, 0), at(1, 0)), "a partial page counts");
        assert!(parts(&(at(0, 8)..at(1, 800)), at(0, 900)).0.is_empty());
    }
}
