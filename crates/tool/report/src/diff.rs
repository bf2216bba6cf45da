//! Two profiles side by side: what changed between A, measured before, and B, measured after.
//!
//! A and B are measured separately, so their runs have no pairs. The change of a kind is the
//! Hodges-Lehmann estimate of the ratio B/A with the interval that inverts the Mann-Whitney test
//! (see [`fieldstone_stats`]). It shows that the times differ, not why: every change of the machine in
//! between is in it. Hence the warnings. Walks are counts of a model without noise of the machine:
//! they, and the sites' shares of them, are compared as they are.

use crate::shell;
use crate::summary::{KindSummary, KindVerdict, Summary, counted, usual_outcome};
use crate::{Metric, Profile, Translation, TranslationSummary};
use fieldstone_stats::{Estimate, Interval};
use serde::Serialize;
use std::collections::BTreeMap;

/// What changed from A to B.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    /// Which number is compared: that of A.
    pub metric: Metric,
    /// The page kinds of A, then those that only B has.
    pub kinds: Vec<KindDiff>,
    /// What changed in the model's walks, where either was traced: the configurations of A, then
    /// those that only B has.
    pub configurations: Vec<ConfigurationDiff>,
    /// What a walk costs, calibrated and by real runs on mosaics, where either knows.
    pub prices: Vec<PriceDiff>,
    /// Whose memory the walks are for, most change first. Empty where A or B has none recorded.
    pub sites: Vec<SiteDiff>,
    /// Why the two are not comparable, a sentence each. With one there is no verdict.
    pub not_comparable: Vec<String>,
    /// Why the times may differ although the program is the same, a sentence each.
    pub warnings: Vec<String>,
}

/// What changed on one page kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KindDiff {
    /// The page kind.
    pub name: String,
    /// The metric in A, in seconds.
    pub before_s: Option<Estimate>,
    /// The metric in B, in seconds.
    pub after_s: Option<Estimate>,
    /// The same as `before_s`: its name in files of version 0.1.
    pub a_s: Option<Estimate>,
    /// The same as `after_s`, likewise.
    pub b_s: Option<Estimate>,
    /// B over A.
    pub ratio: Option<Estimate>,
    /// The verdict.
    pub change: Change,
}

/// Walks for data in one configuration, a thousand accesses.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigurationDiff {
    /// `4k`, `direct-segment` and so on.
    pub name: String,
    /// In A; none if it was not modelled there.
    pub a_walks_per_thousand: Option<f64>,
    /// In B, likewise.
    pub b_walks_per_thousand: Option<f64>,
}

impl ConfigurationDiff {
    /// B over A; none without walks in A.
    pub fn ratio(&self) -> Option<f64> {
        let a = self.a_walks_per_thousand.filter(|walks| *walks > 0.0)?;
        self.b_walks_per_thousand.map(|b| b / a)
    }
}

/// Nanoseconds of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PriceDiff {
    /// Where the price is from: `calibrated`, or `mosaics`.
    pub name: &'static str,
    /// In A; none if it is not known there.
    pub a_ns: Option<Interval>,
    /// In B, likewise.
    pub b_ns: Option<Interval>,
}

/// Part of the walks for data, on 4 KiB pages, that are for one site's memory, or for memory of no
/// site.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SiteDiff {
    /// The function, or what the memory is.
    pub name: String,
    /// `file:line`, or the module where no debug information names them; empty for memory of no
    /// site.
    pub place: String,
    /// In A; none if only B has the site.
    pub a_share: Option<f64>,
    /// In B, likewise.
    pub b_share: Option<f64>,
}

impl SiteDiff {
    /// B less A. A missing site has no walks.
    pub fn change(&self) -> f64 {
        self.b_share.unwrap_or(0.0) - self.a_share.unwrap_or(0.0)
    }

    fn largest(&self) -> f64 {
        self.a_share.unwrap_or(0.0).max(self.b_share.unwrap_or(0.0))
    }
}

/// The verdict on a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// B is faster, beyond the interval and by more than 2 %.
    Faster,
    /// B is slower, likewise.
    Slower,
    /// The whole interval is within 2 %.
    Same,
    /// The interval is too wide to decide.
    Undecided,
    /// Too few runs for an interval.
    NotEnoughRuns,
    /// The program failed on it in A or in B.
    Failed,
    /// Only one of the two measured it.
    Missing,
    /// A and B measure different programs or different quantities.
    NotComparable,
}

impl std::fmt::Display for Change {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Same => "the same",
            Self::Undecided => "too noisy",
            Self::NotEnoughRuns => "too few runs",
            Self::Failed => "failed",
            Self::Missing => "in one only",
            Self::NotComparable => "no verdict",
        })
    }
}

impl Diff {
    /// Compares `b` with `a`, kind by kind.
    pub fn between(a: &Profile, b: &Profile) -> Self {
        let (summary_a, summary_b) = (Summary::of(a), Summary::of(b));
        let not_comparable = differences(&work_of(a, b), "No verdict: the");
        let names = |profile: &Profile| profile.kinds.iter().map(|kind| kind.name.clone()).collect();
        let kinds = of_both(names(a), names(b))
            .iter()
            .map(|name| {
                let ratio = Estimate::of_ratio_apart(&values(a, name), &values(b, name));
                let (a, b) = (summary_a.kind(name), summary_b.kind(name));
                let value = |kind: Option<&KindSummary>| kind.and_then(|kind| kind.value_s);
                let change = if not_comparable.is_empty() { change(a, b, ratio) } else { Change::NotComparable };
                let (a_s, b_s) = (value(a), value(b));
                KindDiff { name: name.clone(), before_s: a_s, after_s: b_s, a_s, b_s, ratio, change }
            })
            .collect();
        let (traced_a, traced_b) = (summary_a.translation.as_ref(), summary_b.translation.as_ref());
        Self {
            metric: a.metric,
            kinds,
            configurations: configurations(traced_a, traced_b),
            prices: prices(a, b),
            sites: sites(traced_a, traced_b),
            not_comparable,
            warnings: differences(&circumstances(a, b), "The"),
        }
    }

    /// Whether B is slower on any page kind: what `fieldstone diff` calls a finding.
    pub fn has_slower(&self) -> bool {
        self.kinds.iter().any(|kind| kind.change == Change::Slower)
    }
}

/// The names of `a`, then those that only `b` has.
fn of_both(mut a: Vec<String>, b: Vec<String>) -> Vec<String> {
    let only_b: Vec<String> = b.into_iter().filter(|name| !a.contains(name)).collect();
    a.extend(only_b);
    a
}

fn configurations(a: Option<&TranslationSummary>, b: Option<&TranslationSummary>) -> Vec<ConfigurationDiff> {
    let names = |of: Option<&TranslationSummary>| {
        of.map_or_else(Vec::new, |of| of.configurations.iter().map(|of| of.name.clone()).collect())
    };
    let walks = |of: Option<&TranslationSummary>, name: &str| of?.configuration(name)?.walks_per_thousand;
    let diff = |name: String| ConfigurationDiff {
        a_walks_per_thousand: walks(a, &name),
        b_walks_per_thousand: walks(b, &name),
        name,
    };
    of_both(names(a), names(b)).into_iter().map(diff).collect()
}

/// The prices that A or B has. A calibrated price is never compared with a fitted one.
fn prices(a: &Profile, b: &Profile) -> Vec<PriceDiff> {
    type Price = fn(&Translation) -> Option<Interval>;
    let ways: [(&'static str, Price); 2] = [
        ("calibrated", |of| of.walk_cost.as_ref()?.ns.finite()),
        ("mosaics", |of| of.mosaics.as_ref()?.fitted_ns.finite()),
    ];
    let diff = |(name, price): (&'static str, Price)| {
        let of = |profile: &Profile| profile.translation.as_ref().and_then(price);
        let (a_ns, b_ns) = (of(a), of(b));
        (a_ns.is_some() || b_ns.is_some()).then_some(PriceDiff { name, a_ns, b_ns })
    };
    ways.into_iter().filter_map(diff).collect()
}

/// The sites and the memory of no site of A and B, joined by name and place; the larger ones first
/// where the change is the same.
fn sites(a: Option<&TranslationSummary>, b: Option<&TranslationSummary>) -> Vec<SiteDiff> {
    let has_sites = |of: &&TranslationSummary| !(of.sites.is_empty() && of.rest.is_empty());
    let (Some(a), Some(b)) = (a.filter(has_sites), b.filter(has_sites)) else { return Vec::new() };
    let mut shares: BTreeMap<(&str, &str), [Option<f64>; 2]> = BTreeMap::new();
    for (side, of) in [a, b].into_iter().enumerate() {
        for line in of.sites.iter().chain(&of.rest) {
            let share = &mut shares.entry((line.name.as_str(), line.place.as_str())).or_default()[side];
            *share = Some(share.unwrap_or(0.0) + line.share);
        }
    }
    let site = |((name, place), [a_share, b_share]): ((&str, &str), [Option<f64>; 2])| SiteDiff {
        name: name.to_owned(),
        place: place.to_owned(),
        a_share,
        b_share,
    };
    let mut sites: Vec<SiteDiff> = shares.into_iter().map(site).collect();
    sites.sort_by(|one, other| {
        let by_change = other.change().abs().total_cmp(&one.change().abs());
        by_change.then_with(|| other.largest().total_cmp(&one.largest()))
    });
    sites
}

fn values(profile: &Profile, kind: &str) -> Vec<f64> {
    counted(profile, kind, usual_outcome(profile).as_deref()).iter().map(|sample| sample.value).collect()
}

fn change(a: Option<&KindSummary>, b: Option<&KindSummary>, ratio: Option<Estimate>) -> Change {
    let failed = |kind: Option<&KindSummary>| kind.is_some_and(|kind| kind.verdict == Some(KindVerdict::Failed));
    if failed(a) || failed(b) {
        return Change::Failed;
    }
    ratio.map_or(Change::Missing, |ratio| match KindVerdict::of_ratio(&ratio) {
        KindVerdict::Gain => Change::Faster,
        KindVerdict::Loss => Change::Slower,
        KindVerdict::NoGain => Change::Same,
        KindVerdict::NotEnoughRuns => Change::NotEnoughRuns,
        _ => Change::Undecided,
    })
}

/// A property of two profiles: its name in the plural, and its value in each.
type Property = (&'static str, String, String);

/// What must be the same for times to be comparable: the program, and what is measured.
fn work_of(a: &Profile, b: &Profile) -> Vec<Property> {
    let program = |profile: &Profile| {
        let load = profile.program.load.as_deref().map(|load| format!(" under the load: {load}")).unwrap_or_default();
        shell::join(&profile.program.command) + &load
    };
    vec![("programs", program(a), program(b)), ("metrics", a.metric.noun().to_owned(), b.metric.noun().to_owned())]
}

/// What else has an effect on the times.
fn circumstances(a: &Profile, b: &Profile) -> Vec<Property> {
    let (machine_a, machine_b) = (&a.machine, &b.machine);
    let mut pairs = vec![
        ("processors", machine_a.cpu.clone(), machine_b.cpu.clone()),
        ("numbers of processors", machine_a.cpus.to_string(), machine_b.cpus.to_string()),
        (
            "memory sizes",
            crate::quantity::bytes(machine_a.memory_bytes),
            crate::quantity::bytes(machine_b.memory_bytes),
        ),
        ("kernels", machine_a.kernel.clone(), machine_b.kernel.clone()),
        ("settings of transparent huge pages", machine_a.thp_enabled.clone(), machine_b.thp_enabled.clone()),
    ];
    if let (Some(a), Some(b)) = (&a.translation, &b.translation) {
        pairs.push(("modelled processors", a.processor.name.clone(), b.processor.name.clone()));
    }
    pairs
}

/// A sentence for each property that differs, which begins with `start`.
fn differences(properties: &[Property], start: &str) -> Vec<String> {
    let different = properties.iter().filter(|(_, a, b)| a != b);
    different.map(|(what, a, b)| format!("{start} {what} differ: BEFORE {a}, AFTER {b}.")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::measured;

    fn change_of(thp: f64, rounds: u32, noise: f64) -> Change {
        let a = measured(&[("4k", 1.0), ("thp", 1.0)], 10, noise);
        let b = measured(&[("4k", 1.0), ("thp", thp)], rounds, noise);
        Diff::between(&a, &b).kinds[1].change
    }

    #[test]
    fn changes_are_distinguished_from_noise() {
        assert_eq!(change_of(0.8, 10, 0.02), Change::Faster);
        assert_eq!(change_of(1.25, 10, 0.02), Change::Slower);
        assert_eq!(change_of(1.0, 10, 0.01), Change::Same);
        assert_eq!(change_of(0.97, 10, 0.2), Change::Undecided);
        assert_eq!(change_of(0.5, 1, 0.01), Change::NotEnoughRuns);
    }

    #[test]
    fn a_kind_that_only_one_has_or_that_failed_has_no_change() {
        let a = measured(&[("4k", 1.0), ("thp", 0.5)], 8, 0.01);
        let mut b = measured(&[("4k", 1.0), ("hugetlb", 0.5)], 8, 0.01);
        b.samples[0].outcome = "signal 11 (SIGSEGV)".into();
        let diff = Diff::between(&a, &b);
        let changes: Vec<(&str, Change)> = diff.kinds.iter().map(|kind| (kind.name.as_str(), kind.change)).collect();
        let missing = Change::Missing;
        assert_eq!(changes, [("4k", Change::Failed), ("thp", missing), ("hugetlb-1g", missing), ("hugetlb", missing)]);
        assert!(!diff.has_slower() && diff.kinds[1].b_s.is_none());
    }

    #[test]
    fn walks_of_both_are_compared_and_only_known_ones_have_a_ratio() {
        let a = crate::fixture::profile();
        let mut b = a.clone();
        let traced = b.translation.as_mut().unwrap();
        let small = &mut traced.configurations[0].data;
        small.walks /= 2;
        traced.configurations[1].name = "mosaic".into();
        traced.processor.name = "another".into();
        let diff = Diff::between(&a, &b);
        let names: Vec<&str> = diff.configurations.iter().map(|of| of.name.as_str()).collect();
        assert_eq!(names, ["4k", "2m", "1g", "direct-segment", "range-tlb", "none", "mosaic"]);
        assert!((diff.configurations[0].ratio().unwrap() - 0.5).abs() < 1e-6);
        let missing = [&diff.configurations[1], &diff.configurations[5], &diff.configurations[6]];
        assert!(missing.iter().all(|of| of.ratio().is_none()), "{missing:?}");
        assert_eq!(diff.configurations[5].b_walks_per_thousand, Some(0.0));
        assert!(diff.warnings.iter().any(|warning| warning.contains("modelled processors")));
        b.translation = None;
        assert!(Diff::between(&b, &b).configurations.is_empty());
        assert_eq!(Diff::between(&b, &a).configurations[0].a_walks_per_thousand, None);
    }

    #[test]
    fn prices_are_compared_by_their_source() {
        let a = crate::fixture::profile();
        let mut b = a.clone();
        b.translation.as_mut().unwrap().mosaics = None;
        let prices = Diff::between(&a, &b).prices;
        let names: Vec<_> = prices.iter().map(|of| (of.name, of.a_ns.is_some(), of.b_ns.is_some())).collect();
        assert_eq!(names, [("calibrated", true, true), ("mosaics", true, false)]);
        assert_eq!(prices[1].a_ns, a.translation.as_ref().unwrap().mosaics.as_ref().map(|of| of.fitted_ns));
        b.translation = None;
        assert!(Diff::between(&b, &b).prices.is_empty());
    }

    #[test]
    fn sites_are_compared_most_change_first() {
        let a = crate::fixture::profile();
        let mut b = a.clone();
        let traced = b.translation.as_mut().unwrap();
        traced.sites[0].walks /= 2;
        traced.sites[1].module = "another".into();
        traced.sites[3].line = Some(78);
        crate::fixture::stacks(traced).function = "vdso".into();
        let sites = Diff::between(&a, &b).sites;
        let of = |name: &str, place: &str| {
            let found = sites.iter().find(|of| (of.name.as_str(), of.place.as_str()) == (name, place));
            found.unwrap_or_else(|| panic!("no {name} at {place}: {sites:?}"))
        };
        let half = of("build_graph", "src/graph/build.c:214");
        let small = 16_550_000.0;
        assert_eq!((half.a_share, half.b_share), (Some(10_261_000.0 / small), Some(5_130_500.0 / small)));
        assert!(sites[..2].contains(half) && sites[..2].contains(of("not attributed", "")), "{sites:?}");
        let map = "std::__detail::_Map_base<int, std::pair<int const, node<&>>>::operator[]";
        assert_eq!((of(map, "gups").b_share, of(map, "another").a_share), (None, None));
        let moved = [of("read_edges", "src/graph/io.c:77"), of("read_edges", "src/graph/io.c:78")];
        assert_eq!((moved[0].b_share, moved[1].a_share, moved[0].a_share), (None, None, moved[1].b_share));
        assert_eq!((of("stacks", "").b_share, of("vdso", "").a_share), (None, None));
        let changes: Vec<f64> = sites.iter().map(|of| of.change().abs()).collect();
        assert!(changes.is_sorted_by(|one, other| one >= other), "{changes:?}");
        let same = Diff::between(&a, &a).sites;
        assert!(same.iter().all(|of| of.change() == 0.0) && same[0].name == "build_graph", "{same:?}");
    }

    #[test]
    fn no_site_is_new_where_one_trace_has_none() {
        let a = crate::fixture::profile();
        let mut b = a.clone();
        let traced = b.translation.as_mut().unwrap();
        traced.sites = Vec::new();
        assert!(Diff::between(&a, &b).sites.is_empty() && Diff::between(&b, &a).sites.is_empty());
        b.translation = None;
        assert!(Diff::between(&a, &b).sites.is_empty() && Diff::between(&b, &a).sites.is_empty());
    }

    #[test]
    fn two_sites_of_one_name_and_place_are_one() {
        let a = crate::fixture::profile();
        let mut b = a.clone();
        let sites = &mut b.translation.as_mut().unwrap().sites;
        let mut part = sites[0].clone();
        (part.module, part.walks) = ("libgraph.so".into(), 1_000_000);
        sites[0].walks -= part.walks;
        sites.push(part);
        let sites = Diff::between(&a, &b).sites;
        assert_eq!(sites.iter().filter(|of| of.name == "build_graph").count(), 1);
        assert!(sites.iter().all(|of| of.change().abs() < 1e-12), "{sites:?}");
    }

    #[test]
    fn differences_between_the_machines_are_warned_of() {
        let a = crate::fixture::profile();
        assert_eq!(Diff::between(&a, &a).warnings, [] as [String; 0]);
        let mut b = a.clone();
        b.program.command.push("--fast".into());
        b.metric = Metric::Cpu;
        b.machine.cpu = "another".into();
        let diff = Diff::between(&a, &b);
        assert_eq!((diff.warnings.len(), diff.not_comparable.len()), (1, 2), "{diff:?}");
        assert!(diff.not_comparable[0].contains("gups 2G --fast"));
    }

    #[test]
    fn different_programs_have_no_verdict() {
        let a = measured(&[("4k", 1.0)], 10, 0.01);
        let mut b = measured(&[("4k", 2.0)], 10, 0.01);
        assert!(Diff::between(&a, &b).has_slower());
        b.program.command.push("--more".into());
        let diff = Diff::between(&a, &b);
        assert!(!diff.has_slower() && diff.kinds[0].change == Change::NotComparable, "{diff:?}");
    }
}
