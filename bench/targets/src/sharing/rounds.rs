//! Rounds until the verdict stands or the time is over, where a round may turn out to say nothing.

use std::time::{Duration, Instant};

use fieldstone_stats::{Estimate, FEWEST_FOR_INTERVAL};

use crate::cell::is_settled;
use crate::goals::Limit;

/// After this many rounds and all the time, what still has no interval gets none: its rounds do not count.
const ENOUGH_IN_VAIN: usize = 2 * FEWEST_FOR_INTERVAL;

/// The values of the rounds that count. `once` is given the number of the round, so that it can turn the order of a pair round.
pub(super) fn settle(
    limit: Limit,
    most: Duration,
    mut once: impl FnMut(usize) -> anyhow::Result<Option<f64>>,
) -> anyhow::Result<Vec<f64>> {
    let (since, mut values, mut looked_at, mut stood) = (Instant::now(), Vec::new(), 0, 0);
    for round in 1.. {
        values.extend(once(round - 1)?);
        // Both orders weigh the same.
        if round % 2 == 1 {
            continue;
        }
        let has_interval = values.len() >= FEWEST_FOR_INTERVAL;
        if since.elapsed() > most && (has_interval || round >= ENOUGH_IN_VAIN) {
            break;
        }
        if !has_interval || values.len() == looked_at {
            continue;
        }
        looked_at = values.len();
        // A verdict has to stand twice, since it is looked at often.
        let stands = is_settled(limit, Estimate::of_median(&values));
        stood = if stands { stood + 1 } else { 0 };
        if stood == 2 {
            break;
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn settled(limit: Limit, most: Duration, mut value: impl FnMut(usize) -> Option<f64>) -> Vec<f64> {
        settle(limit, most, |round| Ok(value(round))).unwrap()
    }

    #[test]
    fn what_is_clear_ends_when_it_stood_twice() {
        assert_eq!(settled(Limit::AtMost(1.0), HOUR, |_| Some(0.9)).len(), FEWEST_FOR_INTERVAL + 2);
        assert_eq!(settled(Limit::AtLeast(1.0), HOUR, |_| Some(0.9)).len(), FEWEST_FOR_INTERVAL + 2);
    }

    #[test]
    fn what_straddles_goes_on_until_it_does_not() {
        let value = |round: usize| Some(if round < 6 { 1.2 } else { 0.9 } - 0.4 * (round % 2) as f64);
        let values = settled(Limit::AtMost(1.0), HOUR, value);
        assert!(values.len() > FEWEST_FOR_INTERVAL + 2, "{values:?}");
    }

    #[test]
    fn rounds_that_do_not_count_are_made_up_for() {
        let values = settled(Limit::AtMost(1.0), HOUR, |round| (round % 3 == 0).then_some(0.9));
        assert_eq!(values, [0.9; FEWEST_FOR_INTERVAL + 1], "it stood at six values, and at the next");
    }

    #[test]
    fn the_time_ends_what_cannot_be_decided() {
        let straddling = |round: usize| Some(0.9 + 0.2 * (round % 2) as f64);
        assert_eq!(settled(Limit::AtMost(1.0), Duration::ZERO, straddling).len(), FEWEST_FOR_INTERVAL);
        let mut rounds = 0;
        let none = settled(Limit::AtMost(1.0), Duration::ZERO, |_| {
            rounds += 1;
            None
        });
        assert_eq!((none.len(), rounds), (0, ENOUGH_IN_VAIN));
        assert!(settle(Limit::AtMost(1.0), HOUR, |_| anyhow::bail!("it fails")).is_err());
    }
}
