//! Finds the variables in scope at an instruction: those of its function, of the enclosing blocks
//! and inlined functions, and of its source file.
//!
//! **Cost.** The functions of a unit are found by one pass over its entries. After that, a query
//! reads the entries of one function.

use std::ops::Range;
use std::rc::Rc;

use addr2line::gimli::{self, UnitOffset};

use super::dwarf::{DwarfEntry, DwarfReader, DwarfUnit, DwarfValue, ranges};
use super::globals::name_and_type;

/// Limits of entries in a unit and in a function.
const MAX_ENTRIES: usize = 8 << 20;
const MAX_IN_FUNCTION: usize = 1 << 18;
/// Limit of variables of a source file.
const MAX_STATICS: usize = 256;

/// The functions of a unit, and its variables outside functions.
#[derive(Debug, Default)]
pub(super) struct UnitOutline {
    functions: Vec<(Range<u64>, usize)>,
    statics: Vec<usize>,
}

/// The variables in scope at an instruction.
pub(super) struct Scope<'a> {
    pub(super) unit: Rc<DwarfUnit<'a>>,
    /// The function's `DW_AT_frame_base`.
    pub(super) base: Option<DwarfValue<'a>>,
    pub(super) variables: Vec<Variable<'a>>,
}

/// A variable or a parameter.
pub(super) struct Variable<'a> {
    pub(super) name: String,
    pub(super) kind: DwarfEntry<'a>,
    pub(super) location: DwarfValue<'a>,
    /// Whether the variable belongs to the function, not to the source file.
    pub(super) local: bool,
}

impl UnitOutline {
    pub(super) fn of<'a>(reader: &DwarfReader<'a>, unit: &DwarfUnit<'a>) -> Self {
        let mut outline = Self::default();
        // After an error, the functions read so far are kept.
        let _ = outline.fill(reader, unit);
        outline
    }

    fn fill<'a>(&mut self, reader: &DwarfReader<'a>, unit: &DwarfUnit<'a>) -> gimli::Result<()> {
        let mut entries = unit.header.entries_raw(&unit.abbreviations, None)?;
        let mut function = None;
        for _ in 0..MAX_ENTRIES {
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
                self.functions.extend(ranges(&reader.dwarf, unit, &entry).into_iter().map(|code| (code, offset.0)));
                function = function.or(Some(depth));
            } else if kind.tag() == gimli::DW_TAG_variable && function.is_none() && self.statics.len() < MAX_STATICS {
                self.statics.push(offset.0);
            }
        }
        Ok(())
    }

    fn function(&self, counter: u64) -> Option<UnitOffset> {
        // The innermost of nested functions is the last.
        let mut functions = self.functions.iter().rev();
        functions.find(|(code, _)| code.contains(&counter)).map(|&(_, offset)| UnitOffset(offset))
    }
}

/// The scope at an address in the file; `None` if no function contains it.
pub(super) fn at<'a>(reader: &DwarfReader<'a>, counter: u64) -> Option<Scope<'a>> {
    reader.units_with_code(counter).into_iter().find_map(|unit| {
        let outline = reader.outline(&unit)?;
        let function = outline.function(counter)?;
        let mut variables = Vec::new();
        // After an error, the variables read so far are kept.
        let _ = locals(reader, &unit, function, counter, &mut variables);
        let statics = outline.statics.iter().filter_map(|&offset| variable(reader, &unit, UnitOffset(offset), false));
        variables.extend(statics);
        let base = unit.entry(function).ok()?.attr_value(gimli::DW_AT_frame_base);
        Some(Scope { unit, base, variables })
    })
}

/// Adds the variables of a function and of functions inlined into it that are in scope.
fn locals<'a>(
    reader: &DwarfReader<'a>,
    unit: &Rc<DwarfUnit<'a>>,
    function: UnitOffset,
    counter: u64,
    into: &mut Vec<Variable<'a>>,
) -> gimli::Result<()> {
    let mut entries = unit.header.entries_raw(&unit.abbreviations, Some(function))?;
    let mut skipped_depth = None;
    for count in 0..MAX_IN_FUNCTION {
        let (offset, depth) = (entries.next_offset(), entries.next_depth());
        if entries.is_empty() || count > 0 && depth < 1 {
            break;
        }
        let Some(kind) = entries.read_abbreviation()? else { continue };
        entries.skip_attributes(kind.attributes())?;
        if skipped_depth.is_some_and(|outer| depth > outer) || count == 0 {
            continue;
        }
        skipped_depth = None;
        match kind.tag() {
            gimli::DW_TAG_variable | gimli::DW_TAG_formal_parameter => {
                into.extend(variable(reader, unit, offset, true));
            }
            gimli::DW_TAG_lexical_block | gimli::DW_TAG_inlined_subroutine | gimli::DW_TAG_subprogram => {
                let code = ranges(&reader.dwarf, unit, &unit.entry(offset)?);
                // A block without addresses has those of the enclosing one.
                let inherits = code.is_empty() && kind.tag() == gimli::DW_TAG_lexical_block;
                if !inherits && !code.iter().any(|code| code.contains(&counter)) {
                    skipped_depth = Some(depth);
                }
            }
            _ => skipped_depth = Some(depth),
        }
    }
    Ok(())
}

fn variable<'a>(
    reader: &DwarfReader<'a>,
    unit: &Rc<DwarfUnit<'a>>,
    offset: UnitOffset,
    local: bool,
) -> Option<Variable<'a>> {
    let entry = DwarfEntry::of(unit, unit.entry(offset).ok()?)?;
    let location = entry.value(gimli::DW_AT_location)?;
    let (name, kind) = name_and_type(reader, &entry)?;
    Some(Variable { name, kind, location, local })
}
