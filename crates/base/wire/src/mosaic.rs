//! Mosaics: a region in which a share of the memory has larger pages, picked by a hash of the place.
//!
//! ```text
//! chunk   0     1     2     3     4     5 ...      2 MiB each, counted from the region's start
//! draws   .88   .43   .59   .20   .71   .04        a share of 0.25 takes 3 and 5, one of 0.5 takes 1 too, and so on
//! ```
//! Real runs on mosaics and simulated ones must pick by the same rule, so the choice is a pure function of the number of
//! the chunk, which is as large as the larger page. A larger share keeps all chunks of a smaller one. Shares travel as whole
//! numbers (a *bound*), since the agent that places memory has nothing to do with fractions. Source: Mosalloc (Agbarya,
//! Yaniv, Gandhi and Tsafrir, MICRO 2020), which lays mosaics out by hand.

/// How many values a chunk may draw. As a bound: every chunk has the larger pages.
pub const ALL: u64 = 1 << 53;

/// Has chunk number `chunk` of the region the larger pages, when `bound` of the [`ALL`] values mean them?
#[inline]
#[must_use]
pub const fn is_huge(chunk: u64, bound: u64) -> bool {
    spread(chunk) >> 11 < bound
}

/// The finalizer of SplitMix64: neighbouring numbers come out unrelated, and none twice.
#[inline]
#[must_use]
pub const fn spread(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::{ALL, is_huge, spread};

    #[test]
    fn the_choice_never_changes() {
        // Worked out once by hand from SplitMix64's definition: 88.3 % of 2^64.
        assert_eq!(spread(0), 0xe220_a839_7b1d_cdaf);
        assert!(!is_huge(0, ALL / 1000 * 883) && is_huge(0, ALL / 1000 * 884));
        assert!((0..1000).all(|chunk| is_huge(chunk, ALL) && !is_huge(chunk, 0)));
    }
}
