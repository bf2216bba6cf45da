//! One ELF file of a process: load segments, variables by symbol, debug info and unwind tables. The
//! tables are read at the first use.
//!
//! The file stays open, because it may be replaced, or the process may end, before the tables are
//! read.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use addr2line::gimli;
use memchr::memmem::Finder;
use object::elf::{self, FileHeader64};
use object::read::ReadCache;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, SymbolKind};

use super::dwarf::DebugInfo;
use super::unwind::UnwindTables;
use crate::names::{debug_file, demangled, supplement};

/// Limit of the uncompressed debug info. Larger debug info is not read.
const MAX_DEBUG_BYTES: u64 = 1 << 30;
/// Limits of segments and symbols.
const MAX_SEGMENTS: usize = 256;
const MAX_SYMBOLS: usize = 4 << 20;

/// The compiler's start code: the source file of its local variables (`completed.0`), and the
/// variable that identifies a loaded file to the C library. A program does not use them.
const START_CODE: &str = "crtstuff.c";
const OBJECT_HANDLE: &str = "__dso_handle";

type ElfFile<'data> = ElfFile64<'data, Endianness, &'data ReadCache<&'data File>>;

/// An ELF file.
#[derive(Debug)]
pub(super) struct ElfImage {
    file: File,
    path: PathBuf,
    pub(super) segments: Vec<LoadSegment>,
    /// Thread-local memory (PT_TLS): size and alignment in bytes.
    pub(super) local: Option<(u64, u64)>,
    tables: OnceCell<VariableSymbols>,
    debug: OnceCell<Option<DebugInfo>>,
    frames: OnceCell<Option<UnwindTables>>,
}

/// A load segment: addresses, and position and length in the file.
#[derive(Clone, Debug)]
pub(super) struct LoadSegment {
    pub(super) addresses: Range<u64>,
    pub(super) offset: u64,
    pub(super) file_bytes: u64,
}

/// A variable in a symbol table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VariableSymbol {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) name: String,
}

/// The variables of the symbol tables, ordered by address or by offset in thread-local memory.
#[derive(Debug, Default)]
struct VariableSymbols {
    fixed: Vec<VariableSymbol>,
    local: Vec<VariableSymbol>,
}

impl ElfImage {
    /// Reads the headers; `None` if the file is not 64-bit little-endian ELF. Files that it refers
    /// to by relative paths are looked up beside `path`.
    pub(super) fn open(file: File, path: &Path) -> Option<Self> {
        let data = ReadCache::new(&file);
        let header = FileHeader64::<Endianness>::parse(&data).ok()?;
        let endian = header.endian().ok().filter(|&endian| endian == Endianness::Little)?;
        let (mut segments, mut local) = (Vec::new(), None);
        for segment in header.program_headers(endian, &data).ok()?.iter().take(MAX_SEGMENTS) {
            let (start, bytes) = (segment.p_vaddr(endian), segment.p_memsz(endian));
            if segment.p_type(endian) == elf::PT_LOAD {
                let (offset, file_bytes) = segment.file_range(endian);
                segments.push(LoadSegment { addresses: start..start.checked_add(bytes)?, offset, file_bytes });
            } else if segment.p_type(endian) == elf::PT_TLS {
                local = Some((bytes, segment.p_align(endian).max(1)));
            }
        }
        drop(data);
        let (tables, debug, frames) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Some(Self { file, path: path.to_owned(), segments, local, tables, debug, frames })
    }

    /// The variable at an address in the file.
    pub(super) fn symbol(&self, address: u64) -> Option<&VariableSymbol> {
        at(&self.tables().fixed, address)
    }

    /// The variable with this name. Reads the symbols only if a string table contains the name.
    pub(super) fn find(&self, name: &str) -> Option<&VariableSymbol> {
        if self.tables.get().is_none() && !self.mentions(name) {
            return None;
        }
        self.tables().fixed.iter().find(|symbol| symbol.name == name)
    }

    /// Whether a symbol may have this name. A mangled symbol contains a plain name unchanged; for
    /// other names the answer is always true.
    fn mentions(&self, name: &str) -> bool {
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let finder = Finder::new(name);
        !is_plain
            || mentions(&self.file, &finder)
            || self.separate_debug_file().is_some_and(|(_, file)| mentions(&file, &finder))
    }

    /// The variable at an offset in thread-local memory.
    pub(super) fn local_symbol(&self, offset: u64) -> Option<&VariableSymbol> {
        at(&self.tables().local, offset)
    }

    /// The variables that overlap the addresses in the file.
    pub(super) fn symbols_in(&self, addresses: &Range<u64>) -> Vec<&VariableSymbol> {
        let fixed = &self.tables().fixed;
        let first = fixed.partition_point(|symbol| symbol.start + symbol.bytes <= addresses.start);
        let mut symbols: Vec<&VariableSymbol> =
            fixed[first..].iter().take_while(|symbol| symbol.start < addresses.end).collect();
        symbols.dedup_by_key(|symbol| symbol.start);
        symbols
    }

    /// The debug info, in the file or in a separate debug file.
    pub(super) fn debug(&self) -> Option<&DebugInfo> {
        self.debug
            .get_or_init(|| DebugInfo::read(&self.file, &self.path).or_else(|| self.read_separate_debug()))
            .as_ref()
    }

    /// The tables for unwinding.
    pub(super) fn frames(&self) -> Option<&UnwindTables> {
        self.frames.get_or_init(|| UnwindTables::read(&self.file)).as_ref()
    }

    fn read_separate_debug(&self) -> Option<DebugInfo> {
        let (path, file) = self.separate_debug_file()?;
        DebugInfo::read(&file, &path)
    }

    /// The separate debug file.
    fn separate_debug_file(&self) -> Option<(PathBuf, File)> {
        let data = ReadCache::new(&self.file);
        let path = debug_file(parse(&data)?.build_id().ok()??)?;
        let file = File::open(&path).ok()?;
        Some((path, file))
    }

    fn tables(&self) -> &VariableSymbols {
        self.tables.get_or_init(|| {
            let mut tables = VariableSymbols::read(&self.file).unwrap_or_default();
            if let Some(more) = self.separate_debug_file().and_then(|(_, file)| VariableSymbols::read(&file)) {
                tables.fixed.extend(more.fixed);
                tables.local.extend(more.local);
            }
            for symbols in [&mut tables.fixed, &mut tables.local] {
                symbols.sort_by_key(|symbol| (symbol.start, symbol.bytes));
            }
            tables
        })
    }
}

fn at(symbols: &[VariableSymbol], address: u64) -> Option<&VariableSymbol> {
    let below = symbols.partition_point(|symbol| symbol.start <= address);
    symbols[..below].last().filter(|symbol| address - symbol.start < symbol.bytes)
}

impl VariableSymbols {
    fn read(file: &File) -> Option<Self> {
        let data = ReadCache::new(file);
        let file = parse(&data)?;
        let mut tables = Self::default();
        let mut is_in_start_code = false;
        for symbol in file.symbols().chain(file.dynamic_symbols()).take(MAX_SYMBOLS) {
            // The local symbols of a source file follow the symbol of that file.
            if symbol.kind() == SymbolKind::File {
                is_in_start_code = symbol.name() == Ok(START_CODE);
            }
            if is_in_start_code && symbol.is_local() || symbol.name() == Ok(OBJECT_HANDLE) {
                continue;
            }
            let into = match symbol.kind() {
                SymbolKind::Data if !symbol.is_undefined() => &mut tables.fixed,
                SymbolKind::Tls if !symbol.is_undefined() => &mut tables.local,
                _ => continue,
            };
            let (start, bytes) = (symbol.address(), symbol.size());
            let Some(name) = symbol.name().ok().filter(|name| !name.is_empty()) else { continue };
            if bytes > 0 && start.checked_add(bytes).is_some() {
                into.push(VariableSymbol { start, bytes, name: demangled(name, None) });
            }
        }
        Some(tables)
    }
}

fn parse<'data>(data: &'data ReadCache<&'data File>) -> Option<ElfFile<'data>> {
    ElfFile::parse(data).ok()
}

/// Whether a string table of the file contains the name.
fn mentions(file: &File, name: &Finder<'_>) -> bool {
    let data = ReadCache::new(file);
    let Some(file) = parse(&data) else { return false };
    let sections = file.sections();
    let strings = sections.filter(|section| section.elf_section_header().sh_type(file.endian()) == elf::SHT_STRTAB);
    strings.filter_map(|section| section.data().ok()).any(|bytes| name.find(bytes).is_some())
}

/// The uncompressed debug sections of a file; `None` without debug info, or above the limit.
pub(super) fn debug_sections(file: &File) -> Option<gimli::DwarfSections<Vec<u8>>> {
    let data = ReadCache::new(file);
    let file = parse(&data)?;
    file.section_by_name(".debug_info").filter(|section| section.size() > 0)?;
    let mut remaining = MAX_DEBUG_BYTES;
    gimli::DwarfSections::load(|id| section(&file, id.name(), &mut remaining).ok_or(())).ok()
}

/// The file with debug info shared by several files (dwz).
pub(super) fn debug_supplement(file: &File, path: &Path) -> Option<File> {
    let data = ReadCache::new(file);
    let file = parse(&data)?;
    File::open(supplement(&file, path)?).ok()
}

/// The uncompressed bytes of a section; empty if it is absent. `None` if it has more than `left`
/// bytes or cannot be decompressed.
fn section<'data>(file: &impl Object<'data>, name: &str, remaining: &mut u64) -> Option<Vec<u8>> {
    let Some(section) = file.section_by_name(name) else { return Some(Vec::new()) };
    let data = section.compressed_data().ok()?;
    *remaining = remaining.checked_sub(data.uncompressed_size)?;
    data.decompress().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    static NAMED_ONLY_HERE: [u64; 2] = [1, 2];

    #[test]
    fn variables_of_the_start_code_have_no_names() {
        let path = std::env::current_exe().unwrap();
        let file = File::open(&path).unwrap();
        let data = ReadCache::new(&file);
        let elf = parse(&data).unwrap();
        let of_start = |name: &str| name.starts_with("completed.") || name == OBJECT_HANDLE;
        assert!(elf.symbols().any(|symbol| symbol.name().is_ok_and(of_start)), "this program has start code");
        let tables = VariableSymbols::read(&file).unwrap();
        let named = tables.fixed.iter().find(|symbol| of_start(&symbol.name));
        assert_eq!(named, None);
    }

    #[test]
    fn symbols_are_read_only_if_a_string_table_has_the_name() {
        let path = std::env::current_exe().unwrap();
        let image = ElfImage::open(File::open(&path).unwrap(), &path).unwrap();
        let absent = ["there", "is", "none"].join("_");
        assert!(image.find(&absent).is_none() && image.tables.get().is_none());
        std::hint::black_box(&NAMED_ONLY_HERE);
        assert!(image.mentions("NAMED_ONLY_HERE"), "part of a mangled name");
        assert!(image.find(&format!("{}::NAMED_ONLY_HERE", module_path!())).is_some(), "{:?}", image.tables().fixed);
    }
}
