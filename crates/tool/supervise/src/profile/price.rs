//! What the walks of a trace cost: its own addresses, replayed on this machine.
//!
//! ```text
//!   4 KiB minus 2 MiB pages, ns a recorded access      fewest ............. likely ............. most loads wait for another
//!                                                      low                  likely               high
//! ```
//! How many of the program's walks wait the judged walks of its trace say. The same addresses run through the models, too: with the walks
//! that 2 MiB pages take away there, near and far ones, that is a [`Calibration`]. Its price of a walk is then that of all the program's walks, in
//! every configuration. (The walks of the whole run would not do as a divisor: where pieces of it meet in the replay are walks of its own.)

use fieldstone_report::quantity::{count, estimate, nanoseconds, plural, rough_share, share};
use fieldstone_report::translation::{ModelledConfiguration, Range, Translation, WalkCost as Told};
use fieldstone_sharing::Interval;
use fieldstone_translation::{
    Access, Calibration, CalibrationPoint, Configuration, Counts, Estimate, PageSize, Pattern, Simulator, WalkCost,
};

use crate::calibrate::{Difference, Replayed, Waiting};
use crate::trace::{Followed, Walks};

/// A footprint of fewer reaches of the TLBs may find a page there that it comes back to.
const REACHES: u64 = 4;

/// Fewer judged walks tell nothing of the others.
const FEW_JUDGED: u64 = 30;

/// The part of what is judged that may be judged wrongly: of an address that was computed from what was read nothing is seen, and one that
/// lies behind a word that was read may be there by chance.
const DOUBT: f64 = 0.125;

/// Accesses that the models take at once.
const BATCH: usize = 4096;

/// The walks of one load of a replay that 2 MiB pages take away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WalksEach {
    near: f64,
    far: f64,
}

impl WalksEach {
    /// Those of a replay of `addresses`, that goes round and round them. None where both kinds of page are not modelled.
    pub(super) fn of(configurations: &[Configuration], addresses: &[u64]) -> Option<Self> {
        let both = small_and_large(configurations)?.map(|at| configurations[at].clone());
        let mut simulator = Simulator::new(&both).ok()?;
        let loads: Vec<Access> = addresses.iter().map(|&address| Access::in_region(address)).collect();
        loads.chunks(BATCH).for_each(|batch| simulator.warm(batch));
        loads.chunks(BATCH).for_each(|batch| simulator.run(batch));
        let [small, large] = simulator.counts() else { return None };
        let fewer = |of: fn(&Counts) -> u64| of(small).saturating_sub(of(large)) as f64 / loads.len().max(1) as f64;
        let (walks, far) = (fewer(|counts| counts.data.walks), fewer(|counts| counts.data.walks_pte_line_missed));
        Some(Self { near: (walks - far).max(0.0), far: far.min(walks) })
    }
}

/// Which of them model 4 KiB and 2 MiB pages.
fn small_and_large(configurations: &[Configuration]) -> Option<[usize; 2]> {
    let named = |name| configurations.iter().position(|configuration| configuration.name == name);
    Some([named("4K")?, named("2M")?])
}

/// Prices the walks of `told`, by those of a replay with `walks` a load. `native_s` is the processor time of a run on 4 KiB pages.
pub(super) fn price(
    told: &mut Translation,
    configurations: &[Configuration],
    followed: &Followed,
    (replayed, walks): (&Replayed, WalksEach),
    native_s: f64,
) {
    let load_ns = native_s * 1e9 * (walks.near + walks.far) / fewer_walks(configurations, followed);
    let Ok(cost) = calibration(configurations, replayed, walks, load_ns).walk_cost() else {
        let no_slower = [replayed.fewest, replayed.likely, replayed.most].iter().all(|found| found.high <= 0.0);
        let why = if no_slower {
            "replayed on 4 KiB pages, its accesses were no slower than on 2 MiB ones; on a quiet machine they may be"
        } else {
            "4 KiB pages have hardly more walks than 2 MiB ones, so there is nothing to measure it by"
        };
        return told.unseen.push(format!("what a walk costs: {why}"));
    };
    let scale = scale(followed);
    let sampled = 2.0 * followed.relative_error.unwrap_or(0.0);
    let baseline = followed.counts.first().copied().unwrap_or_default();
    for (modelled, counts) in told.configurations.iter_mut().zip(&followed.counts) {
        give_shares(modelled, &cost, (&baseline, counts), scale, (native_s * 1e9, sampled));
    }
    let all = baseline.data.walks + baseline.instruction.walks;
    told.walk_cost = Some(Told {
        ns: range(cost.of(&baseline).times(1.0 / all.max(1) as f64)),
        from: "replay".to_owned(),
        how: how(&cost, followed, replayed, load_ns),
        noise: Some(noise(replayed.likely)),
    });
}

/// The part of the walks that waited for an address: likely by Laplace's rule of succession, since a few do not speak for all, its ends by
/// Wilson's interval. Where none was judged it is anything.
fn overall(followed: &Followed) -> [f64; 3] {
    let (waited, judged) = (followed.dependent_walks as f64, followed.judged_walks as f64);
    let likely = (waited + 1.0) / (judged + 2.0);
    let seen = Interval::of_share(waited, judged);
    seen.map_or([0.0, likely, 1.0], |seen| [seen.low.min(likely), likely, seen.high.max(likely)])
}

/// What part of the walks waited, stretch by stretch of what is replayed: by those that were judged there, or else by all. It may be as much less
/// or more as all of them together leave open, and as far beyond as the judge may be wrong.
pub(super) fn waiting(followed: &Followed) -> Vec<Waiting> {
    let [low, all, high] = overall(followed);
    let of = |(loads, walks): (usize, Walks)| {
        let speaks = walks.judged >= FEW_JUDGED;
        let part = |count: u64| count as f64 / walks.judged.max(1) as f64;
        let seen = if speaks { part(walks.waited) } else { all };
        // One chain that the judge lost sight of now and then; broken there, it would be done several pieces at a time.
        let likely = if seen > 1.0 - DOUBT { 1.0 } else { seen };
        let sure = if speaks { part(walks.surely) } else { 0.0 };
        let fewest = seen - (seen - sure) * DOUBT - (all - low);
        let most = likely + (1.0 - likely) * DOUBT + (high - all);
        Waiting { loads, fewest: fewest.clamp(0.0, likely), likely, most: most.clamp(likely, 1.0) }
    };
    followed.sample.stretches().into_iter().map(of).collect()
}

/// The same of all loads together.
fn waiting_in_all(waiting: &[Waiting]) -> Range {
    let loads: usize = waiting.iter().map(|of| of.loads).sum();
    let mean = |share: fn(&Waiting) -> f64| {
        waiting.iter().map(|of| share(of) * of.loads as f64).sum::<f64>() / loads.max(1) as f64
    };
    Range { low: mean(|of| of.fewest), likely: mean(|of| of.likely), high: mean(|of| of.most) }
}

/// Accesses of the whole run by those that were counted.
pub(super) fn scale(followed: &Followed) -> f64 {
    followed.accesses as f64 / followed.counted_accesses.max(1) as f64
}

/// The walks of the whole run that 2 MiB pages take away.
fn fewer_walks(configurations: &[Configuration], followed: &Followed) -> f64 {
    let walks = |at: usize| followed.counts.get(at).map_or(0, |counts| counts.data.walks_in_region);
    let fewer = small_and_large(configurations).map_or(0, |[small, large]| walks(small).saturating_sub(walks(large)));
    fewer as f64 * scale(followed)
}

/// The replayed differences beside the walks of a load. The program took `load_ns` for a load and all that belongs to it (no number where
/// 2 MiB pages take no walk away): a replay that takes longer waits where the program does not, and its walks cost the program as much less.
fn calibration(configurations: &[Configuration], replayed: &Replayed, walks: WalksEach, load_ns: f64) -> Calibration {
    let sequential = replayed.sequential;
    let [fewest, likely, most] = [replayed.fewest, replayed.likely, replayed.most].map(|of| held(of, load_ns));
    // Noise may turn them round where walks cost next to nothing.
    let low = fewest.low.min(likely.low).min(most.low);
    let high = fewest.high.max(likely.high).max(most.high);
    let point = |pattern, [near_walks, far_walks]: [f64; 2], [low, likely, high]: [f64; 3]| CalibrationPoint {
        pattern,
        near_walks,
        far_walks,
        ns: Estimate { low, likely, high },
    };
    let mut points = vec![point(Pattern::Program, [walks.near, walks.far], [low, likely.likely, high])];
    // Who goes round something larger than the TLBs never comes back in time: a walk a page.
    let reach_bytes = configurations.first().map_or(0, |one| one.machine.reach_bytes(PageSize::Small4k));
    if replayed.footprint_bytes >= REACHES * reach_bytes {
        points.push(point(Pattern::Sequential, [1.0, 0.0], [sequential.low, sequential.median, sequential.high]));
    }
    Calibration { footprint_bytes: replayed.footprint_bytes, points }
}

/// Half the width of a difference's interval, as a part of its middle; 10 at most, as JSON knows no infinity.
fn noise(found: Difference) -> f64 {
    let noise = (found.high - found.low) / 2.0 / found.median.abs();
    if noise.is_finite() { noise.clamp(0.0, 10.0) } else { 10.0 }
}

/// A difference, as long as its loads take no more than that on 4 KiB pages.
fn held(found: Difference, load_ns: f64) -> Estimate {
    Estimate { low: found.low, likely: found.median, high: found.high }.times(part_held(found, load_ns))
}

/// What part of a difference that is.
fn part_held(found: Difference, load_ns: f64) -> f64 {
    if found.ns_4k > load_ns { load_ns / found.ns_4k } else { 1.0 }
}

fn how(cost: &WalkCost, followed: &Followed, replayed: &Replayed, load_ns: f64) -> String {
    let ns = |of: Estimate| estimate(&range(of), nanoseconds);
    let apart = if cost.near_ns == cost.far_ns {
        String::new()
    } else {
        format!("; a walk whose entry is near costs {}, one whose entry is far {}", ns(cost.near_ns), ns(cost.far_ns))
    };
    let part = part_held(replayed.likely, load_ns);
    let held = if part < 1.0 {
        format!(
            "; they took {} each, and the program no more than {}, so that their walks count for {} of what they cost here",
            nanoseconds(replayed.likely.ns_4k),
            nanoseconds(load_ns),
            share(part)
        )
    } else {
        String::new()
    };
    format!(
        "{} recorded accesses replayed on 4 KiB and 2 MiB pages here, {} between two and {} waiting for the one before; {}{held}{apart}",
        count(replayed.loads),
        plural(replayed.others.into(), "other instruction"),
        estimate(&waiting_in_all(&waiting(followed)), share),
        waited(followed)
    )
}

/// What was judged of walks, and what is made of it where that is little.
fn waited(followed: &Followed) -> String {
    let Followed { judged_walks, dependent_walks, .. } = *followed;
    match judged_walks {
        0 => "no walk was judged, so that any part of them may have waited for an address".to_owned(),
        few if few < FEW_JUDGED => format!(
            "{dependent_walks} of only {few} judged walks waited for an address: too few to tell, so {} of all are taken to",
            rough_share(overall(followed)[1])
        ),
        _ => format!("{} of {} judged walks waited for an address", count(dependent_walks), count(judged_walks)),
    }
}

/// `counts` are those of the baseline and of the configuration; `run` the time of a run and how far off, as a part, the counts of
/// bursts may be.
fn give_shares(
    modelled: &mut ModelledConfiguration,
    cost: &WalkCost,
    counts: (&Counts, &Counts),
    scale: f64,
    run: (f64, f64),
) {
    let ((baseline, own), (run_ns, sampled)) = (counts, run);
    let told = |estimate: Estimate| range(wider(estimate, sampled));
    modelled.data_share = Some(told(cost.share(&own.data, scale, run_ns)));
    modelled.instruction_share = Some(told(cost.share(&own.instruction, scale, run_ns)));
    modelled.time = Some(told(cost.saving(baseline, own, scale, run_ns)).rest());
}

/// The same estimate, its ends further apart by a part of them; a share is never more than all.
fn wider(estimate: Estimate, by: f64) -> Estimate {
    let Estimate { low, likely, high } = estimate;
    Estimate { low: low - by * low.abs(), likely, high: (high + by * high.abs()).min(1.0) }
}

fn range(estimate: Estimate) -> Range {
    let Estimate { low, likely, high } = estimate;
    Range { low, likely, high }
}

#[cfg(test)]
mod tests {
    use fieldstone_translation::Machine;

    use super::*;
    use crate::calibrate::Difference;

    fn difference(ns: f64) -> Difference {
        Difference { ns_4k: 10.0 + ns, ns_2m: 10.0, low: ns, median: ns, high: ns }
    }

    /// A fifth of the replayed loads walks.
    const WALKS: WalksEach = WalksEach { near: 0.2, far: 0.0 };

    /// Half of the judged walks wait for an address; a quarter of the run was counted.
    fn example() -> (Translation, Vec<Configuration>, Followed, Replayed) {
        let machine = Machine::preset("zen4").unwrap();
        let configurations = [PageSize::Small4k, PageSize::Large2m].map(|size| Configuration::paged(&machine, size));
        let (mut small, large) = (Counts::default(), Counts::default());
        (small.data.walks, small.data.walks_in_region, small.instruction.walks) = (100_000, 100_000, 10_000);
        let followed = Followed {
            accesses: 2_000_000,
            counted_accesses: 500_000,
            counts: vec![small, large],
            judged_walks: 98,
            dependent_walks: 49,
            ..Followed::default()
        };
        let replayed = Replayed {
            loads: 1000,
            footprint_bytes: 1 << 20,
            others: 10,
            fewest: difference(2.0),
            likely: difference(6.0),
            most: difference(10.0),
            sequential: difference(1.0),
        };
        let told = Translation { configurations: vec![ModelledConfiguration::default(); 2], ..Translation::default() };
        (told, configurations.to_vec(), followed, replayed)
    }

    fn is_near(found: Range, [low, likely, high]: [f64; 3]) {
        let all = [(found.low, low), (found.likely, likely), (found.high, high)];
        assert!(all.iter().all(|(found, wanted)| (found - wanted).abs() < 1e-9), "{found:?}");
    }

    /// 2 ns a load more by a fifth of a walk is 10 ns, 6 ns are 30, and 10 ns are 50. 400,000 walks for data in the whole run
    /// are 12 ms, a quarter of its time.
    #[test]
    fn a_walk_costs_what_was_replayed_and_takes_its_part_of_the_run() {
        let (mut told, configurations, followed, replayed) = example();
        price(&mut told, &configurations, &followed, (&replayed, WALKS), 0.048);
        let cost = told.walk_cost.unwrap();
        is_near(cost.ns, [10.0, 30.0, 50.0]);
        assert_eq!((cost.noise, cost.noisy()), (Some(0.0), None));
        let [small, large] = told.configurations.try_into().unwrap();
        is_near(small.data_share.unwrap(), [0.25 / 3.0, 0.25, 1.25 / 3.0]);
        is_near(small.instruction_share.unwrap(), [0.025 / 3.0, 0.025, 0.125 / 3.0]);
        is_near(small.time.unwrap(), [1.0, 1.0, 1.0]);
        is_near(large.data_share.unwrap(), [0.0; 3]);
        is_near(large.time.unwrap(), [1.0 - 1.375 / 3.0, 0.725, 1.0 - 0.275 / 3.0]);
    }

    /// 48 ms and 400,000 walks, a fifth of one a load: 24 ns a load. What takes 30 counts for 24 / 30.
    #[test]
    fn a_replay_that_takes_longer_than_the_program_counts_for_less() {
        let (mut told, configurations, followed, mut replayed) = example();
        replayed.likely.ns_4k = 30.0;
        replayed.most.ns_4k = 48.0;
        price(&mut told, &configurations, &followed, (&replayed, WALKS), 0.048);
        let cost = told.walk_cost.unwrap();
        is_near(cost.ns, [10.0, 24.0, 25.0]);
        assert!(cost.how.contains("took 30.0 ns each, and the program no more than 24.0 ns"), "{}", cost.how);
    }

    #[test]
    fn near_walks_have_a_price_of_their_own_where_the_memory_is_larger_than_the_tlbs_reach() {
        let (mut told, configurations, mut followed, mut replayed) = example();
        followed.counts[0].data.walks_pte_line_missed = 50_000;
        replayed.footprint_bytes = 1 << 30;
        let walks = WalksEach { near: 0.1, far: 0.1 };
        price(&mut told, &configurations, &followed, (&replayed, walks), 0.048);
        // A near one costs the 1 ns of a walk a page; far ones, half of them, what is left: (2 - 0.1) / 0.1 and so on.
        let small = &told.configurations[0];
        is_near(small.data_share.unwrap(), [5e4 * 20.0, 5e4 * 60.0, 5e4 * 100.0].map(|ns| ns * 4.0 / 48e6));
        is_near(small.instruction_share.unwrap(), [1e4 * 4.0 / 48e6; 3]);
    }

    #[test]
    fn repetitions_that_are_far_apart_are_noise() {
        let (mut told, configurations, followed, mut replayed) = example();
        (replayed.likely.low, replayed.likely.high) = (3.0, 9.0);
        price(&mut told, &configurations, &followed, (&replayed, WALKS), 0.048);
        assert_eq!(told.walk_cost.unwrap().noisy(), Some(0.5));
        assert_eq!(noise(Difference { median: 0.0, ..replayed.likely }), 10.0);
    }

    #[test]
    fn without_walks_there_is_no_price() {
        let (mut told, configurations, followed, replayed) = example();
        let hardly = WalksEach { near: 1e-5, far: 1e-5 };
        price(&mut told, &configurations, &followed, (&replayed, hardly), 0.048);
        assert!(told.walk_cost.is_none() && told.configurations[0].data_share.is_none());
        assert!(told.unseen[0].contains("hardly more walks"), "{:?}", told.unseen);
    }

    #[test]
    fn what_was_no_slower_on_small_pages_has_no_price() {
        let (mut told, configurations, followed, mut replayed) = example();
        (replayed.fewest, replayed.likely, replayed.most) = (difference(-2.0), difference(-1.0), difference(0.0));
        price(&mut told, &configurations, &followed, (&replayed, WALKS), 0.048);
        assert!(told.walk_cost.is_none() && told.configurations[0].data_share.is_none());
        assert!(told.unseen[0].contains("no slower"), "{:?}", told.unseen);
    }

    /// Page by page through twice the reach of the TLBs, eight pages of a line of the page table: one in eight is far.
    #[test]
    fn a_replay_walks_as_often_as_its_own_addresses_do() {
        let configurations = example().1;
        let pages = 2 * (configurations[0].machine.reach_bytes(PageSize::Small4k) >> 12);
        let addresses = |loads: u64| -> Vec<u64> { (0..pages * loads).map(|load| load / loads * 4096).collect() };
        let [once, twice] = [1, 2].map(|loads| WalksEach::of(&configurations, &addresses(loads)).unwrap());
        assert!((once.near - 0.875).abs() < 0.01 && (once.far - 0.125).abs() < 0.01, "{once:?}");
        assert!((twice.near - once.near / 2.0).abs() < 1e-9, "{twice:?}");
        let known = WalksEach::of(&configurations, &addresses(1)[..16]).unwrap();
        assert_eq!(known, WalksEach { near: 0.0, far: 0.0 }, "round and round, they are known");
    }

    #[test]
    fn few_judged_walks_do_not_speak_for_all() {
        let of =
            |dependent_walks, judged_walks| overall(&Followed { dependent_walks, judged_walks, ..Followed::default() });
        assert_eq!(of(0, 0), [0.0, 0.5, 1.0]);
        let [low, likely, high] = of(3, 3);
        assert!(likely == 0.8 && low < 0.5 && high == 1.0, "{low} {high}");
        let [low, likely, high] = of(4_000, 10_000);
        assert!((likely - 0.4).abs() < 1e-3 && low > 0.39 && high < 0.41, "{low} {high}");
    }

    /// A phase that chases pointers in a loop, one that follows pointers, one that reads at random, and one of which hardly anything was judged.
    #[test]
    fn each_phase_waits_as_its_own_walks_do() {
        let judged = |judged, waited, surely| Walks { all: 1000, judged, waited, surely };
        let phases = [judged(1000, 1000, 1000), judged(1000, 950, 0), judged(1000, 0, 0), judged(2, 2, 2)];
        let mut followed = Followed { judged_walks: 3002, dependent_walks: 1952, ..Followed::default() };
        phases.into_iter().for_each(|of| followed.sample.pass(0..100, of, 1));
        let found = waiting(&followed);
        let near = |found: Waiting, [fewest, likely, most]: [f64; 3]| {
            let apart = [(found.fewest, fewest), (found.likely, likely), (found.most, most)];
            // What all judged walks leave open is less than a fiftieth.
            found.loads == 100 && apart.iter().all(|(found, wanted)| (found - wanted).abs() < 0.02)
        };
        assert!(near(found[0], [1.0, 1.0, 1.0]), "{found:?}");
        assert!(near(found[1], [0.831, 1.0, 1.0]), "one chain, of which the judge missed a little: {found:?}");
        assert!(near(found[2], [0.0, 0.0, 0.125]), "{found:?}");
        assert!(near(found[3], [0.56, 0.65, 0.70]), "{found:?}");
        let all = waiting_in_all(&found);
        assert!((all.likely - 2.65 / 4.0).abs() < 0.01 && all.low < all.likely && all.likely < all.high, "{all:?}");
    }

    #[test]
    fn what_rests_on_few_walks_says_so() {
        let waited =
            |dependent_walks, judged_walks| waited(&Followed { dependent_walks, judged_walks, ..Followed::default() });
        assert!(waited(0, 0).contains("any part of them"));
        assert!(
            waited(1, 1).ends_with(
                "1 of only 1 judged walks waited for an address: too few to tell, so 67 % of all are taken to"
            )
        );
        assert_eq!(waited(20_000, 110_884), "20,000 of 110,884 judged walks waited for an address");
    }

    #[test]
    fn bursts_that_disagree_make_an_estimate_wider() {
        let estimate = Estimate { low: 0.2, likely: 0.4, high: 0.6 };
        assert_eq!(wider(estimate, 0.0), estimate);
        let wide = wider(estimate, 0.5);
        assert!((wide.low - 0.1).abs() < 1e-9 && wide.likely == 0.4 && (wide.high - 0.9).abs() < 1e-9, "{wide:?}");
        assert_eq!(wider(estimate, 5.0).high, 1.0);
    }
}
