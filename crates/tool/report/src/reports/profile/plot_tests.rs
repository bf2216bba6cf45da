//! The plots of a profile and its trace: what must hold of every plot, without looking at it.

use super::*;
use crate::Profile;
use crate::fixture;
use crate::quantity;
use crate::render::plot::svg;
use crate::translation::{Moment, Reach};

const ALL: [&str; 9] = [
    "time",
    "footprint-1",
    "permissions",
    "swap",
    "translation-shares",
    "translation-reach",
    "translation-moments",
    "translation-sites",
    "translation-mosaics",
];

/// The plot of a profile's report that is called `plot-NAME`; `None` if there is none, or nothing
/// in it.
fn plot(profile: &Profile, name: &str) -> Option<String> {
    fn find<'a>(blocks: &'a [Block], id: &str) -> Option<&'a Plot> {
        blocks.iter().find_map(|block| match block {
            Block::Plots(plots) => plots.iter().find(|plot| plot.id == id),
            Block::Section(section) => find(&section.blocks, id),
            Block::Detail(blocks) => find(blocks, id),
            _ => None,
        })
    }
    let document = document(profile, &Summary::of(profile));
    let drawn = find(&document.blocks, &format!("plot-{name}")).map(|plot| svg(plot).unwrap());
    drawn.filter(|svg| !svg.is_empty())
}

#[test]
fn plots_are_named_scale_and_carry_no_address() {
    for name in ALL {
        let plot = plot(&fixture::profile(), name).unwrap();
        assert!(plot.starts_with("<svg role=\"img\" aria-labelledby=\"plot-"), "{plot:.200}");
        assert!(plot.contains("<title id=") && plot.contains("<desc id=") && plot.trim_end().ends_with("</svg>"));
        assert!(plot.contains("currentColor") && !plot.contains("#010203"));
        assert!(!plot.contains("http") && !plot[..plot.find('>').unwrap()].contains(" width="));
    }
}

#[test]
fn labels_show_what_the_tables_show() {
    let profile = fixture::profile();
    let summary = Summary::of(&profile);
    let time = plot(&profile, "time").unwrap();
    for kind in summary.kinds.iter().filter_map(|kind| kind.value_s) {
        assert!(time.contains(&quantity::seconds(kind.median)));
    }
    assert!(time.contains("unavailable"));
    assert!(plot(&profile, "permissions").unwrap().contains("99.85 %"));
}

#[test]
fn the_plots_of_translation_show_its_numbers() {
    let profile = fixture::profile();
    let of = Summary::of(&profile).translation.unwrap();
    let bars = plot(&profile, "translation-shares").unwrap();
    for part in ["34.0 % (21.0–47.1)", "direct-segment", "range-tlb"] {
        assert!(bars.contains(part), "{part}");
    }
    let walks = plot(&profile, "translation-sites").unwrap();
    assert!(
        walks.contains(&quantity::share(of.sites[0].share)) && walks.contains("_M_realloc") && walks.contains("stacks")
    );
    let times = plot(&profile, "translation-mosaics").unwrap();
    assert!(times.contains("25.0 % on larger pages: 2.27 s") && times.matches("<circle").count() == 5 + 4, "{times}");
    let curve = plot(&profile, "translation-reach").unwrap();
    for label in ["64 KiB", "4 GiB"] {
        assert!(curve.contains(label), "{label}");
    }
    let over_time = plot(&profile, "translation-moments").unwrap();
    assert!(over_time.contains("0.8 G") && over_time.contains("388 for 1,000 accesses"), "{over_time}");
}

#[test]
fn hundreds_of_sites_and_moments_stay_a_plot_of_one_size() {
    let mut profile = fixture::profile();
    let traced = profile.translation.as_mut().unwrap();
    let site = traced.sites[2].clone();
    traced.sites.extend(vec![site; 400]);
    traced.moments = (1..100_000).map(|at| Moment { accesses: at, counted: 9, walks: vec![at % 9] }).collect();
    assert!(plot(&profile, "translation-moments").unwrap().len() < 100_000);
    let walks = plot(&profile, "translation-sites").unwrap();
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
    for name in
        ["time", "footprint-1", "permissions", "swap", "translation-shares", "translation-moments", "translation-sites"]
    {
        let plot = plot(&profile, name).unwrap();
        assert!(!plot.contains("<script") && plot.contains("&lt;script"), "{name}");
    }
}

#[test]
fn nothing_measured_is_nothing_drawn() {
    let mut profile = fixture::profile();
    profile.samples.clear();
    profile.footprints = vec![Footprint {
        points: vec![FootprintPoint::default()],
        permissions: Vec::new(),
        ..profile.footprints[0].clone()
    }];
    profile.translation = Some(crate::Translation { accesses: 7, ..crate::Translation::default() });
    for name in ALL {
        assert_eq!(plot(&profile, name), None, "{name}");
    }
    let one = Reach { entries: 16, misses_per_access: 0.5 };
    profile.translation.as_mut().unwrap().reach =
        vec![one, Reach { entries: 0, ..one }, Reach { misses_per_access: f64::NAN, ..one }];
    assert_eq!(plot(&profile, "translation-reach"), None);
}

#[test]
fn long_runs_are_thinned_and_keep_their_peak() {
    let mut points = vec![FootprintPoint::default(); 50_000];
    points[31_234].resident_bytes = 7 << 30;
    let thin = plots::thinned(&points, |point| point.resident_bytes);
    assert!(thin.len() <= 360 && thin.iter().any(|point| point.resident_bytes == 7 << 30));
    let mut profile = fixture::profile();
    profile.footprints = vec![Footprint { points, ..Footprint::default() }];
    assert!(plot(&profile, "footprint-1").unwrap().len() < 100_000);
}
