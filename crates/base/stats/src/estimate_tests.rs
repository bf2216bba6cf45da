//! The statistics against naive oracles: counting every case, and simulation with a fixed seed.

use super::*;
use proptest::prelude::*;

/// A small generator (Knuth's MMIX constants), so that a test needs no crate and gives the same
/// numbers everywhere.
struct Lcg(u64);

impl Lcg {
    /// Uniform in (0, 1).
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Skewed like run times: 1 plus an exponential tail, with the median at 1 + ln 2.
    fn run_time(&mut self) -> f64 {
        1.0 - self.uniform().ln()
    }
}

/// Chance that a fair coin shows fewer than `k` heads in `n` throws, by looking at all 2^n
/// outcomes.
fn fewer_heads(n: u32, k: u32) -> f64 {
    (0..1u32 << n).filter(|outcome| outcome.count_ones() < k).count() as f64 / f64::from(1u32 << n)
}

#[test]
fn ranks_are_the_largest_that_keep_95_percent() {
    for n in 1..=16u32 {
        let oracle = (1..=n / 2).rev().find(|k| 2.0 * fewer_heads(n, *k) <= 0.05);
        let found = interval_rank(n as usize);
        assert_eq!(found.map(|(rank, _)| rank), oracle.map(|k| k as usize), "n = {n}");
        if let (Some((_, confidence)), Some(k)) = (found, oracle) {
            assert!((confidence - (1.0 - 2.0 * fewer_heads(n, k))).abs() < 1e-12, "n = {n}");
        }
        assert_eq!(found.is_some(), n as usize >= FEWEST_FOR_INTERVAL);
    }
    let (rank, confidence) = interval_rank(10_000).unwrap();
    assert!((4890..=4910).contains(&rank) && confidence < 0.96, "{rank} {confidence}");
}

#[test]
fn mann_whitney_counts_every_order() {
    for (m, n) in [(1, 1), (1, 4), (2, 3), (4, 4), (5, 3), (6, 6)] {
        let mut oracle = vec![0.0; m * n + 1];
        for choice in 0u32..1 << (m + n) {
            if choice.count_ones() as usize == m {
                let statistic: usize = (0..m + n)
                    .filter(|at| choice >> at & 1 == 1)
                    .map(|at| (choice & ((1 << at) - 1)).count_zeros() as usize - (32 - at))
                    .sum();
                oracle[statistic] += 1.0;
            }
        }
        let counts = mann_whitney_counts(m, n);
        assert_eq!(counts, oracle[..counts.len()], "m = {m}, n = {n}");
        assert_eq!(choose(m + n, m), oracle.iter().sum::<f64>());
    }
}

#[test]
fn intervals_hold_the_truth_as_often_as_they_say() {
    let mut random = Lcg(1);
    let truth = 1.0 + std::f64::consts::LN_2;
    for n in [6, 7, 12, 25] {
        let trials = 4000;
        let draw = |random: &mut Lcg| -> Vec<f64> { (0..n).map(|_| random.run_time()).collect() };
        let mut held = 0;
        let mut held_apart = 0;
        for _ in 0..trials {
            let estimate = Estimate::of_median(&draw(&mut random)).unwrap();
            held += usize::from(estimate.low <= truth && truth <= estimate.high);
            let b: Vec<f64> = draw(&mut random).iter().map(|value| value * 1.5).collect();
            let shift = Estimate::of_ratio_apart(&draw(&mut random), &b).unwrap();
            held_apart += usize::from(shift.low <= 1.5 && 1.5 <= shift.high);
        }
        // Three standard deviations of the count itself are below 1.1 %.
        let claimed = interval_rank(n).unwrap().1;
        assert!((held as f64 / f64::from(trials) - claimed).abs() < 0.011, "n = {n}: {held} of {trials}");
        let claimed = shift_rank(n, n).unwrap().1;
        assert!((held_apart as f64 / f64::from(trials) - claimed).abs() < 0.011, "n = {n}: {held_apart} of {trials}");
    }
}

#[test]
fn few_values_have_a_range_and_no_interval() {
    let estimate = Estimate::of_median(&[3.0, 1.0, 2.0]).unwrap();
    assert_eq!((estimate.low, estimate.median, estimate.high), (1.0, 2.0, 3.0));
    assert!(!estimate.is_interval());
    assert_eq!(Estimate::of_median(&[]), None);
    assert_eq!(Estimate::of_ratio_apart(&[1.0], &[]), None);
    assert_eq!(Estimate::of_ratio_apart(&[0.0], &[1.0]), None);
    assert!(!Estimate::of_ratio_apart(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]).unwrap().is_interval());
    assert!(Estimate::of_ratio_apart(&[1.0; 4], &[1.0; 4]).unwrap().is_interval());
}

#[test]
fn noise_is_the_usual_step_between_neighbours() {
    assert_eq!(noise(&[2.0, 2.0, 2.0]), Some(0.0));
    assert!((noise(&[1.0, 1.1, 1.0, 1.1]).unwrap() - 0.1).abs() < 1e-12);
    // Slow drift is not noise.
    assert!(noise(&[1.0, 1.01, 1.02, 1.03, 1.04]).unwrap() < 0.011);
    assert_eq!((noise(&[1.0]), noise(&[1.0, 1.49])), (None, None), "one pair says nothing of what is usual");
}

#[test]
fn more_pairs_are_wanted_for_a_wider_interval() {
    let estimate =
        |half: f64| Estimate { n: 10, median: 1.0, low: 1.0 - half, high: 1.0 + half, confidence: Some(0.95) };
    assert_eq!(pairs_for(&estimate(0.0625), 0.03125), 40);
    assert_eq!(pairs_for(&estimate(0.001), 0.03125), 10);
    assert!(pairs_for(&estimate(f64::INFINITY), 0.03125) <= 1_000_000);
}

proptest! {
    #[test]
    fn median_halves_the_values(values in prop::collection::vec(0.001f64..1e6, 1..60)) {
        let middle = median(&values).unwrap();
        prop_assert!(values.iter().filter(|value| **value < middle).count() * 2 <= values.len());
        prop_assert!(values.iter().filter(|value| **value > middle).count() * 2 <= values.len());
    }

    #[test]
    fn an_interval_holds_its_median_and_ignores_order(values in prop::collection::vec(0.001f64..1e6, 1..60)) {
        let estimate = Estimate::of_median(&values).unwrap();
        prop_assert!(estimate.low <= estimate.median && estimate.median <= estimate.high);
        let reversed: Vec<f64> = values.iter().rev().copied().collect();
        prop_assert_eq!(Estimate::of_median(&reversed).unwrap(), estimate);
    }

    #[test]
    fn making_a_run_slower_never_lowers_an_estimate(
        values in prop::collection::vec(0.001f64..1e6, 1..40), at in any::<prop::sample::Index>(), more in 0.0f64..1e6,
    ) {
        let before = Estimate::of_median(&values).unwrap();
        let mut slower = values.clone();
        slower[at.index(values.len())] += more;
        let after = Estimate::of_median(&slower).unwrap();
        prop_assert!(after.low >= before.low && after.median >= before.median && after.high >= before.high);
    }

    #[test]
    fn ratios_apart_scale_with_the_second_set(
        a in prop::collection::vec(0.5f64..2.0, 4..20), b in prop::collection::vec(0.5f64..2.0, 4..20),
    ) {
        let plain = Estimate::of_ratio_apart(&a, &b).unwrap();
        let doubled: Vec<f64> = b.iter().map(|value| value * 2.0).collect();
        let twice = Estimate::of_ratio_apart(&a, &doubled).unwrap();
        prop_assert_eq!((plain.low * 2.0, plain.median * 2.0, plain.high * 2.0), (twice.low, twice.median, twice.high));
        prop_assert!(plain.low <= plain.median && plain.median <= plain.high);
    }
}
