//! Which members of which elements fight, and the structure that would not: for the programmer.
//!
//! ```text
//!   address  0x...010                 0x...050                 0x...090       an array of structures of 64 bytes,
//!   element  │ 0                      │ 1                      │ 2            16 bytes behind a line's start
//!   line     ·······│·························│·························│
//!                   └ SXY of element 0 and SX of element 1 are in one line
//! ```
//! Two remedies, by what fights: members of *different* elements are parted by elements that begin and end with a line
//! (alignment on the first member, which pads the size too); members of *one* element by alignment on the first of each
//! owner's members. Often both are needed. The new layout is computed as a compiler would, with the natural alignment of each member: that of
//! its type where it is known, else what size and offset allow. A member that would lie across two lines begins at a multiple of its
//! size. A structure whose members lie elsewhere than their types ask for is packed: its new layout is without that attribute.
//!
//! Source: Cachekata, section 4.3, whose linear regression "has been hand-corrected to eliminate false sharing, by forcing
//! each element of the array onto its own cache line".

mod member;
#[cfg(test)]
mod tests;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::line::Line;
use crate::verdict::{Judged, Owner};

pub use member::Member;

/// An object: a structure, or an array of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// The name of the structure, or of the object where its type is not known.
    pub name: String,
    /// Its address.
    pub address: u64,
    /// How many elements; 1 for what is no array.
    pub elements: u64,
    /// Bytes from one element to the next.
    pub stride: u64,
    /// The members of an element, in order of their offsets, disjoint. Empty where they are not known.
    pub members: Vec<Member>,
    /// It was allocated at run time, so that its alignment is the allocator's.
    pub on_heap: bool,
}

/// A member that fights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fight {
    /// The number of the element.
    pub element: u64,
    /// The member's name; between two members `bytes 8 to 16`, where members are not known `bytes_8`.
    pub member: String,
    /// Bytes from the start of the element that are on the line.
    pub bytes: Range<u64>,
    /// The threads whose bytes they are.
    pub threads: Vec<u32>,
    /// Do they write?
    pub written: bool,
    /// Those of them that do.
    #[serde(default)]
    pub writers: Vec<u32>,
    /// Were these bytes accessed by atomic instructions?
    #[serde(default)]
    pub is_atomic: bool,
    /// Is the member a lock, by its type?
    #[serde(default)]
    pub is_lock: bool,
}

/// What to change in the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "advice", rename_all = "kebab-case")]
pub enum Advice {
    /// Let this member begin at a multiple of so many bytes: of a line, or of its own size where it would lie across two lines.
    AlignMember {
        /// Its name.
        member: String,
        /// Bytes.
        to: u64,
    },
    /// Leave out the attribute by which members lie elsewhere than their types ask for.
    Unpack {
        /// A member that threads contend for and that lies across two lines, if there is one.
        crossing: Option<String>,
    },
    /// Make each element, which is no structure with several members, one that begins a line.
    Wrap {
        /// Bytes of a line.
        to: u64,
    },
    /// Give what each thread uses lines of its own, whatever it is: members are not known.
    Part {
        /// Bytes of a line.
        to: u64,
    },
    /// Let an element fill whole lines.
    PadStride {
        /// Bytes of an element now.
        from: u64,
        /// Bytes of an element then.
        to: u64,
    },
    /// Allocate the object at the start of a line: what is declared does not reach `malloc`.
    AlignAllocation {
        /// Bytes of a line.
        to: u64,
        /// Bytes behind a line's start now.
        off_by: u64,
    },
}

/// What fights in an object, and the structure that would not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redesign {
    /// Members that fight, by element and offset.
    pub fights: Vec<Fight>,
    /// What to change.
    pub advice: Vec<Advice>,
    /// Bytes of an element now and then.
    pub bytes_before: u64,
    /// See `bytes_before`.
    pub bytes_after: u64,
    /// The padded structure, as C11 and C++11 read it.
    pub text: String,
}

impl Redesign {
    /// Whether no two threads fight for bytes of one member, which no layout parts.
    #[must_use]
    pub fn parts_all(&self) -> bool {
        let in_one = |one: &Fight, other: &Fight| one.element == other.element && one.member == other.member;
        self.fights
            .iter()
            .enumerate()
            .all(|(at, one)| self.fights[..at].iter().all(|other| !in_one(one, other) || one.threads == other.threads))
    }
}

impl Object {
    /// Is the description one of memory?
    ///
    /// # Errors
    /// The first member that overlaps the one before it, or goes beyond the element; an element of no size.
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

    /// What fights in this object, on these lines, and how to part it. None if nothing on them is a finding.
    ///
    /// # Errors
    /// A description that is not one of memory: see [`Self::check`].
    pub fn redesign(&self, lines: &[Judged]) -> Result<Option<Redesign>> {
        self.check()?;
        let findings: Vec<&Judged> = lines.iter().filter(|judged| judged.verdict.is_finding()).collect();
        let mut fights: Vec<Fight> = findings.iter().flat_map(|judged| self.fights(judged)).collect();
        fights.sort_by_key(|fight| (fight.element, fight.bytes.start));
        let Some(line_bytes) = findings.iter().map(|judged| u64::from(judged.line.bytes)).max() else {
            return Ok(None);
        };
        if fights.is_empty() {
            return Ok(None);
        }
        if self.members.is_empty() {
            let by_bytes = Self { members: self.members_by(&fights), ..self.clone() }.redesign(lines)?;
            let advice = vec![Advice::Part { to: line_bytes }];
            return Ok(by_bytes.map(|redesign| Redesign { advice, ..redesign }));
        }
        let aligned = self.aligned_members(&fights, line_bytes);
        let placed = self.placed(&aligned);
        let bytes_after =
            placed.last().map_or(self.stride, |last| last.offset + last.bytes).next_multiple_of(line_bytes);
        let text = text::structure(self, &placed, &aligned, &fights, bytes_after);
        let crossing = fights.iter().find_map(|fight| self.crossing(fight, line_bytes));
        let advice = self.advice(&aligned, crossing, line_bytes, bytes_after);
        Ok(Some(Redesign { fights, advice, bytes_before: self.stride, bytes_after, text }))
    }

    /// Members for an object of which none are known: one from each place where a fight begins.
    fn members_by(&self, fights: &[Fight]) -> Vec<Member> {
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

    /// The members of this object that fight on one line.
    fn fights(&self, judged: &Judged) -> Vec<Fight> {
        let owners = judged.verdict.movable().iter().chain(judged.verdict.shared());
        owners
            .flat_map(|owner| owner.bytes.iter().flat_map(|bytes| self.fights_in(&judged.line, owner, bytes)))
            .collect()
    }

    /// Those in a run of an owner's bytes.
    fn fights_in(&self, line: &Line, owner: &Owner, bytes: &Range<u64>) -> Vec<Fight> {
        let end = self.address.saturating_add(self.stride.saturating_mul(self.elements));
        let (start, end) = (bytes.start.max(self.address), bytes.end.min(end));
        let mut fights = Vec::new();
        let mut at = start;
        while at < end {
            let element = (at - self.address) / self.stride;
            let offset = (at - self.address) % self.stride;
            let rest = (end - at).min(self.stride - offset);
            for (member, bytes) in self.members_in(offset..offset + rest) {
                // Not all of what an owner has on a line need be written.
                let there = at - offset + bytes.start..at - offset + bytes.end;
                let writes = |thread: &u32| owner.written > 0.0 && line.is_written(&there, &[*thread]);
                let writers: Vec<u32> = owner.threads.iter().copied().filter(writes).collect();
                let (written, is_atomic) = (!writers.is_empty(), line.is_atomic(&there, &owner.threads));
                let is_lock = self.members.iter().any(|known| known.name == member && known.is_lock());
                let threads = owner.threads.clone();
                fights.push(Fight { element, member, bytes, threads, written, writers, is_atomic, is_lock });
            }
            at += rest;
        }
        fights
    }

    /// The members that have some of these bytes, and which of them.
    fn members_in(&self, bytes: Range<u64>) -> Vec<(String, Range<u64>)> {
        let named = self.members.iter().map(|member| {
            let start = bytes.start.max(member.offset);
            (member.name.clone(), start..bytes.end.min(member.offset + member.bytes).max(start))
        });
        let known: Vec<(String, Range<u64>)> = named.filter(|(_, bytes)| !bytes.is_empty()).collect();
        if known.is_empty() { vec![(format!("bytes {} to {}", bytes.start, bytes.end), bytes)] } else { known }
    }

    /// The member of a fight, if it lies across two lines and would fit on one.
    fn crossing(&self, fight: &Fight, line_bytes: u64) -> Option<String> {
        let member = self.members.iter().find(|member| member.name == fight.member)?;
        let element = self.address.saturating_add(self.stride.saturating_mul(fight.element));
        member.crosses(element, line_bytes).then(|| member.name.clone())
    }

    /// Do members lie elsewhere than their types ask for?
    fn is_packed(&self) -> bool {
        self.members.iter().any(|member| member.alignment > 1 && !member.offset.is_multiple_of(member.alignment))
    }

    /// The members whose alignment has to be declared, each with it. They begin a line: the first, and each that would share a line with a
    /// member that other threads use, in the layout that comes of those before it. Or they begin at a multiple of their size, since they
    /// would lie across two lines.
    fn aligned_members(&self, fights: &[Fight], line_bytes: u64) -> BTreeMap<usize, u64> {
        let number = |fight: &Fight| self.members.iter().position(|member| member.name == fight.member);
        let numbered: Vec<(usize, &Fight)> = fights.iter().filter_map(|fight| Some((number(fight)?, fight))).collect();
        let mut apart: BTreeSet<(usize, usize)> = BTreeSet::new();
        for (behind, one) in &numbered {
            let fights_it = |other: &Fight| {
                one.element == other.element && one.threads != other.threads && (one.written || other.written)
            };
            let before = numbered.iter().filter(|(before, other)| before < behind && fights_it(other));
            apart.extend(before.map(|(before, _)| (*behind, *before)));
        }
        let mut aligned = BTreeMap::from([(0, line_bytes)]);
        // In order: what is decided for a member moves only itself and those behind it.
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

    /// The members where a compiler would put them, when some have a declared alignment.
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
    ) -> Vec<Advice> {
        let mut advice = Vec::new();
        if self.is_packed() {
            advice.push(Advice::Unpack { crossing });
        }
        if self.elements > 1 && self.members.len() == 1 {
            advice.push(Advice::Wrap { to: line_bytes });
        } else {
            let members = aligned.iter().filter_map(|(&at, &to)| Some((self.members.get(at)?, to)));
            advice.extend(members.map(|(member, to)| Advice::AlignMember { member: member.name.clone(), to }));
        }
        if bytes_after != self.stride {
            advice.push(Advice::PadStride { from: self.stride, to: bytes_after });
        }
        let off_by = self.address % line_bytes;
        if self.on_heap && off_by != 0 {
            advice.push(Advice::AlignAllocation { to: line_bytes, off_by });
        }
        advice
    }
}

impl Advice {
    /// In the words of a report.
    #[must_use]
    pub fn words(&self) -> String {
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
                "allocate it with aligned_alloc({to}, …), or with new since C++17: malloc put it {off_by} bytes behind a line's start"
            ),
        }
    }
}
