//! The loaded file of an address, with its unwind tables, from the dynamic loader.
//!
//! glibc 2.35 and later have `_dl_find_object`, which takes no lock. With an older loader nothing is
//! found here: stacks are then unwound by frame pointers.

#![allow(unsafe_code, reason = "reads records and tables of the loader")]

use core::ffi::CStr;
use core::ops::Range;

use fieldstone_preload::loader::{self, LinkMap};
use fieldstone_preload::process;

/// A loaded file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadedFile {
    /// Its address range.
    pub(crate) range: Range<usize>,
    /// The address of `.eh_frame_hdr`; 0 if it has none.
    pub(crate) header: usize,
    link_map: *const LinkMap,
}

/// The file that contains an address.
pub(crate) fn at(address: usize) -> Option<LoadedFile> {
    let found = loader::find(address)?;
    Some(LoadedFile { range: found.start..found.end, header: found.eh_frame as usize, link_map: found.link_map })
}

/// The first address of the file that contains an address.
pub(crate) fn start_of(address: usize) -> Option<usize> {
    at(address).map(|file| file.range.start)
}

/// The unwind tables of a file, as they are in memory.
pub(crate) struct UnwindTables {
    pub(crate) header: &'static [u8],
    pub(crate) frames: &'static [u8],
}

/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`, the encoding that linkers use for the address of `.eh_frame`.
const RELATIVE_ENCODING: u8 = 0x1b;
/// Bytes of `.eh_frame_hdr` before its table: four bytes, the address, the number of entries.
const HEADER_BYTES: usize = 12;
/// Bytes of an entry of its table.
const ENTRY_BYTES: usize = 8;

impl LoadedFile {
    /// The unwind tables; `None` if the file has none or in an unusual encoding.
    pub(crate) fn unwind_tables(&self) -> Option<UnwindTables> {
        if self.header == 0 {
            return None;
        }
        // SAFETY: the loader returned this address as the file's `.eh_frame_hdr`, which is at least
        // this long and stays mapped while its file is loaded. The caller is on the file's stack.
        let start =
            unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<u8>(self.header), HEADER_BYTES) };
        let word = |at: usize| Some(u32::from_le_bytes(start.get(at..at + 4)?.try_into().ok()?));
        if start.get(1) != Some(&RELATIVE_ENCODING) {
            return None;
        }
        let frames = (self.header + 4).wrapping_add_signed(word(4)?.cast_signed() as isize);
        let header_end = self.header + HEADER_BYTES + word(8)? as usize * ENTRY_BYTES;
        let segment = self.segments()?.find(|segment| segment.contains(&frames))?;
        if !self.range.contains(&header_end) {
            return None;
        }
        // SAFETY: both ranges are in loaded segments of the file; its tables are never written.
        unsafe {
            Some(UnwindTables {
                header: core::slice::from_raw_parts(
                    core::ptr::with_exposed_provenance(self.header),
                    header_end - self.header,
                ),
                frames: core::slice::from_raw_parts(core::ptr::with_exposed_provenance(frames), segment.end - frames),
            })
        }
    }

    /// The distance from addresses in the file to addresses in memory.
    pub(crate) fn base(&self) -> usize {
        // SAFETY: the loader keeps the record while the file is loaded.
        unsafe { (*self.link_map).base }
    }

    /// The path of the file.
    pub(crate) fn path(&self) -> &[u8] {
        // SAFETY: the loader keeps the record and its name while the file is loaded.
        let path = unsafe { CStr::from_ptr((*self.link_map).name) }.to_bytes();
        // The main program has an empty name in the list.
        if path.is_empty() { process::program_path() } else { path }
    }

    /// The loaded segments, from the program headers, which linkers put at the start of the file.
    fn segments(&self) -> Option<impl Iterator<Item = Range<usize>>> {
        // SAFETY: the first page of a loaded file is readable.
        let elf = unsafe { &*core::ptr::with_exposed_provenance::<libc::Elf64_Ehdr>(self.range.start) };
        if elf.e_ident[..4] != *b"\x7fELF" || elf.e_phoff as usize + usize::from(elf.e_phnum) * 56 > 4096 {
            return None;
        }
        let headers = self.range.start + elf.e_phoff as usize;
        // SAFETY: the headers are in the first page, by the check above.
        let headers = unsafe {
            core::slice::from_raw_parts(
                core::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(headers),
                usize::from(elf.e_phnum),
            )
        };
        let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let first = loaded.clone().next()?.p_vaddr as usize;
        let bias = self.range.start.wrapping_sub(first & !4095);
        Some(loaded.map(move |header| {
            let start = bias.wrapping_add(header.p_vaddr as usize);
            start..start + header.p_filesz as usize
        }))
    }
}
