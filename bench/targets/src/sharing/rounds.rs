//! Run rounds until the result settles or time is up; a round may give no value.

use std::time::{Duration, Instant};

use fieldstone_stats::{Estimate, FEWEST_FOR_INTERVAL};

use crate::cell::is_settled;
use crate::goals::Limit;

/// Number of rounds after which a cell without an interval ends, once time is up.
const MAX_EMPTY_ROUNDS: usize = 2 * FEWEST_FOR_INTERVAL;

/// The values of all rounds. `measure_round` gets the number of the round, to alternate the order
/// of a pair.
pub(super) fn run_rounds(
    limit: Limit,
    time_limit: Duration,
    mut measure_round: impl FnMut(usize) -> anyhow::Result<Option<f64>>,
) -> anyhow::Result<Vec<f64>> {
    let (since, mut values, mut checked_values, mut settled_count) = (Instant::now(), Vec::new(), 0, 0);
    for round in 1.. {
        values.extend(measure_round(round - 1)?);
        // An even number of rounds, so that both orders have the same weight.
        if round % 2 == 1 {
            continue;
        }
        let has_interval = values.len() >= FEWEST_FOR_INTERVAL;
        if since.elapsed() > time_limit && (has_interval || round >= MAX_EMPTY_ROUNDS) {
            break;
        }
        if !has_interval || values.len() == checked_values {
            continue;
        }
        checked_values = values.len();
        // The result must settle twice in a row, because it is checked often.
        let has_settled = is_settled(limit, Estimate::of_median(&values));
        settled_count = if has_settled { settled_count + 1 } else { 0 };
        if settled_count == 2 {
            break;
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn settled(limit: Limit, time_limit: Duration, mut value: impl FnMut(usize) -> Option<f64>) -> Vec<f64> {
        run_rounds(limit, time_limit, |round| Ok(value(round))).unwrap()
    }

    #[test]
    fn a_clear_result_ends_when_it_settles_twice() {
        assert_eq!(settled(Limit::AtMost(1.0), HOUR, |_| Some(0.9)).len(), FEWEST_FOR_INTERVAL + 2);
        assert_eq!(settled(Limit::AtLeast(1.0), HOUR, |_| Some(0.9)).len(), FEWEST_FOR_INTERVAL + 2);
    }

    #[test]
    fn an_unsettled_result_continues_until_it_settles() {
        let value = |round: usize| Some(if round < 6 { 1.2 } else { 0.9 } - 0.4 * (round % 2) as f64);
        let values = settled(Limit::AtMost(1.0), HOUR, value);
        assert!(values.len() > FEWEST_FOR_INTERVAL + 2, "{values:?}");
    }

    #[test]
    fn rounds_without_a_value_are_repeated() {
        let values = settled(Limit::AtMost(1.0), HOUR, |round| (round % 3 == 0).then_some(0.9));
        assert_eq!(values, [0.9; FEWEST_FOR_INTERVAL + 1], "it settled at six values, and at seven");
    }

    #[test]
    fn the_time_limit_ends_an_unsettled_result() {
        let straddling = |round: usize| Some(0.9 + 0.2 * (round % 2) as f64);
        assert_eq!(settled(Limit::AtMost(1.0), Duration::ZERO, straddling).len(), FEWEST_FOR_INTERVAL);
        let mut rounds = 0;
        let none = settled(Limit::AtMost(1.0), Duration::ZERO, |_| {
            rounds += 1;
            None
        });
        assert_eq!((none.len(), rounds), (0, MAX_EMPTY_ROUNDS));
        assert!(run_rounds(Limit::AtMost(1.0), HOUR, |_| anyhow::bail!("it fails")).is_err());
    }
}
