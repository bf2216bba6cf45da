//! Runs rounds until the result settles or time is up; a round may give no value.

use std::time::Duration;

use crate::goals::Limit;
use crate::stop_rule::StopRule;

/// The values of all rounds, which end by the [`StopRule`]. `measure_round` gets the number of the
/// round, to alternate the order of a pair.
///
/// # Errors
/// The first error of `measure_round`.
pub(super) fn run_rounds(
    limit: Limit,
    time_limit: Duration,
    mut measure_round: impl FnMut(usize) -> anyhow::Result<Option<f64>>,
) -> anyhow::Result<Vec<f64>> {
    let (mut rule, mut values) = (StopRule::new(limit, time_limit), Vec::new());
    for round in 0.. {
        values.extend(measure_round(round)?);
        if rule.is_met(round + 1, &values) {
            break;
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use fieldstone_stats::FEWEST_FOR_INTERVAL;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn rounds_are_numbered_and_give_their_values() {
        let mut numbers = Vec::new();
        let values = run_rounds(Limit::AtMost(1.0), HOUR, |round| {
            numbers.push(round);
            Ok((round != 2).then_some(0.9))
        });
        assert_eq!(values.unwrap(), [0.9; FEWEST_FOR_INTERVAL + 3]);
        assert_eq!(numbers, (0..FEWEST_FOR_INTERVAL + 4).collect::<Vec<_>>());
    }

    #[test]
    fn an_error_ends_the_rounds() {
        assert!(run_rounds(Limit::AtMost(1.0), HOUR, |_| anyhow::bail!("it fails")).is_err());
    }
}
