//! Keys and values as LevelDB's `db_bench` has them: keys of 16 decimal digits, random values.

use fieldstone_stats::random::SplitMix64;

use super::engine::Entry;

/// Bytes of a value.
pub(super) const VALUE_BYTES: usize = 100;
const KEY_BYTES: usize = 16;
const POOL_BYTES: usize = 1 << 20;

/// Random bytes. A value is a part of them.
#[derive(Debug)]
pub struct RandomBytes(Vec<u8>);

impl Default for RandomBytes {
    fn default() -> Self {
        Self::new()
    }
}

impl RandomBytes {
    /// A mebibyte, the same each time.
    #[must_use]
    pub fn new() -> Self {
        let mut random = SplitMix64::new(7);
        Self((0..POOL_BYTES / 8).flat_map(|_| random.draw().to_le_bytes()).collect())
    }

    /// Bytes from a random place.
    pub fn value(&self, bytes: usize, random: &mut SplitMix64) -> &[u8] {
        &self.0[random.below(self.0.len() - bytes)..][..bytes]
    }
}

/// The keys of a store.
#[derive(Debug)]
pub struct Records {
    keys: Vec<[u8; KEY_BYTES]>,
    bytes: RandomBytes,
}

impl Records {
    /// The keys 0 to `count - 1`.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { keys: (0..count).map(key).collect(), bytes: RandomBytes::new() }
    }

    /// The number of keys.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.keys.len()
    }

    /// Bytes of all keys and values.
    #[must_use]
    pub const fn live_bytes(&self) -> usize {
        self.keys.len() * (KEY_BYTES + VALUE_BYTES)
    }

    /// All keys with random values, in the order of the keys.
    #[must_use]
    pub fn in_order(&self, seed: u64) -> Vec<Entry<'_>> {
        let mut random = SplitMix64::new(seed);
        self.keys.iter().map(|key| (&key[..], self.bytes.value(VALUE_BYTES, &mut random))).collect()
    }

    /// All keys with random values, in random order.
    #[must_use]
    pub fn shuffled(&self, seed: u64) -> Vec<Entry<'_>> {
        let mut entries = self.in_order(seed);
        let mut random = SplitMix64::new(!seed);
        for last in (1..entries.len()).rev() {
            entries.swap(last, random.below(last + 1));
        }
        entries
    }

    /// Random keys with random values.
    #[must_use]
    pub fn updates(&self, count: usize, seed: u64) -> Vec<Entry<'_>> {
        let mut random = SplitMix64::new(seed);
        let mut update = || {
            let key = &self.keys[random.below(self.keys.len())][..];
            (key, self.bytes.value(VALUE_BYTES, &mut random))
        };
        (0..count).map(|_| update()).collect()
    }

    /// Random keys, copied so that they are in memory in the order of their use.
    #[must_use]
    pub fn random_keys(&self, count: usize, seed: u64) -> RandomKeys {
        let mut random = SplitMix64::new(seed);
        RandomKeys((0..count).map(|_| self.keys[random.below(self.keys.len())]).collect())
    }
}

/// Keys for reads.
#[derive(Debug)]
pub struct RandomKeys(Vec<[u8; KEY_BYTES]>);

impl RandomKeys {
    /// The keys, as the reads of an engine take them.
    #[must_use]
    pub fn slices(&self) -> Vec<&[u8]> {
        self.0.iter().map(|key| &key[..]).collect()
    }
}

/// The key of a record: its number in 16 digits.
fn key(number: usize) -> [u8; KEY_BYTES] {
    let (mut digits, mut rest) = ([b'0'; KEY_BYTES], number);
    for digit in digits.iter_mut().rev() {
        *digit += (rest % 10).to_le_bytes()[0];
        rest /= 10;
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_numbers_of_16_digits() {
        assert_eq!((key(0), key(123_456)), (*b"0000000000000000", *b"0000000000123456"));
        let records = Records::new(2000);
        assert!(records.in_order(1).is_sorted_by_key(|entry| entry.0));
        assert_eq!(records.live_bytes(), 2000 * 116);
    }

    #[test]
    fn a_shuffle_contains_each_key_once() {
        let records = Records::new(1000);
        let mut entries = records.shuffled(5);
        assert!(!entries.is_sorted_by_key(|entry| entry.0));
        entries.sort_unstable();
        assert!(entries.iter().zip(records.in_order(5)).all(|(one, other)| *one == other));
    }

    #[test]
    fn equal_seeds_have_equal_updates() {
        let records = Records::new(1000);
        assert_eq!(records.updates(100, 3), records.updates(100, 3));
        assert_ne!(records.updates(100, 3), records.updates(100, 4));
    }
}
