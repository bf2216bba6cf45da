//! Finds the leaf of an element: divides an index by the elements per leaf, without a division
//! instruction.
//!
//! If the element size is a power of two, so is the number per leaf, and a shift divides. Rounding
//! other numbers down to a power of two would waste up to half of each block. For these, a
//! multiplication with the reciprocal divides, which takes 3 cycles more.

use core::marker::PhantomData;

/// Divides an index by the elements per leaf of `T`.
pub(super) struct Divider<T> {
    /// The shift count, or the reciprocal `floor((2^64 - 1) / per_leaf)`.
    by: u64,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for Divider<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Divider<T> {}

impl<T> Divider<T> {
    const SHIFTS: bool = size_of::<T>().is_power_of_two();

    pub(super) fn new(per_leaf: usize) -> Self {
        let by = if Self::SHIFTS { u64::from(per_leaf.trailing_zeros()) } else { u64::MAX / per_leaf as u64 };
        Self { by, element: PhantomData }
    }

    /// A divider that maps every index to leaf 0, for a tree of one leaf.
    pub(super) const fn to_first() -> Self {
        Self { by: if Self::SHIFTS { u64::BITS as u64 - 1 } else { 0 }, element: PhantomData }
    }

    /// The leaf of element `index`, which is below `MAX_ELEMENTS`.
    #[inline]
    pub(super) fn leaf_of(self, index: usize) -> usize {
        if Self::SHIFTS { index >> self.by } else { quotient(index, self.by) }
    }
}

/// Divides `index` by the number with this reciprocal, `floor((2^64 - 1) / number)`.
///
/// The rounded reciprocal is slightly too small, and `index + 1` compensates. For `index = q *
/// number + r`, the product is `q + (r + 1) / number` less at most `(index + 1) / 2^64`. That is
/// less than `1 / number` for every index below `MAX_ELEMENTS`, so the product is at least `q` and
/// below `q + 1`. This includes `number = 1`, whose reciprocal rounded up would overflow.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a quotient is at most the index")]
fn quotient(index: usize, reciprocal: u64) -> usize {
    ((u128::from(index as u64 + 1) * u128::from(reciprocal)) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_exact_at_every_border() {
        for number in [1_usize, 2, 3, 5, 7, 170, 1365, 2730, 43_690, 699_050] {
            let by = u64::MAX / number as u64;
            for leaf in [0, 1, 2, 1000, 123_456, (1 << 42) / number - 1] {
                let first = leaf * number;
                assert_eq!([quotient(first, by), quotient(first + number - 1, by)], [leaf; 2], "{leaf} of {number}");
            }
        }
    }
}
