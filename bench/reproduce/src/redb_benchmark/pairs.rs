//! Random pairs of a key and a value, each determined by its number.

use fieldstone_peers::store::{Entry, Totals};
use fieldstone_stats::random::SplitMix64;

pub(super) const KEY_BYTES: usize = 24;
const VALUE_BYTES: usize = 150;
/// Bytes behind the key of an ascending pair.
const SUFFIX_BYTES: usize = 8;
/// The seed of redb's program. Its generator is another one.
const SEED: u64 = 3;

/// Pairs, one behind the other.
#[derive(Debug)]
pub(super) struct Pairs {
    bytes: Vec<u8>,
    key_bytes: usize,
}

impl Pairs {
    /// The pairs from number `first` on.
    pub(super) fn new(first: u64, count: u64) -> Self {
        let mut pairs = Self { bytes: Vec::new(), key_bytes: KEY_BYTES };
        (first..first + count).for_each(|number| append_random(number, KEY_BYTES + VALUE_BYTES, &mut pairs.bytes));
        pairs
    }

    /// Pairs with random values, whose keys ascend and are above all random keys.
    pub(super) fn ascending(first: u64, count: u64) -> Self {
        let mut pairs = Self { bytes: Vec::new(), key_bytes: KEY_BYTES + SUFFIX_BYTES };
        for number in 0..count {
            pairs.bytes.extend([0xFF; KEY_BYTES]);
            pairs.bytes.extend(number.to_be_bytes());
            append_random(first + number, VALUE_BYTES, &mut pairs.bytes);
        }
        pairs
    }

    pub(super) fn entries(&self) -> Vec<Entry<'_>> {
        self.bytes.chunks_exact(self.key_bytes + VALUE_BYTES).map(|pair| pair.split_at(self.key_bytes)).collect()
    }

    pub(super) fn keys(&self) -> Vec<&[u8]> {
        self.entries().into_iter().map(|(key, _)| key).collect()
    }

    /// What gets of all keys must find.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.entries().iter().for_each(|(_, value)| totals.add(value));
        totals
    }
}

fn append_random(number: u64, bytes: usize, place: &mut Vec<u8>) {
    let mut random = SplitMix64::new(SEED ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32));
    let end = place.len() + bytes;
    while place.len() < end {
        place.extend(random.draw().to_le_bytes());
    }
    place.truncate(end);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_pair_is_determined_by_its_number_and_keys_differ() {
        let (all, some) = (Pairs::new(0, 10_000), Pairs::new(9000, 5));
        assert_eq!(all.entries()[9000..9005], some.entries()[..]);
        assert_eq!(all.keys().into_iter().collect::<BTreeSet<_>>().len(), 10_000);
        let is_extracted = |key: &&&[u8]| (0x55..0xAA).contains(&key[0]);
        let share = all.keys().iter().filter(is_extracted).count();
        assert!((3000..3700).contains(&share), "a third of the keys, and not {share} of 10,000");
    }

    #[test]
    fn ascending_keys_are_above_random_ones() {
        let (random, ascending) = (Pairs::new(0, 1000), Pairs::ascending(1000, 1000));
        assert!(ascending.keys().is_sorted());
        assert!(random.keys().iter().all(|key| *key < ascending.keys()[0]));
    }
}
