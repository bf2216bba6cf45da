//! Finds functions of libc, their addresses and sizes, in the hash table that the dynamic linker
//! uses.
//!
//! `dlsym` would return a function that interposes the name, but calls inside libc bypass that. So
//! the object of libc is found by its name among the loaded objects, and only it is searched.
//! Nothing is allocated.
//!
//! Source: the GNU hash section format (`DT_GNU_HASH`) of the dynamic linker.

#![allow(unsafe_code, reason = "reads the dynamic section of a loaded object")]

use core::ffi::{CStr, c_int, c_void};
use core::ptr::with_exposed_provenance as at;

const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const SHN_UNDEF: u16 = 0;

/// The tables for symbol lookup of a loaded object.
#[derive(Clone, Copy, Default)]
pub(crate) struct LoadedObject {
    bias: usize,
    strings: usize,
    symbols: usize,
    hash: usize,
    /// The range of its executable segments: first address, and first address above.
    pub(crate) text: (usize, usize),
}

/// The address and size of a symbol.
#[derive(Clone, Copy)]
pub(crate) struct SymbolRange {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
}

/// Finds the loaded object whose file is called `name`.
pub(crate) fn find(name: &CStr) -> Option<LoadedObject> {
    let mut search = (name, None);
    // SAFETY: `search` outlives the call, and the callback reads the records only while the linker
    // lends them.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast::<c_void>()) };
    search.1
}

/// Whether any loaded object defines `symbol`.
pub(crate) fn any_defines(symbol: &CStr) -> bool {
    let mut search = (symbol, false);
    // SAFETY: `search` outlives the call, and the callback reads the records only while the linker
    // lends them.
    unsafe { libc::dl_iterate_phdr(Some(visit_symbol), (&raw mut search).cast::<c_void>()) };
    search.1
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the linker passes a valid record; `data` points to the pair of `find`, of this type.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<(&CStr, Option<LoadedObject>)>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: the name in the record is a C string.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    if path.rsplit(|&byte| byte == b'/').next() != Some(search.0.to_bytes()) {
        return 0;
    }
    search.1 = describe(info);
    1
}

unsafe extern "C" fn visit_symbol(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the linker passes a valid record; `data` points to the pair of `any_defines`, of this
    // type.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<(&CStr, bool)>()) };
    search.1 |= describe(info).is_some_and(|object| object.symbol(search.0).is_some());
    c_int::from(search.1)
}

fn describe(info: &libc::dl_phdr_info) -> Option<LoadedObject> {
    let bias = usize::try_from(info.dlpi_addr).ok()?;
    // SAFETY: the record gives the address and the number of the program headers.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let mut object = LoadedObject { bias, text: (usize::MAX, 0), ..LoadedObject::default() };
    for header in headers {
        let start = bias.wrapping_add(header.p_vaddr as usize);
        if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0 {
            object.text.0 = object.text.0.min(start);
            object.text.1 = object.text.1.max(start + header.p_memsz as usize);
        }
        if header.p_type == libc::PT_DYNAMIC {
            object.read_dynamic(start);
        }
    }
    (object.strings != 0 && object.symbols != 0 && object.hash != 0).then_some(object)
}

impl LoadedObject {
    fn read_dynamic(&mut self, mut entry: usize) {
        loop {
            // SAFETY: the dynamic section of a loaded object is an array of pairs that ends with a
            // zero tag.
            let [tag, value] = unsafe { *at::<[i64; 2]>(entry) };
            // glibc relocates these values in place; a few objects (the vDSO) keep them
            // unrelocated.
            let value = value as usize;
            let address = if value < self.bias { value + self.bias } else { value };
            match tag {
                0 => return,
                DT_STRTAB => self.strings = address,
                DT_SYMTAB => self.symbols = address,
                DT_GNU_HASH => self.hash = address,
                _ => {}
            }
            entry += 16;
        }
    }

    /// Finds the defined symbol `name`.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<SymbolRange> {
        let hash = gnu_hash(name);
        // SAFETY: the section starts with four words: buckets, first symbol, bloom words, shift.
        let [buckets, first, bloom, _] = unsafe { *at::<[u32; 4]>(self.hash) };
        let bucket_table = self.hash + 16 + bloom as usize * 8;
        let chain = bucket_table + buckets as usize * 4;
        if buckets == 0 {
            return None;
        }
        // SAFETY: the index is below the number of buckets in the table.
        let mut index = unsafe { *at::<u32>(bucket_table + (hash % buckets) as usize * 4) };
        while index >= first {
            // SAFETY: a chain contains hashes of existing symbols up to one with the lowest bit
            // set.
            let entry = unsafe { *at::<u32>(chain + (index - first) as usize * 4) };
            if entry | 1 == hash | 1
                && let Some(symbol) = self.defined(index as usize, name)
            {
                return Some(symbol);
            }
            if entry & 1 == 1 {
                break;
            }
            index += 1;
        }
        None
    }

    fn defined(&self, index: usize, name: &CStr) -> Option<SymbolRange> {
        // SAFETY: the index comes from the hash table, which refers to existing symbols only.
        let symbol = unsafe { &*at::<libc::Elf64_Sym>(self.symbols + index * size_of::<libc::Elf64_Sym>()) };
        // SAFETY: the name of a symbol is a C string in the string table.
        let found = unsafe { CStr::from_ptr(at(self.strings + symbol.st_name as usize)) };
        (found == name && symbol.st_shndx != SHN_UNDEF).then(|| SymbolRange {
            address: self.bias.wrapping_add(symbol.st_value as usize),
            bytes: symbol.st_size as usize,
        })
    }
}

fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, &byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)))
}
