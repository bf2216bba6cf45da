//! Four crates with growable arrays in segments, whose elements never move.

use boxcar::Vec as Boxcar;
use orx_split_vec::{Growth, PinnedVec, SplitVec};
use segmented_vec::SegmentedVec;
use segvec::{Exponential, SegVec};

use super::random_get;

/// The filled array of one crate.
#[derive(Debug)]
pub struct Peer {
    /// The name of the crate.
    pub name: &'static str,
    /// The kernel that reads random elements: number of reads, and a seed.
    pub get: Getter,
}

/// The kernel of one array.
pub struct Getter(Box<dyn Fn(u64, u64) -> u64>);

impl std::fmt::Debug for Getter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Getter")
    }
}

impl Getter {
    /// Reads `gets` elements at random indices; returns their sum.
    #[must_use]
    pub fn run(&self, gets: u64, seed: u64) -> u64 {
        (self.0)(gets, seed)
    }
}

/// The names of the crates.
pub const NAMES: [&str; 4] = ["segvec", "segmented-vec", "orx-split-vec", "boxcar"];

/// Fills an array of one crate with `value(0)` to `value(len - 1)`.
///
/// # Panics
/// If `name` is not one of [`NAMES`].
#[must_use]
pub fn filled(name: &'static str, len: usize, value: impl Fn(usize) -> u64) -> Peer {
    let values = (0..len).map(value);
    let get: Box<dyn Fn(u64, u64) -> u64> = match name {
        "segvec" => {
            let mut array = SegVec::<u64, Exponential>::new();
            values.for_each(|value| array.push(value));
            Box::new(move |gets, seed| get_segvec(&array, gets, seed))
        }
        "segmented-vec" => {
            let mut array = SegmentedVec::<u64>::new();
            values.for_each(|value| array.push(value));
            Box::new(move |gets, seed| get_segmented(&array, gets, seed))
        }
        "orx-split-vec" => {
            let mut array = SplitVec::with_doubling_growth();
            values.for_each(|value| array.push(value));
            Box::new(move |gets, seed| get_split(&array, gets, seed))
        }
        "boxcar" => {
            let array: Boxcar<u64> = values.collect();
            Box::new(move |gets, seed| get_boxcar(&array, gets, seed))
        }
        _ => panic!("{name} is none of {NAMES:?}"),
    };
    Peer { name, get: Getter(get) }
}

#[inline(never)]
fn get_segvec(array: &SegVec<u64, Exponential>, gets: u64, seed: u64) -> u64 {
    random_get(array.len(), gets, seed, |index| array[index])
}

#[inline(never)]
fn get_segmented(array: &SegmentedVec<u64>, gets: u64, seed: u64) -> u64 {
    random_get(array.len(), gets, seed, |index| array[index])
}

#[inline(never)]
fn get_split<G: Growth>(array: &SplitVec<u64, G>, gets: u64, seed: u64) -> u64 {
    random_get(array.len(), gets, seed, |index| array[index])
}

#[inline(never)]
fn get_boxcar(array: &Boxcar<u64>, gets: u64, seed: u64) -> u64 {
    random_get(array.count(), gets, seed, |index| array[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_returns_the_inserted_elements() {
        let expected = random_get(5000, 1000, 1, |index| index as u64 * 3);
        for name in NAMES {
            assert_eq!(filled(name, 5000, |at| at as u64 * 3).get.run(1000, 1), expected, "{name}");
        }
    }
}
