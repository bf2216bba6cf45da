//! Finds variables with a fixed address: globals, statics of functions and classes, and
//! thread-local variables by their offset in thread-local memory.
//!
//! **Cost.** Iterates once over every entry of the debug info, about 10 million per second
//! (estimate), and at most 30 million. Later variables are named by their symbols only.

use std::ops::Range;

use addr2line::gimli::{self, Attribute, AttributeValue, Expression, Operation};

use super::dwarf::{DwarfEntry, DwarfReader, DwarfUnit, Slice};
use super::layout::{self, TypeLayout};

const MAX_ENTRIES: usize = 30_000_000;
/// Limit of variables on one cache line.
const MAX_TOGETHER: usize = 64;

/// The variables, ordered: address or offset in thread-local memory, and offset of the entry.
#[derive(Debug, Default)]
pub(super) struct Globals {
    fixed: Vec<(u64, usize)>,
    local: Vec<(u64, usize)>,
}

/// A variable with a fixed address.
#[derive(Clone, Debug)]
pub(super) struct GlobalVariable {
    pub(super) name: String,
    pub(super) start: u64,
    pub(super) bytes: u64,
    /// The declaration in C; empty if a type in it has no name.
    pub(super) declaration: String,
    pub(super) layout: TypeLayout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StaticLocation {
    Fixed(u64),
    Local(u64),
}

impl Globals {
    pub(super) fn of(reader: &DwarfReader) -> Self {
        let mut globals = Self::default();
        let mut remaining = MAX_ENTRIES;
        for (start, unit) in reader.units() {
            // After an error, the variables read so far are kept.
            let _ = globals.add(reader, start, &unit, &mut remaining);
        }
        for variables in [&mut globals.fixed, &mut globals.local] {
            variables.sort_unstable();
            variables.dedup_by_key(|(start, _)| *start);
        }
        globals
    }

    fn add<'a>(
        &mut self,
        reader: &DwarfReader<'a>,
        start: usize,
        unit: &DwarfUnit<'a>,
        remaining: &mut usize,
    ) -> gimli::Result<()> {
        let mut entries = unit.header.entries_raw(&unit.abbreviations, None)?;
        let mut attributes = Vec::new();
        while !entries.is_empty() && *remaining > 0 {
            *remaining -= 1;
            let offset = start.saturating_add(entries.next_offset().0);
            let Some(kind) = entries.read_abbreviation()? else { continue };
            let has_location = kind.attributes().iter().any(|attribute| attribute.name() == gimli::DW_AT_location);
            if kind.tag() != gimli::DW_TAG_variable || !has_location {
                entries.skip_attributes(kind.attributes())?;
                continue;
            }
            entries.read_attributes(kind.attributes(), &mut attributes)?;
            match location(reader, unit, &attributes) {
                Some(StaticLocation::Fixed(address)) => self.fixed.push((address, offset)),
                Some(StaticLocation::Local(position)) => self.local.push((position, offset)),
                None => {}
            }
        }
        Ok(())
    }

    /// The variable that contains an address in the file.
    pub(super) fn at(&self, reader: &DwarfReader, address: u64) -> Option<GlobalVariable> {
        at(&self.fixed, reader, address)
    }

    /// The variable at an offset in thread-local memory.
    pub(super) fn local_at(&self, reader: &DwarfReader, offset: u64) -> Option<GlobalVariable> {
        at(&self.local, reader, offset)
    }

    /// The variables that overlap the addresses in the file.
    pub(super) fn within(&self, reader: &DwarfReader, addresses: &Range<u64>) -> Vec<GlobalVariable> {
        let first = self.fixed.partition_point(|&(start, _)| start <= addresses.start);
        let before = first.checked_sub(1).and_then(|variable| self.fixed.get(variable));
        let others = self.fixed[first..].iter().take_while(|&&(start, _)| start < addresses.end);
        let found =
            before.into_iter().chain(others).take(MAX_TOGETHER).filter_map(|&variable| global(reader, variable));
        found.filter(|global| global.start + global.bytes > addresses.start).collect()
    }
}

fn at(variables: &[(u64, usize)], reader: &DwarfReader, address: u64) -> Option<GlobalVariable> {
    let below = variables.partition_point(|&(start, _)| start <= address);
    let global = global(reader, *variables[..below].last()?)?;
    (address - global.start < global.bytes).then_some(global)
}

fn global(reader: &DwarfReader, (start, entry): (u64, usize)) -> Option<GlobalVariable> {
    let entry = reader.entry_at(entry)?;
    let (name, kind) = name_and_type(reader, &entry)?;
    let layout = TypeLayout::of(reader, &kind, &name)?;
    let bytes = layout.bytes().filter(|&bytes| bytes > 0 && start.checked_add(bytes).is_some())?;
    let declaration = layout::declaration(reader, &kind, &name);
    Some(GlobalVariable { name, start, bytes, declaration, layout })
}

/// The name and type of a variable. An entry without them refers to a declaration
/// (`DW_AT_specification`) or to the original of an inlined function (`DW_AT_abstract_origin`).
pub(super) fn name_and_type<'a>(reader: &DwarfReader<'a>, entry: &DwarfEntry<'a>) -> Option<(String, DwarfEntry<'a>)> {
    let first = reader.follow(entry, gimli::DW_AT_abstract_origin);
    let of = |entry: &DwarfEntry<'a>| reader.follow(entry, gimli::DW_AT_specification);
    let second = of(first.as_ref().unwrap_or(entry));
    let all = || [Some(entry), first.as_ref(), second.as_ref()].into_iter().flatten();
    let name = all().find_map(|entry| reader.name(entry))?;
    let kind = all().find_map(|entry| reader.follow(entry, gimli::DW_AT_type))?;
    Some((name, kind))
}

/// The location of a variable; `None` if it is not a constant.
fn location<'a>(
    reader: &DwarfReader<'a>,
    unit: &DwarfUnit<'a>,
    attributes: &[Attribute<Slice<'a>>],
) -> Option<StaticLocation> {
    let attribute = attributes.iter().find(|attribute| attribute.name() == gimli::DW_AT_location)?;
    let AttributeValue::Exprloc(expression) = attribute.value() else { return None };
    constant_location(reader, unit, expression)
}

fn constant_location<'a>(
    reader: &DwarfReader<'a>,
    unit: &DwarfUnit<'a>,
    expression: Expression<Slice<'a>>,
) -> Option<StaticLocation> {
    let mut operations = expression.operations(unit.encoding());
    let mut next = || operations.next().ok().flatten();
    let (first, second) = (next()?, next());
    let value = match first {
        Operation::Address { address } => address,
        Operation::AddressIndex { index } | Operation::ConstantIndex { index } => {
            reader.dwarf.address(unit, index).ok()?
        }
        Operation::UnsignedConstant { value } => value,
        _ => return None,
    };
    let is_address = matches!(first, Operation::Address { .. } | Operation::AddressIndex { .. });
    match second {
        // Variables of functions that the linker discarded have address 0.
        None if is_address && value > 0 => Some(StaticLocation::Fixed(value)),
        Some(Operation::PlusConstant { value: more }) if is_address && value > 0 && next().is_none() => {
            value.checked_add(more).map(StaticLocation::Fixed)
        }
        Some(Operation::TLS) if !is_address => Some(StaticLocation::Local(value)),
        _ => None,
    }
}
