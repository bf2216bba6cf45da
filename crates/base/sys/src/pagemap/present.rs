//! Present ranges: the part of a range that is in memory, and whether huge entries map it. Works
//! for any process that this user may read, because it needs no frame numbers.
//!
//! `PAGEMAP_SCAN` (Linux 6.7) walks the page tables and returns ranges. Older kernels have only the
//! pagemap, which does not distinguish huge entries from small ones.
#![allow(unsafe_code, reason = "PAGEMAP_SCAN has no safe form")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use linux_raw_sys::general as uapi;

use super::walk::{CHUNK_PAGES, PRESENT, SWAPPED, read_entries};
use crate::userfault::PAGEMAP_SCAN;
use crate::{Error, Result};

/// Ranges per call.
const STRETCHES: usize = 512;

/// Adjacent pages in memory, mapped by entries of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentRange {
    /// The addresses.
    pub range: Range<u64>,
    /// Whether one entry maps each 2 MiB of it. Always false before Linux 6.7, which does not
    /// report it.
    pub huge: bool,
}

/// The ranges of a process's memory that are present, lowest address first. The kernel's zero page,
/// which is mapped after a read, is excluded if the kernel reports it (6.7).
///
/// # Errors
/// [`Error::NoSuchProcess`] when it has ended, [`Error::ProcessDenied`] for another user's process.
pub fn present_ranges(pid: u32, range: Range<u64>) -> Result<Vec<PresentRange>> {
    let path = PathBuf::from(format!("/proc/{pid}/pagemap"));
    let map = File::open(&path).map_err(|source| Error::process_file(pid, "open", &path, source))?;
    let found = match scan(&map, range.clone(), uapi::PAGE_IS_PRESENT) {
        Err(old) if old.raw_os_error() == Some(libc::ENOTTY) => table(&map, &range, PRESENT),
        scanned => scanned,
    };
    found.map_err(|source| Error::process_file(pid, "read", &path, source))
}

/// The ranges of this process's memory with contents: in memory or in swap space, lowest address first.
///
/// # Errors
/// If the pagemap cannot be read.
pub fn populated_ranges(range: Range<u64>) -> Result<Vec<Range<u64>>> {
    let (pid, path) = (std::process::id(), PathBuf::from("/proc/self/pagemap"));
    let map = File::open(&path).map_err(|source| Error::process_file(pid, "open", &path, source))?;
    let found = match scan(&map, range.clone(), uapi::PAGE_IS_PRESENT | uapi::PAGE_IS_SWAPPED) {
        Err(old) if old.raw_os_error() == Some(libc::ENOTTY) => table(&map, &range, PRESENT | SWAPPED),
        scanned => scanned,
    };
    let found = found.map_err(|source| Error::process_file(pid, "read", &path, source))?;
    Ok(found.into_iter().map(|found| found.range).collect())
}

/// The ranges whose pages are of one of the kinds, without the zero page.
fn scan(map: &File, range: Range<u64>, kinds: u32) -> io::Result<Vec<PresentRange>> {
    let zero = u64::from(uapi::PAGE_IS_PFNZERO);
    let mut stretches = vec![uapi::page_region { start: 0, end: 0, categories: 0 }; STRETCHES];
    let mut found = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let mut scan = uapi::pm_scan_arg {
            size: size_of::<uapi::pm_scan_arg>() as u64,
            flags: 0,
            start: at,
            end: range.end,
            walk_end: 0,
            vec: stretches.as_mut_ptr().expose_provenance() as u64,
            vec_len: STRETCHES as u64,
            max_pages: 0,
            category_inverted: zero,
            category_mask: zero,
            category_anyof_mask: kinds.into(),
            return_mask: u64::from(uapi::PAGE_IS_HUGE),
        };
        // SAFETY: `scan` is the request's own structure, a live local; the kernel writes at most
        // `STRETCHES` ranges, the length of the borrowed list.
        let result = unsafe { libc::ioctl(map.as_raw_fd(), PAGEMAP_SCAN.into(), &raw mut scan) };
        let count = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
        let spans = stretches[..count].iter();
        found.extend(spans.map(|span| PresentRange { range: span.start..span.end, huge: span.categories != 0 }));
        if scan.walk_end <= at {
            break; // the process has just ended
        }
        at = scan.walk_end;
    }
    Ok(found)
}

/// As [`scan`], for entries with one of the bits.
fn table(map: &File, range: &Range<u64>, bits: u64) -> io::Result<Vec<PresentRange>> {
    let page_bytes = rustix::param::page_size() as u64;
    let mut found: Vec<PresentRange> = Vec::new();
    let (mut page, end) = (range.start / page_bytes, range.end.div_ceil(page_bytes));
    let mut entries = Vec::new();
    while page < end {
        entries.resize(usize::try_from(CHUNK_PAGES.min(end - page)).unwrap_or(0), 0);
        let got = read_entries(map, page, &mut entries)?;
        if got == 0 {
            break; // past the end of the address space, or the process has just ended
        }
        for (page, _) in (page..).zip(&entries[..got]).filter(|(_, entry)| **entry & bits != 0) {
            let address = page * page_bytes;
            match found.last_mut() {
                Some(span) if span.range.end == address => span.range.end += page_bytes,
                _ => found.push(PresentRange { range: address..address + page_bytes, huge: false }),
            }
        }
        page += got as u64;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scan_and_table_find_the_written_pages() {
        let page = rustix::param::page_size();
        let mut memory = vec![0_u8; 64 * page];
        let start = (memory.as_ptr().addr()).next_multiple_of(page);
        let skip = start - memory.as_ptr().addr();
        for touched in [3, 4, 5, 9] {
            memory[skip + touched * page] = 1;
        }
        let at = |index: usize| (start + index * page) as u64;
        let map = File::open("/proc/self/pagemap").unwrap();
        // The first and last page may also hold a neighbour's memory.
        let inner = at(1)..at(60);
        let expected = [at(3)..at(6), at(9)..at(10)];
        let ranges = |spans: Vec<PresentRange>| spans.into_iter().map(|span| span.range).collect::<Vec<_>>();
        assert_eq!(ranges(table(&map, &inner, PRESENT).unwrap()), expected);
        match scan(&map, inner.clone(), uapi::PAGE_IS_PRESENT) {
            Err(old) if old.raw_os_error() == Some(libc::ENOTTY) => println!("SKIP this kernel has no PAGEMAP_SCAN"),
            scanned => assert_eq!(ranges(scanned.unwrap()), expected),
        }
        assert_eq!(ranges(present_ranges(std::process::id(), inner.clone()).unwrap()), expected);
        assert_eq!(populated_ranges(inner).unwrap(), expected);
        assert!(matches!(present_ranges(0x7fff_fff0, 0..4096), Err(Error::NoSuchProcess { .. })));
        drop(memory);
    }
}
