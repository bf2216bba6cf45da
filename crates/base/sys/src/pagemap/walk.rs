//! Bulk reads of the two tables.
//!
//! Entries are 8 bytes, native-endian, at index * 8. One read fetches a chunk of pagemap; one read
//! fetches the flags of each sequence of consecutive frames in it.
#![allow(unsafe_code, reason = "the tables are read straight into u64 buffers")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::folios::{FolioCounter, FrameFlags};
use super::runs::RunCollector;
use super::{FolioBytes, FrameStats, Placement};
use crate::{Error, Result};

const FLAGS_PATH: &str = "/proc/kpageflags";

pub(super) const PRESENT: u64 = 1 << 63;
pub(super) const SWAPPED: u64 = 1 << 62;
const FRAME: u64 = (1 << 55) - 1;

/// Pages per read of pagemap: 512 KiB of entries, 256 MiB of memory.
pub(super) const CHUNK_PAGES: u64 = 1 << 16;

pub(super) fn read(pid: u32, ranges: &[Range<u64>]) -> Result<Placement> {
    let path = path(pid);
    let map = File::open(&path).map_err(|source| Error::process_file(pid, "open", &path, source))?;
    let Some(flags) = Flags::open()? else { return Ok(Placement::Hidden) };
    let mut walk = PagemapWalk {
        flags,
        page_bytes: rustix::param::page_size() as u64,
        swapped_pages: 0,
        present_pages: 0,
        hidden: false,
        folios: FolioCounter::default(),
        runs: RunCollector::default(),
    };
    let mut entries = Vec::new();
    for range in ranges {
        let mut page = range.start / walk.page_bytes;
        let end = range.end.div_ceil(walk.page_bytes);
        while page < end && !walk.hidden {
            entries.resize(usize::try_from(CHUNK_PAGES.min(end - page)).unwrap_or(0), 0);
            let got = read_entries(&map, page, &mut entries)
                .map_err(|source| Error::process_file(pid, "read", &path, source))?;
            if got == 0 {
                break; // past the end of the address space, or the process has just ended
            }
            walk.chunk(page, &entries[..got]).map_err(|source| Error::file("read", FLAGS_PATH, source))?;
            page += got as u64;
        }
    }
    Ok(walk.finish())
}

pub(super) fn folios_at(pid: u32, addresses: &[u64]) -> Result<Option<Vec<Option<FolioBytes>>>> {
    let path = path(pid);
    let map = File::open(&path).map_err(|source| Error::process_file(pid, "open", &path, source))?;
    let Some(mut flags) = Flags::open()? else { return Ok(None) };
    let page_bytes = rustix::param::page_size() as u64;
    let mut found = Vec::with_capacity(addresses.len());
    for address in addresses {
        let mut entry = [0];
        read_entries(&map, address / page_bytes, &mut entry)
            .map_err(|source| Error::process_file(pid, "read", &path, source))?;
        let frame = entry[0] & FRAME;
        if entry[0] & PRESENT == 0 {
            found.push(None);
        } else if frame == 0 {
            return Ok(None); // hidden, as in `PagemapWalk::chunk`
        } else {
            let mut counter = FolioCounter::default();
            counter.push(&mut flags, frame, 1).map_err(|source| Error::file("read", FLAGS_PATH, source))?;
            found.push(counter.finish(page_bytes).1.first().copied());
        }
    }
    Ok(Some(found))
}

fn path(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/pagemap"))
}

/// The state of one pass.
struct PagemapWalk {
    flags: Flags,
    page_bytes: u64,
    swapped_pages: u64,
    present_pages: u64,
    hidden: bool,
    folios: FolioCounter,
    runs: RunCollector,
}

impl PagemapWalk {
    /// Counts the entries of the pages from `page`.
    fn chunk(&mut self, page: u64, entries: &[u64]) -> io::Result<()> {
        let mut at = 0;
        while at < entries.len() {
            let entry = entries[at];
            if entry & PRESENT == 0 {
                self.swapped_pages += u64::from(entry & SWAPPED != 0);
                at += 1;
                continue;
            }
            let frame = entry & FRAME;
            if frame == 0 {
                // No process ever has frame 0, so a present page with this number is hidden from
                // this user.
                self.hidden = true;
                return Ok(());
            }
            let follows = |(index, entry): &(u64, &u64)| **entry & PRESENT != 0 && **entry & FRAME == frame + index;
            let length = 1 + (1..).zip(&entries[at + 1..]).take_while(follows).count();
            let pages = length as u64;
            self.folios.push(&mut self.flags, frame, pages)?;
            self.runs.push(page + at as u64, frame, pages);
            self.present_pages += pages;
            at += length;
        }
        Ok(())
    }

    fn finish(self) -> Placement {
        if self.hidden {
            return Placement::Hidden;
        }
        let (zero_bytes, folios) = self.folios.finish(self.page_bytes);
        Placement::Exact(FrameStats {
            present_bytes: self.present_pages * self.page_bytes,
            swapped_bytes: self.swapped_pages * self.page_bytes,
            zero_bytes,
            folios,
            runs: self.runs.finish(self.page_bytes),
        })
    }
}

/// The kernel's table of frame flags.
struct Flags(File);

impl Flags {
    /// `None` if this user may not read it.
    fn open() -> Result<Option<Self>> {
        match File::open(FLAGS_PATH) {
            Ok(file) => Ok(Some(Self(file))),
            Err(refused) if matches!(refused.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => Ok(None),
            Err(source) => Err(Error::file("open", FLAGS_PATH, source)),
        }
    }
}

impl FrameFlags for Flags {
    fn read(&mut self, frame: u64, flags: &mut [u64]) -> io::Result<()> {
        let mut done = 0;
        while done < flags.len() {
            let got = read_entries(&self.0, frame + done as u64, &mut flags[done..])?;
            if got == 0 {
                flags[done..].fill(0);
                break;
            }
            done += got;
        }
        Ok(())
    }
}

/// Reads as many whole entries as the kernel returns from `index` on; returns their number.
pub(super) fn read_entries(file: &File, index: u64, entries: &mut [u64]) -> io::Result<usize> {
    // SAFETY: the bytes are those of a live, exclusively borrowed slice, and any bytes are a valid
    // u64.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), std::mem::size_of_val::<[u64]>(entries))
    };
    loop {
        match file.read_at(bytes, index.saturating_mul(8)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            got => return Ok(got? / 8),
        }
    }
}
