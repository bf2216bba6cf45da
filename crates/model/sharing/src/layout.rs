//! Contended members of an object, and a padded structure without contention, for the programmer.
//!
//! ```text
//!   address  0x...010                 0x...050                 0x...090       an array of structures of 64 bytes,
//!   element  │ 0                      │ 1                      │ 2            16 bytes behind a line's start
//!   line     ·······│·························│·························│
//!                   └ SXY of element 0 and SX of element 1 are in one line
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `member` | the place and alignment of a member; whether it is a lock |
//! | `text` | the padded structure as source text |
//!
//! Algorithm: members of *different* elements are separated by aligning the first member to a line,
//! which pads the size too. Members of *one* element are separated by aligning the first member of
//! each owner. Often both are needed. Offsets are computed as a compiler does, with each member's
//! natural alignment: by its type, or, if that is unknown, by its size and offset. A member that
//! would cross a line boundary is aligned to its size. A structure with members at unaligned
//! offsets is packed; the new layout is not.
//!
//! Source: Cachekata, section 4.3, whose linear regression "has been hand-corrected to eliminate
//! false sharing, by forcing each element of the array onto its own cache line".

mod member;
#[cfg(test)]
mod tests;
mod text;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::line_use::LineUse;
use crate::verdict::{ByteOwner, JudgedLine};

pub use member::Member;

/// An object: a structure, or an array of structures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectLayout {
    /// Name of the structure, or of the object if its type is unknown.
    pub name: String,
    /// Its address.
    pub address: u64,
    /// Number of elements; 1 for a single structure.
    pub elements: u64,
    /// Bytes from one element to the next.
    pub stride: u64,
    /// The members of an element, by offset and disjoint. Empty if they are unknown.
    pub members: Vec<Member>,
    /// Whether it was allocated at run time, so that the allocator determines its alignment.
    pub on_heap: bool,
}

/// A contended member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContendedMember {
    /// Index of the element.
    pub element: u64,
    /// Name of the member; `bytes 8 to 16` between two members, `bytes_8` if members are unknown.
    pub member: String,
    /// Bytes of the member on the line, from the start of the element.
    pub bytes: Range<u64>,
    /// The threads that own these bytes.
    pub threads: Vec<u32>,
    /// Whether they write.
    pub written: bool,
    /// The threads among them that write.
    #[serde(default)]
    pub writers: Vec<u32>,
    /// Whether atomic instructions accessed these bytes.
    #[serde(default)]
    pub is_atomic: bool,
    /// Whether the member is a lock, by its type.
    #[serde(default)]
    pub is_lock: bool,
}

/// A change of the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "advice", rename_all = "kebab-case")]
pub enum LayoutAdvice {
    /// Align a member to a line, or to its own size if it would cross a line boundary.
    AlignMember {
        /// Name of the member.
        member: String,
        /// Alignment in bytes.
        to: u64,
    },
    /// Remove the attribute that puts members at unaligned offsets.
    Unpack {
        /// A contended member that crosses a line boundary, if there is one.
        crossing: Option<String>,
    },
    /// Wrap each element, which has a single member, in an aligned structure.
    Wrap {
        /// Bytes of a line.
        to: u64,
    },
    /// Give the data of each thread lines of its own; members are unknown.
    Part {
        /// Bytes of a line.
        to: u64,
    },
    /// Pad each element of an array to whole lines.
    PadStride {
        /// Present size of an element in bytes.
        from: u64,
        /// New size of an element in bytes.
        to: u64,
    },
    /// Allocate the object at the start of a line: `malloc` ignores declared alignment.
    AlignAllocation {
        /// Bytes of a line.
        to: u64,
        /// Present distance from a line's start in bytes.
        off_by: u64,
    },
}

/// The contended members of an object, and its new layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redesign {
    /// Name of the object.
    #[serde(default)]
    pub object: String,
    /// The contended members, by element and offset.
    pub fights: Vec<ContendedMember>,
    /// The changes.
    pub advice: Vec<LayoutAdvice>,
    /// Present and new size of an element in bytes.
    pub bytes_before: u64,
    /// See `bytes_before`.
    pub bytes_after: u64,
    /// The padded structure, in C11 and C++11.
    pub text: String,
}

impl Redesign {
    /// The changes as text for reports.
    pub fn advice_words(&self) -> impl Iterator<Item = String> {
        // Files of older versions have no name.
        let object = if self.object.is_empty() { "the object" } else { &self.object };
        self.advice.iter().map(|advice| advice.words(object))
    }

    /// Whether a layout can separate all threads: no two threads contend for bytes of one member.
    #[must_use]
    pub fn separates_all(&self) -> bool {
        self.pairs(|_| true).1 == 0
    }

    /// The pairs of contended members, among those that `counts` selects: pairs that the layout
    /// separates, and pairs in one member, which it cannot separate.
    fn pairs(&self, counts: impl Fn(&ContendedMember) -> bool) -> (usize, usize) {
        let selected: Vec<&ContendedMember> = self.fights.iter().filter(|member| counts(member)).collect();
        let pairs =
            selected.iter().enumerate().flat_map(|(at, one)| selected[..at].iter().map(move |other| (one, other)));
        let (inseparable, separated): (Vec<_>, Vec<_>) = pairs
            .filter(|(one, other)| one.contends_with(other))
            .partition(|(one, other)| one.element == other.element && one.member == other.member);
        (separated.len(), inseparable.len())
    }
}

impl ContendedMember {
    /// Whether other threads use `other`, and one of the two is written.
    fn contends_with(&self, other: &Self) -> bool {
        self.threads != other.threads && (self.written || other.written)
    }
}

/// The layouts of `objects` by all `lines`: first the one that separates the most pairs of
/// contended members on `line`. Of equal ones, that which leaves the fewest pairs in one member;
/// then the first. Skips objects without a contended member and inconsistent descriptions.
#[must_use]
pub fn redesigns<'a>(
    objects: impl IntoIterator<Item = &'a ObjectLayout>,
    line: &LineUse,
    lines: &[JudgedLine],
) -> Vec<Redesign> {
    let on_line = line.address..line.address.saturating_add(u64::from(line.bytes));
    let rated = objects.into_iter().filter_map(|object| {
        let redesign = object.redesign(lines).ok().flatten()?;
        let pairs = redesign.pairs(|member| on_line.contains(&object.address_of(member)));
        Some((pairs, redesign))
    });
    let mut rated: Vec<_> = rated.collect();
    rated.sort_by_key(|&((separated, inseparable), _)| (Reverse(separated), inseparable));
    rated.into_iter().map(|(_, redesign)| redesign).collect()
}

impl ObjectLayout {
    /// Checks that the description is consistent.
    ///
    /// # Errors
    /// The first member that overlaps the previous one or exceeds the element; an element without a
    /// size.
    pub fn check(&self) -> Result<()> {
        let wrong = |member: &str, problem, remedy| {
            Err(Error::Layout { object: self.name.clone(), member: member.to_owned(), problem, remedy })
        };
        if self.stride == 0 || self.elements == 0 {
            return wrong(
                "an element",
                "has no size",
                "give the bytes from one element to the next, and one element at least",
            );
        }
        let mut end = 0;
        for member in &self.members {
            if member.offset < end || member.bytes == 0 {
                return wrong(
                    &member.name,
                    "overlaps the one before it, or is empty",
                    "give members in order; a union or a bit field as one member",
                );
            }
            let Some(behind) = member.offset.checked_add(member.bytes).filter(|&behind| behind <= self.stride) else {
                return wrong(&member.name, "goes beyond the element", "give the size of an element as its stride");
            };
            end = behind;
        }
        Ok(())
    }

    /// The address of the contended bytes of a member.
    const fn address_of(&self, member: &ContendedMember) -> u64 {
        self.address.saturating_add(self.stride.saturating_mul(member.element)).saturating_add(member.bytes.start)
    }

    /// The contended members of this object on these lines, and a new layout. `None` if no line is
    /// a finding.
    ///
    /// # Errors
    /// An inconsistent description: see [`Self::check`].
    pub fn redesign(&self, lines: &[JudgedLine]) -> Result<Option<Redesign>> {
        self.check()?;
        let findings: Vec<&JudgedLine> = lines.iter().filter(|judged| judged.verdict.is_finding()).collect();
        let mut fights: Vec<ContendedMember> = findings.iter().flat_map(|judged| self.fights(judged)).collect();
        fights.sort_by_key(|fight| (fight.element, fight.bytes.start));
        let Some(line_bytes) = findings.iter().map(|judged| u64::from(judged.line.bytes)).max() else {
            return Ok(None);
        };
        if fights.is_empty() {
            return Ok(None);
        }
        if self.members.is_empty() {
            let by_bytes = Self { members: self.members_by(&fights), ..self.clone() }.redesign(lines)?;
            let advice = vec![LayoutAdvice::Part { to: line_bytes }];
            return Ok(by_bytes.map(|redesign| Redesign { advice, ..redesign }));
        }
        let aligned = self.aligned_members(&fights, line_bytes);
        let placed = self.placed(&aligned);
        let bytes_after =
            placed.last().map_or(self.stride, |last| last.offset + last.bytes).next_multiple_of(line_bytes);
        let text = text::structure(self, &placed, &aligned, &fights, bytes_after);
        let crossing = fights.iter().find_map(|fight| self.crossing(fight, line_bytes));
        let advice = self.advice(&aligned, crossing, line_bytes, bytes_after);
        Ok(Some(Redesign { object: self.name.clone(), fights, advice, bytes_before: self.stride, bytes_after, text }))
    }

    /// Members for an object without known ones: one from each start of a contended range.
    fn members_by(&self, fights: &[ContendedMember]) -> Vec<Member> {
        let starts: BTreeSet<u64> = fights.iter().map(|fight| fight.bytes.start).chain([0]).collect();
        let ends = starts.iter().skip(1).copied().chain([self.stride]);
        let member = |(&offset, end): (&u64, u64)| Member {
            name: format!("bytes_{offset}"),
            declaration: String::new(),
            offset,
            bytes: end - offset,
            alignment: 0,
        };
        starts.iter().zip(ends).map(member).collect()
    }

    /// The contended members of this object on one line.
    fn fights(&self, judged: &JudgedLine) -> Vec<ContendedMember> {
        let owners = judged.verdict.movable().iter().chain(judged.verdict.shared());
        owners
            .flat_map(|owner| owner.bytes.iter().flat_map(|bytes| self.fights_in(&judged.line, owner, bytes)))
            .collect()
    }

    /// The contended members in a range of an owner's bytes.
    fn fights_in(&self, line: &LineUse, owner: &ByteOwner, bytes: &Range<u64>) -> Vec<ContendedMember> {
        let end = self.address.saturating_add(self.stride.saturating_mul(self.elements));
        let (start, end) = (bytes.start.max(self.address), bytes.end.min(end));
        let mut fights = Vec::new();
        let mut at = start;
        while at < end {
            let element = (at - self.address) / self.stride;
            let offset = (at - self.address) % self.stride;
            let rest = (end - at).min(self.stride - offset);
            for (member, bytes) in self.members_in(offset..offset + rest) {
                // An owner need not write all of its bytes on a line.
                let there = at - offset + bytes.start..at - offset + bytes.end;
                let writes = |thread: &u32| owner.written > 0.0 && line.is_written(&there, &[*thread]);
                let writers: Vec<u32> = owner.threads.iter().copied().filter(writes).collect();
                let (written, is_atomic) = (!writers.is_empty(), line.is_atomic(&there, &owner.threads));
                let is_lock = self.members.iter().any(|known| known.name == member && known.is_lock());
                let threads = owner.threads.clone();
                fights.push(ContendedMember { element, member, bytes, threads, written, writers, is_atomic, is_lock });
            }
            at += rest;
        }
        fights
    }

    /// The members that contain some of these bytes, with those bytes.
    fn members_in(&self, bytes: Range<u64>) -> Vec<(String, Range<u64>)> {
        let named = self.members.iter().map(|member| {
            let start = bytes.start.max(member.offset);
            (member.name.clone(), start..bytes.end.min(member.offset + member.bytes).max(start))
        });
        let known: Vec<(String, Range<u64>)> = named.filter(|(_, bytes)| !bytes.is_empty()).collect();
        if known.is_empty() { vec![(format!("bytes {} to {}", bytes.start, bytes.end), bytes)] } else { known }
    }

    /// The contended member, if it crosses a line boundary and would fit on one line.
    fn crossing(&self, fight: &ContendedMember, line_bytes: u64) -> Option<String> {
        let member = self.members.iter().find(|member| member.name == fight.member)?;
        let element = self.address.saturating_add(self.stride.saturating_mul(fight.element));
        member.crosses(element, line_bytes).then(|| member.name.clone())
    }

    /// Whether members are at offsets that their types do not permit.
    fn is_packed(&self) -> bool {
        self.members.iter().any(|member| member.alignment > 1 && !member.offset.is_multiple_of(member.alignment))
    }

    /// The members with a declared alignment. The first member starts a line. So does each one that
    /// would otherwise share a line with a member of other threads. A member that would cross a
    /// line boundary is aligned to its size.
    fn aligned_members(&self, fights: &[ContendedMember], line_bytes: u64) -> BTreeMap<usize, u64> {
        let number = |fight: &ContendedMember| self.members.iter().position(|member| member.name == fight.member);
        let numbered: Vec<(usize, &ContendedMember)> =
            fights.iter().filter_map(|fight| Some((number(fight)?, fight))).collect();
        let mut apart: BTreeSet<(usize, usize)> = BTreeSet::new();
        for (behind, one) in &numbered {
            let fights_it = |other: &ContendedMember| one.element == other.element && one.contends_with(other);
            let before = numbered.iter().filter(|(before, other)| before < behind && fights_it(other));
            apart.extend(before.map(|(before, _)| (*behind, *before)));
        }
        let mut aligned = BTreeMap::from([(0, line_bytes)]);
        // In order of offsets: a decision moves only this member and later ones.
        for at in numbered.iter().map(|(at, _)| *at).collect::<BTreeSet<_>>() {
            let own = &self.placed(&aligned)[at];
            if own.crosses(0, line_bytes) {
                aligned.insert(at, own.bytes.next_power_of_two());
            }
            let placed = self.placed(&aligned);
            let last = |member: &Member| (member.offset + member.bytes - 1) / line_bytes;
            let mut before = apart.range((at, 0)..=(at, usize::MAX));
            if before.any(|&(_, before)| last(&placed[before]) == placed[at].offset / line_bytes) {
                aligned.insert(at, line_bytes);
            }
        }
        aligned
    }

    /// The members at the offsets that a compiler would choose, with these declared alignments.
    fn placed(&self, aligned: &BTreeMap<usize, u64>) -> Vec<Member> {
        let mut end = 0_u64;
        let place = |(at, member): (usize, &Member)| {
            let alignment = aligned.get(&at).copied().unwrap_or_else(|| member.natural_alignment());
            let offset = end.next_multiple_of(alignment);
            end = offset + member.bytes;
            Member { offset, ..member.clone() }
        };
        self.members.iter().enumerate().map(place).collect()
    }

    fn advice(
        &self,
        aligned: &BTreeMap<usize, u64>,
        crossing: Option<String>,
        line_bytes: u64,
        bytes_after: u64,
    ) -> Vec<LayoutAdvice> {
        let mut advice = Vec::new();
        if self.is_packed() {
            advice.push(LayoutAdvice::Unpack { crossing });
        }
        if self.elements > 1 && self.members.len() == 1 {
            advice.push(LayoutAdvice::Wrap { to: line_bytes });
        } else {
            let members = aligned.iter().filter_map(|(&at, &to)| Some((self.members.get(at)?, to)));
            advice.extend(members.map(|(member, to)| LayoutAdvice::AlignMember { member: member.name.clone(), to }));
        }
        // A single structure has its padding by the alignment of its members.
        if bytes_after != self.stride && self.elements > 1 {
            advice.push(LayoutAdvice::PadStride { from: self.stride, to: bytes_after });
        }
        let off_by = self.address % line_bytes;
        if self.on_heap && off_by != 0 {
            advice.push(LayoutAdvice::AlignAllocation { to: line_bytes, off_by });
        }
        advice
    }
}

impl LayoutAdvice {
    /// Text for reports on the object of this name.
    #[must_use]
    pub fn words(&self, object: &str) -> String {
        match self {
            Self::AlignMember { member, to } => format!("declare {member} with alignas({to})"),
            Self::Unpack { crossing } => {
                let why = crossing.as_ref().map_or_else(String::new, |member| {
                    format!(": by it {member} lies across two cache lines, and each access to {member} takes both")
                });
                format!("leave out the attribute packed{why}")
            }
            Self::Wrap { to } => format!("make each element a structure whose first member has alignas({to})"),
            Self::Part { to } => {
                format!("give what each thread uses {to} bytes of its own: alignas({to}) on it, and on what follows")
            }
            Self::PadStride { from, to } => format!("pad each element from {from} to {to} bytes"),
            Self::AlignAllocation { to, off_by } => format!(
                "allocate {object} with aligned_alloc({to}, …), or with new since C++17: malloc put it {off_by} bytes behind a line's start"
            ),
        }
    }
}
