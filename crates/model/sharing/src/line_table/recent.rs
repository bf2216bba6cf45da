//! Flags that expire: they are set in the present generation of windows or in the one before.
//!
//! An access that included two adjacent bytes must not be split by a rule. But an access that
//! filled a structure once at the start must not prevent rules forever. So it counts for one to two
//! generations of 128 windows.

use crate::bits::Bits;

/// Windows of one generation.
const GENERATION: u64 = 128;

/// Flags of two generations.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RecentFlags {
    generation: u64,
    now: Bits,
    before: Bits,
}

impl RecentFlags {
    /// Sets flags for this window; windows may come out of order.
    pub(super) fn add(&mut self, bits: Bits, window: u64) {
        let generation = window / GENERATION;
        match generation.checked_sub(self.generation) {
            Some(0) => self.now |= bits,
            Some(later) => {
                let before = if later == 1 { self.now } else { Bits::NONE };
                *self = Self { generation, now: bits, before };
            }
            None => self.before |= bits,
        }
    }

    /// The flags that are valid in this window.
    pub(super) fn at(&self, window: u64) -> Bits {
        match (window / GENERATION).saturating_sub(self.generation) {
            0 => self.now | self.before,
            1 => self.now,
            _ => Bits::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RecentFlags;
    use crate::bits::Bits;

    #[test]
    fn flags_last_one_to_two_generations() {
        let mut flags = RecentFlags::default();
        flags.add(Bits::range(0..2), 100);
        assert_eq!(flags.at(255), Bits::range(0..2));
        assert!(flags.at(256).is_empty());
        flags.add(Bits::range(4..5), 130);
        assert_eq!(flags.at(140), Bits::range(0..2) | Bits::range(4..5));
        flags.add(Bits::range(7..8), 120);
        assert_eq!(flags.at(140), Bits::range(0..2) | Bits::range(4..5) | Bits::range(7..8), "one that came late");
        flags.add(Bits::range(6..7), 260);
        assert_eq!(flags.at(260), Bits::range(4..5) | Bits::range(6..7));
        flags.add(Bits::range(1..2), 1000);
        assert_eq!(flags.at(1000), Bits::range(1..2));
    }
}
