//! What a trace means, held against numbers worked out by hand.

use super::*;
use crate::fixture;
use crate::translation::ReportedSide;
use crate::{Profile, Summary};

fn of(profile: &Profile) -> TranslationSummary {
    Summary::of(profile).translation.unwrap()
}

#[test]
fn rates_are_a_thousand_of_what_they_are_of() {
    let mut profile = fixture::profile();
    let traced = profile.translation.as_mut().unwrap();
    traced.counted_instructions = 2000;
    let data = ReportedSide {
        accesses: 400,
        first_level_misses: 100,
        walks: 50,
        walk_references: 75,
        far_walks: 10,
        region_walks: 40,
        in_segment: 0,
    };
    traced.configurations[0].data = data;
    traced.configurations[0].instruction = ReportedSide { walks: 3, ..ReportedSide::default() };
    let summary = of(&profile);
    let small = &summary.configurations[0];
    assert_eq!((small.misses_per_thousand, small.walks_per_thousand), (Some(250.0), Some(125.0)));
    assert_eq!((small.references_a_walk, small.far_share), (Some(1.5), Some(0.2)));
    assert_eq!((small.instruction_walks_per_thousand, summary.region_share), (Some(1.5), Some(0.8)));
    assert_eq!(summary.region_sentence().unwrap().split(' ').next(), Some("80.0"));
}

#[test]
fn nothing_counted_is_no_rate() {
    let mut profile = fixture::profile();
    profile.translation = Some(Translation {
        configurations: vec![ModelledConfiguration { name: "4k".into(), ..ModelledConfiguration::default() }],
        ..Translation::default()
    });
    let summary = of(&profile);
    let small = &summary.configurations[0];
    assert_eq!([small.misses_per_thousand, small.walks_per_thousand, small.instruction_walks_per_thousand], [None; 3]);
    assert_eq!([small.references_a_walk, small.far_share, summary.region_share], [None; 3]);
    assert_eq!((small.share(), small.saving(), summary.predictions.len()), (None, None, 0));
}

#[test]
fn a_price_divided_by_nothing_is_none() {
    let mut profile = fixture::profile();
    let traced = profile.translation.as_mut().unwrap();
    let nan = Some(Interval { likely: f64::NAN, ..Interval::default() });
    for of in &mut traced.configurations {
        (of.data_share, of.instruction_share, of.time) =
            (nan, None, Some(Interval { high: f64::INFINITY, ..Interval::default() }));
    }
    let summary = of(&profile);
    assert!(summary.configurations.iter().all(|of| of.share().is_none() && of.time.is_none()));
    assert!(!serde_json::to_string(&summary).unwrap().contains("null,null,null"));
}

#[test]
fn shares_of_both_kinds_add_up_bound_by_bound() {
    let data = Interval { low: 0.1, likely: 0.2, high: 0.4 };
    let mut profile = fixture::profile();
    let small = &mut profile.translation.as_mut().unwrap().configurations[0];
    (small.data_share, small.instruction_share) = (Some(data), Some(Interval { low: 0.0, likely: 0.25, high: 0.5 }));
    assert_eq!(of(&profile).configurations[0].share(), Some(Interval { low: 0.1, likely: 0.45, high: 0.9 }));
    profile.translation.as_mut().unwrap().configurations[0].instruction_share = None;
    assert_eq!(of(&profile).configurations[0].share(), Some(data));
    let saving = Interval { low: 0.25, likely: 0.5, high: 1.5 }.rest();
    assert_eq!(saving, Interval { low: -0.5, likely: 0.5, high: 0.75 });
}

#[test]
fn measured_kinds_stand_beside_what_models_them() {
    let profile = fixture::profile();
    let summary = of(&profile);
    let pairs: Vec<(&str, &str)> =
        summary.predictions.iter().map(|of| (of.kind.as_str(), of.configuration.as_str())).collect();
    assert_eq!(pairs, [("thp", "2m"), ("hugetlb", "2m")], "folios are not modelled, 1 GiB was not measured");
    let thp = &summary.predictions[0];
    let cost =
        |name: &str| Summary::of(&profile).kinds.into_iter().find(|kind| kind.name == name).unwrap().cost.unwrap();
    let (small, large) = (cost("4k"), cost("thp"));
    let user = 1.0 - (small.user_s - large.user_s) / (small.user_s + small.system_s);
    assert!(
        small.user_s > large.user_s && (user - thp.measured.median).abs() > 1e-3,
        "what first touches save is not in it"
    );
    assert_eq!((thp.user, thp.error()), (Some(user), (0.67 - user).abs()));
    let unknown = Prediction { user: None, ..thp.clone() };
    assert_eq!(unknown.error(), (0.67 - thp.measured.median).abs());
    assert!(thp.meets() && thp.verdict == KindVerdict::Gain);
    let apart = Prediction { time: Interval { low: 0.9, likely: 0.95, high: 0.99 }, ..thp.clone() };
    assert!(!apart.meets());
}

#[test]
fn a_configuration_is_found_in_any_spelling() {
    let mut profile = fixture::profile();
    let traced = profile.translation.as_mut().unwrap();
    for (of, name) in
        traced.configurations.iter_mut().zip(["4K", "2M", "1G", "direct segment", "64 ranges", "no translation"])
    {
        of.name = name.into();
    }
    let summary = of(&profile);
    for name in ["4k", "2m", "1g", "direct-segment", "none"] {
        assert!(summary.configuration(name).is_some(), "{name}");
    }
    assert_eq!((summary.region_share, summary.predictions.len()), (Some(0.997), 2));
    assert_eq!(summary.predictions[0].configuration, "2M");
    assert!(matches!(summary.verdict, WalkVerdict::Costly { .. }));
    assert_eq!(summary.configuration("64-ranges").map(|of| of.name.as_str()), Some("64 ranges"));
}

#[test]
fn of_too_little_there_are_counts_only_and_of_another_processor_no_check() {
    let little = |of: &mut Translation| {
        (of.configurations[0].data.accesses, of.started) = (0, Some("/bin/other".into()));
    };
    let foreign = |of: &mut Translation| of.processor.foreign = true;
    for (turn, shares) in [(&little as &dyn Fn(&mut Translation), false), (&foreign, true)] {
        let mut profile = fixture::profile();
        turn(profile.translation.as_mut().unwrap());
        let summary = of(&profile);
        assert!(summary.predictions.is_empty() && summary.mosaics.is_none(), "{summary:?}");
        assert_eq!(summary.configurations[1].time.is_some(), shares, "{summary:?}");
        assert_eq!((summary.sites.is_empty(), summary.region_share.is_none()), (!shares, !shares));
        assert_eq!(summary.caveat.is_some(), shares);
        assert!(summary.configurations[1].walks_per_thousand.is_some(), "counts stay");
    }
}

#[test]
fn what_cannot_be_a_share_is_not_known() {
    for (low, high) in [(0.0, -1e308), (-1e308, 0.5), (0.0, 1e308)] {
        let mut profile = fixture::profile();
        let small = &mut profile.translation.as_mut().unwrap().configurations[0];
        small.instruction_share = Some(Interval { low, likely: 0.0, high });
        assert_eq!(of(&profile).configurations[0].instruction_share, None, "{low} {high}");
    }
}
