//! The section on translation, on a terminal and a page, and its plots.

use super::*;
use crate::fixture;
use crate::text::{self, Style};
use crate::translation::{AllocationSite, SitePages};
use crate::{Profile, Summary};

fn text_of(profile: &Profile, style: Style) -> String {
    let summary = Summary::of(profile);
    let section = section(profile.translation.as_ref().unwrap(), summary.translation.as_ref().unwrap());
    text::render(&crate::Document { blocks: vec![section], ..crate::Document::default() }, style)
}

#[test]
fn it_shows_each_configuration_site_and_source_within_the_width() {
    let profile = fixture::profile();
    for width in [60, 80, 120] {
        let text = text_of(&profile, Style { width, colour: false });
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= usize::from(width), "{width}\n{text}");
    }
    let text = text_of(&profile, Style { width: 200, colour: false });
    for part in [
        "modelled on zen4)",
        "34.0 % (21.0–47.0)",
        "direct-segment",
        "99.70 % of the D-TLB misses",
        "build_graph",
        "graph/build.c:214",
        "globals",
        "  by main",
        "not attributed",
        "thp:25%",
        "3.80 ns (3.60–4.10)",
        "Calibrated price, independent of these runs",
        "off by 1.9 % at most",
        "polynomial of degree 2",
        "a replay of its own accesses",
        "AVX-512",
        "0.67 (0.58–0.83)",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn a_measurement_stands_above_a_prediction_and_what_a_noisy_replay_predicts_is_marked() {
    let mut profile = fixture::profile();
    let style = Style { width: 200, colour: false };
    let text = text_of(&profile, style);
    let at = |text: &str, part: &str| text.find(part).unwrap_or_else(|| panic!("{part}\n{text}"));
    assert!(at(&text, "Measured: on thp it took 40.") < at(&text, "Page walks take"), "{text}");
    assert!(!text.contains('~'), "{text}");
    profile.translation.as_mut().unwrap().walk_cost.as_mut().unwrap().noise = Some(0.4);
    let text = text_of(&profile, style);
    for part in ["0.67 (0.58–0.83) ~", "34.0 % (21.0–47.0) ~", "Marked ~: predicted from a noisy replay"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    profile.samples.retain(|sample| sample.kind == "4k");
    assert!(!text_of(&profile, style).contains("Measured:"), "nothing was measured");
}

#[test]
fn what_can_be_anything_has_bounds_and_no_middle() {
    let mut profile = fixture::profile();
    let traced = profile.translation.as_mut().unwrap();
    let wide = fieldstone_stats::Interval { low: 0.108, likely: 0.445, high: 1.0 };
    (traced.configurations[0].data_share, traced.configurations[0].instruction_share) = (Some(wide), None);
    traced.configurations[1].time = Some(fieldstone_stats::Interval { low: 0.0, likely: 0.46, high: 0.89 });
    let text = text_of(&profile, Style { width: 120, colour: false });
    for part in ["from 10.8 % to 100.0 %", " 10.8 % to 100.0 % ", "< 0.01 to 0.89", "only its bounds"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    for part in ["44.5", "0.46", "likely ("] {
        assert!(!text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn what_is_counted_with_the_program_or_is_another_processor_s_is_said() {
    let mut profile = fixture::profile();
    let traced = profile.translation.as_mut().unwrap();
    (traced.processor.name, traced.processor.foreign) = ("zen4 of mine.toml".into(), true);
    let text = text_of(&profile, Style { width: 200, colour: false });
    for part in ["modelled on zen4 of mine.toml)", "mine.toml is not this machine's processor", "--no-sites"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("Predicted and measured"), "{text}");
    profile.translation.as_mut().unwrap().sites.clear();
    assert!(!text_of(&profile, Style::default()).contains("--no-sites"));
}

#[test]
fn hundreds_of_sites_are_fifteen_and_one_line() {
    let mut profile = fixture::profile();
    let traced = profile.translation.as_mut().unwrap();
    traced.sites = (0..300)
        .map(|n| AllocationSite {
            function: format!("site{n:03}"),
            walks: 100_000 + n,
            bytes: 1,
            ..AllocationSite::default()
        })
        .collect();
    let text = text_of(&profile, Style::default());
    assert!(text.contains("site299") && text.contains("site285") && !text.contains("site284"), "{text}");
    assert!(text.contains("285 more sites"));
}

#[test]
fn the_pages_that_sites_really_got_have_a_column_for_each_kind_that_was_seen() {
    let mut profile = fixture::profile();
    assert!(!text_of(&profile, Style::default()).contains("huge on"), "nothing was seen");
    let pages = |kind: &str, share| SitePages { kind: kind.into(), share, bytes: 1 << 20, samples: 16 };
    let sites = &mut profile.translation.as_mut().unwrap().sites;
    sites[0].pages = vec![pages("thp", 0.974)];
    sites[1].pages = vec![pages("thp", 0.0), pages("hugetlb\x1b[2J", 1.0)];
    let text = text_of(&profile, Style { width: 140, colour: false });
    let row = |words: &str| {
        text.lines().map(str::trim_start).find(|line| line.starts_with(words)).unwrap_or_else(|| panic!("{text}"))
    };
    let heading = row("memory from");
    for column in ["of walks", "left on 2M", "huge on thp", "huge on hugetlb\\x1b[2J", "requested"] {
        assert!(heading.contains(column), "{column}\n{text}");
    }
    let shares = row("build_graph").split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!((shares[5].as_str(), shares[7].as_str()), ("97", "–"), "{text}");
    assert!(text.contains("freed memory included") && text.contains("sixteen samples"), "{text}");
    assert!(row("read_edges").contains('–') && text.contains("pages of at least that size"), "{text}");
    let explains_rate = |text: &str| text.contains("A 1,000: page walks");
    assert_eq!(explains_rate(&text), heading.contains("a 1,000"), "{text}");
    assert!(explains_rate(&text_of(&profile, Style { width: 200, colour: false })));
    let narrow = text_of(&profile, Style { width: 80, colour: false });
    assert!(narrow.contains("huge on thp") && !narrow.contains("allocs"), "what is left out is worth less: {narrow}");
}

#[test]
fn a_place_is_never_broken_in_two() {
    let mut profile = fixture::profile();
    let traced = profile.translation.as_mut().unwrap();
    let deep = "/tmp/python-build.20260509073455.222/Python-3.11.7/Objects/dictobject.c";
    traced.sites[0].file = Some(deep.into());
    traced.sites[0].stack = vec![format!("{} ({deep}:214)", traced.sites[0].function), format!("insert ({deep}:99)")];
    for width in [60, 80, 100] {
        let text = text_of(&profile, Style { width, colour: false });
        assert!(
            text.lines().any(|line| line.trim_start().starts_with('…') && line.trim_end().ends_with("object.c:214")),
            "{text}"
        );
        assert!(text.lines().any(|line| line.trim_start().starts_with("by insert")), "{text}");
    }
    let text = text_of(&profile, Style { width: 100, colour: false });
    assert!(text.contains(" …/Python-3.11.7/Objects/dictobject.c:214"), "{text}");
}

#[test]
fn names_have_room_before_the_numbers_of_allocations() {
    let mut profile = fixture::profile();
    let site = &mut profile.translation.as_mut().unwrap().sites[0];
    site.function = "gups::table::fill_from<u64, gups::table::Table::new::{closure_env#0}>".into();
    site.stack = vec![site.function.clone(), "gups::run::{closure#0}<u64> (src/gups.rs:7)".into()];
    let text = text_of(&profile, Style { width: 80, colour: false });
    for part in [" gups::table::fill_from ", "  by gups::run (src/gups.rs:7)", "requested"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("allocs") && !text.contains("closure"), "{text}");
}

#[test]
fn rows_stand_by_their_share_and_small_ones_are_counted() {
    let mut profile = fixture::profile();
    let traced = profile.translation.as_mut().unwrap();
    let mapped = AllocationSite { function: "(mapped)".into(), walks: 3_000_000, ..AllocationSite::default() };
    traced.sites.push(mapped);
    let small = |n| AllocationSite { function: format!("small{n}"), walks: 9, bytes: 1, ..AllocationSite::default() };
    traced.sites.extend((0..20).map(small));
    let text = text_of(&profile, Style::default());
    let place = |words: &str| text.find(words).unwrap_or_else(|| panic!("no {words}: {text}"));
    assert!(place("build_graph") < place("(mapped)") && place("(mapped)") < place("read_edges"), "{text}");
    assert!(text.contains("21 more sites, each under 0.10 %") && !text.contains("small"), "{text}");
}

#[test]
fn names_cannot_steer_the_terminal_nor_fill_it() {
    let mut profile = fixture::profile();
    let traced = profile.translation.as_mut().unwrap();
    traced.sites[0].function = format!("\x1b[2J\n{}", "std::vector<".repeat(400));
    traced.sites[1].file = Some("\x1b]0;title\x07".into());
    traced.configurations[1].name = "\x1b[31m".into();
    traced.processor.name = "\u{9b}".into();
    traced.tracer = "\x07".into();
    traced.unseen.push("\x1b[0m".into());
    let text = text_of(&profile, Style { width: 80, colour: false });
    assert!(!text.chars().any(|letter| letter.is_control() && letter != '\n'), "{text:?}");
    assert!(text.lines().count() < 120, "{text}");
}

#[test]
fn next_to_nothing_is_a_section_without_numbers_that_are_none() {
    let mut profile = fixture::profile();
    profile.translation = Some(Translation::default());
    let empty = text_of(&profile, Style::default());
    assert!(empty.contains("No access was counted") && !empty.contains("NaN") && !empty.contains('─'), "{empty}");
    let one = Translation {
        configurations: vec![crate::translation::ModelledConfiguration { name: "4k".into(), ..Default::default() }],
        ..Translation::default()
    };
    profile.translation = Some(one);
    let one = text_of(&profile, Style::default());
    assert!(one.contains("4k") && one.contains('–') && !one.contains("NaN"), "{one}");
}
