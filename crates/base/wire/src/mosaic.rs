//! Mosaics: regions in which a hash selects the chunks that have larger pages.
//!
//! ```text
//! chunk   0     1     2     3     4     5 ...      2 MiB each, numbered from the region's start
//! hash    .88   .43   .59   .20   .71   .04        a share of 0.25 selects 3 and 5; 0.5 adds 1
//! ```
//! Real and simulated runs must select the same chunks, so the choice is a pure function of the
//! chunk number. A chunk is as large as the larger page. A larger share includes every chunk of a
//! smaller one. Shares are passed as integers (a *bound*), because the region agent has no floating
//! point. Source: Mosalloc (Agbarya, Yaniv, Gandhi and Tsafrir, MICRO 2020), which lays mosaics out
//! by hand.

/// Number of distinct hash values. As a bound, it gives every chunk the larger pages.
pub const ALL: u64 = 1 << 53;

/// Whether chunk number `chunk` of the region has the larger pages. `bound` of [`ALL`] hash values
/// select them.
#[inline]
#[must_use]
pub const fn is_huge(chunk: u64, bound: u64) -> bool {
    spread(chunk) >> 11 < bound
}

/// The finalizer of SplitMix64: a bijection that decorrelates neighbouring numbers.
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
    fn the_choice_is_fixed() {
        // Computed by hand from SplitMix64's definition: 88.3 % of 2^64.
        assert_eq!(spread(0), 0xe220_a839_7b1d_cdaf);
        assert!(!is_huge(0, ALL / 1000 * 883) && is_huge(0, ALL / 1000 * 884));
        assert!((0..1000).all(|chunk| is_huge(chunk, ALL) && !is_huge(chunk, 0)));
    }
}
