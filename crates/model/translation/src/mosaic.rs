//! Mosaics: regions of which a share has larger pages. The rule of [`fieldstone_wire::mosaic`],
//! which the region's agent uses too, with shares as fractions.

use fieldstone_wire::mosaic::{ALL, is_huge};

pub(crate) use fieldstone_wire::mosaic::spread;

/// Whether the region's chunk number `chunk` has larger pages, if `share` (0 to 1) of the chunks
/// have them.
#[inline]
#[must_use]
pub fn mosaic_is_huge(chunk: u64, share: f64) -> bool {
    is_huge(chunk, threshold(share))
}

/// The threshold of a share: the number of hash values that mean larger pages.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0 to 2^53")]
pub fn threshold(share: f64) -> u64 {
    (share.clamp(0.0, 1.0) * ALL as f64).round() as u64
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
        // Chunk 0 draws 88.3 %.
        assert!(!mosaic_is_huge(0, 0.883) && mosaic_is_huge(0, 0.884));
    }
}
