//! The same loads on small and on huge pages, in turn.

use super::kernel::{Places, Stretch};
use fieldstone_stats::{Estimate, Rounds, median};
use fieldstone_wire::PageKind;
use serde::{Deserialize, Serialize};

use super::array::Array;
use crate::error::{Error, Result};
use fieldstone_launch::clock::processor_ns;

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

/// A time that an interrupt more or less is little of.
const LONG_ENOUGH_NS: u64 = 20_000_000;

/// How long a difference is looked for: so many pairs at least, and so much processor time. Noise that comes and goes averages out in both.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Pairs of runs, at least one.
    pub pairs: usize,
    /// Nanoseconds.
    pub ns: u64,
}

impl Effort {
    /// One of so many parts of it.
    pub(super) const fn part(self, parts: usize) -> Self {
        Self { pairs: self.pairs.div_ceil(parts), ns: self.ns / parts as u64 }
    }
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

    /// Loads `places` in such stretches, with so many rounds of other instructions before each: as many pairs as `effort` asks for, and one
    /// before them that is not counted. `between` is asked before each. Nanoseconds a load of both.
    pub(super) fn compare(
        &self,
        places: &Places,
        stretches: &[Stretch],
        rounds: u32,
        effort: Effort,
        between: impl FnMut() -> Result<()>,
    ) -> Result<Vec<(f64, f64)>> {
        let since = processor_ns();
        let pass = |array: &Array| {
            std::hint::black_box(array.load(places, stretches, rounds));
        };
        let run = |array: &Array| a_pass_ns(|| pass(array), processor_ns) / places.len().max(1) as f64;
        let is_enough = |done| done > effort.pairs && processor_ns() - since >= effort.ns;
        let mut timed = in_turn(is_enough, || run(&self.small), || run(&self.large), between)?;
        timed.remove(0);
        Ok(timed)
    }
}

/// Time of a pass: of the first, or, where that was short, of as many after it as take long enough. The first one then brought back what
/// the other side had pushed out of the caches.
fn a_pass_ns(mut pass: impl FnMut(), clock: impl Fn() -> u64) -> f64 {
    let begin = clock();
    pass();
    let second = clock();
    if second - begin >= LONG_ENOUGH_NS {
        return (second - begin) as f64;
    }
    let mut passes = 0;
    loop {
        pass();
        passes += 1;
        let passed_ns = clock() - second;
        if passed_ns >= LONG_ENOUGH_NS {
            return passed_ns as f64 / f64::from(passes);
        }
    }
}

/// Two pairs or more, until they are enough. `between` is asked before each pair; its error ends the pairs.
fn in_turn(
    is_enough: impl Fn(usize) -> bool,
    mut small: impl FnMut() -> f64,
    mut large: impl FnMut() -> f64,
    mut between: impl FnMut() -> Result<()>,
) -> Result<Vec<(f64, f64)>> {
    let mut runs = 0_usize;
    let run = |side: usize| {
        if runs.is_multiple_of(2) {
            between()?;
        }
        runs += 1;
        Ok::<_, Error>(if side == 0 { small() } else { large() })
    };
    let rounds = Rounds::run(2, run, |rounds| rounds.count() >= 2 && is_enough(rounds.count()))?;
    Ok(rounds.pairs(0, 1).collect())
}

impl Difference {
    /// Of pairs of nanoseconds a load, on small and on huge pages.
    pub(super) fn of(pairs: &[(f64, f64)]) -> Self {
        let of = |value: fn(&(f64, f64)) -> f64| pairs.iter().map(value).collect::<Vec<f64>>();
        let medians = [median(&of(|pair| pair.0)), median(&of(|pair| pair.1))];
        let [ns_4k, ns_2m] = medians.map(|ns| ns.unwrap_or(f64::NAN));
        let apart = Estimate::of_median(&of(|pair| pair.0 - pair.1));
        let (low, median, high) =
            apart.map_or((f64::NAN, f64::NAN, f64::NAN), |found| (found.low, found.median, found.high));
        Self { ns_4k, ns_2m, low, median, high }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let note = || {
            order.borrow_mut().push(' ');
            Ok(())
        };
        let pairs = in_turn(|done| done > 3, side('s', 9.0), side('l', 4.0), note).unwrap();
        assert_eq!(*order.borrow(), " sl ls sl ls");
        assert_eq!(pairs, [(9.0, 4.0); 4]);
    }

    #[test]
    fn what_is_short_is_done_until_it_is_long_and_its_first_pass_does_not_count() {
        // The first pass takes this long, each after it a millisecond.
        for (first_ns, passes, expected) in [(LONG_ENOUGH_NS, 1, LONG_ENOUGH_NS as f64), (16_000_000, 21, 1e6)] {
            let (now, done) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
            let pass = || {
                now.set(now.get() + if done.get() == 0 { first_ns } else { 1_000_000 });
                done.set(done.get() + 1);
            };
            let found = a_pass_ns(pass, || now.get());
            assert!((found - expected).abs() < 1e-6 && done.get() == passes, "{found} ns, {} passes", done.get());
        }
    }

    #[test]
    fn who_is_interrupted_stops_between_pairs() {
        let runs = RefCell::new(0);
        let count = || {
            *runs.borrow_mut() += 1;
            1.0
        };
        let stop = || {
            let stopped = fieldstone_launch::Error::Interrupted { signal: "SIGINT", number: 2 }.into();
            if *runs.borrow() == 4 { Err(stopped) } else { Ok(()) }
        };
        assert!(matches!(in_turn(|_| false, count, count, stop), Err(error) if error.is_interrupt()));
        assert_eq!(*runs.borrow(), 4);
    }

    #[test]
    fn the_difference_is_that_of_pairs_and_not_of_medians() {
        // A machine that gets slower: each pair is 5 apart, whatever the medians are.
        let drifting: Vec<(f64, f64)> = (0..7).map(|i| (f64::from(i * 10) + 5.0, f64::from(i * 10))).collect();
        let found = Difference::of(&drifting);
        assert_eq!((found.low, found.median, found.high), (5.0, 5.0, 5.0));
        assert_eq!((found.ns_4k, found.ns_2m), (35.0, 30.0));
    }
}
