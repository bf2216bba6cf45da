//! Verdicts and advice, on profiles made up so that the right answer is known.

use super::*;
use crate::{Finding, fixture};
use proptest::prelude::*;

fn ratio(low: f64, median: f64, high: f64) -> Estimate {
    Estimate { n: 12, median, low, high, confidence: Some(0.96) }
}

/// The summary of the fixture with changes.
fn spoilt(spoil: impl FnOnce(&mut Profile)) -> Summary {
    let mut profile = fixture::profile();
    spoil(&mut profile);
    Summary::of(&profile)
}

fn has(summary: &Summary, matches: impl Fn(&Advice) -> bool) -> bool {
    summary.notes.iter().any(matches)
}

#[test]
fn verdicts_follow_the_interval() {
    for (estimate, verdict) in [
        (ratio(0.55, 0.60, 0.65), KindVerdict::Gain),
        (ratio(1.10, 1.20, 1.30), KindVerdict::Loss),
        (ratio(0.985, 0.99, 1.01), KindVerdict::NoGain),
        (ratio(0.981, 0.985, 0.99), KindVerdict::NoGain),
        (ratio(0.80, 0.90, 1.05), KindVerdict::TooNoisy),
        (ratio(0.95, 0.99, 0.999), KindVerdict::TooNoisy),
        (Estimate { confidence: None, ..ratio(0.5, 0.5, 0.5) }, KindVerdict::NotEnoughRuns),
    ] {
        assert_eq!(KindVerdict::of_ratio(&estimate), verdict, "{estimate:?}");
    }
}

#[test]
fn the_fixture_gains_and_thp_is_preferred_to_a_reserve() {
    let summary = Summary::of(&fixture::profile());
    let names: Vec<&str> = summary.kinds.iter().map(|kind| kind.name.as_str()).collect();
    assert_eq!(names, ["4k", "folio-64k", "thp", "hugetlb", "hugetlb-1g"]);
    let thp = summary.kind("thp").unwrap();
    assert_eq!((thp.verdict, thp.runs, thp.failed), (Some(KindVerdict::Gain), 12, 0));
    let interval = thp.ratio.unwrap();
    assert!(interval.low <= 1.38 / 2.31 && 1.38 / 2.31 <= interval.high, "{interval:?}");
    assert_eq!(summary.kind("hugetlb-1g").unwrap().verdict, Some(KindVerdict::Unavailable));
    assert_eq!(summary.kind("4k").unwrap().verdict, None);
    // hugetlb is faster by less than 2 %.
    assert!(
        matches!(&summary.advice, Advice::Run { kind, command, .. }
        if kind == "thp" && command == "fieldstone run --region --pages thp -- gups 2G"),
        "{}",
        summary.advice
    );
    assert!(has(&summary, |note| matches!(note, Advice::VirtualMachine)));
    assert!(has(&summary, |note| matches!(note, Advice::Swapped { bytes, .. } if *bytes == 45 << 20)));
    assert!(!has(&summary, |note| matches!(note, Advice::PagesNotGot { .. } | Advice::FirstTouch { .. })));
}

#[test]
fn pairs_are_formed_within_a_round() {
    let mut profile = fixture::measured(&[("4k", 1.0), ("thp", 0.8)], 8, 0.0);
    for sample in &mut profile.samples {
        sample.value *= f64::from(sample.round + 1); // a machine that slows down eightfold
    }
    profile.samples.reverse(); // and a file in any order
    let estimate = Summary::of(&profile).kind("thp").unwrap().ratio.unwrap();
    assert!((estimate.low - 0.8).abs() < 1e-9 && (estimate.high - 0.8).abs() < 1e-9, "{estimate:?}");
    profile.samples.retain(|sample| sample.kind == "4k" || sample.round >= 3);
    assert_eq!(Summary::of(&profile).kind("thp").unwrap().ratio.unwrap().n, 5);
}

#[test]
fn nothing_to_gain_too_noisy_and_too_few_are_distinguished() {
    let advice =
        |thp, rounds, noise| Summary::of(&fixture::measured(&[("4k", 1.0), ("thp", thp)], rounds, noise)).advice;
    assert!(matches!(advice(1.0, 12, 0.005), Advice::NothingToGain { some_slower: false }));
    assert!(matches!(advice(1.2, 12, 0.005), Advice::NothingToGain { some_slower: true }));
    let Advice::TooNoisy { noise, runs, by_the_clock: true } = advice(0.99, 12, 0.06) else {
        panic!("{}", advice(0.99, 12, 0.06))
    };
    assert!(noise > 0.01 && runs.is_some_and(|runs| runs > 12 && runs <= 200), "{noise} {runs:?}");
    assert!(matches!(advice(0.99, 12, 0.9), Advice::TooNoisy { runs: None, .. }));
    assert!(matches!(advice(0.5, 5, 0.01), Advice::NotEnoughRuns { have: 5, need: 6 }));
    let alone = Summary::of(&fixture::measured(&[("4k", 1.0)], 8, 0.01));
    assert!(
        alone.measured_nothing() && alone.advice.to_string().contains("compared: hugetlb-1g could not"),
        "{alone:?}"
    );
    let mut asked_for_none = fixture::measured(&[("4k", 1.0)], 8, 0.01);
    asked_for_none.kinds.retain(|kind| kind.name == "4k");
    let alone = Summary::of(&asked_for_none);
    assert!(!alone.measured_nothing() && alone.advice.to_string().contains("Name another kind"), "{alone:?}");
    assert!(!Summary::of(&fixture::measured(&[("4k", 1.0), ("thp", 1.0)], 8, 0.01)).measured_nothing());
    let empty = Summary::of(&fixture::measured(&[("4k", 1.0), ("thp", 1.0)], 0, 0.0));
    assert!(matches!(empty.advice, Advice::NotEnoughRuns { have: 0, .. }));
}

#[test]
fn a_kind_on_which_it_crashes_or_prints_otherwise_is_never_recommended() {
    let crashed = |profile: &mut Profile| {
        profile
            .samples
            .iter_mut()
            .filter(|s| s.kind == "thp" && s.round == 4)
            .for_each(|s| s.outcome = "signal 11 (SIGSEGV)".into());
    };
    let summary = spoilt(crashed);
    let thp = summary.kind("thp").unwrap();
    assert_eq!((thp.verdict, thp.failed, thp.runs), (Some(KindVerdict::Failed), 1, 11));
    assert!(matches!(&summary.advice, Advice::Run { kind, .. } if kind == "hugetlb"));
    assert!(has(
        &summary,
        |note| matches!(note, Advice::Fails { kind, outcome, runs: 1, .. } if kind == "thp" && outcome.contains("SIGSEGV"))
    ));

    let summary = spoilt(|profile| profile.findings.push(Finding::OutputDiffers { kind: "thp".into() }));
    let Advice::Run { kind, command, .. } = &summary.advice else { panic!("{}", summary.advice) };
    let peak_mib = fixture::profile().footprints[0].peak().unwrap().resident_bytes.div_ceil(64 << 20) * 64;
    assert_eq!(kind, "hugetlb");
    assert_eq!(command, &format!("fieldstone run --region --pages hugetlb --reserve {peak_mib}M -- gups 2G"));
    let summary =
        spoilt(|profile| profile.findings.push(Finding::TimedOut { kind: "thp".into(), limit_s: 60.0, runs: 2 }));
    assert_eq!(summary.kind("thp").unwrap().verdict, Some(KindVerdict::Failed));
    assert!(has(&summary, |note| note.to_string().contains("2 runs took longer than 60.0 s")));
}

#[test]
fn endings_are_judged_against_what_is_usual() {
    let all = |outcome: &'static str| {
        move |profile: &mut Profile| profile.samples.iter_mut().for_each(|s| s.outcome = outcome.into())
    };
    assert!(matches!(spoilt(all("signal 11 (SIGSEGV)")).advice, Advice::BaselineFails { .. }));
    assert!(matches!(spoilt(all("timeout")).advice, Advice::BaselineFails { .. }));
    let grep = spoilt(all("exit 1"));
    assert!(matches!(grep.advice, Advice::Run { .. }) && has(&grep, |note| matches!(note, Advice::UnusualEnd { .. })));
    let server = spoilt(|profile| {
        profile.program.load = Some("redis-benchmark".into());
        all("signal 15 (SIGTERM)")(profile);
    });
    assert!(matches!(server.advice, Advice::Run { .. }));
}

#[test]
fn memory_notes_say_what_was_really_got() {
    let not_got = spoilt(|profile| {
        let region = profile.footprints.iter_mut().find(|f| f.kind == "hugetlb").unwrap().region.as_mut().unwrap();
        region.pages[0].kind = "4k".into();
        region.fell_back_bytes = 3 << 29;
        region.demoted_bytes = 1 << 20;
        region.private_rw_outside_bytes = 1 << 30;
    });
    assert!(has(
        &not_got,
        |note| matches!(note, Advice::PagesNotGot { kind, got_bytes: 0, fell_back_bytes, .. } if kind == "hugetlb" && *fell_back_bytes == 3 << 29)
    ));
    assert_eq!(not_got.kind("hugetlb").unwrap().verdict, Some(KindVerdict::OtherPages));
    assert_eq!(not_got.kind("hugetlb").unwrap().judgement(), "no verdict");
    assert!(has(&not_got, |note| {
        note.to_string().contains("so this kind has no verdict: requests of 1.50 GiB found too few free pages in the pool. A pool of 2112 MiB")
    }));
    assert!(has(&not_got, |note| matches!(note, Advice::Demoted { .. })));
    assert!(has(&not_got, |note| matches!(note, Advice::OutsideRegion { reason, .. } if reason == "thread stack")));
    let blind = spoilt(|profile| {
        let region = profile.footprints.iter_mut().find(|f| f.kind == "folio-64k").unwrap().region.as_mut().unwrap();
        region.pages.iter_mut().for_each(|share| share.kind = "smaller".into());
    });
    assert!(!has(&blind, |note| matches!(note, Advice::PagesNotGot { .. })), "smaps cannot distinguish folios");
    let without_region = spoilt(|profile| {
        let thp = profile.footprints.iter_mut().find(|f| f.kind == "thp").unwrap();
        thp.region = None;
        thp.points.iter_mut().for_each(|point| (point.small_bytes, point.huge_2m_bytes) = (point.resident_bytes, 0));
    });
    assert!(has(&without_region, |note| matches!(note, Advice::PagesNotGot { kind, .. } if kind == "thp")));
    let grown = spoilt(|profile| {
        profile
            .footprints
            .iter_mut()
            .find(|f| f.kind == "thp")
            .unwrap()
            .points
            .iter_mut()
            .for_each(|p| p.resident_bytes *= 2);
    });
    assert!(has(&grown, |note| matches!(note, Advice::MoreResident { more, .. } if (0.9..1.1).contains(more))));
}

#[test]
fn memory_of_which_little_fell_back_or_was_touched_leaves_the_verdict() {
    let fell_back = |thp_bytes: u64, fell_back_bytes: u64| {
        let summary = spoilt(|profile| {
            let region = profile.footprints.iter_mut().find(|f| f.kind == "hugetlb").unwrap().region.as_mut().unwrap();
            region.pages.push(crate::PageShare { kind: "thp".into(), bytes: thp_bytes });
            region.fell_back_bytes = fell_back_bytes;
        });
        summary.kind("hugetlb").unwrap().verdict.unwrap()
    };
    assert_eq!(fell_back(1 << 20, 1 << 30), KindVerdict::Gain, "1 GiB was mapped, and 1 MiB touched");
    assert_eq!(fell_back(1 << 30, 1 << 20), KindVerdict::Gain, "1 GiB is of mappings below 2 MiB");
    assert_eq!(fell_back(1 << 30, 1 << 30), KindVerdict::OtherPages);
}

#[test]
fn first_touch_is_reported_when_it_is_most_of_the_gain() {
    let summary = spoilt(|profile| {
        profile.samples.iter_mut().filter(|s| s.kind == "4k").for_each(|s| s.system_s = 0.9);
    });
    assert!(
        has(&summary, |note| matches!(note, Advice::FirstTouch { faults_after, .. } if *faults_after < 2000)),
        "{:?}",
        summary.notes
    );
}

#[test]
fn a_baseline_of_no_time_gives_no_ratio() {
    let summary = spoilt(|profile| profile.samples.iter_mut().filter(|s| s.kind == "4k").for_each(|s| s.value = 0.0));
    assert_eq!(summary.kind("thp").unwrap().ratio, None);
    assert_eq!(summary.kind("thp").unwrap().verdict, Some(KindVerdict::NotEnoughRuns));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_set_of_samples_is_summarised(
        samples in prop::collection::vec((0usize..4, 0u32..9, 0.0f64..3.0, 0u8..3), 0..80),
    ) {
        let mut profile = fixture::profile();
        profile.samples = samples.iter().map(|(kind, round, value, end)| MeasuredRun {
            kind: ["4k", "thp", "hugetlb", "other"][*kind].to_owned(), round: *round, value: *value,
            outcome: ["exit 0", "signal 9 (SIGKILL)", "timeout"][usize::from(*end)].to_owned(), ..MeasuredRun::default()
        }).collect();
        let summary = Summary::of(&profile);
        for kind in &summary.kinds {
            let of_kind = profile.samples.iter().filter(|sample| sample.kind == kind.name).count();
            prop_assert_eq!(kind.runs + kind.failed, of_kind);
        }
        if let Advice::Run { kind, .. } = &summary.advice {
            prop_assert_eq!(summary.kind(kind).unwrap().verdict, Some(KindVerdict::Gain));
        }
    }
}

#[test]
fn runs_that_cannot_be_repeated_have_no_verdict_and_the_advice_names_the_run_and_the_remedy() {
    let mut profile = fixture::measured(&[("4k", 1.0), ("thp", 0.6)], 8, 0.001);
    profile.findings.push(crate::Finding::NotRepeatable {
        what: crate::Difference::End,
        run: 2,
        first: "exit 0".into(),
        later: "exit 3".into(),
    });
    let summary = Summary::of(&profile);
    let thp = summary.kind("thp").unwrap();
    assert_eq!((thp.verdict, thp.ratio), (Some(KindVerdict::NotRepeatable), None));
    let words = summary.advice.to_string();
    for part in ["Run 2 ended with exit 3", "run 1 with exit 0", "sh -c 'UNDO; exec gups 2G'"] {
        assert!(words.contains(part), "{part}: {words}");
    }
    let csv = crate::csv::render(&crate::reports::profile::records(&summary));
    assert!(csv.contains("\nthp,no verdict,8,0,") && !csv.contains("gain"));
}

#[test]
fn more_resident_memory_is_reported_with_the_gain() {
    let mut profile = fixture::measured(&[("4k", 1.0), ("thp", 0.6)], 8, 0.001);
    let grown = profile.samples.iter_mut().filter(|sample| sample.kind == "thp");
    grown.for_each(|sample| sample.max_resident_bytes = sample.max_resident_bytes / 100 * 138);
    let summary = Summary::of(&profile);
    assert!(summary.advice.to_string().contains("on thp pages, for 38.0 % more resident memory. Run it like this"));
    let document = crate::reports::profile::document(&profile, &summary);
    let text = crate::text::render(&document, Default::default());
    let page = crate::html::render(&document).unwrap();
    let csv = crate::csv::render(&crate::reports::profile::records(&summary));
    assert!(text.contains("+38 %") && page.contains("+38 %"), "{text}");
    let growth: f64 = csv.lines().nth(2).unwrap().rsplit(',').next().unwrap().parse().unwrap();
    assert!((growth - 0.38).abs() < 1e-6, "{csv}");
}

/// A short run on the baseline may end between two looks at its memory, so the watched peak of one
/// kind alone misleads.
#[test]
fn the_note_on_resident_memory_and_the_reserve_use_the_peaks_of_the_table() {
    let mut profile = fixture::measured(&[("4k", 1.0), ("hugetlb", 0.6)], 8, 0.001);
    for (kind, watched_mib) in [("4k", 45), ("hugetlb", 68)] {
        let point = crate::FootprintPoint { resident_bytes: watched_mib << 20, ..Default::default() };
        profile.footprints.push(crate::Footprint { kind: kind.into(), points: vec![point], ..Default::default() });
    }
    // The kernel does not count hugetlb pages.
    profile.samples.iter_mut().for_each(|sample| sample.max_resident_bytes = 4 << 20);
    let resident = |profile: &mut crate::Profile, mib: u64| {
        let baseline = profile.samples.iter_mut().filter(|sample| sample.kind == "4k");
        baseline.for_each(|sample| sample.max_resident_bytes = mib << 20);
        Summary::of(profile)
    };
    let equal = resident(&mut profile, 66);
    assert!(!has(&equal, |note| matches!(note, Advice::MoreResident { .. })), "{:?}", equal.notes);
    assert!(equal.advice.to_string().contains("--reserve 128M"), "{}", equal.advice);
    let shrunk = resident(&mut profile, 200);
    assert!(shrunk.advice.to_string().contains("--reserve 256M"), "{}", shrunk.advice);
    profile.footprints[1].region =
        Some(crate::RegionStats { mapped_peak_bytes: 300 << 20, ..crate::RegionStats::default() });
    let mapped = resident(&mut profile, 66);
    assert!(mapped.advice.to_string().contains("--reserve 320M"), "{}", mapped.advice);
    let grown = resident(&mut profile, 46);
    assert!(has(&grown, |note| matches!(note, Advice::MoreResident { bytes, .. } if *bytes == 22 << 20)));
}
