//! Filled arrays. The allocation may fail. Each element is written once, in order, so that page
//! faults happen here and not in the measured kernel.

use crate::Error;

/// A `Vec` of `count` elements, element i being `value(i)`. Allocates exactly once.
///
/// # Errors
/// [`Error::Memory`] if malloc fails.
pub fn fill<T>(count: usize, value: impl FnMut(usize) -> T) -> Result<Vec<T>, Error> {
    fill_from(count, (0..count).map(value))
}

/// A `Vec` of the first `count` elements of `source`.
///
/// # Errors
/// As [`fill`].
pub fn fill_from<T>(count: usize, source: impl Iterator<Item = T>) -> Result<Vec<T>, Error> {
    let mut array = Vec::new();
    array.try_reserve_exact(count).map_err(|_| Error::Memory { bytes: count.saturating_mul(size_of::<T>()) })?;
    array.extend(source.take(count));
    Ok(array)
}

#[cfg(test)]
mod tests {
    use super::fill;

    #[test]
    fn elements_are_in_order() {
        assert_eq!(fill(4, |i| i * i).unwrap(), [0, 1, 4, 9]);
    }

    #[test]
    fn no_memory_is_an_error() {
        assert!(fill(usize::MAX / 16, |_| 0_u64).is_err());
    }
}
