//! When a measurement ends: its result has settled on one side of the limit, or time is up.
//!
//! ```text
//! rounds   1   2   3   4   5   6   7   8
//! checks       2nd     4th     6th     8th      after an even number, so that both orders weigh the same
//!                              settled settled  twice in a row: the measurement ends
//! ```
//! A result settles when its whole 95 % interval is on one side of the limit ([`is_settled`]). It
//! is checked often, so a single settled check can be luck.
//!
//! Invariant: a measurement with a value per round never ends without an interval.

use std::time::{Duration, Instant};

use fieldstone_stats::{Estimate, FEWEST_FOR_INTERVAL};

use crate::cell::is_settled;
use crate::goals::Limit;

/// The state of a running measurement. The time limit counts from its creation.
#[derive(Debug)]
pub(crate) struct StopRule {
    limit: Limit,
    time_limit: Duration,
    since: Instant,
    /// Values without which the measurement does not end.
    min_values: usize,
    /// Rounds from one check to the next.
    check_interval: usize,
    /// Settled checks in a row that end the measurement.
    required_checks: usize,
    settled_checks: usize,
    /// Number of values at the last check.
    checked_values: usize,
}

impl StopRule {
    /// The rule for rounds of alternating order: at least [`FEWEST_FOR_INTERVAL`] values, checks
    /// after an even number of rounds, two settled checks in a row.
    pub(crate) fn new(limit: Limit, time_limit: Duration) -> Self {
        Self {
            limit,
            time_limit,
            since: Instant::now(),
            min_values: FEWEST_FOR_INTERVAL,
            check_interval: 2,
            required_checks: 2,
            settled_checks: 0,
            checked_values: 0,
        }
    }

    /// The same with at least `min_values` values.
    pub(crate) fn with_min_values(self, min_values: usize) -> Self {
        Self { min_values: min_values.max(FEWEST_FOR_INTERVAL), ..self }
    }

    /// The same, but one settled check ends the measurement. For rounds of many seconds each.
    pub(crate) fn with_one_check(self) -> Self {
        Self { required_checks: 1, ..self }
    }

    /// The same with a check after each round. For rounds without an order.
    pub(crate) fn with_unordered_rounds(self) -> Self {
        Self { check_interval: 1, ..self }
    }

    /// Whether the measurement ends after `rounds` rounds with these values. Some rounds may have
    /// given no value. Must be called after each round.
    pub(crate) fn is_met(&mut self, rounds: usize, values: &[f64]) -> bool {
        if !rounds.is_multiple_of(self.check_interval) {
            return false;
        }
        let has_enough = values.len() >= self.min_values;
        // Without values, the time limit alone never ends the measurement.
        let has_waited = rounds >= 2 * self.min_values;
        if self.since.elapsed() > self.time_limit && (has_enough || has_waited) {
            return true;
        }
        if !has_enough || values.len() == self.checked_values {
            return false;
        }
        self.checked_values = values.len();
        let has_settled = is_settled(self.limit, Estimate::of_median(values));
        self.settled_checks = if has_settled { self.settled_checks + 1 } else { 0 };
        self.settled_checks >= self.required_checks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const LIMIT: Limit = Limit::AtMost(1.0);

    /// The number of rounds, and the values of those that gave one.
    fn run(mut rule: StopRule, mut value: impl FnMut(usize) -> Option<f64>) -> (usize, Vec<f64>) {
        let mut values = Vec::new();
        for round in 1.. {
            values.extend(value(round - 1));
            if rule.is_met(round, &values) {
                return (round, values);
            }
        }
        unreachable!("a measurement has an end")
    }

    #[test]
    fn a_clear_result_ends_when_it_settles_twice() {
        for limit in [LIMIT, Limit::AtLeast(1.0)] {
            assert_eq!(run(StopRule::new(limit, HOUR), |_| Some(0.9)).0, FEWEST_FOR_INTERVAL + 2);
        }
    }

    #[test]
    fn the_variants_change_one_number_each() {
        let rounds = |rule| run(rule, |_| Some(0.9)).0;
        assert_eq!(rounds(StopRule::new(LIMIT, HOUR).with_one_check()), FEWEST_FOR_INTERVAL);
        assert_eq!(rounds(StopRule::new(LIMIT, HOUR).with_unordered_rounds()), FEWEST_FOR_INTERVAL + 1);
        assert_eq!(rounds(StopRule::new(LIMIT, HOUR).with_min_values(20)), 22);
        assert_eq!(rounds(StopRule::new(LIMIT, Duration::ZERO).with_min_values(20)), 20);
    }

    #[test]
    fn an_unsettled_result_continues_until_it_settles() {
        let value = |round: usize| Some(if round < 6 { 1.2 } else { 0.9 } - 0.4 * (round % 2) as f64);
        let (rounds, values) = run(StopRule::new(LIMIT, HOUR), value);
        assert!(rounds > FEWEST_FOR_INTERVAL + 2, "{values:?}");
    }

    #[test]
    fn a_check_without_a_new_value_does_not_count() {
        let (_, values) = run(StopRule::new(LIMIT, HOUR), |round| (round % 3 == 0).then_some(0.9));
        assert_eq!(values, [0.9; FEWEST_FOR_INTERVAL + 1], "it settled at six values, and at seven");
    }

    #[test]
    fn the_time_limit_ends_an_unsettled_result() {
        let straddling = |round: usize| Some(0.9 + 0.2 * (round % 2) as f64);
        assert_eq!(run(StopRule::new(LIMIT, Duration::ZERO), straddling).0, FEWEST_FOR_INTERVAL);
        assert_eq!(run(StopRule::new(LIMIT, Duration::ZERO), |_| None), (2 * FEWEST_FOR_INTERVAL, Vec::new()));
    }
}
