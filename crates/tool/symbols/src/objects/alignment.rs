//! What the address of a variable of some type has to be a multiple of, by the rules of the System V ABI for x86-64.
//!
//! Debug information says it only where a programmer asked for it (`DW_AT_alignment`, DWARF 5). Of a plain type it is the size, of an array
//! that of its elements, of a structure that of its most demanding member. That a structure is packed is not recorded: its members then lie
//! at other places than this asks for.

use addr2line::gimli;

use super::dwarf::{Entry, Reading};
use super::layout::{bytes, element, is_pointer, parts, target};

/// Structures in structures that are followed.
const MOST_DEPTH: usize = 8;
/// No type asks for more by itself.
const MOST_BYTES: u64 = 16;

/// In bytes; 0 where it is not known.
pub(super) fn alignment<'a>(reading: &Reading<'a>, kind: &Entry<'a>) -> u64 {
    of_type(reading, kind, MOST_DEPTH).unwrap_or(0)
}

fn of_type<'a>(reading: &Reading<'a>, kind: &Entry<'a>, depth: usize) -> Option<u64> {
    let (element, ..) = element(reading, kind)?;
    if let Some(asked) = [kind, &element].into_iter().find_map(|entry| entry.number(gimli::DW_AT_alignment)) {
        return Some(asked).filter(|asked| asked.is_power_of_two());
    }
    let size = || bytes(reading, &element).filter(|bytes| bytes.is_power_of_two() && *bytes <= MOST_BYTES);
    match element.tag() {
        // A number of two parts has the alignment of one.
        gimli::DW_TAG_base_type if is_complex(&element) => size().map(|bytes| (bytes / 2).max(1)),
        gimli::DW_TAG_base_type | gimli::DW_TAG_enumeration_type => size(),
        gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type => {
            of_parts(reading, &element, depth.checked_sub(1)?)
        }
        _ if is_pointer(&element) => size(),
        _ => None,
    }
}

fn is_complex(number: &Entry) -> bool {
    number.value(gimli::DW_AT_encoding) == Some(gimli::AttributeValue::Encoding(gimli::DW_ATE_complex_float))
}

/// The largest of its members and bases; none where one of them is not known.
fn of_parts<'a>(reading: &Reading<'a>, structure: &Entry<'a>, depth: usize) -> Option<u64> {
    let own = |part: &Entry<'a>| of_part(reading, part, depth);
    parts(reading, structure).iter().map(own).try_fold(1, |most, own| Some(most.max(own?)))
}

/// That of a member, which may be declared with one of its own.
pub(super) fn of_member<'a>(reading: &Reading<'a>, member: &Entry<'a>) -> u64 {
    of_part(reading, member, MOST_DEPTH).unwrap_or(0)
}

fn of_part<'a>(reading: &Reading<'a>, part: &Entry<'a>, depth: usize) -> Option<u64> {
    let asked = part.number(gimli::DW_AT_alignment);
    asked.or_else(|| of_type(reading, &target(reading, part)?, depth))
}
