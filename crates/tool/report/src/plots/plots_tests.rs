//! What must hold of every plot, without looking at it.

use super::*;
use crate::translation::{Moment, Reach};
use crate::{Footprint, FootprintPoint, Summary, fixture};

fn all_plots() -> Vec<String> {
    let profile = fixture::profile();
    let first = &profile.footprints[0];
    let traced = profile.translation.as_ref().unwrap();
    let translation = Summary::of(&profile).translation.unwrap();
    [
        time(&profile, &Summary::of(&profile)),
        footprint("plot-footprint-1", first, 2.4, 1 << 31),
        permissions(&first.permissions),
        swap(&profile.footprints, 2.4),
        shares(&translation),
        reach(&traced.reach),
        moments(traced),
        sites(&translation),
        mosaics(traced.mosaics.as_ref().unwrap()),
    ]
    .map(|plot| plot.unwrap().unwrap())
    .into()
}

#[test]
fn plots_are_named_scale_and_carry_no_address() {
    for plot in all_plots() {
        assert!(plot.starts_with("<svg role=\"img\" aria-labelledby=\"plot-"), "{plot:.200}");
        assert!(plot.contains("<title id=") && plot.contains("<desc id=") && plot.trim_end().ends_with("</svg>"));
        assert!(plot.contains("currentColor") && !plot.contains(INK_WRITTEN));
        assert!(!plot.contains("http") && !plot[..plot.find('>').unwrap()].contains(" width="));
    }
}

#[test]
fn labels_show_what_the_tables_show() {
    let profile = fixture::profile();
    let summary = Summary::of(&profile);
    let plot = time(&profile, &summary).unwrap().unwrap();
    for kind in summary.kinds.iter().filter_map(|kind| kind.value_s) {
        assert!(plot.contains(&quantity::seconds(kind.median)));
    }
    assert!(plot.contains("unavailable"));
    assert!(permissions(&profile.footprints[0].permissions).unwrap().unwrap().contains("99.85 %"));
}

#[test]
fn the_plots_of_translation_show_its_numbers() {
    let profile = fixture::profile();
    let of = Summary::of(&profile).translation.unwrap();
    let bars = shares(&of).unwrap().unwrap();
    for part in ["34.0 % (21.0–47.1)", "direct-segment", "range-tlb"] {
        assert!(bars.contains(part), "{part}");
    }
    let walks = sites(&of).unwrap().unwrap();
    assert!(
        walks.contains(&quantity::share(of.sites[0].share)) && walks.contains("_M_realloc") && walks.contains("stacks")
    );
    let times = mosaics(profile.translation.as_ref().unwrap().mosaics.as_ref().unwrap()).unwrap().unwrap();
    assert!(times.contains("25.0 % on larger pages: 2.27 s") && times.matches("<circle").count() == 5 + 4, "{times}");
    let curve = reach(&profile.translation.as_ref().unwrap().reach).unwrap().unwrap();
    for label in ["64 KiB", "4 GiB"] {
        assert!(curve.contains(label), "{label}");
    }
    let over_time = moments(profile.translation.as_ref().unwrap()).unwrap().unwrap();
    assert!(over_time.contains("0.8 G") && over_time.contains("388 a 1,000 accesses"), "{over_time}");
}

#[test]
fn hundreds_of_sites_and_moments_stay_a_plot_of_one_size() {
    let mut profile = fixture::profile();
    let traced = profile.translation.as_mut().unwrap();
    let site = traced.sites[2].clone();
    traced.sites.extend(vec![site; 400]);
    traced.moments = (1..100_000).map(|at| Moment { accesses: at, counted: 9, walks: vec![at % 9] }).collect();
    assert!(moments(traced).unwrap().unwrap().len() < 100_000);
    let walks = sites(&Summary::of(&profile).translation.unwrap()).unwrap().unwrap();
    assert!(walks.contains("viewBox=\"0 0 1520 992\""), "{walks:.300}");
}

#[test]
fn names_cannot_leave_their_text() {
    let mut profile = fixture::profile();
    profile.kinds[2].name = "<script>".into();
    profile.footprints[0].kind = "</title><script>".into();
    profile.footprints[0].permissions[0].permission = "<script>".into();
    let traced = profile.translation.as_mut().unwrap();
    (traced.sites[0].function, traced.configurations[0].name) = ("</text><script>".into(), "</desc><script>".into());
    let traced = profile.translation.as_ref().unwrap();
    let translation = Summary::of(&profile).translation.unwrap();
    let drawn = [
        time(&profile, &Summary::of(&profile)),
        footprint("plot-footprint-1", &profile.footprints[0], 2.4, 1 << 31),
        permissions(&profile.footprints[0].permissions),
        swap(&profile.footprints, 2.4),
        shares(&translation),
        moments(traced),
        sites(&translation),
    ];
    for plot in drawn {
        let plot = plot.unwrap().unwrap();
        assert!(!plot.contains("<script") && plot.contains("&lt;script"));
    }
}

#[test]
fn nothing_measured_is_nothing_drawn() {
    let mut profile = fixture::profile();
    profile.samples.clear();
    assert_eq!(time(&profile, &Summary::of(&profile)).unwrap(), None);
    let one = Footprint { points: vec![FootprintPoint::default()], ..Footprint::default() };
    assert_eq!(footprint("plot-footprint-1", &one, 0.0, 0).unwrap(), None);
    assert_eq!(permissions(&[]).unwrap(), None);
    assert_eq!(swap(&[one], 0.0).unwrap(), None);

    profile.translation = Some(crate::Translation { accesses: 7, ..crate::Translation::default() });
    let traced = profile.translation.as_ref().unwrap();
    let translation = Summary::of(&profile).translation.unwrap();
    assert_eq!((shares(&translation).unwrap(), sites(&translation).unwrap()), (None, None));
    assert_eq!((reach(&traced.reach).unwrap(), moments(traced).unwrap()), (None, None));
    let one = Reach { entries: 16, misses_per_access: 0.5 };
    assert_eq!(reach(&[one, Reach { entries: 0, ..one }, Reach { misses_per_access: f64::NAN, ..one }]).unwrap(), None);
}

#[test]
fn long_runs_are_thinned_and_keep_their_peak() {
    let mut points = vec![FootprintPoint::default(); 50_000];
    points[31_234].resident_bytes = 7 << 30;
    let thin = memory::thinned(&points, |point| point.resident_bytes);
    assert!(thin.len() <= 360 && thin.iter().any(|point| point.resident_bytes == 7 << 30));
    let long = Footprint { points, ..Footprint::default() };
    assert!(footprint("plot-footprint-1", &long, 100.0, 7 << 30).unwrap().unwrap().len() < 100_000);
}

#[test]
fn an_axis_is_written_in_the_unit_of_its_end() {
    assert_eq!(Axis::of_seconds(0.25).label(50.0), "50 ms");
    assert_eq!(Axis::of_seconds(2.5).label(0.5), "0.5 s");
    assert_eq!((Axis::of_share(0.47).label(20.0), Axis::of_rate(331.0).label(100.0)), ("20 %".into(), "100".into()));
    assert_eq!((Axis::of_count(3_000_000_000).label(2.0), Axis::of_count(0).end), ("2 G".into(), 1.0));
    assert_eq!(Axis::of_bytes(3 << 30).label(1.5), "1.5 GiB");
    assert_eq!((Axis::of_bytes(0).label(0.0), Axis::of_bytes(0).end), ("0".into(), 1.0));
}
