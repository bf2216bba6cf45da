//! Computes the alignment of a type by the rules of the System V ABI for x86-64.
//!
//! Debug info contains an alignment only if the programmer specified one (`DW_AT_alignment`, DWARF
//! 5). The alignment of a scalar is its size, that of an array the one of its elements, that of a
//! structure the largest of its members. Debug info does not mark packed structures, so the members
//! of one may violate the computed alignment.

use addr2line::gimli;

use super::dwarf::{DwarfEntry, DwarfReader};
use super::layout::{bytes, element, is_pointer, parts, target};

/// Limit of nested structures.
const MAX_DEPTH: usize = 8;
/// The largest natural alignment.
const MAX_BYTES: u64 = 16;

/// The alignment of a type in bytes; 0 if it is unknown.
pub(super) fn alignment<'a>(reader: &DwarfReader<'a>, kind: &DwarfEntry<'a>) -> u64 {
    of_type(reader, kind, MAX_DEPTH).unwrap_or(0)
}

fn of_type<'a>(reader: &DwarfReader<'a>, kind: &DwarfEntry<'a>, depth: usize) -> Option<u64> {
    let (element, ..) = element(reader, kind)?;
    if let Some(specified) = [kind, &element].into_iter().find_map(|entry| entry.number(gimli::DW_AT_alignment)) {
        return Some(specified).filter(|specified| specified.is_power_of_two());
    }
    let size = || bytes(reader, &element).filter(|bytes| bytes.is_power_of_two() && *bytes <= MAX_BYTES);
    match element.tag() {
        // A complex number has the alignment of one component.
        gimli::DW_TAG_base_type if is_complex(&element) => size().map(|bytes| (bytes / 2).max(1)),
        gimli::DW_TAG_base_type | gimli::DW_TAG_enumeration_type => size(),
        gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type => {
            of_parts(reader, &element, depth.checked_sub(1)?)
        }
        _ if is_pointer(&element) => size(),
        _ => None,
    }
}

fn is_complex(number: &DwarfEntry) -> bool {
    number.value(gimli::DW_AT_encoding) == Some(gimli::AttributeValue::Encoding(gimli::DW_ATE_complex_float))
}

/// The largest alignment of the members and bases; `None` if one is unknown.
fn of_parts<'a>(reader: &DwarfReader<'a>, structure: &DwarfEntry<'a>, depth: usize) -> Option<u64> {
    let own = |part: &DwarfEntry<'a>| of_part(reader, part, depth);
    parts(reader, structure).iter().map(own).try_fold(1, |most, own| Some(most.max(own?)))
}

/// The alignment of a member in bytes, specified for the member or by its type; 0 if it is unknown.
pub(super) fn of_member<'a>(reader: &DwarfReader<'a>, member: &DwarfEntry<'a>) -> u64 {
    of_part(reader, member, MAX_DEPTH).unwrap_or(0)
}

fn of_part<'a>(reader: &DwarfReader<'a>, part: &DwarfEntry<'a>, depth: usize) -> Option<u64> {
    let specified = part.number(gimli::DW_AT_alignment);
    specified.or_else(|| of_type(reader, &target(reader, part)?, depth))
}
