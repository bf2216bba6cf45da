//! One file of a program: where it is loaded, its variables by symbol, and what it knows more of them, read when it is asked for.
//!
//! The file is held open: it may be replaced, and the process may end, before somebody asks.

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

use super::dwarf::Debug;
use super::frames::Frames;
use crate::names::{debug_file, demangled, supplement};

/// More debug information than this, unpacked, is left alone.
const MOST_DEBUG_BYTES: u64 = 1 << 30;
/// Segments and symbols that are looked at.
const MOST_SEGMENTS: usize = 256;
const MOST_SYMBOLS: usize = 4 << 20;

type ElfFile<'data> = ElfFile64<'data, Endianness, &'data ReadCache<&'data File>>;

/// A file.
#[derive(Debug)]
pub(super) struct Image {
    file: File,
    path: PathBuf,
    pub(super) segments: Vec<Segment>,
    /// Thread-local memory: its size, and what its address is a multiple of.
    pub(super) local: Option<(u64, u64)>,
    tables: OnceCell<Tables>,
    debug: OnceCell<Option<Debug>>,
    frames: OnceCell<Option<Frames>>,
}

/// Addresses in a file that are loaded, and their bytes in it.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) addresses: Range<u64>,
    pub(super) offset: u64,
    pub(super) file_bytes: u64,
}

/// A variable of the symbol tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) name: String,
}

/// What the symbol tables have, by address.
#[derive(Debug, Default)]
struct Tables {
    fixed: Vec<Symbol>,
    local: Vec<Symbol>,
}

impl Image {
    /// The file's headers; `None` for what is no 64-bit ELF file of this machine's byte order. `path` is where its neighbours are.
    pub(super) fn open(file: File, path: &Path) -> Option<Self> {
        let data = ReadCache::new(&file);
        let header = FileHeader64::<Endianness>::parse(&data).ok()?;
        let endian = header.endian().ok().filter(|&endian| endian == Endianness::Little)?;
        let (mut segments, mut local) = (Vec::new(), None);
        for segment in header.program_headers(endian, &data).ok()?.iter().take(MOST_SEGMENTS) {
            let (start, bytes) = (segment.p_vaddr(endian), segment.p_memsz(endian));
            if segment.p_type(endian) == elf::PT_LOAD {
                let (offset, file_bytes) = segment.file_range(endian);
                segments.push(Segment { addresses: start..start.checked_add(bytes)?, offset, file_bytes });
            } else if segment.p_type(endian) == elf::PT_TLS {
                local = Some((bytes, segment.p_align(endian).max(1)));
            }
        }
        drop(data);
        let (tables, debug, frames) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Some(Self { file, path: path.to_owned(), segments, local, tables, debug, frames })
    }

    /// The variable of the symbol tables at an address in the file.
    pub(super) fn symbol(&self, address: u64) -> Option<&Symbol> {
        at(&self.tables().fixed, address)
    }

    /// The variable of this name. Symbols are read only where a file has such a string.
    pub(super) fn named(&self, name: &str) -> Option<&Symbol> {
        if self.tables.get().is_none() && !self.mentions(name) {
            return None;
        }
        self.tables().fixed.iter().find(|symbol| symbol.name == name)
    }

    /// Whether its symbols may have a variable of this name: a plain one is a part of what stands in the string tables, mangled or not.
    fn mentions(&self, name: &str) -> bool {
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let finder = Finder::new(name);
        !is_plain || mentions(&self.file, &finder) || self.apart().is_some_and(|(_, file)| mentions(&file, &finder))
    }

    /// The one so far into thread-local memory.
    pub(super) fn local_symbol(&self, offset: u64) -> Option<&Symbol> {
        at(&self.tables().local, offset)
    }

    /// Those that have some of these bytes.
    pub(super) fn symbols_in(&self, addresses: &Range<u64>) -> Vec<&Symbol> {
        let fixed = &self.tables().fixed;
        let first = fixed.partition_point(|symbol| symbol.start + symbol.bytes <= addresses.start);
        let mut found: Vec<&Symbol> = fixed[first..].iter().take_while(|symbol| symbol.start < addresses.end).collect();
        found.dedup_by_key(|symbol| symbol.start);
        found
    }

    /// Its debug information, its own or the one that the distribution keeps apart.
    pub(super) fn debug(&self) -> Option<&Debug> {
        self.debug.get_or_init(|| Debug::read(&self.file, &self.path).or_else(|| self.debug_apart())).as_ref()
    }

    /// How its functions' frames lie on the stack.
    pub(super) fn frames(&self) -> Option<&Frames> {
        self.frames.get_or_init(|| Frames::read(&self.file)).as_ref()
    }

    fn debug_apart(&self) -> Option<Debug> {
        let (path, file) = self.apart()?;
        Debug::read(&file, &path)
    }

    /// The file that the distribution keeps apart, with its symbols and debug information.
    fn apart(&self) -> Option<(PathBuf, File)> {
        let data = ReadCache::new(&self.file);
        let path = debug_file(parse(&data)?.build_id().ok()??)?;
        let file = File::open(&path).ok()?;
        Some((path, file))
    }

    fn tables(&self) -> &Tables {
        self.tables.get_or_init(|| {
            let mut tables = Tables::read(&self.file).unwrap_or_default();
            if let Some(more) = self.apart().and_then(|(_, file)| Tables::read(&file)) {
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

fn at(symbols: &[Symbol], address: u64) -> Option<&Symbol> {
    let below = symbols.partition_point(|symbol| symbol.start <= address);
    symbols[..below].last().filter(|symbol| address - symbol.start < symbol.bytes)
}

impl Tables {
    fn read(file: &File) -> Option<Self> {
        let data = ReadCache::new(file);
        let file = parse(&data)?;
        let mut tables = Self::default();
        for symbol in file.symbols().chain(file.dynamic_symbols()).take(MOST_SYMBOLS) {
            let into = match symbol.kind() {
                SymbolKind::Data if !symbol.is_undefined() => &mut tables.fixed,
                SymbolKind::Tls if !symbol.is_undefined() => &mut tables.local,
                _ => continue,
            };
            let (start, bytes) = (symbol.address(), symbol.size());
            let Some(name) = symbol.name().ok().filter(|name| !name.is_empty()) else { continue };
            if bytes > 0 && start.checked_add(bytes).is_some() {
                into.push(Symbol { start, bytes, name: demangled(name, None) });
            }
        }
        Some(tables)
    }
}

fn parse<'data>(data: &'data ReadCache<&'data File>) -> Option<ElfFile<'data>> {
    ElfFile::parse(data).ok()
}

/// Whether one of a file's string tables has these bytes.
fn mentions(file: &File, name: &Finder<'_>) -> bool {
    let data = ReadCache::new(file);
    let Some(file) = parse(&data) else { return false };
    let sections = file.sections();
    let strings = sections.filter(|section| section.elf_section_header().sh_type(file.endian()) == elf::SHT_STRTAB);
    strings.filter_map(|section| section.data().ok()).any(|bytes| name.find(bytes).is_some())
}

/// The sections of a file that hold debug information, unpacked; `None` where it has none, or too much.
pub(super) fn debug_sections(file: &File) -> Option<gimli::DwarfSections<Vec<u8>>> {
    let data = ReadCache::new(file);
    let file = parse(&data)?;
    file.section_by_name(".debug_info").filter(|section| section.size() > 0)?;
    let mut left = MOST_DEBUG_BYTES;
    gimli::DwarfSections::load(|id| section(&file, id.name(), &mut left).ok_or(())).ok()
}

/// The file in which several share their debug information.
pub(super) fn debug_supplement(file: &File, path: &Path) -> Option<File> {
    let data = ReadCache::new(file);
    let file = parse(&data)?;
    File::open(supplement(&file, path)?).ok()
}

/// A section's bytes, empty where there is none; `None` where it is larger than what is left, or cannot be unpacked.
fn section<'data>(file: &impl Object<'data>, name: &str, left: &mut u64) -> Option<Vec<u8>> {
    let Some(section) = file.section_by_name(name) else { return Some(Vec::new()) };
    let data = section.compressed_data().ok()?;
    *left = left.checked_sub(data.uncompressed_size)?;
    data.decompress().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    static NAMED_ONLY_HERE: [u64; 2] = [1, 2];

    #[test]
    fn symbols_are_read_only_where_a_name_may_be() {
        let path = std::env::current_exe().unwrap();
        let image = Image::open(File::open(&path).unwrap(), &path).unwrap();
        let absent = ["there", "is", "none"].join("_");
        assert!(image.named(&absent).is_none() && image.tables.get().is_none());
        std::hint::black_box(&NAMED_ONLY_HERE);
        assert!(image.mentions("NAMED_ONLY_HERE"), "a part of a mangled name");
        assert!(image.named(&format!("{}::NAMED_ONLY_HERE", module_path!())).is_some(), "{:?}", image.tables().fixed);
    }
}
