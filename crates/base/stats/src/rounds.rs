//! Contenders that run alternately, so that drift of the machine cancels in the ratios of their pairs.
//!
//! ```text
//! round 0   A B C
//! round 1   C B A      each round in the order opposite to the last
//! ```
//! A pair is the values of two contenders in one round. An even number of rounds gives each contender the same
//! mean place.

/// The order in which `contenders` run in a round: forward in even rounds, backward in odd ones.
pub fn order(contenders: usize, round: usize) -> impl Iterator<Item = usize> {
    let is_backward = !round.is_multiple_of(2);
    (0..contenders).map(move |place| if is_backward { contenders - 1 - place } else { place })
}

/// The results of both sides of a pair, run in the order of a round.
///
/// # Errors
/// The first error of a side; the side after it does not run.
pub fn pair<A, B, E>(
    round: usize,
    one: impl FnOnce() -> Result<A, E>,
    other: impl FnOnce() -> Result<B, E>,
) -> Result<(A, B), E> {
    if order(2, round).next() == Some(0) {
        let one = one()?;
        Ok((one, other()?))
    } else {
        let other = other()?;
        Ok((one()?, other))
    }
}

/// The measured values of contenders that ran alternately, mostly in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rounds {
    /// By contender, then by round.
    values: Vec<Vec<f64>>,
}

impl Rounds {
    /// Runs contenders 0 to `contenders - 1` by `run`, round by round, until `is_enough`, which is asked after each round.
    ///
    /// # Errors
    /// The first error of `run`.
    pub fn run<E>(
        contenders: usize,
        mut run: impl FnMut(usize) -> Result<f64, E>,
        mut is_enough: impl FnMut(&Self) -> bool,
    ) -> Result<Self, E> {
        let mut rounds = Self { values: vec![Vec::new(); contenders] };
        for round in 0.. {
            for contender in order(contenders, round) {
                let value = run(contender)?;
                rounds.values[contender].push(value);
            }
            if is_enough(&rounds) {
                break;
            }
        }
        Ok(rounds)
    }

    /// Number of whole rounds.
    #[must_use]
    pub fn count(&self) -> usize {
        self.values.iter().map(Vec::len).min().unwrap_or(0)
    }

    /// Whether both orders have the same weight: the number of rounds is even.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.count().is_multiple_of(2)
    }

    /// The values of a contender, by round.
    ///
    /// # Panics
    /// When there is no such contender.
    #[must_use]
    pub fn of(&self, contender: usize) -> &[f64] {
        &self.values[contender]
    }

    /// The values of all contenders, by contender, then by round.
    #[must_use]
    pub fn into_values(self) -> Vec<Vec<f64>> {
        self.values
    }

    /// The values of two contenders in each round.
    ///
    /// # Panics
    /// When there is no such contender.
    pub fn pairs(&self, one: usize, other: usize) -> impl Iterator<Item = (f64, f64)> {
        self.values[one].iter().copied().zip(self.values[other].iter().copied())
    }

    /// The ratio of `one` to `other` in each round.
    ///
    /// # Panics
    /// When there is no such contender.
    #[must_use]
    pub fn ratios(&self, one: usize, other: usize) -> Vec<f64> {
        self.pairs(one, other).map(|(one, other)| one / other).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_alternate_their_order_and_pair_by_round() {
        let mut sequence = Vec::new();
        let run = |contender: usize| {
            sequence.push(contender);
            Ok::<_, ()>(sequence.len() as f64)
        };
        let rounds = Rounds::run(3, run, |rounds| rounds.count() == 4).unwrap();
        assert_eq!(sequence, [0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0]);
        assert_eq!(rounds.of(0), [1.0, 6.0, 7.0, 12.0]);
        assert_eq!(rounds.pairs(0, 2).collect::<Vec<_>>(), [(1.0, 3.0), (6.0, 4.0), (7.0, 9.0), (12.0, 10.0)]);
        assert_eq!(rounds.ratios(1, 1), [1.0; 4]);
        assert!(rounds.is_balanced());
    }

    #[test]
    fn each_contender_has_the_same_mean_place_in_an_even_number_of_rounds() {
        let places = |contender| {
            let place = |round| order(3, round).position(|at| at == contender);
            (0..6).filter_map(place).sum::<usize>()
        };
        assert_eq!([places(0), places(1), places(2)], [6, 6, 6]);
    }

    #[test]
    fn a_pair_alternates_its_order_and_ends_with_an_error() {
        for (round, expected) in [(0, "ab"), (1, "ba"), (2, "ab")] {
            let sequence = std::cell::RefCell::new(String::new());
            let side = |name: char| {
                sequence.borrow_mut().push(name);
                Ok::<_, ()>(name)
            };
            assert_eq!(pair(round, || side('a'), || side('b')), Ok(('a', 'b')));
            assert_eq!(*sequence.borrow(), expected);
        }
        assert_eq!(
            pair(0, || Err::<(), _>("stopped"), || -> Result<(), _> { panic!("it does not run") }),
            Err("stopped")
        );
    }

    #[test]
    fn an_error_ends_the_rounds() {
        let mut runs = 0;
        let run = |contender: usize| {
            runs += 1;
            if contender == 1 { Err("stopped") } else { Ok(1.0) }
        };
        assert_eq!(Rounds::run(2, run, |_| true), Err("stopped"));
        assert_eq!(runs, 2);
    }
}
