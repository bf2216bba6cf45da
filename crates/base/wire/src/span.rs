//! An address range outside the region and its kind, in one word that changes atomically.
//!
//! ```text
//! bits  63 ........ 32 | 31 ........ 6 | 5 .. 0
//!       start, 64 KiB  | length, 64 KiB| kind + 1: a PlacementReason or RESERVED; 0: no range
//! ```
//! The agent holds [`SPANS`] of these words at the address in [`crate::ProcessSlot::spans`]. The
//! supervisor reads them to attribute resident memory outside the region to its reason.

use crate::PlacementReason;

/// Words in the agent's table.
pub const SPANS: usize = 1024;

/// Granularity of a range's ends in bytes.
pub const UNIT: u64 = 64 << 10;

/// Units in the longest range that one word can hold.
const LONGEST: u64 = (1 << 26) - 1;

/// The kind of an address range outside the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Reserved without access, and not opened yet.
    Reserved,
    /// Memory that the program can access.
    Memory(PlacementReason),
}

const _: () = assert!((PlacementReason::ALL.len() as u64) < SpanKind::RESERVED, "a reason's code fits in six bits");

impl SpanKind {
    const RESERVED: u64 = 63;

    fn code(self) -> u64 {
        match self {
            Self::Reserved => Self::RESERVED,
            Self::Memory(reason) => reason as u64 + 1,
        }
    }

    fn from_code(code: u64) -> Option<Self> {
        if code == Self::RESERVED {
            return Some(Self::Reserved);
        }
        PlacementReason::ALL.into_iter().map(Self::Memory).find(|holding| holding.code() == code)
    }
}

/// An address range and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First unit.
    start: u64,
    /// First unit past the end.
    end: u64,
    /// Its kind.
    pub holding: SpanKind,
}

impl Span {
    /// The range rounded outwards to whole units, truncated to the longest that a word can hold.
    #[must_use]
    pub fn around(address: u64, bytes: u64, holding: SpanKind) -> Self {
        let (start, end) = (address / UNIT, (address + bytes).div_ceil(UNIT));
        Self { start, end: end.min(start + LONGEST), holding }
    }

    /// Decodes a word of the table; `None` for an empty word.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Self> {
        let (start, length) = (word >> 32, word >> 6 & LONGEST);
        let holding = SpanKind::from_code(word & 63)?;
        (length > 0).then_some(Self { start, end: start + length, holding })
    }

    /// Encodes the span; zero for an empty one.
    #[must_use]
    pub fn word(self) -> u64 {
        if self.start >= self.end { 0 } else { self.start << 32 | (self.end - self.start) << 6 | self.holding.code() }
    }

    /// First address.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start * UNIT
    }

    /// First address past the end.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.end * UNIT
    }

    /// Length in bytes of the intersection with a range of addresses.
    #[must_use]
    pub fn overlap(self, start: u64, end: u64) -> u64 {
        end.min(self.end()).saturating_sub(start.max(self.start()))
    }

    /// The parts of the span below and above another one; either may be empty.
    #[must_use]
    pub fn without(self, other: Self) -> [Self; 2] {
        [Self { end: self.end.min(other.start), ..self }, Self { start: self.start.max(other.end), ..self }]
    }

    /// The union of both, if they are adjacent, of one kind, and fit in a word.
    #[must_use]
    pub fn joined(self, other: Self) -> Option<Self> {
        let (start, end) = (self.start.min(other.start), self.end.max(other.end));
        let touch = self.start <= other.end && other.start <= self.end;
        (touch && self.holding == other.holding && end - start <= LONGEST).then_some(Self { start, end, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: SpanKind = SpanKind::Memory(PlacementReason::InPlace);

    fn span(start: u64, end: u64, holding: SpanKind) -> Span {
        Span { start, end, holding }
    }

    #[test]
    fn a_word_holds_a_span_of_each_kind() {
        for holding in PlacementReason::ALL.into_iter().map(SpanKind::Memory).chain([SpanKind::Reserved]) {
            for (address, bytes) in [(0x7fff_0000_0000, 4096), (UNIT, 8 << 40), (0xffff_0000_0000, UNIT)] {
                let span = Span::around(address, bytes, holding);
                assert_eq!(Span::from_word(span.word()), Some(span), "{address:x} {bytes:x}");
                assert!(span.start() <= address && span.end() >= (address + bytes).min(address + LONGEST * UNIT));
            }
        }
        assert_eq!(Span::from_word(0), None);
        assert_eq!(span(7, 7, MEMORY).word(), 0);
    }

    #[test]
    fn spans_are_subtracted_and_joined() {
        let whole = span(10, 20, MEMORY);
        let rest = whole.without(span(12, 15, SpanKind::Reserved));
        assert_eq!(rest, [span(10, 12, MEMORY), span(15, 20, MEMORY)]);
        assert_eq!(whole.without(span(5, 25, MEMORY)).map(Span::word), [0, 0]);
        assert_eq!(span(10, 12, MEMORY).joined(span(12, 20, MEMORY)), Some(whole));
        assert_eq!(span(10, 12, MEMORY).joined(span(13, 20, MEMORY)), None);
        assert_eq!(span(10, 12, SpanKind::Reserved).joined(span(12, 20, MEMORY)), None);
        assert_eq!(whole.overlap(11 * UNIT + 1, 30 * UNIT), 9 * UNIT - 1);
    }
}
