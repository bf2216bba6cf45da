//! Compares miss-ratio curves with an exact computation, for programs with few and many pages.

use std::collections::HashMap;

use fieldstone_translation::{MissRatioCurve, PageSize, PlacedAccess};

const ACCESSES: u64 = 200_000;
/// The tolerated error in misses per access.
const BOUND: f64 = 0.025;

/// A pseudo-random number.
fn random(step: u64) -> u64 {
    let mixed = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 29
}

/// Misses per access of TLBs of 2^0 to 2^20 entries.
fn misses(trace: &[u64]) -> Vec<f64> {
    // The time of each page's last use, and all these times in order.
    let mut last: HashMap<u64, usize> = HashMap::new();
    let mut times: Vec<usize> = Vec::new();
    let mut missed = [0_u64; 21];
    for (now, page) in trace.iter().enumerate() {
        let before =
            last.insert(*page, now).map(|time| times.binary_search(&time).expect("every last time is in `times`"));
        let distance = before.map(|place| times.len() - 1 - place);
        (0..)
            .zip(&mut missed)
            .for_each(|(shift, missed)| *missed += u64::from(distance.is_none_or(|d| d >= 1 << shift)));
        if let Some(place) = before {
            times.remove(place);
        }
        times.push(now);
    }
    missed.map(|missed| missed as f64 / trace.len() as f64).to_vec()
}

/// The worst error of a curve, and its sizes.
fn worst_error(trace: &[u64]) -> (f64, Vec<u64>) {
    let mut curve = MissRatioCurve::new(PageSize::Small4k);
    let accesses: Vec<PlacedAccess> = trace.iter().map(|page| PlacedAccess::in_region(page << 12)).collect();
    accesses.chunks(1000).for_each(|batch| curve.run(batch));
    let exact = misses(trace);
    let points = curve.points();
    let errors = points.iter().map(|point| (point.misses_an_access - exact[point.entries.ilog2() as usize]).abs());
    (errors.fold(0.0, f64::max), points.iter().map(|point| point.entries).collect())
}

fn check(what: &str, first_size: u64, page: impl Fn(u64) -> u64) {
    let trace: Vec<u64> = (0..ACCESSES).map(page).collect();
    let (error, sizes) = worst_error(&trace);
    println!("{what}: error {error:.4}");
    assert!(error <= BOUND, "{what}: error {error}");
    assert_eq!((sizes.first(), sizes.last()), (Some(&first_size), Some(&(1 << 20))), "{what}");
}

/// One of `each` accesses goes to one of `cold` pages, the others to six hot pages.
fn hot_and_cold(each: u64, cold: u64) -> impl Fn(u64) -> u64 {
    move |step| match random(step) {
        number if number % 1000 < 1000 / each => 6 + random(step + ACCESSES) % cold,
        number => number / 1000 % 6,
    }
}

#[test]
fn few_pages_give_an_exact_curve() {
    for seed in [0, 1 << 20, 1 << 30] {
        let trace: Vec<u64> = (0..50_000).map(|step| seed + hot_and_cold(7, 5000)(step)).collect();
        let (error, sizes) = worst_error(&trace);
        assert!(error < 1e-12, "error {error}");
        assert_eq!(sizes.first(), Some(&16));
    }
}

#[test]
fn hot_and_cold_pages() {
    check("6 hot and 10,000 cold pages", 16, hot_and_cold(7, 10_000));
    check("6 hot and 40,000 cold pages", 16, hot_and_cold(7, 40_000));
}

#[test]
fn random_pages() {
    check("20,000 pages", 16, |step| random(step) % 20_000);
    // Each power-of-two interval is equally likely, so a page is half as likely as one of half its
    // number.
    check("32,768 pages, the first ones most", 16, |step| {
        let least = 1 << (random(step) % 15);
        least + random(step + ACCESSES) % least
    });
}

#[test]
fn cyclic_pages() {
    check("3000 pages", 16, |step| step % 3000);
    check("12,000 pages", 16, |step| step % 12_000);
}

#[test]
fn few_pages_then_many_then_few() {
    check("2000, 60,000, 2000 pages", 16, |step| match step / (ACCESSES / 4) {
        0 | 3 => random(step) % 2000,
        _ => 2000 + random(step) % 60_000,
    });
}
