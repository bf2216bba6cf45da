//! Types as layouts: which members lie where in an element, how many elements there are, and how each is declared.
//!
//! ```text
//!   struct slot { long hits; struct { int x, y; } at; unsigned a : 3, b : 5; } slots[8];
//!   layout   8 elements, 24 bytes from one to the next
//!   members  hits (0, 8)   at.x (8, 4)   at.y (12, 4)   "a, b" (16, 1)
//! ```
//! Structures in structures are taken apart once, but for those that are derived from others; a union is one member, and so are bit fields that share bytes. Members are in order
//! and disjoint, whatever the debug information says: what overlaps becomes one member.

use addr2line::gimli;
use fieldstone_sharing::Member;

use super::alignment;
use super::dwarf::{Entry, Reading};

/// How often a type is followed through typedefs, arrays and pointers.
const MOST_STEPS: usize = 24;
const MOST_MEMBERS: usize = 1024;
const POINTER_BYTES: u64 = 8;
/// The member of an element that is no structure.
const VALUE: &str = "value";

/// What lies in a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Of the structure; of the variable where its type is none.
    pub(super) name: String,
    /// How many there are.
    pub(super) elements: u64,
    /// Bytes of one.
    pub(super) stride: u64,
    /// What is in one.
    pub(super) members: Vec<Member>,
    /// Elements are structures.
    pub(super) structure: bool,
    /// The structure ends in an array of no known length.
    pub(super) flexible: bool,
}

impl Layout {
    /// The layout of a variable of this type; none where its size is not known.
    pub(super) fn of<'a>(reading: &Reading<'a>, kind: &Entry<'a>, variable: &str) -> Option<Self> {
        let (element, elements, alias) = element(reading, kind)?;
        let stride = bytes(reading, &element).filter(|&bytes| bytes > 0)?;
        let structure = is_structure(&element);
        if structure {
            let members = members(reading, &element, stride);
            let flexible = is_flexible(reading, &element);
            let name = reading.name(&element).or(alias).unwrap_or_else(|| variable.to_owned());
            return Some(Self { name, elements, stride, members, structure, flexible });
        }
        let declaration = declaration(reading, &declared_element(reading, kind)?, variable);
        let alignment = alignment::alignment(reading, kind);
        let members = vec![Member { name: variable.to_owned(), declaration, offset: 0, bytes: stride, alignment }];
        let mut layout = Self { name: variable.to_owned(), elements, stride, members, structure, flexible: false };
        if elements > 1 {
            layout.repeat(reading, kind);
        }
        Some(layout)
    }

    /// An element of an array has no name; what a structure of it would hold is called its value.
    pub(super) fn repeat<'a>(&mut self, reading: &Reading<'a>, kind: &Entry<'a>) {
        if let ([member], false) = (self.members.as_mut_slice(), self.structure) {
            VALUE.clone_into(&mut member.name);
            member.declaration =
                declared_element(reading, kind).map(|kind| declaration(reading, &kind, VALUE)).unwrap_or_default();
        }
    }

    /// All its bytes.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.elements.checked_mul(self.stride)
    }
}

pub(super) fn is_structure(entry: &Entry) -> bool {
    matches!(entry.tag(), gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type)
}

fn is_alias(entry: &Entry) -> bool {
    matches!(
        entry.tag(),
        gimli::DW_TAG_typedef
            | gimli::DW_TAG_const_type
            | gimli::DW_TAG_volatile_type
            | gimli::DW_TAG_restrict_type
            | gimli::DW_TAG_atomic_type
    )
}

pub(super) fn is_pointer(entry: &Entry) -> bool {
    matches!(
        entry.tag(),
        gimli::DW_TAG_pointer_type | gimli::DW_TAG_reference_type | gimli::DW_TAG_rvalue_reference_type
    )
}

/// The type that an entry refers to.
pub(super) fn target<'a>(reading: &Reading<'a>, entry: &Entry<'a>) -> Option<Entry<'a>> {
    reading.follow(entry, gimli::DW_AT_type)
}

/// A type without typedefs and qualifiers, and the innermost typedef's name.
pub(super) fn stripped<'a>(reading: &Reading<'a>, kind: &Entry<'a>) -> Option<(Entry<'a>, Option<String>)> {
    let (mut kind, mut alias) = (kind.clone(), None);
    for _ in 0..MOST_STEPS {
        if !is_alias(&kind) {
            return Some((kind, alias));
        }
        if kind.tag() == gimli::DW_TAG_typedef {
            alias = reading.name(&kind);
        }
        kind = target(reading, &kind)?;
    }
    None
}

/// The element type of arrays, of arrays of arrays too, and how many there are; 1 of anything else.
pub(super) fn element<'a>(reading: &Reading<'a>, kind: &Entry<'a>) -> Option<(Entry<'a>, u64, Option<String>)> {
    let (mut kind, mut alias) = stripped(reading, kind)?;
    let mut elements = 1_u64;
    for _ in 0..MOST_STEPS {
        if kind.tag() != gimli::DW_TAG_array_type {
            return Some((kind, elements, alias));
        }
        elements = elements.checked_mul(counts(reading, &kind).into_iter().try_fold(1, u64::checked_mul)?)?;
        (kind, alias) = stripped(reading, &target(reading, &kind)?)?;
    }
    None
}

/// The element type of arrays as it is declared, typedefs and qualifiers kept; the type itself where it is no array.
pub(super) fn declared_element<'a>(reading: &Reading<'a>, kind: &Entry<'a>) -> Option<Entry<'a>> {
    let mut declared = kind.clone();
    for _ in 0..MOST_STEPS {
        let (plain, _) = stripped(reading, &declared)?;
        if plain.tag() != gimli::DW_TAG_array_type {
            return Some(declared);
        }
        declared = target(reading, &plain)?;
    }
    None
}

/// How many elements an array has, a number a dimension; 0 for one that is not known.
fn counts<'a>(reading: &Reading<'a>, array: &Entry<'a>) -> Vec<u64> {
    let ranges = reading.children(array).into_iter().filter(|child| child.tag() == gimli::DW_TAG_subrange_type);
    let count = |range: Entry<'a>| {
        let bound = range.number(gimli::DW_AT_upper_bound).and_then(|bound| bound.checked_add(1));
        range.number(gimli::DW_AT_count).or(bound).unwrap_or(0)
    };
    ranges.map(count).collect()
}

/// The size of a type; none where it is only declared.
pub(super) fn bytes<'a>(reading: &Reading<'a>, kind: &Entry<'a>) -> Option<u64> {
    let (element, elements, _) = element(reading, kind)?;
    let bytes = match element.number(gimli::DW_AT_byte_size) {
        Some(bytes) => bytes,
        None if is_pointer(&element) => POINTER_BYTES,
        None if element.tag() == gimli::DW_TAG_enumeration_type => bytes_of_target(reading, &element)?,
        None => return None,
    };
    bytes.checked_mul(elements)
}

/// An enumeration may leave its size to the type that it lies on.
fn bytes_of_target<'a>(reading: &Reading<'a>, kind: &Entry<'a>) -> Option<u64> {
    stripped(reading, &target(reading, kind)?)?.0.number(gimli::DW_AT_byte_size)
}

/// The members of a structure, those of structures in it with both names.
fn members<'a>(reading: &Reading<'a>, structure: &Entry<'a>, stride: u64) -> Vec<Member> {
    let mut members = Vec::new();
    for child in parts(reading, structure) {
        if members.len() >= MOST_MEMBERS {
            break;
        }
        let Some((mut member, kind)) = member(reading, &child) else { continue };
        let inner = stripped(reading, &kind).map(|(inner, _)| inner).filter(is_structure);
        // What is derived from something cannot be written as its parts.
        let inner = inner.filter(|inner| !parts(reading, inner).iter().any(is_base));
        let inner: Vec<Member> = inner
            .iter()
            .flat_map(|inner| parts(reading, inner))
            .filter_map(|child| {
                let (part, kind) = self::member(reading, &child)?;
                Some(joined(&member, part, |name| declaration(reading, &kind, name)))
            })
            .collect();
        if inner.is_empty() {
            if member.declaration.is_empty() && !is_bits(&child) {
                member.declaration = declaration(reading, &kind, &member.name);
            }
            members.push(member);
        } else {
            members.extend(inner);
        }
    }
    disjoint(members, stride)
}

/// A part of a structure in a structure: `outer.inner`, and in a declaration `outer_inner`.
fn joined(outer: &Member, part: Member, declared: impl Fn(&str) -> String) -> Member {
    let (name, plain) = if outer.name.is_empty() {
        (part.name.clone(), part.name)
    } else {
        (format!("{}.{}", outer.name, part.name), format!("{}_{}", outer.name, part.name))
    };
    let offset = outer.offset.saturating_add(part.offset);
    Member { name, declaration: declared(&plain), offset, bytes: part.bytes, alignment: part.alignment }
}

/// The members of a structure that are pointers: their name, their offset, and what they point to.
pub(super) fn pointers<'a>(reading: &Reading<'a>, structure: &Entry<'a>) -> Vec<(String, u64, Entry<'a>)> {
    let pointer = |part: Entry<'a>| {
        let (member, kind) = member(reading, &part)?;
        let (plain, _) = stripped(reading, &kind).filter(|(plain, _)| is_pointer(plain))?;
        Some((member.name, member.offset, target(reading, &plain)?))
    };
    parts(reading, structure).into_iter().filter_map(pointer).collect()
}

/// The members and bases of a structure.
pub(super) fn parts<'a>(reading: &Reading<'a>, structure: &Entry<'a>) -> Vec<Entry<'a>> {
    let is_part = |child: &Entry<'a>| {
        // A static member is declared here and lies elsewhere.
        let data = child.tag() == gimli::DW_TAG_member && !child.has(gimli::DW_AT_declaration);
        (data && !child.has(gimli::DW_AT_external)) || is_base(child)
    };
    reading.children(structure).into_iter().filter(is_part).take(MOST_MEMBERS).collect()
}

fn is_base(part: &Entry) -> bool {
    part.tag() == gimli::DW_TAG_inheritance
}

fn is_bits(member: &Entry) -> bool {
    member.has(gimli::DW_AT_bit_size)
}

/// A member, without its declaration, and its type. A base has the name of its type, what is anonymous has none.
fn member<'a>(reading: &Reading<'a>, entry: &Entry<'a>) -> Option<(Member, Entry<'a>)> {
    let kind = target(reading, entry)?;
    let name = reading.name(if is_base(entry) { &kind } else { entry }).unwrap_or_default();
    let start = match entry.value(gimli::DW_AT_data_member_location) {
        Some(_) => entry.number(gimli::DW_AT_data_member_location)?,
        None => 0,
    };
    let size = bytes(reading, &kind)?;
    let (offset, bytes, alignment) = match entry.number(gimli::DW_AT_bit_size) {
        Some(bits) => {
            let first = first_bit(entry, start, size, bits)?;
            let end = first.checked_add(bits)?.div_ceil(8);
            (first / 8, end - first / 8, 0)
        }
        None => (start, size, alignment::of_member(reading, entry)),
    };
    Some((Member { name, declaration: String::new(), offset, bytes, alignment }, kind))
}

/// Where a bit field begins. Up to DWARF 3 that is counted from the high end of a number that has it.
fn first_bit(entry: &Entry, start: u64, size: u64, bits: u64) -> Option<u64> {
    if let Some(from_end) = entry.number(gimli::DW_AT_bit_offset) {
        let whole = entry.number(gimli::DW_AT_byte_size).unwrap_or(size).checked_mul(8)?;
        return start.checked_mul(8)?.checked_add(whole.checked_sub(from_end)?.checked_sub(bits)?);
    }
    entry.number(gimli::DW_AT_data_bit_offset).or_else(|| start.checked_mul(8))
}

/// Members in order, within the structure, without those of no size; such that overlap are one.
fn disjoint(mut members: Vec<Member>, stride: u64) -> Vec<Member> {
    let end = |member: &Member| member.offset.saturating_add(member.bytes);
    members.retain(|member| member.bytes > 0 && end(member) <= stride);
    members.sort_by_key(|member| member.offset);
    let mut apart: Vec<Member> = Vec::new();
    for mut member in members {
        if member.name.is_empty() {
            member.name = format!("unnamed_{}", member.offset);
        }
        match apart.last_mut() {
            Some(last) if end(last) > member.offset => {
                last.bytes = end(last).max(end(&member)) - last.offset;
                last.name = format!("{}, {}", last.name, member.name);
                last.declaration.clear();
                last.alignment = 0;
            }
            _ => apart.push(member),
        }
    }
    apart
}

/// Whether the last member is an array of no known length.
pub(super) fn is_flexible<'a>(reading: &Reading<'a>, structure: &Entry<'a>) -> bool {
    let plain = stripped(reading, structure).map(|(plain, _)| plain).filter(is_structure);
    let last = plain.and_then(|plain| target(reading, parts(reading, &plain).last()?));
    let last = last.and_then(|kind| element(reading, &kind));
    last.is_some_and(|(_, elements, _)| elements == 0)
}

/// The declaration of something of this type, as in `char name[12]`; empty where a type in it has no name.
pub(super) fn declaration<'a>(reading: &Reading<'a>, kind: &Entry<'a>, name: &str) -> String {
    declared(reading, kind.clone(), name).unwrap_or_default()
}

/// From the name outwards, as C declares.
fn declared<'a>(reading: &Reading<'a>, mut kind: Entry<'a>, name: &str) -> Option<String> {
    let (mut text, mut qualifiers, mut after_pointer) = (name.to_owned(), String::new(), false);
    for _ in 0..MOST_STEPS {
        let word = match kind.tag() {
            gimli::DW_TAG_const_type => "const",
            gimli::DW_TAG_volatile_type => "volatile",
            gimli::DW_TAG_restrict_type => "restrict",
            gimli::DW_TAG_atomic_type => "_Atomic",
            _ => "",
        };
        let next = target(reading, &kind);
        if !word.is_empty() {
            // Compilers qualify an array and its elements.
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
                gimli::DW_TAG_array_type => text + &dimensions(reading, &kind),
                _ => text + "()",
            };
        } else {
            return Some(format!("{qualifiers}{} {text}", named(reading, &kind)?));
        }
        match next {
            Some(next) => kind = next,
            None => return Some(format!("{qualifiers}void {text}")),
        }
    }
    None
}

fn dimensions<'a>(reading: &Reading<'a>, array: &Entry<'a>) -> String {
    let counts = counts(reading, array);
    counts.iter().map(|&count| if count == 0 { "[]".to_owned() } else { format!("[{count}]") }).collect()
}

/// The words for a type with a name.
fn named<'a>(reading: &Reading<'a>, kind: &Entry<'a>) -> Option<String> {
    let name = reading.name(kind)?;
    let scope = reading.scope(kind);
    // C++, then, which takes a class by its name alone.
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
