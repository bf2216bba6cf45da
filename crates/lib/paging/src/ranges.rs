//! A set of addresses as sorted, separate ranges, in memory of fixed size.

use core::ops::Range;

/// Ranges that a set holds at most: more than a process has mappings.
pub(crate) const CAPACITY: usize = 1 << 17;

/// A set of addresses. All zero bytes are an empty set.
#[derive(Debug)]
pub(crate) struct Ranges {
    count: usize,
    starts: [usize; CAPACITY],
    ends: [usize; CAPACITY],
}

impl Ranges {
    #[cfg(test)]
    #[allow(unsafe_code, reason = "a set is too large for the stack of a test")]
    pub(crate) fn boxed() -> Box<Self> {
        // SAFETY: all zero bytes are an empty set.
        unsafe { Box::new_zeroed().assume_init() }
    }

    /// The index of the first range that ends behind `address`.
    fn first_behind(&self, address: usize) -> usize {
        self.ends[..self.count].partition_point(|&end| end <= address)
    }

    /// Adds a range. It is left out when the set is full.
    pub(crate) fn insert(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        // Those that overlap the new range or touch it become one with it.
        let first = self.ends[..self.count].partition_point(|&end| end < range.start);
        let last = self.starts[..self.count].partition_point(|&start| start <= range.end);
        let (mut start, mut end) = (range.start, range.end);
        if first < last {
            start = start.min(self.starts[first]);
            end = end.max(self.ends[last - 1]);
        } else if self.count == CAPACITY {
            return;
        }
        self.replace(first..last, 1);
        (self.starts[first], self.ends[first]) = (start, end);
    }

    /// Removes a range. When the set is full, a range that it would split loses its end as well.
    pub(crate) fn remove(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let first = self.first_behind(range.start);
        let last = self.starts[..self.count].partition_point(|&start| start < range.end);
        if first >= last {
            return;
        }
        let before = self.starts[first]..range.start;
        let after = range.end..self.ends[last - 1];
        let has_after = !after.is_empty() && (before.is_empty() || last - first > 1 || self.count < CAPACITY);
        let kept = usize::from(!before.is_empty()) + usize::from(has_after);
        self.replace(first..last, kept);
        if !before.is_empty() {
            (self.starts[first], self.ends[first]) = (before.start, before.end);
        }
        if has_after {
            (self.starts[first + kept - 1], self.ends[first + kept - 1]) = (after.start, after.end);
        }
    }

    /// Takes the last range out of the set.
    pub(crate) fn pop(&mut self) -> Option<Range<usize>> {
        self.count = self.count.checked_sub(1)?;
        Some(self.starts[self.count]..self.ends[self.count])
    }

    /// The first part of `range` that is not in the set.
    pub(crate) fn first_gap(&self, range: Range<usize>) -> Option<Range<usize>> {
        let mut start = range.start;
        for index in self.first_behind(start)..self.count {
            if self.starts[index] > start {
                return (start < range.end).then(|| start..range.end.min(self.starts[index]));
            }
            start = self.ends[index];
        }
        (start < range.end).then_some(start..range.end)
    }

    /// Makes room for `count` ranges in the place of others.
    fn replace(&mut self, old: Range<usize>, count: usize) {
        let to = old.start + count;
        self.starts.copy_within(old.end..self.count, to);
        self.ends.copy_within(old.end..self.count, to);
        self.count = self.count - old.len() + count;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn a_set_of_ranges_is_a_set_of_addresses(
            steps in proptest::collection::vec((any::<bool>(), 0..60_usize, 0..20_usize), 0..40),
            from in 0..60_usize,
        ) {
            let (mut ranges, mut oracle) = (Ranges::boxed(), BTreeSet::new());
            for (is_insertion, start, length) in steps {
                let range = start..start + length;
                if is_insertion {
                    oracle.extend(range.clone());
                    ranges.insert(range);
                } else {
                    oracle.retain(|address| !range.contains(address));
                    ranges.remove(range);
                }
                let held = (0..ranges.count).flat_map(|index| ranges.starts[index]..ranges.ends[index]);
                prop_assert!(held.eq(oracle.iter().copied()), "the same addresses, in order");
                let is_separate = (1..ranges.count).all(|index| ranges.ends[index - 1] < ranges.starts[index]);
                prop_assert!(is_separate);
            }
            let start = (from..80).find(|address| !oracle.contains(address));
            let expected = start.map(|start| start..(start..80).find(|at| oracle.contains(at)).unwrap_or(80));
            prop_assert_eq!(ranges.first_gap(from..80), expected);
        }
    }
}
