//! What must hold of every plot, without looking at it.

use super::*;
use crate::{Footprint, FootprintPoint, Summary, fixture};

fn all_plots() -> Vec<String> {
    let profile = fixture::profile();
    let first = &profile.footprints[0];
    [
        time(&profile, &Summary::of(&profile)),
        footprint("plot-footprint-1", first, 2.4, 1 << 31),
        permissions(&first.permissions),
        swap(&profile.footprints, 2.4),
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
fn names_cannot_leave_their_text() {
    let mut profile = fixture::profile();
    profile.kinds[2].name = "<script>".into();
    profile.footprints[0].kind = "</title><script>".into();
    profile.footprints[0].permissions[0].permission = "<script>".into();
    let drawn = [
        time(&profile, &Summary::of(&profile)),
        footprint("plot-footprint-1", &profile.footprints[0], 2.4, 1 << 31),
        permissions(&profile.footprints[0].permissions),
        swap(&profile.footprints, 2.4),
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
    assert_eq!(Axis::of_bytes(3 << 30).label(1.5), "1.5 GiB");
    assert_eq!((Axis::of_bytes(0).label(0.0), Axis::of_bytes(0).end), ("0".into(), 1.0));
}
