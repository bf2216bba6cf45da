//! What one file knows of its code: debug info, its own or the one that the distribution keeps apart, and symbols.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use addr2line::Loader;
use object::read::ReadCache;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

use super::{FrameName, Known, demangled};

/// Where distributions put debug info, by build id.
const DEBUG_DIRECTORY: &str = "/usr/lib/debug/.build-id";

/// A file's tables.
pub(super) struct Module {
    lines: Option<Loader>,
    symbols: Vec<Symbol>,
    path: PathBuf,
    loaded: Vec<Loaded>,
}

/// Addresses that the file is loaded at, and where in the file the first of them lies.
struct Loaded {
    addresses: Range<u64>,
    offset: u64,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("lines", &self.lines.is_some()).field("symbols", &self.symbols.len()).finish()
    }
}

/// A function of the symbol tables.
struct Symbol {
    start: u64,
    bytes: u64,
    name: String,
}

/// What is read from one ELF file at once.
struct Tables {
    symbols: Vec<Symbol>,
    loaded: Vec<Loaded>,
    has_lines: bool,
    build_id: Option<Vec<u8>>,
    /// What several debug files share is in this one (dwz).
    supplement: Option<PathBuf>,
}

impl Module {
    /// Reads the tables; `None` for what is no ELF file.
    pub(super) fn open(path: &Path) -> Option<Self> {
        let own = Tables::read(path)?;
        let apart = || {
            let path = debug_file(own.build_id.as_deref()?)?;
            Some((Tables::read(&path)?, path))
        };
        let apart = if own.has_lines { None } else { apart() };
        let mut symbols = own.symbols;
        let lines = match apart {
            Some((tables, path)) => {
                symbols.extend(tables.symbols);
                Loader::new_with_sup(path, tables.supplement).ok()
            }
            None if own.has_lines => Loader::new_with_sup(path, own.supplement).ok(),
            None => None,
        };
        symbols.sort_by_key(|symbol| (symbol.start, symbol.bytes));
        Some(Self { lines, symbols, path: path.to_owned(), loaded: own.loaded })
    }

    /// Where the debug info of a file is that has none of its own.
    #[cfg(test)]
    pub(super) fn debug_info_apart(path: &Path) -> Option<PathBuf> {
        debug_file(Tables::read(path)?.build_id.as_deref()?)
    }

    /// Names of the functions at an address in the file, inlined ones first; none where nothing is known.
    pub(super) fn names(&self, offset: u64, module: &str) -> Vec<FrameName> {
        let names = self.lines_at(offset, module).unwrap_or_default();
        if names.is_empty() { self.symbol_at(offset, module).into_iter().collect() } else { names }
    }

    /// The function that is called by the instruction before `after`, where that names it: `e8`, and how far away it begins.
    pub(super) fn called_before(&self, after: u64, module: &str) -> Option<FrameName> {
        let mut call = [0; 5];
        let at = after.checked_sub(call.len() as u64)?;
        let loaded = self.loaded.iter().find(|loaded| loaded.addresses.contains(&at))?;
        File::open(&self.path).ok()?.read_exact_at(&mut call, loaded.offset + (at - loaded.addresses.start)).ok()?;
        let [0xe8, distance @ ..] = call else { return None };
        let target = after.wrapping_add_signed(i64::from(i32::from_le_bytes(distance)));
        // What a linker makes to reach another file's function has no symbol; anything else was no such call.
        self.symbols.binary_search_by_key(&target, |symbol| symbol.start).ok()?;
        self.names(target, module).pop()
    }

    fn lines_at(&self, offset: u64, module: &str) -> Option<Vec<FrameName>> {
        let mut frames = self.lines.as_ref()?.find_frames(offset).ok()?;
        let mut names = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            // A function without a name is a unit of assembly with lines only: the symbols say more.
            let function = frame.function?;
            let function = demangled(&function.raw_name().ok()?, function.language);
            let file = frame.location.as_ref().and_then(|location| location.file).map(PathBuf::from);
            let line = frame.location.and_then(|location| location.line);
            names.push(FrameName { function, file, line, module: module.to_owned(), known: Known::DebugInfo });
        }
        Some(names)
    }

    fn symbol_at(&self, offset: u64, module: &str) -> Option<FrameName> {
        let below = self.symbols.partition_point(|symbol| symbol.start <= offset);
        let symbol = self.symbols[..below].last()?;
        let name = demangled(&symbol.name, None);
        let (function, known) = if offset - symbol.start < symbol.bytes {
            (name, Known::Symbol)
        } else {
            (format!("{name}+{:#x}", offset - symbol.start), Known::Nearby)
        };
        Some(FrameName { function, file: None, line: None, module: module.to_owned(), known })
    }
}

impl Tables {
    fn read(path: &Path) -> Option<Self> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let file = object::File::parse(&cache).ok()?;
        let functions = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
        let symbols = functions.filter_map(|symbol| {
            let name = symbol.name().ok().filter(|name| !name.is_empty())?;
            Some(Symbol { start: symbol.address(), bytes: symbol.size(), name: name.to_owned() })
        });
        let supplement = supplement(&file, path);
        let loaded = file.segments().map(|segment| {
            let (offset, bytes) = segment.file_range();
            Loaded { addresses: segment.address()..segment.address() + bytes, offset }
        });
        Some(Self {
            symbols: symbols.collect(),
            loaded: loaded.collect(),
            has_lines: file.section_by_name(".debug_info").is_some_and(|section| section.size() > 0),
            build_id: file.build_id().ok().flatten().map(<[u8]>::to_vec),
            supplement,
        })
    }
}

/// Where the file is that the one at `path` shares debug info with others in.
pub(crate) fn supplement<'data>(file: &impl Object<'data>, path: &Path) -> Option<PathBuf> {
    let (name, _) = file.gnu_debugaltlink().ok().flatten()?;
    Some(path.parent()?.join(std::str::from_utf8(name).ok()?))
}

/// Where the distribution keeps the debug info of the file with this build id.
pub(crate) fn debug_file(build_id: &[u8]) -> Option<PathBuf> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (first, rest) = build_id.split_at_checked(1)?;
    let path = Path::new(DEBUG_DIRECTORY).join(hex(first)).join(format!("{}.debug", hex(rest)));
    path.exists().then_some(path)
}
