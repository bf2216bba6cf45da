//! Short sets, each in LRU order.
//!
//! ```text
//!   touch c:   a b c d   →   c a b d      the key moves to the front; those before it move back by one
//!   touch e:   c a b d   →   e c a b      a new key evicts the oldest
//! ```

use super::index;

/// `count` sets of `ways` keys.
#[derive(Debug, Clone)]
pub(crate) struct Sets {
    keys: Box<[u64]>,
    ways: usize,
    count: u64,
    /// `count - 1` if `count` is a power of two.
    mask: Option<u64>,
}

impl Sets {
    pub(super) fn new(count: u32, ways: u32) -> Self {
        let (count, ways) = (u64::from(count), u64::from(ways));
        Self {
            keys: vec![0; index(count * ways)].into_boxed_slice(),
            ways: index(ways),
            count,
            mask: count.is_power_of_two().then(|| count - 1),
        }
    }

    #[inline]
    pub(super) fn touch(&mut self, page: u64, key: u64) -> bool {
        let set = match self.mask {
            Some(mask) => page & mask,
            None => page % self.count,
        };
        let start = index(set) * self.ways;
        let set = &mut self.keys[start..start + self.ways];
        let old = set.iter().position(|&other| other == key);
        if old != Some(0) {
            let moved = old.unwrap_or(set.len() - 1);
            set.copy_within(..moved, 1);
            set[0] = key;
        }
        old.is_some()
    }

    pub(super) fn clear(&mut self) {
        self.keys.fill(0);
    }
}
