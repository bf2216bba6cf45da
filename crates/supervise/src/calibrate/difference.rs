//! The same loads on small and on huge pages, in turn.

use fieldstone_report::stats::{Estimate, median};
use fieldstone_wire::PageKind;
use fieldstone_workloads::replay::Places;
use serde::{Deserialize, Serialize};

use super::array::Array;
use crate::clock::processor_ns;
use crate::error::Result;

/// What small pages cost more than huge ones, in nanoseconds a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// A load on 4 KiB pages: the median.
    pub ns_4k: f64,
    /// A load on 2 MiB pages: the median.
    pub ns_2m: f64,
    /// The lower end of the interval of the median difference; of six pairs or more, at 95 %.
    pub low: f64,
    /// The median of the pairs' differences.
    pub median: f64,
    /// The upper end.
    pub high: f64,
}

/// How loads wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Dependent,
    Independent,
}

/// Two arrays of the same size on both kinds of page.
#[derive(Debug)]
pub(super) struct Sides {
    small: Array,
    large: Array,
}

impl Sides {
    pub(super) fn new(words: usize) -> Result<Self> {
        // The huge pages first, as long as memory is in large pieces.
        let large = Array::new(PageKind::Thp, words)?;
        Ok(Self { small: Array::new(PageKind::Small4k, words)?, large })
    }

    /// Runs `pairs` pairs and one before them that is not counted. `between` is told how many are done, before each.
    pub(super) fn compare(
        &self,
        places: &Places,
        order: Order,
        pairs: usize,
        between: impl FnMut(usize) -> Result<()>,
    ) -> Result<Difference> {
        let run = |array: &Array| {
            let start = processor_ns();
            let sum = match order {
                Order::Dependent => array.dependent(places),
                Order::Independent => array.independent(places),
            };
            std::hint::black_box(sum);
            (processor_ns() - start) as f64 / places.len().max(1) as f64
        };
        let timed = in_turn(pairs, || run(&self.small), || run(&self.large), between)?;
        Ok(summary(&timed[1..]))
    }
}

/// One pair more than `pairs`: the two sides' results, each pair in the order opposite to the last.
fn in_turn(
    pairs: usize,
    mut small: impl FnMut() -> f64,
    mut large: impl FnMut() -> f64,
    mut between: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<(f64, f64)>> {
    let pair = |number: usize| {
        between(number)?;
        if number.is_multiple_of(2) {
            let first = small();
            Ok((first, large()))
        } else {
            let first = large();
            Ok((small(), first))
        }
    };
    (0..=pairs.max(1)).map(pair).collect()
}

fn summary(pairs: &[(f64, f64)]) -> Difference {
    let of = |value: fn(&(f64, f64)) -> f64| pairs.iter().map(value).collect::<Vec<f64>>();
    let medians = [median(&of(|pair| pair.0)), median(&of(|pair| pair.1))];
    let [ns_4k, ns_2m] = medians.map(|ns| ns.unwrap_or(f64::NAN));
    let apart = Estimate::of_median(&of(|pair| pair.0 - pair.1));
    let (low, median, high) =
        apart.map_or((f64::NAN, f64::NAN, f64::NAN), |found| (found.low, found.median, found.high));
    Difference { ns_4k, ns_2m, low, median, high }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::cell::RefCell;

    #[test]
    fn sides_take_turns_and_swap_places() {
        let order = RefCell::new(String::new());
        let side = |letter, result| {
            let order = &order;
            move || {
                order.borrow_mut().push(letter);
                result
            }
        };
        let told = RefCell::new(Vec::new());
        let note = |done| {
            told.borrow_mut().push(done);
            Ok(())
        };
        let pairs = in_turn(3, side('s', 9.0), side('l', 4.0), note).unwrap();
        assert_eq!(*order.borrow(), "sllsslls");
        assert_eq!(*told.borrow(), [0, 1, 2, 3]);
        assert_eq!(pairs, [(9.0, 4.0); 4]);
    }

    #[test]
    fn who_is_interrupted_stops_between_pairs() {
        let runs = RefCell::new(0);
        let count = || {
            *runs.borrow_mut() += 1;
            1.0
        };
        let stop = |done| {
            let stopped = Error::Interrupted { signal: "SIGINT", number: 2 };
            if done == 2 { Err(stopped) } else { Ok(()) }
        };
        assert!(matches!(in_turn(9, count, count, stop), Err(Error::Interrupted { .. })));
        assert_eq!(*runs.borrow(), 4);
    }

    #[test]
    fn the_difference_is_that_of_pairs_and_not_of_medians() {
        // A machine that gets slower: each pair is 5 apart, whatever the medians are.
        let drifting: Vec<(f64, f64)> = (0..7).map(|i| (f64::from(i * 10) + 5.0, f64::from(i * 10))).collect();
        let found = summary(&drifting);
        assert_eq!((found.low, found.median, found.high), (5.0, 5.0, 5.0));
        assert_eq!((found.ns_4k, found.ns_2m), (35.0, 30.0));
    }
}
