//! Variables with an address of their own: globals, statics of functions and of classes, thread-local ones.
//!
//! **Cost.** Every entry of the debug information is passed once, by estimate 10 million a second, and 30 million at most: variables behind
//! that are told by their symbols.

use std::ops::Range;

use addr2line::gimli::{self, Attribute, AttributeValue, Expression, Operation};

use super::dwarf::{Entry, Reading, Slice, Unit};
use super::layout::{self, Layout};

const MOST_ENTRIES: usize = 30_000_000;
/// Variables at one address, and such that begin on one line.
const MOST_TOGETHER: usize = 64;

/// Where the variables are: their address, or how far they are into thread-local memory, and their entry.
#[derive(Debug, Default)]
pub(super) struct Globals {
    fixed: Vec<(u64, usize)>,
    local: Vec<(u64, usize)>,
}

/// A variable.
#[derive(Clone, Debug)]
pub(super) struct Global {
    pub(super) name: String,
    pub(super) start: u64,
    pub(super) bytes: u64,
    /// Its declaration.
    pub(super) declaration: String,
    pub(super) layout: Layout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    Fixed(u64),
    Local(u64),
}

impl Globals {
    pub(super) fn of(reading: &Reading) -> Self {
        let mut globals = Self::default();
        let mut left = MOST_ENTRIES;
        for (start, unit) in reading.units() {
            // A unit that cannot be read to its end has given what it could.
            let _ = globals.add(reading, start, &unit, &mut left);
        }
        for places in [&mut globals.fixed, &mut globals.local] {
            places.sort_unstable();
            places.dedup_by_key(|(start, _)| *start);
        }
        globals
    }

    fn add<'a>(&mut self, reading: &Reading<'a>, start: usize, unit: &Unit<'a>, left: &mut usize) -> gimli::Result<()> {
        let mut entries = unit.header.entries_raw(&unit.abbreviations, None)?;
        let mut attributes = Vec::new();
        while !entries.is_empty() && *left > 0 {
            *left -= 1;
            let offset = start.saturating_add(entries.next_offset().0);
            let Some(kind) = entries.read_abbreviation()? else { continue };
            let has_place = kind.attributes().iter().any(|attribute| attribute.name() == gimli::DW_AT_location);
            if kind.tag() != gimli::DW_TAG_variable || !has_place {
                entries.skip_attributes(kind.attributes())?;
                continue;
            }
            entries.read_attributes(kind.attributes(), &mut attributes)?;
            match location(reading, unit, &attributes) {
                Some(Location::Fixed(address)) => self.fixed.push((address, offset)),
                Some(Location::Local(far)) => self.local.push((far, offset)),
                None => {}
            }
        }
        Ok(())
    }

    /// The variable that has an address in the file.
    pub(super) fn at(&self, reading: &Reading, address: u64) -> Option<Global> {
        at(&self.fixed, reading, address)
    }

    /// The variable so far into thread-local memory.
    pub(super) fn local_at(&self, reading: &Reading, offset: u64) -> Option<Global> {
        at(&self.local, reading, offset)
    }

    /// The variables that have some of these bytes.
    pub(super) fn within(&self, reading: &Reading, addresses: &Range<u64>) -> Vec<Global> {
        let first = self.fixed.partition_point(|&(start, _)| start <= addresses.start);
        let before = first.checked_sub(1).and_then(|place| self.fixed.get(place));
        let others = self.fixed[first..].iter().take_while(|&&(start, _)| start < addresses.end);
        let found = before.into_iter().chain(others).take(MOST_TOGETHER).filter_map(|&place| global(reading, place));
        found.filter(|global| global.start + global.bytes > addresses.start).collect()
    }
}

fn at(places: &[(u64, usize)], reading: &Reading, address: u64) -> Option<Global> {
    let below = places.partition_point(|&(start, _)| start <= address);
    let global = global(reading, *places[..below].last()?)?;
    (address - global.start < global.bytes).then_some(global)
}

fn global(reading: &Reading, (start, entry): (u64, usize)) -> Option<Global> {
    let entry = reading.entry_at(entry)?;
    let (name, kind) = name_and_type(reading, &entry)?;
    let layout = Layout::of(reading, &kind, &name)?;
    let bytes = layout.bytes().filter(|&bytes| bytes > 0 && start.checked_add(bytes).is_some())?;
    let declaration = layout::declaration(reading, &kind, &name);
    Some(Global { name, start, bytes, declaration, layout })
}

/// A variable's name and type, its own or those of the declaration or the inlined original that it stands for.
pub(super) fn name_and_type<'a>(reading: &Reading<'a>, entry: &Entry<'a>) -> Option<(String, Entry<'a>)> {
    let first = reading.follow(entry, gimli::DW_AT_abstract_origin);
    let of = |entry: &Entry<'a>| reading.follow(entry, gimli::DW_AT_specification);
    let second = of(first.as_ref().unwrap_or(entry));
    let all = || [Some(entry), first.as_ref(), second.as_ref()].into_iter().flatten();
    let name = all().find_map(|entry| reading.name(entry))?;
    let kind = all().find_map(|entry| reading.follow(entry, gimli::DW_AT_type))?;
    Some((name, kind))
}

/// Where a variable is, if that is an address and nothing has to be computed.
fn location<'a>(reading: &Reading<'a>, unit: &Unit<'a>, attributes: &[Attribute<Slice<'a>>]) -> Option<Location> {
    let attribute = attributes.iter().find(|attribute| attribute.name() == gimli::DW_AT_location)?;
    let AttributeValue::Exprloc(expression) = attribute.value() else { return None };
    place(reading, unit, expression)
}

fn place<'a>(reading: &Reading<'a>, unit: &Unit<'a>, expression: Expression<Slice<'a>>) -> Option<Location> {
    let mut operations = expression.operations(unit.encoding());
    let mut next = || operations.next().ok().flatten();
    let (first, second) = (next()?, next());
    let value = match first {
        Operation::Address { address } => address,
        Operation::AddressIndex { index } | Operation::ConstantIndex { index } => {
            reading.dwarf.address(unit, index).ok()?
        }
        Operation::UnsignedConstant { value } => value,
        _ => return None,
    };
    let is_address = matches!(first, Operation::Address { .. } | Operation::AddressIndex { .. });
    match second {
        // Those of functions that the linker threw away are at 0.
        None if is_address && value > 0 => Some(Location::Fixed(value)),
        Some(Operation::PlusConstant { value: more }) if is_address && value > 0 && next().is_none() => {
            value.checked_add(more).map(Location::Fixed)
        }
        Some(Operation::TLS) if !is_address => Some(Location::Local(value)),
        _ => None,
    }
}
