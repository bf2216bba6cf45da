//! Reads DWARF debug info: finds entries, follows references between them, reads their attributes.
//!
//! ```text
//!   unit ─ function ─ block ─ variable ── type ──→ typedef ──→ structure ─ member ── type ──→ …
//!     └ a reference may also point into a partial unit, or into a file shared by several (dwz)
//! ```
//! Debug info is untrusted input. Loops have limits and arithmetic is checked. An entry that cannot
//! be read is treated as absent.
//!
//! **Cost.** A [`DebugInfo`] keeps the sections of a file in memory. The first query reads the root
//! entry of each unit, or every entry (for variables). Each query parses the abbreviations of the
//! units it uses.
//!
//! **Not supported**: split debug info (`.dwo`), type units of DWARF 4.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use addr2line::gimli::{
    self, AttributeValue, DebugInfoOffset, DebuggingInformationEntry, DwAt, DwTag, DwarfSections, EndianSlice,
    LittleEndian, UnitOffset, UnitType,
};

use super::globals::Globals;
use super::image::{debug_sections, debug_supplement};
use super::scope::UnitOutline;

pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;
pub(super) type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;
pub(super) type DwarfUnit<'a> = gimli::Unit<Slice<'a>>;
pub(super) type DwarfValue<'a> = AttributeValue<Slice<'a>>;

/// Limits: units of a file, code ranges of an entry, children of an entry.
const MAX_UNITS: usize = 1 << 20;
const MAX_RANGES: usize = 1 << 16;
const MAX_CHILDREN: usize = 4096;

/// The debug info of a file.
#[derive(Debug)]
pub(super) struct DebugInfo {
    sections: DwarfSections<Vec<u8>>,
    shared: Option<DwarfSections<Vec<u8>>>,
    index: OnceCell<UnitIndex>,
    globals: OnceCell<Globals>,
    outlines: RefCell<HashMap<usize, Arc<UnitOutline>>>,
}

/// The position of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct EntryOffset {
    /// Whether the entry is in the file shared by several (dwz).
    shared: bool,
    /// Bytes from the start of `.debug_info`.
    offset: usize,
}

/// The units of a file: their offsets, code ranges and numbered types.
#[derive(Debug, Default)]
struct UnitIndex {
    units: Vec<usize>,
    shared_units: Vec<usize>,
    /// Code ranges ordered by start, each with the offset of its unit.
    code: Vec<(Range<u64>, usize)>,
    /// Types of type units, by signature.
    types: HashMap<u64, EntryOffset>,
}

impl DebugInfo {
    pub(super) fn read(file: &File, path: &Path) -> Option<Self> {
        let sections = debug_sections(file)?;
        let shared = debug_supplement(file, path).and_then(|file| debug_sections(&file));
        let (index, globals, outlines) = (OnceCell::new(), OnceCell::new(), RefCell::default());
        Some(Self { sections, shared, index, globals, outlines })
    }

    /// A reader for one query.
    pub(super) fn reader(&self) -> DwarfReader<'_> {
        let dwarf = self.sections.borrow_with_sup(self.shared.as_ref(), |bytes| EndianSlice::new(bytes, LittleEndian));
        let index = self.index.get_or_init(|| UnitIndex::of(&dwarf));
        DwarfReader { dwarf, index, outlines: &self.outlines, units: RefCell::default(), scopes: RefCell::default() }
    }

    /// The variables with a fixed address.
    pub(super) fn globals(&self) -> &Globals {
        self.globals.get_or_init(|| Globals::of(&self.reader()))
    }
}

impl UnitIndex {
    fn of(dwarf: &Dwarf) -> Self {
        let mut index = Self::default();
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            let Some(start) = header.debug_info_offset().filter(|_| index.units.len() < MAX_UNITS) else { break };
            index.units.push(start.0);
            if let UnitType::Type { type_signature, type_offset } = header.type_() {
                let at = EntryOffset { shared: false, offset: start.0.saturating_add(type_offset.0) };
                index.types.insert(type_signature.0, at);
                continue;
            }
            let Ok(unit) = dwarf.unit(header) else { continue };
            let mut entries = unit.entries();
            if let Ok(Some(root)) = entries.next_dfs() {
                index.code.extend(ranges(dwarf, &unit, root).into_iter().map(|range| (range, start.0)));
            }
        }
        index.code.sort_unstable_by_key(|(range, _)| range.start);
        let mut headers = dwarf.sup().map(Dwarf::units);
        while let Some(Ok(Some(header))) = headers.as_mut().map(gimli::DebugInfoUnitHeadersIter::next) {
            let Some(start) = header.debug_info_offset().filter(|_| index.shared_units.len() < MAX_UNITS) else {
                break;
            };
            index.shared_units.push(start.0);
        }
        index
    }
}

/// The code ranges of an entry.
pub(super) fn ranges<'a>(
    dwarf: &Dwarf<'a>,
    unit: &DwarfUnit<'a>,
    entry: &DebuggingInformationEntry<Slice<'a>>,
) -> Vec<Range<u64>> {
    if let Some(value) = entry.attr_value(gimli::DW_AT_ranges) {
        let mut ranges = Vec::new();
        let Ok(Some(mut list)) = dwarf.attr_ranges(unit, value) else { return ranges };
        while let Ok(Some(range)) = list.next() {
            if ranges.len() == MAX_RANGES {
                break;
            }
            ranges.push(range.begin..range.end);
        }
        return ranges;
    }
    let address = |value| dwarf.attr_address(unit, value).ok().flatten();
    let start = entry.attr_value(gimli::DW_AT_low_pc).and_then(address);
    let end = entry.attr_value(gimli::DW_AT_high_pc).and_then(|value| match value {
        AttributeValue::Udata(bytes) => start?.checked_add(bytes),
        value => address(value),
    });
    start.zip(end).map(|(start, end)| start..end).into_iter().collect()
}

/// A reader of debug info, with caches for one query.
pub(super) struct DwarfReader<'a> {
    pub(super) dwarf: Dwarf<'a>,
    index: &'a UnitIndex,
    outlines: &'a RefCell<HashMap<usize, Arc<UnitOutline>>>,
    units: RefCell<HashMap<EntryOffset, Option<Rc<DwarfUnit<'a>>>>>,
    scopes: RefCell<HashMap<EntryOffset, String>>,
}

/// An entry and its unit.
#[derive(Clone, Debug)]
pub(super) struct DwarfEntry<'a> {
    pub(super) at: EntryOffset,
    pub(super) unit: Rc<DwarfUnit<'a>>,
    entry: DebuggingInformationEntry<Slice<'a>>,
}

impl<'a> DwarfReader<'a> {
    /// All units of the file and their offsets. Units are not cached.
    pub(super) fn units(&self) -> impl Iterator<Item = (usize, DwarfUnit<'a>)> {
        self.index
            .units
            .iter()
            .filter_map(|&offset| Some((offset, self.read_unit(EntryOffset { shared: false, offset })?)))
    }

    /// The units with code at an address in the file; several if debug info is inconsistent.
    pub(super) fn units_with_code(&self, address: u64) -> Vec<Rc<DwarfUnit<'a>>> {
        // Ranges of units do not overlap, except for discarded functions, whose ranges start at 0.
        let code = &self.index.code;
        let below = code.partition_point(|(range, _)| range.start <= address);
        let matching =
            code[..below].iter().rev().take(8).filter(|(range, _)| range.start > 0 && range.contains(&address));
        matching.filter_map(|&(_, start)| self.unit(EntryOffset { shared: false, offset: start })).collect()
    }

    /// The functions of a unit; cached across queries.
    pub(super) fn outline(&self, unit: &DwarfUnit<'a>) -> Option<Arc<UnitOutline>> {
        let start = unit.header.debug_info_offset()?.0;
        let cached = self.outlines.borrow().get(&start).cloned();
        Some(cached.unwrap_or_else(|| {
            let outline = Arc::new(UnitOutline::of(self, unit));
            self.outlines.borrow_mut().insert(start, Arc::clone(&outline));
            outline
        }))
    }

    /// The entry at an offset in the file (not the shared one).
    pub(super) fn entry_at(&self, offset: usize) -> Option<DwarfEntry<'a>> {
        self.entry(EntryOffset { shared: false, offset })
    }

    /// The entry at a position; `None` if it cannot be read.
    pub(super) fn entry(&self, at: EntryOffset) -> Option<DwarfEntry<'a>> {
        let units = if at.shared { &self.index.shared_units } else { &self.index.units };
        let start = units[..units.partition_point(|&start| start <= at.offset)].last()?;
        let unit = self.unit(EntryOffset { offset: *start, ..at })?;
        let entry = unit.entry(UnitOffset(at.offset - start)).ok().filter(|entry| !entry.is_null())?;
        Some(DwarfEntry { at, unit, entry })
    }

    /// A unit; cached for the query.
    fn unit(&self, at: EntryOffset) -> Option<Rc<DwarfUnit<'a>>> {
        if let Some(cached) = self.units.borrow().get(&at) {
            return cached.clone();
        }
        let unit = self.read_unit(at).map(Rc::new);
        self.units.borrow_mut().insert(at, unit.clone());
        unit
    }

    fn read_unit(&self, at: EntryOffset) -> Option<DwarfUnit<'a>> {
        let dwarf = self.file(at.shared)?;
        dwarf.unit_header(DebugInfoOffset(at.offset)).and_then(|header| dwarf.unit(header)).ok()
    }

    fn file(&self, shared: bool) -> Option<&Dwarf<'a>> {
        if shared { self.dwarf.sup() } else { Some(&self.dwarf) }
    }

    /// The name of an entry; `None` if it has no name or an empty one.
    pub(super) fn name(&self, entry: &DwarfEntry<'a>) -> Option<String> {
        let value = entry.value(gimli::DW_AT_name)?;
        let name = self.file(entry.at.shared)?.attr_string(&entry.unit, value).ok()?;
        Some(name.to_string_lossy().into_owned()).filter(|name| !name.is_empty())
    }

    /// The namespaces and classes around an entry, as in `std::`; empty without any. Reads the unit
    /// up to the entry, once for each entry.
    pub(super) fn scope(&self, entry: &DwarfEntry<'a>) -> String {
        let cached = self.scopes.borrow().get(&entry.at).cloned();
        cached.unwrap_or_else(|| {
            let scope = self.scope_in_unit(entry).unwrap_or_default();
            self.scopes.borrow_mut().insert(entry.at, scope.clone());
            scope
        })
    }

    fn scope_in_unit(&self, entry: &DwarfEntry<'a>) -> Option<String> {
        let start = entry.unit.header.debug_info_offset()?.0;
        let (mut cursor, mut enclosing) = (entry.unit.entries(), Vec::new());
        while let Ok(Some(other)) = cursor.next_dfs() {
            enclosing.truncate(usize::try_from(other.depth()).ok()?);
            if other.offset() == entry.entry.offset() {
                break;
            }
            let at = EntryOffset { offset: start.checked_add(other.offset().0)?, ..entry.at };
            enclosing.push(DwarfEntry { at, unit: Rc::clone(&entry.unit), entry: other.clone() });
        }
        let is_scope = |enclosing: &&DwarfEntry<'a>| {
            matches!(enclosing.tag(), gimli::DW_TAG_namespace | gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type)
        };
        let names = enclosing.iter().filter(is_scope).filter_map(|enclosing| self.name(enclosing));
        Some(names.map(|name| name + "::").collect())
    }

    /// The entry that an attribute refers to.
    pub(super) fn follow(&self, entry: &DwarfEntry<'a>, name: DwAt) -> Option<DwarfEntry<'a>> {
        let at = match entry.value(name)? {
            AttributeValue::UnitRef(UnitOffset(offset)) => {
                let start = entry.unit.header.debug_info_offset()?.0;
                EntryOffset { offset: start.checked_add(offset)?, ..entry.at }
            }
            AttributeValue::DebugInfoRef(DebugInfoOffset(offset)) => EntryOffset { offset, ..entry.at },
            AttributeValue::DebugInfoRefSup(DebugInfoOffset(offset)) => EntryOffset { shared: true, offset },
            AttributeValue::DebugTypesRef(number) => *self.index.types.get(&number.0)?,
            _ => return None,
        };
        self.entry(at)
    }

    /// The direct children of an entry.
    pub(super) fn children(&self, entry: &DwarfEntry<'a>) -> Vec<DwarfEntry<'a>> {
        let mut children = Vec::new();
        let Some(start) = entry.unit.header.debug_info_offset().filter(|_| entry.entry.has_children()) else {
            return children;
        };
        let Ok(mut cursor) = entry.unit.entries_at_offset(entry.entry.offset()) else { return children };
        let own = cursor.next_dfs().map(|own| own.is_some());
        let mut more = own.and_then(|_| cursor.next_dfs().map(|child| child.is_some()));
        while let (Ok(true), Some(child)) = (more, cursor.current()) {
            if child.depth() != 1 || children.len() == MAX_CHILDREN {
                break;
            }
            let at = EntryOffset { offset: start.0.saturating_add(child.offset().0), ..entry.at };
            children.push(DwarfEntry { at, unit: Rc::clone(&entry.unit), entry: child.clone() });
            more = cursor.next_sibling().map(|sibling| sibling.is_some());
        }
        children
    }
}

impl<'a> DwarfEntry<'a> {
    /// An entry found while iterating over its unit.
    pub(super) fn of(unit: &Rc<DwarfUnit<'a>>, entry: DebuggingInformationEntry<Slice<'a>>) -> Option<Self> {
        let start = unit.header.debug_info_offset()?.0;
        let at = EntryOffset { shared: false, offset: start.checked_add(entry.offset().0)? };
        Some(Self { at, unit: Rc::clone(unit), entry })
    }

    pub(super) fn tag(&self) -> DwTag {
        self.entry.tag()
    }

    pub(super) fn value(&self, name: DwAt) -> Option<DwarfValue<'a>> {
        self.entry.attr_value(name)
    }

    /// A constant attribute; `None` if the attribute is absent or an expression.
    pub(super) fn number(&self, name: DwAt) -> Option<u64> {
        self.value(name)?.udata_value()
    }

    pub(super) fn has(&self, name: DwAt) -> bool {
        self.entry.has_attr(name)
    }
}
