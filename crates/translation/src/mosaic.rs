//! Mosaics: a region in which a share of the memory has larger pages, picked by a hash of the place.
//!
//! Real runs on mosaics and simulated ones must pick the same memory, so the choice is a pure function of the number of
//! the chunk (a chunk is as large as the larger page: 2 MiB chunks for pages of 2 MiB, counted from the region's
//! start). A larger share keeps all chunks of a smaller one.

/// Has chunk number `chunk` of the region the larger pages, when `share` (0 to 1) of the chunks have them?
#[inline]
#[must_use]
pub fn mosaic_is_huge(chunk: u64, share: f64) -> bool {
    spread(chunk) >> 11 < threshold(share)
}

/// Of the 2^53 values that a chunk may draw, how many mean larger pages.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0 to 2^53")]
pub(crate) fn threshold(share: f64) -> u64 {
    const VALUES: f64 = (1_u64 << 53) as f64;
    (share.clamp(0.0, 1.0) * VALUES).round() as u64
}

/// The finalizer of SplitMix64: neighbouring numbers come out unrelated, and none twice.
#[inline]
pub(crate) const fn spread(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::mosaic_is_huge;

    #[test]
    fn shares_are_met_and_nested() {
        let count = |share| (0..100_000).filter(|&chunk| mosaic_is_huge(chunk, share)).count();
        assert_eq!((count(0.0), count(1.0), count(-3.0), count(7.0)), (0, 100_000, 0, 100_000));
        for (share, expected) in [(0.1, 10_000_usize), (0.5, 50_000), (0.9, 90_000)] {
            // Binomial: three standard deviations are at most 475 of 100,000.
            assert!(count(share).abs_diff(expected) < 500, "{share}: {}", count(share));
        }
        assert!((0..10_000).all(|chunk| !mosaic_is_huge(chunk, 0.25) || mosaic_is_huge(chunk, 0.5)));
    }

    #[test]
    fn the_choice_never_changes() {
        // Worked out once by hand from SplitMix64's definition: spread(0) = 0xe220a8397b1dcdaf, 88.3 % of 2^64.
        assert!(!mosaic_is_huge(0, 0.883) && mosaic_is_huge(0, 0.884));
    }
}
