//! 128 flags: for the bytes of a line or of a pair of lines, or for windows of time.
//!
//! As JSON they are one hexadecimal number in a string, because 128 bits exceed a JSON number.

use std::ops::{BitAnd, BitOr, BitOrAssign, BitXor, Not, Range};

use serde::{Deserialize, Serialize};

/// 128 flags.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Bits(u128);

impl Bits {
    /// Number of flags.
    pub const COUNT: u32 = u128::BITS;
    /// No flag is set.
    pub const NONE: Self = Self(0);

    /// Flags of a range; those beyond the last are ignored.
    #[must_use]
    pub const fn range(bits: Range<u32>) -> Self {
        Self(below(bits.end) & !below(bits.start))
    }

    /// Whether a flag is set.
    #[must_use]
    pub const fn has(self, bit: u32) -> bool {
        bit < Self::COUNT && self.0 >> bit & 1 == 1
    }

    /// Number of set flags.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether no flag is set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The flags of a range, shifted so that its first is number 0.
    #[must_use]
    pub const fn part(self, bits: Range<u32>) -> Self {
        if bits.start >= Self::COUNT { Self::NONE } else { Self((self.0 & below(bits.end)) >> bits.start) }
    }

    /// All flags shifted up by `by`; those beyond the last are dropped.
    #[must_use]
    pub(crate) const fn up(self, by: u64) -> Self {
        if by >= Self::COUNT as u64 { Self::NONE } else { Self(self.0 << by) }
    }

    /// Number of flags from the first set one to the last; 0 if none is set.
    #[must_use]
    pub(crate) const fn span(self) -> u32 {
        if self.0 == 0 { 0 } else { Self::COUNT - self.0.leading_zeros() - self.0.trailing_zeros() }
    }

    /// The runs of set flags, in order.
    pub fn runs(self) -> impl Iterator<Item = Range<u32>> {
        let mut rest = self;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let start = rest.0.trailing_zeros();
            let end = start + (rest.0 >> start).trailing_ones();
            rest.0 &= !below(end);
            Some(start..end)
        })
    }
}

/// A number whose lowest `bits` bits are set.
const fn below(bits: u32) -> u128 {
    if bits >= u128::BITS { u128::MAX } else { (1 << bits) - 1 }
}

impl BitOr for Bits {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Bits {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for Bits {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitXor for Bits {
    type Output = Self;
    fn bitxor(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }
}

impl Not for Bits {
    type Output = Self;
    fn not(self) -> Self {
        Self(!self.0)
    }
}

impl From<Bits> for String {
    fn from(bits: Bits) -> Self {
        format!("{:x}", bits.0)
    }
}

impl TryFrom<String> for Bits {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        u128::from_str_radix(&text, 16).map(Self)
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "runs of bytes are compared with lists of them")]
mod tests {
    use super::Bits;

    #[test]
    fn ranges_become_runs() {
        let bits = Bits::range(0..3) | Bits::range(8..16) | Bits::range(120..200);
        assert_eq!(bits.runs().collect::<Vec<_>>(), [0..3, 8..16, 120..128]);
        assert_eq!((bits.count(), bits.span()), (19, 128));
        assert!(bits.has(15) && !bits.has(16) && !bits.has(128));
        assert_eq!(bits.part(8..128).runs().collect::<Vec<_>>(), [0..8, 112..120]);
        assert_eq!(bits.part(9..12).runs().collect::<Vec<_>>(), [0..3]);
        assert_eq!(Bits::range(0..128).runs().collect::<Vec<_>>(), [0..128]);
        assert!(Bits::range(5..5).is_empty() && Bits::NONE.runs().next().is_none());
    }

    #[test]
    fn flags_shifted_beyond_the_last_are_dropped() {
        assert_eq!(Bits::range(0..2).up(127), Bits::range(127..128));
        assert!(Bits::range(0..128).up(128).is_empty() && Bits::range(0..1).up(u64::MAX).is_empty());
        assert_eq!((Bits::range(3..9).span(), Bits::NONE.span()), (6, 0));
    }

    #[test]
    fn all_flags_round_trip_through_json() {
        for bits in [Bits::NONE, Bits::range(0..1), Bits::range(63..65), Bits::range(0..128)] {
            let text = serde_json::to_string(&bits).unwrap();
            assert_eq!(serde_json::from_str::<Bits>(&text).unwrap(), bits, "{text}");
        }
        assert!(serde_json::from_str::<Bits>("\"no number\"").is_err());
    }
}
