//! Debug information as entries that refer to each other: found, followed, and asked for their attributes.
//!
//! ```text
//!   unit ─ function ─ block ─ variable ── type ──→ typedef ──→ structure ─ member ── type ──→ …
//!     └ partial unit, or a file that several share (dwz): a reference may lead there
//! ```
//! It is written by others and may say anything. What is followed is followed so often and no more, what is counted is counted with
//! checks, and what cannot be read is not there.
//!
//! **Cost.** The sections lie in memory as long as the file's [`Debug`] does. The first question reads the head of each unit, or (for
//! variables) every entry; a unit's abbreviations are read anew for each question.
//!
//! **Not read**: split debug information (`.dwo`), type units of DWARF 4.

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
use super::scope::Outline;

pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;
pub(super) type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;
pub(super) type Unit<'a> = gimli::Unit<Slice<'a>>;
pub(super) type Value<'a> = AttributeValue<Slice<'a>>;

/// Units, ranges of one entry, and children of one that are looked at.
const MOST_UNITS: usize = 1 << 20;
const MOST_RANGES: usize = 1 << 16;
const MOST_CHILDREN: usize = 4096;

/// A file's debug information.
#[derive(Debug)]
pub(super) struct Debug {
    sections: DwarfSections<Vec<u8>>,
    shared: Option<DwarfSections<Vec<u8>>>,
    index: OnceCell<Index>,
    globals: OnceCell<Globals>,
    outlines: RefCell<HashMap<usize, Arc<Outline>>>,
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct At {
    /// In the file that several share.
    shared: bool,
    /// From the start of `.debug_info`.
    offset: usize,
}

/// Where units begin, and what is in them.
#[derive(Debug, Default)]
struct Index {
    units: Vec<usize>,
    shared_units: Vec<usize>,
    /// Code, by its start, and its unit.
    code: Vec<(Range<u64>, usize)>,
    /// Types that are known by a number.
    types: HashMap<u64, At>,
}

impl Debug {
    pub(super) fn read(file: &File, path: &Path) -> Option<Self> {
        let sections = debug_sections(file)?;
        let shared = debug_supplement(file, path).and_then(|file| debug_sections(&file));
        let (index, globals, outlines) = (OnceCell::new(), OnceCell::new(), RefCell::default());
        Some(Self { sections, shared, index, globals, outlines })
    }

    /// Opens it for a question.
    pub(super) fn reading(&self) -> Reading<'_> {
        let dwarf = self.sections.borrow_with_sup(self.shared.as_ref(), |bytes| EndianSlice::new(bytes, LittleEndian));
        let index = self.index.get_or_init(|| Index::of(&dwarf));
        Reading { dwarf, index, outlines: &self.outlines, units: RefCell::default(), scopes: RefCell::default() }
    }

    /// Its variables with an address of their own.
    pub(super) fn globals(&self) -> &Globals {
        self.globals.get_or_init(|| Globals::of(&self.reading()))
    }
}

impl Index {
    fn of(dwarf: &Dwarf) -> Self {
        let mut index = Self::default();
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            let Some(start) = header.debug_info_offset().filter(|_| index.units.len() < MOST_UNITS) else { break };
            index.units.push(start.0);
            if let UnitType::Type { type_signature, type_offset } = header.type_() {
                let at = At { shared: false, offset: start.0.saturating_add(type_offset.0) };
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
            let Some(start) = header.debug_info_offset().filter(|_| index.shared_units.len() < MOST_UNITS) else {
                break;
            };
            index.shared_units.push(start.0);
        }
        index
    }
}

/// The addresses of an entry's code.
pub(super) fn ranges<'a>(
    dwarf: &Dwarf<'a>,
    unit: &Unit<'a>,
    entry: &DebuggingInformationEntry<Slice<'a>>,
) -> Vec<Range<u64>> {
    if let Some(value) = entry.attr_value(gimli::DW_AT_ranges) {
        let mut found = Vec::new();
        let Ok(Some(mut list)) = dwarf.attr_ranges(unit, value) else { return found };
        while let Ok(Some(range)) = list.next() {
            if found.len() == MOST_RANGES {
                break;
            }
            found.push(range.begin..range.end);
        }
        return found;
    }
    let address = |value| dwarf.attr_address(unit, value).ok().flatten();
    let start = entry.attr_value(gimli::DW_AT_low_pc).and_then(address);
    let end = entry.attr_value(gimli::DW_AT_high_pc).and_then(|value| match value {
        AttributeValue::Udata(bytes) => start?.checked_add(bytes),
        value => address(value),
    });
    start.zip(end).map(|(start, end)| start..end).into_iter().collect()
}

/// Debug information that is open for a question.
pub(super) struct Reading<'a> {
    pub(super) dwarf: Dwarf<'a>,
    index: &'a Index,
    outlines: &'a RefCell<HashMap<usize, Arc<Outline>>>,
    units: RefCell<HashMap<At, Option<Rc<Unit<'a>>>>>,
    scopes: RefCell<HashMap<At, String>>,
}

/// An entry, with the unit that it is in.
#[derive(Clone, Debug)]
pub(super) struct Entry<'a> {
    pub(super) at: At,
    pub(super) unit: Rc<Unit<'a>>,
    entry: DebuggingInformationEntry<Slice<'a>>,
}

impl<'a> Reading<'a> {
    /// All units of the file itself, and where each begins. None of them is kept.
    pub(super) fn units(&self) -> impl Iterator<Item = (usize, Unit<'a>)> {
        self.index.units.iter().filter_map(|&offset| Some((offset, self.fresh(At { shared: false, offset })?)))
    }

    /// The units with code at an address in the file.
    pub(super) fn units_with_code(&self, address: u64) -> Vec<Rc<Unit<'a>>> {
        // Units' ranges do not overlap, but for those of functions that were thrown away, which begin at 0.
        let code = &self.index.code;
        let below = code.partition_point(|(range, _)| range.start <= address);
        let has = code[..below].iter().rev().take(8).filter(|(range, _)| range.start > 0 && range.contains(&address));
        has.filter_map(|&(_, start)| self.unit(At { shared: false, offset: start })).collect()
    }

    /// The functions of a unit; kept for later questions.
    pub(super) fn outline(&self, unit: &Unit<'a>) -> Option<Arc<Outline>> {
        let start = unit.header.debug_info_offset()?.0;
        let known = self.outlines.borrow().get(&start).cloned();
        Some(known.unwrap_or_else(|| {
            let outline = Arc::new(Outline::of(self, unit));
            self.outlines.borrow_mut().insert(start, Arc::clone(&outline));
            outline
        }))
    }

    /// The entry at a place in the file itself.
    pub(super) fn entry_at(&self, offset: usize) -> Option<Entry<'a>> {
        self.entry(At { shared: false, offset })
    }

    /// The entry at a place.
    pub(super) fn entry(&self, at: At) -> Option<Entry<'a>> {
        let units = if at.shared { &self.index.shared_units } else { &self.index.units };
        let start = units[..units.partition_point(|&start| start <= at.offset)].last()?;
        let unit = self.unit(At { offset: *start, ..at })?;
        let entry = unit.entry(UnitOffset(at.offset - start)).ok().filter(|entry| !entry.is_null())?;
        Some(Entry { at, unit, entry })
    }

    /// A unit; those of a question are kept.
    fn unit(&self, at: At) -> Option<Rc<Unit<'a>>> {
        if let Some(known) = self.units.borrow().get(&at) {
            return known.clone();
        }
        let unit = self.fresh(at).map(Rc::new);
        self.units.borrow_mut().insert(at, unit.clone());
        unit
    }

    fn fresh(&self, at: At) -> Option<Unit<'a>> {
        let dwarf = self.file(at.shared)?;
        dwarf.unit_header(DebugInfoOffset(at.offset)).and_then(|header| dwarf.unit(header)).ok()
    }

    fn file(&self, shared: bool) -> Option<&Dwarf<'a>> {
        if shared { self.dwarf.sup() } else { Some(&self.dwarf) }
    }

    /// The name of an entry; none where it has none, or an empty one.
    pub(super) fn name(&self, entry: &Entry<'a>) -> Option<String> {
        let value = entry.value(gimli::DW_AT_name)?;
        let name = self.file(entry.at.shared)?.attr_string(&entry.unit, value).ok()?;
        Some(name.to_string_lossy().into_owned()).filter(|name| !name.is_empty())
    }

    /// The namespaces and classes that an entry is declared in: `std::`; nothing where it is in none. Reads the unit up to there, once for each
    /// entry that is asked for.
    pub(super) fn scope(&self, entry: &Entry<'a>) -> String {
        let known = self.scopes.borrow().get(&entry.at).cloned();
        known.unwrap_or_else(|| {
            let scope = self.scope_in_unit(entry).unwrap_or_default();
            self.scopes.borrow_mut().insert(entry.at, scope.clone());
            scope
        })
    }

    fn scope_in_unit(&self, entry: &Entry<'a>) -> Option<String> {
        let start = entry.unit.header.debug_info_offset()?.0;
        let (mut cursor, mut around) = (entry.unit.entries(), Vec::new());
        while let Ok(Some(other)) = cursor.next_dfs() {
            around.truncate(usize::try_from(other.depth()).ok()?);
            if other.offset() == entry.entry.offset() {
                break;
            }
            let at = At { offset: start.checked_add(other.offset().0)?, ..entry.at };
            around.push(Entry { at, unit: Rc::clone(&entry.unit), entry: other.clone() });
        }
        let is_scope = |around: &&Entry<'a>| {
            matches!(around.tag(), gimli::DW_TAG_namespace | gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type)
        };
        let names = around.iter().filter(is_scope).filter_map(|around| self.name(around));
        Some(names.map(|name| name + "::").collect())
    }

    /// The entry that an attribute refers to.
    pub(super) fn follow(&self, entry: &Entry<'a>, name: DwAt) -> Option<Entry<'a>> {
        let at = match entry.value(name)? {
            AttributeValue::UnitRef(UnitOffset(offset)) => {
                let start = entry.unit.header.debug_info_offset()?.0;
                At { offset: start.checked_add(offset)?, ..entry.at }
            }
            AttributeValue::DebugInfoRef(DebugInfoOffset(offset)) => At { offset, ..entry.at },
            AttributeValue::DebugInfoRefSup(DebugInfoOffset(offset)) => At { shared: true, offset },
            AttributeValue::DebugTypesRef(number) => *self.index.types.get(&number.0)?,
            _ => return None,
        };
        self.entry(at)
    }

    /// The entries right below an entry.
    pub(super) fn children(&self, entry: &Entry<'a>) -> Vec<Entry<'a>> {
        let mut children = Vec::new();
        let Some(start) = entry.unit.header.debug_info_offset().filter(|_| entry.entry.has_children()) else {
            return children;
        };
        let Ok(mut cursor) = entry.unit.entries_at_offset(entry.entry.offset()) else { return children };
        let own = cursor.next_dfs().map(|own| own.is_some());
        let mut more = own.and_then(|_| cursor.next_dfs().map(|child| child.is_some()));
        while let (Ok(true), Some(child)) = (more, cursor.current()) {
            if child.depth() != 1 || children.len() == MOST_CHILDREN {
                break;
            }
            let at = At { offset: start.0.saturating_add(child.offset().0), ..entry.at };
            children.push(Entry { at, unit: Rc::clone(&entry.unit), entry: child.clone() });
            more = cursor.next_sibling().map(|sibling| sibling.is_some());
        }
        children
    }
}

impl<'a> Entry<'a> {
    /// An entry that a walk through its unit found.
    pub(super) fn of(unit: &Rc<Unit<'a>>, entry: DebuggingInformationEntry<Slice<'a>>) -> Option<Self> {
        let start = unit.header.debug_info_offset()?.0;
        let at = At { shared: false, offset: start.checked_add(entry.offset().0)? };
        Some(Self { at, unit: Rc::clone(unit), entry })
    }

    pub(super) fn tag(&self) -> DwTag {
        self.entry.tag()
    }

    pub(super) fn value(&self, name: DwAt) -> Option<Value<'a>> {
        self.entry.attr_value(name)
    }

    /// A number that stands there as it is; none for one that has to be computed.
    pub(super) fn number(&self, name: DwAt) -> Option<u64> {
        self.value(name)?.udata_value()
    }

    pub(super) fn has(&self, name: DwAt) -> bool {
        self.entry.has_attr(name)
    }
}
