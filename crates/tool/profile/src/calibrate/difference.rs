//! Time the same loads on small and on huge pages, alternately.

use fieldstone_launch::clock::thread_cpu_ns;
use fieldstone_stats::{Estimate, Interval, Rounds, median};
use fieldstone_wire::PageKind;

use super::array::ZeroArray;
use super::load_sequence::{LoadPhase, LoadSequence};
use crate::error::{Error, Result};

/// The extra time of a load on small pages, in nanoseconds, from paired runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadDifference {
    /// Median time of a load on 4 KiB pages.
    pub ns_4k: f64,
    /// Median time of a load on 2 MiB pages.
    pub ns_2m: f64,
    /// Median of the differences of the pairs, with its 95 % interval; with the range of the
    /// differences for fewer than six pairs. NaN without pairs.
    pub difference: Interval,
}

/// Minimum time of a timed pass, in nanoseconds, so that one interrupt has little influence. Tests
/// wait for many passes, and need no precise result.
const MIN_TIMED_NS: u64 = if cfg!(debug_assertions) { 8_000_000 } else { 20_000_000 };

/// The minimum effort of a measurement. Both limits apply; more of either averages out noise.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Pairs of runs, at least 1.
    pub pairs: usize,
    /// CPU time, in nanoseconds.
    pub ns: u64,
}

impl Effort {
    /// One of `divisor` equal parts of the effort.
    pub(super) const fn split(self, divisor: usize) -> Self {
        Self { pairs: self.pairs.div_ceil(divisor), ns: self.ns / divisor as u64 }
    }
}

/// Two arrays of the same size, one on each kind of page.
#[derive(Debug)]
pub(super) struct ArrayPair {
    small: ZeroArray,
    large: ZeroArray,
}

impl ArrayPair {
    pub(super) fn new(words: usize) -> Result<Self> {
        // Huge pages first, before the other array fragments memory.
        let large = ZeroArray::new(PageKind::Thp, words)?;
        Ok(Self { small: ZeroArray::new(PageKind::Small4k, words)?, large })
    }

    /// Times all loads on both arrays, with `rounds` of filler before each load, until `effort` is
    /// reached. The first pair is dropped. Calls `before_pair` before each pair. Returns (small,
    /// large) in nanoseconds per load.
    pub(super) fn compare(
        &self,
        loads: &LoadSequence,
        phases: &[LoadPhase],
        rounds: u32,
        effort: Effort,
        before_pair: impl FnMut() -> Result<()>,
    ) -> Result<Vec<(f64, f64)>> {
        let since = thread_cpu_ns();
        let pass = |array: &ZeroArray| {
            std::hint::black_box(array.load(loads, phases, rounds));
        };
        let run = |array: &ZeroArray| pass_ns(|| pass(array), thread_cpu_ns) / loads.len().max(1) as f64;
        let is_done = |done| done > effort.pairs && thread_cpu_ns() - since >= effort.ns;
        let mut timed = alternate(is_done, || run(&self.small), || run(&self.large), before_pair)?;
        timed.remove(0);
        Ok(timed)
    }
}

/// The time of one pass in ns: of the first, or the mean of enough later ones if the first is
/// short. The first pass then only reloads the caches, which the other array has evicted.
fn pass_ns(mut pass: impl FnMut(), clock: impl Fn() -> u64) -> f64 {
    let begin = clock();
    pass();
    let second = clock();
    if second - begin >= MIN_TIMED_NS {
        return (second - begin) as f64;
    }
    let mut passes = 0;
    loop {
        pass();
        passes += 1;
        let passed_ns = clock() - second;
        if passed_ns >= MIN_TIMED_NS {
            return passed_ns as f64 / f64::from(passes);
        }
    }
}

/// Times pairs until `is_done`, at least two. Each pair reverses the order of the one before. Calls
/// `before_pair` before each pair; its error ends the measurement.
fn alternate(
    is_done: impl Fn(usize) -> bool,
    mut small: impl FnMut() -> f64,
    mut large: impl FnMut() -> f64,
    mut before_pair: impl FnMut() -> Result<()>,
) -> Result<Vec<(f64, f64)>> {
    let mut runs = 0_usize;
    let run = |side: usize| {
        if runs.is_multiple_of(2) {
            before_pair()?;
        }
        runs += 1;
        Ok::<_, Error>(if side == 0 { small() } else { large() })
    };
    let rounds = Rounds::run(2, run, |rounds| rounds.count() >= 2 && is_done(rounds.count()))?;
    Ok(rounds.pairs(0, 1).collect())
}

impl LoadDifference {
    /// Computes medians and interval from (small, large) pairs in nanoseconds per load.
    pub(super) fn of(pairs: &[(f64, f64)]) -> Self {
        let of = |value: fn(&(f64, f64)) -> f64| pairs.iter().map(value).collect::<Vec<f64>>();
        let medians = [median(&of(|pair| pair.0)), median(&of(|pair| pair.1))];
        let [ns_4k, ns_2m] = medians.map(|ns| ns.unwrap_or(f64::NAN));
        let difference = Estimate::of_median(&of(|pair| pair.0 - pair.1));
        let difference = difference.map_or(Interval::exact(f64::NAN), |found| found.interval());
        Self { ns_4k, ns_2m, difference }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn both_sides_alternate_and_swap_their_order() {
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
        let pairs = alternate(|done| done > 3, side('s', 9.0), side('l', 4.0), note).unwrap();
        assert_eq!(*order.borrow(), " sl ls sl ls");
        assert_eq!(pairs, [(9.0, 4.0); 4]);
    }

    #[test]
    fn a_short_pass_is_repeated_and_its_first_pass_is_dropped() {
        // The first pass takes `first_ns`, each later pass a millisecond.
        let (short_ns, repeats) = (MIN_TIMED_NS / 5 * 4, MIN_TIMED_NS / 1_000_000);
        for (first_ns, passes, expected) in [(MIN_TIMED_NS, 1, MIN_TIMED_NS as f64), (short_ns, 1 + repeats, 1e6)] {
            let (now, done) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
            let pass = || {
                now.set(now.get() + if done.get() == 0 { first_ns } else { 1_000_000 });
                done.set(done.get() + 1);
            };
            let found = pass_ns(pass, || now.get());
            assert!((found - expected).abs() < 1e-6 && done.get() == passes, "{found} ns, {} passes", done.get());
        }
    }

    #[test]
    fn an_interrupt_stops_between_pairs() {
        let runs = RefCell::new(0);
        let count = || {
            *runs.borrow_mut() += 1;
            1.0
        };
        let stop = || {
            let stopped = fieldstone_launch::Error::Interrupted { signal: "SIGINT", number: 2 }.into();
            if *runs.borrow() == 4 { Err(stopped) } else { Ok(()) }
        };
        assert!(matches!(alternate(|_| false, count, count, stop), Err(error) if error.is_interrupt()));
        assert_eq!(*runs.borrow(), 4);
    }

    #[test]
    fn the_difference_is_that_of_pairs_not_of_medians() {
        // The machine gets slower: each pair differs by 5, whatever the medians are.
        let drifting: Vec<(f64, f64)> = (0..7).map(|i| (f64::from(i * 10) + 5.0, f64::from(i * 10))).collect();
        let found = LoadDifference::of(&drifting);
        assert_eq!(found.difference, Interval { low: 5.0, likely: 5.0, high: 5.0 });
        assert_eq!((found.ns_4k, found.ns_2m), (35.0, 30.0));
    }
}
