//! Computes the memory layout of a type: elements, members and their declarations.
//!
//! ```text
//!   struct slot { long hits; struct { int x, y; } at; unsigned a : 3, b : 5; } slots[8];
//!   layout   8 elements, stride 24 bytes
//!   members  hits (0, 8)   at.x (8, 4)   at.y (12, 4)   "a, b" (16, 1)     name (offset, bytes)
//! ```
//! A structure inside a structure is split into its members, one level deep, unless it has a base
//! class. A union is one member, and so are bit fields that share bytes. Members are ordered and
//! disjoint, whatever the debug info contains: overlapping members are merged.

use addr2line::gimli;
use fieldstone_sharing::Member;

use super::alignment;
use super::dwarf::{DwarfEntry, DwarfReader};

/// Limit of typedefs, arrays and pointers in one type.
const MAX_STEPS: usize = 24;
const MAX_MEMBERS: usize = 1024;
const POINTER_BYTES: u64 = 8;
/// The member name for an array element that is no structure.
const VALUE: &str = "value";

/// The layout of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TypeLayout {
    /// The name of the structure, or of the variable if its type is no structure.
    pub(super) name: String,
    /// Number of elements; 1 if the variable is no array.
    pub(super) elements: u64,
    /// Bytes of one element.
    pub(super) stride: u64,
    /// Members of one element.
    pub(super) members: Vec<Member>,
    /// Whether the elements are structures.
    pub(super) structure: bool,
    /// Whether the structure ends in a flexible array member.
    pub(super) flexible: bool,
}

impl TypeLayout {
    /// The layout of a variable of this type; `None` if its size is unknown.
    pub(super) fn of<'a>(reader: &DwarfReader<'a>, kind: &DwarfEntry<'a>, variable: &str) -> Option<Self> {
        let (element, elements, alias) = element(reader, kind)?;
        let stride = bytes(reader, &element).filter(|&bytes| bytes > 0)?;
        let structure = is_structure(&element);
        if structure {
            let members = members(reader, &element, stride);
            let flexible = is_flexible(reader, &element);
            let name = reader.name(&element).or(alias).unwrap_or_else(|| variable.to_owned());
            return Some(Self { name, elements, stride, members, structure, flexible });
        }
        let declaration = declaration(reader, &declared_element(reader, kind)?, variable);
        let alignment = alignment::alignment(reader, kind);
        let members = vec![Member { name: variable.to_owned(), declaration, offset: 0, bytes: stride, alignment }];
        let mut layout = Self { name: variable.to_owned(), elements, stride, members, structure, flexible: false };
        if elements > 1 {
            layout.repeat(reader, kind);
        }
        Some(layout)
    }

    /// Renames the member of a scalar element to [`VALUE`], because an element of an array has no
    /// name.
    pub(super) fn repeat<'a>(&mut self, reader: &DwarfReader<'a>, kind: &DwarfEntry<'a>) {
        if let ([member], false) = (self.members.as_mut_slice(), self.structure) {
            VALUE.clone_into(&mut member.name);
            member.declaration =
                declared_element(reader, kind).map(|kind| declaration(reader, &kind, VALUE)).unwrap_or_default();
        }
    }

    /// The size of all elements in bytes.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.elements.checked_mul(self.stride)
    }
}

pub(super) fn is_structure(entry: &DwarfEntry) -> bool {
    matches!(entry.tag(), gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type)
}

fn is_alias(entry: &DwarfEntry) -> bool {
    matches!(
        entry.tag(),
        gimli::DW_TAG_typedef
            | gimli::DW_TAG_const_type
            | gimli::DW_TAG_volatile_type
            | gimli::DW_TAG_restrict_type
            | gimli::DW_TAG_atomic_type
    )
}

pub(super) fn is_pointer(entry: &DwarfEntry) -> bool {
    matches!(
        entry.tag(),
        gimli::DW_TAG_pointer_type | gimli::DW_TAG_reference_type | gimli::DW_TAG_rvalue_reference_type
    )
}

/// The type of an entry (`DW_AT_type`).
pub(super) fn target<'a>(reader: &DwarfReader<'a>, entry: &DwarfEntry<'a>) -> Option<DwarfEntry<'a>> {
    reader.follow(entry, gimli::DW_AT_type)
}

/// A type without typedefs and qualifiers, and the name of the innermost typedef.
pub(super) fn stripped<'a>(
    reader: &DwarfReader<'a>,
    kind: &DwarfEntry<'a>,
) -> Option<(DwarfEntry<'a>, Option<String>)> {
    let (mut kind, mut alias) = (kind.clone(), None);
    for _ in 0..MAX_STEPS {
        if !is_alias(&kind) {
            return Some((kind, alias));
        }
        if kind.tag() == gimli::DW_TAG_typedef {
            alias = reader.name(&kind);
        }
        kind = target(reader, &kind)?;
    }
    None
}

/// The element type of a (nested) array, the number of elements, and the element type's typedef
/// name. For any other type, the type itself and 1.
pub(super) fn element<'a>(
    reader: &DwarfReader<'a>,
    kind: &DwarfEntry<'a>,
) -> Option<(DwarfEntry<'a>, u64, Option<String>)> {
    let (mut kind, mut alias) = stripped(reader, kind)?;
    let mut elements = 1_u64;
    for _ in 0..MAX_STEPS {
        if kind.tag() != gimli::DW_TAG_array_type {
            return Some((kind, elements, alias));
        }
        elements = elements.checked_mul(counts(reader, &kind).into_iter().try_fold(1, u64::checked_mul)?)?;
        (kind, alias) = stripped(reader, &target(reader, &kind)?)?;
    }
    None
}

/// The element type of a (nested) array with its typedefs and qualifiers; of any other type,
/// itself.
pub(super) fn declared_element<'a>(reader: &DwarfReader<'a>, kind: &DwarfEntry<'a>) -> Option<DwarfEntry<'a>> {
    let mut declared = kind.clone();
    for _ in 0..MAX_STEPS {
        let (plain, _) = stripped(reader, &declared)?;
        if plain.tag() != gimli::DW_TAG_array_type {
            return Some(declared);
        }
        declared = target(reader, &plain)?;
    }
    None
}

/// The number of elements in each dimension of an array; 0 if it is unknown.
fn counts<'a>(reader: &DwarfReader<'a>, array: &DwarfEntry<'a>) -> Vec<u64> {
    let ranges = reader.children(array).into_iter().filter(|child| child.tag() == gimli::DW_TAG_subrange_type);
    let count = |range: DwarfEntry<'a>| {
        let bound = range.number(gimli::DW_AT_upper_bound).and_then(|bound| bound.checked_add(1));
        range.number(gimli::DW_AT_count).or(bound).unwrap_or(0)
    };
    ranges.map(count).collect()
}

/// The size of a type in bytes; `None` for an incomplete type.
pub(super) fn bytes<'a>(reader: &DwarfReader<'a>, kind: &DwarfEntry<'a>) -> Option<u64> {
    let (element, elements, _) = element(reader, kind)?;
    let bytes = match element.number(gimli::DW_AT_byte_size) {
        Some(bytes) => bytes,
        None if is_pointer(&element) => POINTER_BYTES,
        None if element.tag() == gimli::DW_TAG_enumeration_type => underlying_bytes(reader, &element)?,
        None => return None,
    };
    bytes.checked_mul(elements)
}

/// The size of an enumeration's underlying type.
fn underlying_bytes<'a>(reader: &DwarfReader<'a>, kind: &DwarfEntry<'a>) -> Option<u64> {
    stripped(reader, &target(reader, kind)?)?.0.number(gimli::DW_AT_byte_size)
}

/// The members of a structure. A member of an inner structure is named `outer.inner`.
fn members<'a>(reader: &DwarfReader<'a>, structure: &DwarfEntry<'a>, stride: u64) -> Vec<Member> {
    let mut members = Vec::new();
    for child in parts(reader, structure) {
        if members.len() >= MAX_MEMBERS {
            break;
        }
        let Some((mut member, kind)) = member(reader, &child) else { continue };
        let inner = stripped(reader, &kind).map(|(inner, _)| inner).filter(is_structure);
        // A class with a base cannot be declared by its members.
        let inner = inner.filter(|inner| !parts(reader, inner).iter().any(is_base));
        let inner: Vec<Member> = inner
            .iter()
            .flat_map(|inner| parts(reader, inner))
            .filter_map(|child| {
                let (part, kind) = self::member(reader, &child)?;
                Some(joined(&member, part, |name| declaration(reader, &kind, name)))
            })
            .collect();
        if inner.is_empty() {
            if member.declaration.is_empty() && !is_bits(&child) {
                member.declaration = declaration(reader, &kind, &member.name);
            }
            members.push(member);
        } else {
            members.extend(inner);
        }
    }
    disjoint(members, stride)
}

/// A member of an inner structure: named `outer.inner`, and `outer_inner` in its declaration.
fn joined(outer: &Member, part: Member, declared: impl Fn(&str) -> String) -> Member {
    let (name, plain) = if outer.name.is_empty() {
        (part.name.clone(), part.name)
    } else {
        (format!("{}.{}", outer.name, part.name), format!("{}_{}", outer.name, part.name))
    };
    let offset = outer.offset.saturating_add(part.offset);
    Member { name, declaration: declared(&plain), offset, bytes: part.bytes, alignment: part.alignment }
}

/// The pointer members of a structure: name, offset, and type of the target.
pub(super) fn pointers<'a>(reader: &DwarfReader<'a>, structure: &DwarfEntry<'a>) -> Vec<(String, u64, DwarfEntry<'a>)> {
    let pointer = |part: DwarfEntry<'a>| {
        let (member, kind) = member(reader, &part)?;
        let (plain, _) = stripped(reader, &kind).filter(|(plain, _)| is_pointer(plain))?;
        Some((member.name, member.offset, target(reader, &plain)?))
    };
    parts(reader, structure).into_iter().filter_map(pointer).collect()
}

/// The members and bases of a structure.
pub(super) fn parts<'a>(reader: &DwarfReader<'a>, structure: &DwarfEntry<'a>) -> Vec<DwarfEntry<'a>> {
    let is_part = |child: &DwarfEntry<'a>| {
        // A static member is declared here but not part of the structure.
        let data = child.tag() == gimli::DW_TAG_member && !child.has(gimli::DW_AT_declaration);
        (data && !child.has(gimli::DW_AT_external)) || is_base(child)
    };
    reader.children(structure).into_iter().filter(is_part).take(MAX_MEMBERS).collect()
}

fn is_base(part: &DwarfEntry) -> bool {
    part.tag() == gimli::DW_TAG_inheritance
}

fn is_bits(member: &DwarfEntry) -> bool {
    member.has(gimli::DW_AT_bit_size)
}

/// A member, without its declaration, and its type. A base class has the name of its type. An
/// anonymous member has an empty name.
fn member<'a>(reader: &DwarfReader<'a>, entry: &DwarfEntry<'a>) -> Option<(Member, DwarfEntry<'a>)> {
    let kind = target(reader, entry)?;
    let name = reader.name(if is_base(entry) { &kind } else { entry }).unwrap_or_default();
    let start = match entry.value(gimli::DW_AT_data_member_location) {
        Some(_) => entry.number(gimli::DW_AT_data_member_location)?,
        None => 0,
    };
    let size = bytes(reader, &kind)?;
    let (offset, bytes, alignment) = match entry.number(gimli::DW_AT_bit_size) {
        Some(bits) => {
            let first = first_bit(entry, start, size, bits)?;
            let end = first.checked_add(bits)?.div_ceil(8);
            (first / 8, end - first / 8, 0)
        }
        None => (start, size, alignment::of_member(reader, entry)),
    };
    Some((Member { name, declaration: String::new(), offset, bytes, alignment }, kind))
}

/// The first bit of a bit field, from the start of the structure. Up to DWARF 3, debug info counts
/// from the most significant bit of the storage unit.
fn first_bit(entry: &DwarfEntry, start: u64, size: u64, bits: u64) -> Option<u64> {
    if let Some(from_end) = entry.number(gimli::DW_AT_bit_offset) {
        let whole = entry.number(gimli::DW_AT_byte_size).unwrap_or(size).checked_mul(8)?;
        return start.checked_mul(8)?.checked_add(whole.checked_sub(from_end)?.checked_sub(bits)?);
    }
    entry.number(gimli::DW_AT_data_bit_offset).or_else(|| start.checked_mul(8))
}

/// Sorts the members, removes empty ones and those outside the structure, and merges overlapping
/// ones.
fn disjoint(mut members: Vec<Member>, stride: u64) -> Vec<Member> {
    let end = |member: &Member| member.offset.saturating_add(member.bytes);
    members.retain(|member| member.bytes > 0 && end(member) <= stride);
    members.sort_by_key(|member| member.offset);
    let mut disjoint: Vec<Member> = Vec::new();
    for mut member in members {
        if member.name.is_empty() {
            member.name = format!("unnamed_{}", member.offset);
        }
        match disjoint.last_mut() {
            Some(last) if end(last) > member.offset => {
                last.bytes = end(last).max(end(&member)) - last.offset;
                last.name = format!("{}, {}", last.name, member.name);
                last.declaration.clear();
                last.alignment = 0;
            }
            _ => disjoint.push(member),
        }
    }
    disjoint
}

/// Whether the last member is an array of unknown length.
pub(super) fn is_flexible<'a>(reader: &DwarfReader<'a>, structure: &DwarfEntry<'a>) -> bool {
    let plain = stripped(reader, structure).map(|(plain, _)| plain).filter(is_structure);
    let last = plain.and_then(|plain| target(reader, parts(reader, &plain).last()?));
    let last = last.and_then(|kind| element(reader, &kind));
    last.is_some_and(|(_, elements, _)| elements == 0)
}

/// The declaration of `name` with this type, as in `char name[12]`; empty if a type in it has no
/// name.
pub(super) fn declaration<'a>(reader: &DwarfReader<'a>, kind: &DwarfEntry<'a>, name: &str) -> String {
    declared(reader, kind.clone(), name).unwrap_or_default()
}

/// Builds the declaration from the name outwards, as the C grammar does.
fn declared<'a>(reader: &DwarfReader<'a>, mut kind: DwarfEntry<'a>, name: &str) -> Option<String> {
    let (mut text, mut qualifiers, mut after_pointer) = (name.to_owned(), String::new(), false);
    for _ in 0..MAX_STEPS {
        let word = match kind.tag() {
            gimli::DW_TAG_const_type => "const",
            gimli::DW_TAG_volatile_type => "volatile",
            gimli::DW_TAG_restrict_type => "restrict",
            gimli::DW_TAG_atomic_type => "_Atomic",
            _ => "",
        };
        let next = target(reader, &kind);
        if !word.is_empty() {
            // Compilers qualify both an array and its elements.
            if !qualifiers.contains(word) {
                qualifiers = format!("{qualifiers}{word} ");
            }
        } else if is_pointer(&kind) {
            let sign = match kind.tag() {
                gimli::DW_TAG_reference_type => "&",
                gimli::DW_TAG_rvalue_reference_type => "&&",
                _ => "*",
            };
            text = format!("{sign}{qualifiers}{text}");
            (qualifiers, after_pointer) = (String::new(), true);
        } else if matches!(kind.tag(), gimli::DW_TAG_array_type | gimli::DW_TAG_subroutine_type) {
            if after_pointer {
                text = format!("({text})");
            }
            after_pointer = false;
            text = match kind.tag() {
                gimli::DW_TAG_array_type => text + &dimensions(reader, &kind),
                _ => text + "()",
            };
        } else {
            return Some(format!("{qualifiers}{} {text}", type_name(reader, &kind)?));
        }
        match next {
            Some(next) => kind = next,
            None => return Some(format!("{qualifiers}void {text}")),
        }
    }
    None
}

fn dimensions<'a>(reader: &DwarfReader<'a>, array: &DwarfEntry<'a>) -> String {
    let counts = counts(reader, array);
    counts.iter().map(|&count| if count == 0 { "[]".to_owned() } else { format!("[{count}]") }).collect()
}

/// The name of a type in a declaration; `None` for an anonymous type.
fn type_name<'a>(reader: &DwarfReader<'a>, kind: &DwarfEntry<'a>) -> Option<String> {
    let name = reader.name(kind)?;
    let scope = reader.scope(kind);
    // The type is C++, which needs no `struct` before the name.
    if !scope.is_empty() || name.contains('<') {
        return Some(scope + &name);
    }
    Some(match kind.tag() {
        gimli::DW_TAG_structure_type => format!("struct {name}"),
        gimli::DW_TAG_union_type => format!("union {name}"),
        gimli::DW_TAG_enumeration_type => format!("enum {name}"),
        _ => name,
    })
}
