//! Looks up functions and lines of one ELF file, in its debug info, in a separate debug file, and
//! in its symbol tables.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use addr2line::Loader;
use object::read::ReadCache;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

use super::{FrameName, NameSource, demangled};

/// The directory of separate debug files, named by build id.
const DEBUG_DIRECTORY: &str = "/usr/lib/debug/.build-id";

/// The tables of one file.
pub(super) struct SymbolFile {
    lines: Option<Loader>,
    symbols: Vec<FunctionSymbol>,
    path: PathBuf,
    segments: Vec<LoadedSegment>,
}

/// A loaded address range, and its offset in the file.
struct LoadedSegment {
    addresses: Range<u64>,
    offset: u64,
}

impl fmt::Debug for SymbolFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SymbolFile")
            .field("lines", &self.lines.is_some())
            .field("symbols", &self.symbols.len())
            .finish()
    }
}

/// A function in a symbol table.
struct FunctionSymbol {
    start: u64,
    bytes: u64,
    name: String,
}

/// The tables read from one ELF file.
struct ElfTables {
    symbols: Vec<FunctionSymbol>,
    segments: Vec<LoadedSegment>,
    has_lines: bool,
    build_id: Option<Vec<u8>>,
    /// The file with debug info shared by several debug files (dwz).
    supplement: Option<PathBuf>,
}

impl SymbolFile {
    /// Reads the tables; `None` if the file is not ELF.
    pub(super) fn open(path: &Path) -> Option<Self> {
        let own = ElfTables::read(path)?;
        let separate = || {
            let path = debug_file(own.build_id.as_deref()?)?;
            Some((ElfTables::read(&path)?, path))
        };
        let separate = if own.has_lines { None } else { separate() };
        let mut symbols = own.symbols;
        let lines = match separate {
            Some((tables, path)) => {
                symbols.extend(tables.symbols);
                Loader::new_with_sup(path, tables.supplement).ok()
            }
            None if own.has_lines => Loader::new_with_sup(path, own.supplement).ok(),
            None => None,
        };
        symbols.sort_by_key(|symbol| (symbol.start, symbol.bytes));
        Some(Self { lines, symbols, path: path.to_owned(), segments: own.segments })
    }

    /// The separate debug file of the file at `path`; `None` if it is not installed.
    #[cfg(test)]
    pub(super) fn separate_debug_file(path: &Path) -> Option<PathBuf> {
        debug_file(ElfTables::read(path)?.build_id.as_deref()?)
    }

    /// The functions at an address in the file, inlined ones first; empty without any name.
    pub(super) fn names(&self, offset: u64, module: &str) -> Vec<FrameName> {
        let names = self.lines_at(offset, module).unwrap_or_default();
        if names.is_empty() { self.symbol_at(offset, module).into_iter().collect() } else { names }
    }

    /// File and line of an address, also where the debug info names no function.
    fn place_at(&self, offset: u64) -> (Option<PathBuf>, Option<u32>) {
        let location = self.lines.as_ref().and_then(|lines| lines.find_location(offset).ok().flatten());
        location.map_or((None, None), |location| (location.file.map(PathBuf::from), location.line))
    }

    /// The function called by the instruction before the address `after`: a direct call (opcode
    /// `e8` and a relative address). `None` for any other instruction.
    pub(super) fn callee_before(&self, after: u64, module: &str) -> Option<FrameName> {
        let mut call = [0; 5];
        let at = after.checked_sub(call.len() as u64)?;
        let segment = self.segments.iter().find(|segment| segment.addresses.contains(&at))?;
        File::open(&self.path).ok()?.read_exact_at(&mut call, segment.offset + (at - segment.addresses.start)).ok()?;
        let [0xe8, distance @ ..] = call else { return None };
        let target = after.wrapping_add_signed(i64::from(i32::from_le_bytes(distance)));
        // A target without a symbol is a PLT entry, or the bytes are not a call.
        self.symbols.binary_search_by_key(&target, |symbol| symbol.start).ok()?;
        self.names(target, module).pop()
    }

    /// The address that is loaded from `offset` in the file; `None` if no segment is.
    pub(super) fn address_at_offset(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let bytes = segment.addresses.end - segment.addresses.start;
            let distance = offset.checked_sub(segment.offset).filter(|&distance| distance < bytes)?;
            Some(segment.addresses.start + distance)
        })
    }

    fn lines_at(&self, offset: u64, module: &str) -> Option<Vec<FrameName>> {
        let mut frames = self.lines.as_ref()?.find_frames(offset).ok()?;
        let mut names = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            // Assembly code, and debug info with lines only, has no function names: use the symbols.
            let function = frame.function?;
            let function = demangled(&function.raw_name().ok()?, function.language);
            let file = frame.location.as_ref().and_then(|location| location.file).map(PathBuf::from);
            let line = frame.location.and_then(|location| location.line);
            names.push(FrameName { function, file, line, module: module.to_owned(), source: NameSource::DebugInfo });
        }
        Some(names)
    }

    /// The last symbol that starts at or below an address.
    fn nearest_symbol(&self, offset: u64) -> Option<&FunctionSymbol> {
        let below = self.symbols.partition_point(|symbol| symbol.start <= offset);
        self.symbols[..below].last()
    }

    /// The start of the symbol that contains an address.
    pub(super) fn symbol_start(&self, offset: u64) -> Option<u64> {
        self.nearest_symbol(offset).filter(|symbol| offset - symbol.start < symbol.bytes).map(|symbol| symbol.start)
    }

    fn symbol_at(&self, offset: u64, module: &str) -> Option<FrameName> {
        let symbol = self.nearest_symbol(offset)?;
        let name = demangled(&symbol.name, None);
        let (function, source) = if offset - symbol.start < symbol.bytes {
            (name, NameSource::Symbol)
        } else {
            (format!("{name}+{:#x}", offset - symbol.start), NameSource::NearestSymbol)
        };
        let (file, line) = self.place_at(offset);
        Some(FrameName { function, file, line, module: module.to_owned(), source })
    }
}

impl ElfTables {
    fn read(path: &Path) -> Option<Self> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let file = object::File::parse(&cache).ok()?;
        let functions = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
        let symbols = functions.filter_map(|symbol| {
            let name = symbol.name().ok().filter(|name| !name.is_empty())?;
            Some(FunctionSymbol { start: symbol.address(), bytes: symbol.size(), name: name.to_owned() })
        });
        let supplement = supplement(&file, path);
        let segments = file.segments().map(|segment| {
            let (offset, bytes) = segment.file_range();
            LoadedSegment { addresses: segment.address()..segment.address() + bytes, offset }
        });
        Some(Self {
            symbols: symbols.collect(),
            segments: segments.collect(),
            has_lines: file.section_by_name(".debug_info").is_some_and(|section| section.size() > 0),
            build_id: file.build_id().ok().flatten().map(<[u8]>::to_vec),
            supplement,
        })
    }
}

/// The path of the file with debug info that the file at `path` shares with others.
pub(crate) fn supplement<'data>(file: &impl Object<'data>, path: &Path) -> Option<PathBuf> {
    let (name, _) = file.gnu_debugaltlink().ok().flatten()?;
    Some(path.parent()?.join(std::str::from_utf8(name).ok()?))
}

/// The separate debug file for this build id; `None` if it is not installed.
pub(crate) fn debug_file(build_id: &[u8]) -> Option<PathBuf> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (first, rest) = build_id.split_at_checked(1)?;
    let path = Path::new(DEBUG_DIRECTORY).join(hex(first)).join(format!("{}.debug", hex(rest)));
    path.exists().then_some(path)
}
