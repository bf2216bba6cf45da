//! Which variables an instruction may name: those of its function, of the blocks and inlined functions around it, and of its source file.
//!
//! **Cost.** A unit's functions are found by passing all of its entries once; after that a question reads those of one function.

use std::ops::Range;
use std::rc::Rc;

use addr2line::gimli::{self, UnitOffset};

use super::dwarf::{Entry, Reading, Unit, Value, ranges};
use super::globals::name_and_type;

/// Entries of a unit, and of a function, that are passed.
const MOST_ENTRIES: usize = 8 << 20;
const MOST_IN_FUNCTION: usize = 1 << 18;
/// Variables of a source file that are looked at.
const MOST_STATICS: usize = 256;

/// Where a unit's functions are, and its variables that are none of a function.
#[derive(Debug, Default)]
pub(super) struct Outline {
    functions: Vec<(Range<u64>, usize)>,
    statics: Vec<usize>,
}

/// What an instruction sees.
pub(super) struct Scope<'a> {
    pub(super) unit: Rc<Unit<'a>>,
    /// What the function says of the base of its frame.
    pub(super) base: Option<Value<'a>>,
    pub(super) variables: Vec<Variable<'a>>,
}

/// A variable or a parameter.
pub(super) struct Variable<'a> {
    pub(super) name: String,
    pub(super) kind: Entry<'a>,
    pub(super) location: Value<'a>,
    /// It is the function's, not the source file's.
    pub(super) local: bool,
}

impl Outline {
    pub(super) fn of<'a>(reading: &Reading<'a>, unit: &Unit<'a>) -> Self {
        let mut outline = Self::default();
        // What was read before an error holds.
        let _ = outline.fill(reading, unit);
        outline
    }

    fn fill<'a>(&mut self, reading: &Reading<'a>, unit: &Unit<'a>) -> gimli::Result<()> {
        let mut entries = unit.header.entries_raw(&unit.abbreviations, None)?;
        let mut function = None;
        for _ in 0..MOST_ENTRIES {
            if entries.is_empty() {
                break;
            }
            let (offset, depth) = (entries.next_offset(), entries.next_depth());
            let Some(kind) = entries.read_abbreviation()? else { continue };
            entries.skip_attributes(kind.attributes())?;
            if function.is_some_and(|outer| depth <= outer) {
                function = None;
            }
            if kind.tag() == gimli::DW_TAG_subprogram {
                let entry = unit.entry(offset)?;
                self.functions.extend(ranges(&reading.dwarf, unit, &entry).into_iter().map(|code| (code, offset.0)));
                function = function.or(Some(depth));
            } else if kind.tag() == gimli::DW_TAG_variable && function.is_none() && self.statics.len() < MOST_STATICS {
                self.statics.push(offset.0);
            }
        }
        Ok(())
    }

    fn function(&self, counter: u64) -> Option<UnitOffset> {
        // Of nested functions the innermost comes last.
        let mut functions = self.functions.iter().rev();
        functions.find(|(code, _)| code.contains(&counter)).map(|&(_, offset)| UnitOffset(offset))
    }
}

/// What the instruction at an address in the file sees; none where no function is known there.
pub(super) fn at<'a>(reading: &Reading<'a>, counter: u64) -> Option<Scope<'a>> {
    reading.units_with_code(counter).into_iter().find_map(|unit| {
        let outline = reading.outline(&unit)?;
        let function = outline.function(counter)?;
        let mut variables = Vec::new();
        // As above.
        let _ = locals(reading, &unit, function, counter, &mut variables);
        let statics = outline.statics.iter().filter_map(|&offset| variable(reading, &unit, UnitOffset(offset), false));
        variables.extend(statics);
        let base = unit.entry(function).ok()?.attr_value(gimli::DW_AT_frame_base);
        Some(Scope { unit, base, variables })
    })
}

/// The variables of a function and of what is inlined into it, as far as they hold at the instruction.
fn locals<'a>(
    reading: &Reading<'a>,
    unit: &Rc<Unit<'a>>,
    function: UnitOffset,
    counter: u64,
    into: &mut Vec<Variable<'a>>,
) -> gimli::Result<()> {
    let mut entries = unit.header.entries_raw(&unit.abbreviations, Some(function))?;
    let mut beside = None;
    for count in 0..MOST_IN_FUNCTION {
        let (offset, depth) = (entries.next_offset(), entries.next_depth());
        if entries.is_empty() || count > 0 && depth < 1 {
            break;
        }
        let Some(kind) = entries.read_abbreviation()? else { continue };
        entries.skip_attributes(kind.attributes())?;
        if beside.is_some_and(|outer| depth > outer) || count == 0 {
            continue;
        }
        beside = None;
        match kind.tag() {
            gimli::DW_TAG_variable | gimli::DW_TAG_formal_parameter => {
                into.extend(variable(reading, unit, offset, true));
            }
            gimli::DW_TAG_lexical_block | gimli::DW_TAG_inlined_subroutine | gimli::DW_TAG_subprogram => {
                let code = ranges(&reading.dwarf, unit, &unit.entry(offset)?);
                // A block without addresses of its own has those of what is around it.
                let around = code.is_empty() && kind.tag() == gimli::DW_TAG_lexical_block;
                if !around && !code.iter().any(|code| code.contains(&counter)) {
                    beside = Some(depth);
                }
            }
            _ => beside = Some(depth),
        }
    }
    Ok(())
}

fn variable<'a>(reading: &Reading<'a>, unit: &Rc<Unit<'a>>, offset: UnitOffset, local: bool) -> Option<Variable<'a>> {
    let entry = Entry::of(unit, unit.entry(offset).ok()?)?;
    let location = entry.value(gimli::DW_AT_location)?;
    let (name, kind) = name_and_type(reading, &entry)?;
    Some(Variable { name, kind, location, local })
}
