//! Price the page walks of a trace by a replay of its own addresses on this machine.
//!
//! ```text
//!   share of loads that wait for another load     fewest ......... likely ......... most
//!   4 KiB minus 2 MiB pages, ns per load          low              likely           high
//!   ÷ walks per load that 2 MiB pages avoid       near, far        (a simulation of the replayed addresses)
//!   = price of a walk                             applied to all walks of the program, in each configuration
//! ```
//! The classified walks of the trace give the share of loads that wait. The walks per load come
//! from a simulation of the replayed addresses, not from the whole run: the replay has extra walks
//! where its pieces join. [`Calibration`] computes the price.

use fieldstone_report::quantity::{count, estimate, nanoseconds, plural, rough_share, share};
use fieldstone_report::translation::{ModelledConfiguration, Translation, WalkCost as ReportedWalkCost};
use fieldstone_stats::Interval;
use fieldstone_translation::{
    Calibration, CalibrationPattern, CalibrationPoint, Configuration, Counts, PageSize, PageWalkCost, PlacedAccess,
    Simulator,
};

use crate::calibrate::{LoadDifference, PhaseDependence, ReplayResult};
use crate::trace::{DependenceCounts, TraceResults};

/// Minimum footprint, in multiples of the TLB's reach, where sequential loads walk once per page.
const SEQUENTIAL_REACHES: u64 = 4;

/// Minimum number of classified walks that represent a phase.
const MIN_CLASSIFIED: u64 = 30;

/// Estimated share of misclassified walks. A dependence through arithmetic on a loaded value is
/// missed, and an address behind a loaded word may be there by coincidence.
const MISCLASSIFIED_SHARE: f64 = 0.125;

/// Accesses per call of a simulator.
const BATCH: usize = 4096;

/// Walks per replayed load that 2 MiB pages avoid, with a near or a far page-table entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WalksPerLoad {
    near: f64,
    far: f64,
}

impl WalksPerLoad {
    /// Simulates a repeated replay of `addresses`. `None` if 4 KiB or 2 MiB pages are not modelled.
    pub(super) fn measure(configurations: &[Configuration], addresses: &[u64]) -> Option<Self> {
        let both = page_size_indices(configurations)?.map(|at| configurations[at].clone());
        let mut simulator = Simulator::new(&both).ok()?;
        let loads: Vec<PlacedAccess> = addresses.iter().map(|&address| PlacedAccess::in_region(address)).collect();
        loads.chunks(BATCH).for_each(|batch| simulator.warm(batch));
        loads.chunks(BATCH).for_each(|batch| simulator.run(batch));
        let [small, large] = simulator.counts() else { return None };
        let fewer = |of: fn(&Counts) -> u64| of(small).saturating_sub(of(large)) as f64 / loads.len().max(1) as f64;
        let (walks, far) = (fewer(|counts| counts.data.walks), fewer(|counts| counts.data.walks_pte_line_missed));
        Some(Self { near: (walks - far).max(0.0), far: far.min(walks) })
    }
}

/// The indices of the configurations for 4 KiB and 2 MiB pages.
fn page_size_indices(configurations: &[Configuration]) -> Option<[usize; 2]> {
    let named = |name| configurations.iter().position(|configuration| configuration.name == name);
    Some([named("4K")?, named("2M")?])
}

/// Prices the walks in `translation` by a replay. `native_s` is the CPU time of a run on 4 KiB
/// pages, in seconds.
pub(super) fn price(
    translation: &mut Translation,
    configurations: &[Configuration],
    results: &TraceResults,
    (replayed, walks): (&ReplayResult, WalksPerLoad),
    native_s: f64,
) {
    let load_ns = native_s * 1e9 * (walks.near + walks.far) / walks_avoided(configurations, results);
    let Ok(cost) = calibration(configurations, replayed, walks, load_ns).walk_cost() else {
        let replays = [replayed.fewest, replayed.likely, replayed.most];
        let no_slower = replays.iter().all(|found| found.difference.high <= 0.0);
        let why = if no_slower {
            "replayed on 4 KiB pages, its accesses were no slower than on 2 MiB pages; retry on an idle machine"
        } else {
            "4 KiB pages have hardly more walks than 2 MiB pages, so it cannot be measured"
        };
        return translation.unseen.push(format!("the cost of a walk: {why}"));
    };
    let scale = scale(results);
    let sampled = 2.0 * results.relative_error.unwrap_or(0.0);
    let baseline = results.counts.first().copied().unwrap_or_default();
    for (modelled, counts) in translation.configurations.iter_mut().zip(&results.counts) {
        set_shares(modelled, &cost, (&baseline, counts), scale, (native_s * 1e9, sampled));
    }
    let all = baseline.data.walks + baseline.instruction.walks;
    translation.walk_cost = Some(ReportedWalkCost {
        ns: cost.of(&baseline).times(1.0 / all.max(1) as f64),
        from: "replay".to_owned(),
        how: method_text(&cost, results, replayed, load_ns),
        noise: Some(noise(replayed.likely.difference)),
    });
}

/// The share of walks that wait for an address. The likely one is Laplace's rule of succession,
/// which damps small counts; the bounds are Wilson's interval. Without a classified walk the
/// interval is 0 to 1.
fn overall_share(results: &TraceResults) -> Interval {
    let (dependent, classified) = (results.dependent_walks as f64, results.classified_walks as f64);
    let likely = (dependent + 1.0) / (classified + 2.0);
    let Interval { low, high, .. } =
        Interval::of_share(dependent, classified).unwrap_or(Interval { low: 0.0, likely, high: 1.0 });
    Interval { low: low.min(likely), likely, high: high.max(likely) }
}

/// The share of waiting loads in each phase of the replay: from its own classified walks, or from
/// all walks if it has too few. The interval includes the uncertainty of the overall share and that
/// of misclassified walks.
pub(super) fn phase_dependence(results: &TraceResults) -> Vec<PhaseDependence> {
    let all = overall_share(results);
    let of = |(loads, walks): (usize, DependenceCounts)| {
        let has_enough = walks.classified >= MIN_CLASSIFIED;
        let part = |count: u64| count as f64 / walks.classified.max(1) as f64;
        let seen = if has_enough { part(walks.dependent) } else { all.likely };
        // Probably one chain with a few misclassified loads. If it were split there, its parts
        // would run in parallel.
        let likely = if seen > 1.0 - MISCLASSIFIED_SHARE { 1.0 } else { seen };
        let sure = if has_enough { part(walks.certain) } else { 0.0 };
        let low = seen - (seen - sure) * MISCLASSIFIED_SHARE - (all.likely - all.low);
        let high = likely + (1.0 - likely) * MISCLASSIFIED_SHARE + (all.high - all.likely);
        let share = Interval { low: low.clamp(0.0, likely), likely, high: high.clamp(likely, 1.0) };
        PhaseDependence { loads, share }
    };
    results.sample.phases().into_iter().map(of).collect()
}

/// The mean share over all phases, weighted by their loads.
fn mean_dependence(phase_dependence: &[PhaseDependence]) -> Interval {
    let loads: usize = phase_dependence.iter().map(|of| of.loads).sum();
    let mean = |bound: fn(&Interval) -> f64| {
        phase_dependence.iter().map(|of| bound(&of.share) * of.loads as f64).sum::<f64>() / loads.max(1) as f64
    };
    Interval { low: mean(|share| share.low), likely: mean(|share| share.likely), high: mean(|share| share.high) }
}

/// Accesses of the whole run per counted access.
pub(super) fn scale(results: &TraceResults) -> f64 {
    results.accesses as f64 / results.counted_accesses.max(1) as f64
}

/// The number of walks in the whole run that 2 MiB pages avoid.
fn walks_avoided(configurations: &[Configuration], results: &TraceResults) -> f64 {
    let walks = |at: usize| results.counts.get(at).map_or(0, |counts| counts.data.walks_in_region);
    let fewer = page_size_indices(configurations).map_or(0, |[small, large]| walks(small).saturating_sub(walks(large)));
    fewer as f64 * scale(results)
}

/// Combines the replayed differences with the walks per load. The program needs `load_ns` for a
/// load and its other instructions (infinite or NaN if 2 MiB pages avoid no walk). A slower replay
/// waits where the program does not, so its differences are scaled down.
fn calibration(
    configurations: &[Configuration],
    replayed: &ReplayResult,
    walks: WalksPerLoad,
    load_ns: f64,
) -> Calibration {
    let [fewest, likely, most] = [replayed.fewest, replayed.likely, replayed.most].map(|of| cap(of, load_ns));
    // Noise may reverse the order where walks cost almost nothing.
    let low = fewest.low.min(likely.low).min(most.low);
    let high = fewest.high.max(likely.high).max(most.high);
    let point =
        |pattern, [near_walks, far_walks]: [f64; 2], ns| CalibrationPoint { pattern, near_walks, far_walks, ns };
    let ns = Interval { low, high, ..likely };
    let mut points = vec![point(CalibrationPattern::Program, [walks.near, walks.far], ns)];
    // A sequence much larger than the TLB's reach finds no page again: one walk per page.
    let reach_bytes = configurations.first().map_or(0, |one| one.machine.reach_bytes(PageSize::Small4k));
    if replayed.footprint_bytes >= SEQUENTIAL_REACHES * reach_bytes {
        points.push(point(CalibrationPattern::Sequential, [1.0, 0.0], replayed.sequential.difference));
    }
    Calibration { footprint_bytes: replayed.footprint_bytes, points }
}

/// Half the width of a difference's interval relative to its median; at most 10, because JSON has
/// no infinity.
fn noise(difference: Interval) -> f64 {
    let noise = (difference.high - difference.low) / 2.0 / difference.likely.abs();
    if noise.is_finite() { noise.clamp(0.0, 10.0) } else { 10.0 }
}

/// The difference, scaled down if its loads on 4 KiB pages take longer than `load_ns`.
fn cap(found: LoadDifference, load_ns: f64) -> Interval {
    found.difference.times(cap_factor(found, load_ns))
}

/// The scale for a difference, 0 to 1.
fn cap_factor(found: LoadDifference, load_ns: f64) -> f64 {
    if found.ns_4k > load_ns { load_ns / found.ns_4k } else { 1.0 }
}

fn method_text(cost: &PageWalkCost, results: &TraceResults, replayed: &ReplayResult, load_ns: f64) -> String {
    let ns = |of: Interval| estimate(&of, nanoseconds);
    let near_and_far = if cost.near_ns == cost.far_ns {
        String::new()
    } else {
        format!("; a walk with a near entry costs {}, one with a far entry {}", ns(cost.near_ns), ns(cost.far_ns))
    };
    let part = cap_factor(replayed.likely, load_ns);
    let cap = if part < 1.0 {
        format!(
            "; they took {} each, and the program at most {}, so their walks count for {} of their cost here",
            nanoseconds(replayed.likely.ns_4k),
            nanoseconds(load_ns),
            share(part)
        )
    } else {
        String::new()
    };
    format!(
        "{} recorded accesses replayed on 4 KiB and 2 MiB pages here, {} between two and {} waiting for the one before; {}{cap}{near_and_far}",
        count(replayed.loads),
        plural(replayed.filler_instructions.into(), "other instruction"),
        estimate(&mean_dependence(&phase_dependence(results)), share),
        dependence_text(results)
    )
}

/// Describes how many walks were classified, and the assumption if they are few.
fn dependence_text(results: &TraceResults) -> String {
    let TraceResults { classified_walks, dependent_walks, .. } = *results;
    match classified_walks {
        0 => "no walk was classified, so any share of them may wait for an address".to_owned(),
        few if few < MIN_CLASSIFIED => format!(
            "{dependent_walks} of only {few} classified walks waited for an address: too few, so {} of all are assumed to",
            rough_share(overall_share(results).likely)
        ),
        _ => {
            format!("{} of {} classified walks waited for an address", count(dependent_walks), count(classified_walks))
        }
    }
}

/// Sets the shares of time in `modelled`. `counts` are those of the baseline and of the
/// configuration. `run` is the time of a run in ns, and the relative error of the burst counts.
fn set_shares(
    modelled: &mut ModelledConfiguration,
    cost: &PageWalkCost,
    counts: (&Counts, &Counts),
    scale: f64,
    run: (f64, f64),
) {
    let ((baseline, own), (run_ns, sampled)) = (counts, run);
    let reported = |estimate: Interval| wider(estimate, sampled);
    modelled.data_share = Some(reported(cost.share(&own.data, scale, run_ns)));
    modelled.instruction_share = Some(reported(cost.share(&own.instruction, scale, run_ns)));
    modelled.time = Some(reported(cost.saving(baseline, own, scale, run_ns)).rest());
}

/// Widens the interval by a part of its ends; a share is at most 1.
fn wider(estimate: Interval, by: f64) -> Interval {
    let Interval { low, likely, high } = estimate;
    Interval { low: low - by * low.abs(), likely, high: (high + by * high.abs()).min(1.0) }
}

#[cfg(test)]
mod tests {
    use fieldstone_translation::Mmu;

    use super::*;
    use crate::calibrate::LoadDifference;

    fn difference(ns: f64) -> LoadDifference {
        LoadDifference { ns_4k: 10.0 + ns, ns_2m: 10.0, difference: Interval::exact(ns) }
    }

    /// One walk per five replayed loads.
    const WALKS: WalksPerLoad = WalksPerLoad { near: 0.2, far: 0.0 };

    /// Half of the classified walks wait for an address; a quarter of the run was counted.
    fn example() -> (Translation, Vec<Configuration>, TraceResults, ReplayResult) {
        let machine = Mmu::preset("zen4").unwrap();
        let configurations = [PageSize::Small4k, PageSize::Large2m].map(|size| Configuration::paged(&machine, size));
        let (mut small, large) = (Counts::default(), Counts::default());
        (small.data.walks, small.data.walks_in_region, small.instruction.walks) = (100_000, 100_000, 10_000);
        let results = TraceResults {
            accesses: 2_000_000,
            counted_accesses: 500_000,
            counts: vec![small, large],
            classified_walks: 98,
            dependent_walks: 49,
            ..TraceResults::default()
        };
        let replayed = ReplayResult {
            loads: 1000,
            footprint_bytes: 1 << 20,
            filler_instructions: 10,
            fewest: difference(2.0),
            likely: difference(6.0),
            most: difference(10.0),
            sequential: difference(1.0),
        };
        let translation =
            Translation { configurations: vec![ModelledConfiguration::default(); 2], ..Translation::default() };
        (translation, configurations.to_vec(), results, replayed)
    }

    fn is_near(found: Interval, [low, likely, high]: [f64; 3]) {
        let all = [(found.low, low), (found.likely, likely), (found.high, high)];
        assert!(all.iter().all(|(found, wanted)| (found - wanted).abs() < 1e-9), "{found:?}");
    }

    /// 2 ns more per load at a fifth of a walk is 10 ns; 6 ns are 30, and 10 ns are 50. 400,000
    /// walks for data in the whole run take 12 ms, a quarter of its time.
    #[test]
    fn the_price_of_a_walk_is_the_replayed_one_and_gives_its_share_of_the_run() {
        let (mut translation, configurations, results, replayed) = example();
        price(&mut translation, &configurations, &results, (&replayed, WALKS), 0.048);
        let cost = translation.walk_cost.unwrap();
        is_near(cost.ns, [10.0, 30.0, 50.0]);
        assert_eq!((cost.noise, cost.noisy()), (Some(0.0), None));
        let [small, large] = translation.configurations.try_into().unwrap();
        is_near(small.data_share.unwrap(), [0.25 / 3.0, 0.25, 1.25 / 3.0]);
        is_near(small.instruction_share.unwrap(), [0.025 / 3.0, 0.025, 0.125 / 3.0]);
        is_near(small.time.unwrap(), [1.0, 1.0, 1.0]);
        is_near(large.data_share.unwrap(), [0.0; 3]);
        is_near(large.time.unwrap(), [1.0 - 1.375 / 3.0, 0.725, 1.0 - 0.275 / 3.0]);
    }

    /// 48 ms and 400,000 walks, a fifth of one per load: 24 ns per load. A replay at 30 ns is
    /// scaled by 24 / 30.
    #[test]
    fn a_replay_slower_than_the_program_is_scaled_down() {
        let (mut translation, configurations, results, mut replayed) = example();
        replayed.likely.ns_4k = 30.0;
        replayed.most.ns_4k = 48.0;
        price(&mut translation, &configurations, &results, (&replayed, WALKS), 0.048);
        let cost = translation.walk_cost.unwrap();
        is_near(cost.ns, [10.0, 24.0, 25.0]);
        assert!(cost.how.contains("took 30.0 ns each, and the program at most 24.0 ns"), "{}", cost.how);
    }

    #[test]
    fn near_walks_have_their_own_price_where_the_footprint_exceeds_the_tlb_reach() {
        let (mut translation, configurations, mut results, mut replayed) = example();
        results.counts[0].data.walks_pte_line_missed = 50_000;
        replayed.footprint_bytes = 1 << 30;
        let walks = WalksPerLoad { near: 0.1, far: 0.1 };
        price(&mut translation, &configurations, &results, (&replayed, walks), 0.048);
        // A near walk costs the 1 ns of the sequential replay. Far walks, half of them, cost the
        // rest: (2 - 0.1) / 0.1.
        let small = &translation.configurations[0];
        is_near(small.data_share.unwrap(), [5e4 * 20.0, 5e4 * 60.0, 5e4 * 100.0].map(|ns| ns * 4.0 / 48e6));
        is_near(small.instruction_share.unwrap(), [1e4 * 4.0 / 48e6; 3]);
    }

    #[test]
    fn a_wide_interval_is_noise() {
        let (mut translation, configurations, results, mut replayed) = example();
        let difference = &mut replayed.likely.difference;
        (difference.low, difference.high) = (3.0, 9.0);
        price(&mut translation, &configurations, &results, (&replayed, WALKS), 0.048);
        assert_eq!(translation.walk_cost.unwrap().noisy(), Some(0.5));
        assert_eq!(noise(Interval { likely: 0.0, ..replayed.likely.difference }), 10.0);
    }

    #[test]
    fn without_walks_there_is_no_price() {
        let (mut translation, configurations, results, replayed) = example();
        let hardly = WalksPerLoad { near: 1e-5, far: 1e-5 };
        price(&mut translation, &configurations, &results, (&replayed, hardly), 0.048);
        assert!(translation.walk_cost.is_none() && translation.configurations[0].data_share.is_none());
        assert!(translation.unseen[0].contains("hardly more walks"), "{:?}", translation.unseen);
    }

    #[test]
    fn accesses_no_slower_on_small_pages_have_no_price() {
        let (mut translation, configurations, results, mut replayed) = example();
        (replayed.fewest, replayed.likely, replayed.most) = (difference(-2.0), difference(-1.0), difference(0.0));
        price(&mut translation, &configurations, &results, (&replayed, WALKS), 0.048);
        assert!(translation.walk_cost.is_none() && translation.configurations[0].data_share.is_none());
        assert!(translation.unseen[0].contains("no slower"), "{:?}", translation.unseen);
    }

    /// Page by page through twice the TLB's reach, eight page-table entries per cache line: one
    /// walk in eight is far.
    #[test]
    fn walks_per_load_follow_the_replayed_addresses() {
        let configurations = example().1;
        let pages = 2 * (configurations[0].machine.reach_bytes(PageSize::Small4k) >> 12);
        let addresses = |loads: u64| -> Vec<u64> { (0..pages * loads).map(|load| load / loads * 4096).collect() };
        let [once, twice] = [1, 2].map(|loads| WalksPerLoad::measure(&configurations, &addresses(loads)).unwrap());
        assert!((once.near - 0.875).abs() < 0.01 && (once.far - 0.125).abs() < 0.01, "{once:?}");
        assert!((twice.near - once.near / 2.0).abs() < 1e-9, "{twice:?}");
        let known = WalksPerLoad::measure(&configurations, &addresses(1)[..16]).unwrap();
        assert_eq!(known, WalksPerLoad { near: 0.0, far: 0.0 }, "a repeated short sequence has no walks");
    }

    #[test]
    fn few_classified_walks_give_a_wide_interval() {
        let of = |dependent_walks, classified_walks| {
            overall_share(&TraceResults { dependent_walks, classified_walks, ..TraceResults::default() })
        };
        assert_eq!(of(0, 0), Interval { low: 0.0, likely: 0.5, high: 1.0 });
        let Interval { low, likely, high } = of(3, 3);
        assert!(likely == 0.8 && low < 0.5 && high == 1.0, "{low} {high}");
        let Interval { low, likely, high } = of(4_000, 10_000);
        assert!((likely - 0.4).abs() < 1e-3 && low > 0.39 && high < 0.41, "{low} {high}");
    }

    /// Four phases: pointer chasing in a loop, following pointers, random reads, and one with few
    /// classified walks.
    #[test]
    fn each_phase_waits_as_its_own_walks_do() {
        let phase = |classified, dependent, certain| DependenceCounts { all: 1000, classified, dependent, certain };
        let phases = [phase(1000, 1000, 1000), phase(1000, 950, 0), phase(1000, 0, 0), phase(2, 2, 2)];
        let mut results = TraceResults { classified_walks: 3002, dependent_walks: 1952, ..TraceResults::default() };
        phases.into_iter().for_each(|of| results.sample.add_piece(0..100, of, 1));
        let found = phase_dependence(&results);
        let near = |found: PhaseDependence, [low, likely, high]: [f64; 3]| {
            let apart = [(found.share.low, low), (found.share.likely, likely), (found.share.high, high)];
            // The uncertainty of the overall share is below 0.02.
            found.loads == 100 && apart.iter().all(|(found, wanted)| (found - wanted).abs() < 0.02)
        };
        assert!(near(found[0], [1.0, 1.0, 1.0]), "{found:?}");
        assert!(near(found[1], [0.831, 1.0, 1.0]), "one chain with a few misclassified loads: {found:?}");
        assert!(near(found[2], [0.0, 0.0, 0.125]), "{found:?}");
        assert!(near(found[3], [0.56, 0.65, 0.70]), "{found:?}");
        let all = mean_dependence(&found);
        assert!((all.likely - 2.65 / 4.0).abs() < 0.01 && all.low < all.likely && all.likely < all.high, "{all:?}");
    }

    #[test]
    fn an_estimate_from_few_walks_says_so() {
        let dependence_text = |dependent_walks, classified_walks| {
            dependence_text(&TraceResults { dependent_walks, classified_walks, ..TraceResults::default() })
        };
        assert!(dependence_text(0, 0).contains("any share of them"));
        assert!(
            dependence_text(1, 1).ends_with(
                "1 of only 1 classified walks waited for an address: too few, so 67 % of all are assumed to"
            )
        );
        assert_eq!(dependence_text(20_000, 110_884), "20,000 of 110,884 classified walks waited for an address");
    }

    #[test]
    fn differing_bursts_widen_an_estimate() {
        let estimate = Interval { low: 0.2, likely: 0.4, high: 0.6 };
        assert_eq!(wider(estimate, 0.0), estimate);
        let wide = wider(estimate, 0.5);
        assert!((wide.low - 0.1).abs() < 1e-9 && wide.likely == 0.4 && (wide.high - 0.9).abs() < 1e-9, "{wide:?}");
        assert_eq!(wider(estimate, 5.0).high, 1.0);
    }
}
