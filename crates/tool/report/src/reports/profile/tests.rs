//! A profile on a terminal and a page, and its plots.

use super::*;
use crate::fixture;
use crate::quantity::{ratio, seconds};
use crate::text::{self, Style};
use crate::translation::{AllocationSite, ModelledConfiguration, Translation};
use proptest::prelude::*;

fn text_of(profile: &Profile, style: Style) -> String {
    text::render(&document(profile, &Summary::of(profile)), style)
}

fn page_of(profile: &Profile) -> String {
    crate::html::render(&document(profile, &Summary::of(profile))).unwrap()
}

fn widths(text: &str) -> usize {
    text.lines().filter(|line| !line.starts_with("    fieldstone")).map(|line| line.chars().count()).max().unwrap()
}

#[test]
fn it_shows_the_numbers_and_the_command_within_the_width() {
    let fixture = fixture::profile();
    let summary = Summary::of(&fixture);
    for width in [70, 80, 100, 200] {
        let text = text_of(&fixture, Style { width, colour: false });
        assert!(widths(&text) <= usize::from(width), "{width}\n{text}");
        assert!(text.contains("\n    fieldstone run --region --pages thp -- gups 2G\n"));
        assert!(!text.contains('\x1b'));
    }
    let text = text_of(&fixture, Style::default());
    let thp = summary.kind("thp").unwrap();
    for number in [seconds(thp.value_s.unwrap().median), ratio(thp.ratio.unwrap().median), percent(thp.gain().unwrap())]
    {
        assert!(text.contains(&number), "{number}\n{text}");
    }
    assert!(text_of(&fixture, Style { colour: true, ..Style::default() }).starts_with("\x1b[1mgups 2G"));
}

#[test]
fn findings_are_listed_apart_from_notes_and_remedies_below_their_cause() {
    let mut fixture = fixture::profile();
    assert!(!text_of(&fixture, Style::default()).contains("Findings"));
    fixture.findings = vec![crate::Finding::OutputDiffers { kind: "thp".into() }];
    fixture.kinds[4].unavailable = Some("permission denied\ntry: echo 1".into());
    let text = text_of(&fixture, Style::default());
    let parts =
        ["\nFindings (exit code 1)\n  - On thp it printed", "\nNotes\n", ": permission denied\n    try: echo 1\n"];
    let places = parts.map(|part| text.find(part).unwrap_or_else(|| panic!("no {part}\n{text}")));
    assert!(places.is_sorted(), "{text}");
}

#[test]
fn what_is_not_ours_cannot_steer_the_terminal() {
    let mut fixture = fixture::profile();
    fixture.program.command[1] = "\x1b[2J".into();
    fixture.program.load = Some("\x1b]0;".into());
    fixture.kinds[4].unavailable = Some("\x07".into());
    fixture.warnings[0] = "\x1b[31m".into();
    let text = text_of(&fixture, Style::default());
    assert!(!text.chars().any(|letter| letter.is_control() && letter != '\n'), "{text:?}");
}

#[test]
fn a_load_s_time_is_shown_a_request_too() {
    let mut fixture = fixture::profile();
    fixture.metric = crate::Metric::Throughput;
    fixture.program.requests = Some(100_000);
    let summary = Summary::of(&fixture);
    let a_request = seconds(summary.kind("thp").unwrap().value_s.unwrap().median / 1e5);
    assert!(a_request.ends_with("µs") && text_of(&fixture, Style::default()).contains(&a_request));
}

#[test]
fn whatever_a_file_says_stays_text() {
    let evil = "<script>alert('x')</script>\"><img src=x onerror=y>";
    let mut profile = fixture::profile();
    profile.program.command = vec!["sh".into(), "-c".into(), evil.into()];
    profile.program.primary = evil.into();
    profile.program.load = Some(evil.into());
    profile.tool_version = evil.into();
    profile.machine.cpu = evil.into();
    profile.warnings = vec![evil.into()];
    profile.kinds[4].unavailable = Some(evil.into());
    profile.kinds[1].name = evil.into();
    profile.footprints[1].kind = evil.into();
    profile.footprints[0].permissions[0].permission = evil.into();
    profile.samples[0].outcome = evil.into();
    profile.footprints[0].region.as_mut().unwrap().pages[0].kind = evil.into();
    let traced = profile.translation.as_mut().unwrap();
    traced.sites[0].function = evil.into();
    traced.sites[1].file = Some(format!("{evil}a&b\x1b[2J"));
    traced.sites[2].stack = vec![evil.into()];
    traced.configurations[1].name = evil.into();
    fixture::stacks(traced).function = evil.into();
    (traced.processor.name, traced.processor.source, traced.tracer) = (evil.into(), evil.into(), evil.into());
    traced.uncounted = Some(evil.into());
    traced.unseen = vec![evil.into()];
    traced.mosaics.as_mut().unwrap().mixtures[1].kind = evil.into();
    let page = page_of(&profile);
    assert!(page.matches("&lt;script&gt;").count() > 18);
    assert!(page.contains(r"a&amp;b\x1b[2J") && !page.contains('\x1b'));
    assert!(!page.contains("<script") && !page.contains("<img"), "markup got through");
}

#[test]
fn nothing_is_fetched() {
    let page = page_of(&fixture::profile());
    assert!(page.contains("default-src 'none'"));
    for address in ["http:", "https:", "src=", "url(", "@import", "<link rel=\"stylesheet\""] {
        assert!(!page.contains(address), "{address}");
    }
    let links: Vec<&str> = page.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(links.iter().all(|link| link.starts_with("data:") || link.starts_with('#')), "{links:?}");
}

#[test]
fn a_profile_with_next_to_nothing_still_has_a_page() {
    let mut profile = fixture::measured(&[("4k", 1.0)], 0, 0.0);
    assert!(page_of(&profile).contains("Too few runs") || page_of(&profile).contains("Nothing could be compared"));
    profile.footprints.push(crate::Footprint { kind: "4k".into(), ..crate::Footprint::default() });
    profile.kinds.clear();
    assert!(page_of(&profile).contains("</html>"));
    profile.translation = Some(Translation::default());
    assert!(page_of(&profile).contains("No access was counted"));
    let one = ModelledConfiguration { name: "4k".into(), ..ModelledConfiguration::default() };
    profile.translation = Some(Translation { configurations: vec![one], ..Translation::default() });
    let page = page_of(&profile);
    assert!(page.contains("<th scope=\"row\">4k</th>") && !page.contains("NaN") && !page.contains("plot-translation"));
}

#[test]
fn columns_are_explained_where_they_are_there() {
    let mut profile = fixture::profile();
    let page = page_of(&profile);
    assert!(page.contains("Contiguous: ") && !page.contains("pool empty") && !page.contains("moved back"));
    assert!(page.contains("more than 99 % of the reserved memory"), "{page}");
    assert!(!page.contains("memoria"), "{page}");
    profile.footprints[1].region.as_mut().unwrap().fell_back_bytes = 4096;
    assert!(page_of(&profile).contains("Pool empty: memory that found no huge page left."));
}

#[test]
fn a_hundred_sites_have_their_lines_and_callers_and_the_others_one() {
    let mut profile = fixture::profile();
    let traced = profile.translation.as_mut().unwrap();
    let site = |n: u64| AllocationSite { function: format!("site{n:03}"), ..traced.sites[0].clone() };
    traced.sites = (0..300).map(site).collect();
    let page = page_of(&profile);
    assert!(page.contains("200 more sites") && page.contains("site099") && !page.contains("site100"));
    assert_eq!(page.matches("__libc_start_main").count(), 100);
}

fn any_seconds() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(-1.0), Just(1e-300), Just(1e300), Just(f64::MAX), 1e-9..1e6f64]
}

fn any_bytes() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn numbers_that_make_no_sense_make_a_page_too(
        values in prop::collection::vec(any_seconds(), 20), bytes in prop::collection::vec(any_bytes(), 20),
    ) {
        let mut profile = fixture::profile();
        profile.taken_at_unix_s = bytes[0];
        profile.machine.memory_bytes = bytes[1];
        for (sample, value) in profile.samples.iter_mut().zip(values.iter().cycle()) {
            (sample.value, sample.wall_s, sample.minor_faults, sample.major_faults) = (*value, -value, bytes[2], bytes[3]);
        }
        for footprint in &mut profile.footprints {
            footprint.points = values.iter().zip(&bytes).map(|(t_s, bytes)| FootprintPoint {
                t_s: *t_s, resident_bytes: *bytes, swap_bytes: *bytes, small_bytes: *bytes, folio_bytes: *bytes,
                huge_2m_bytes: *bytes, huge_1g_bytes: *bytes,
            }).collect();
            footprint.permissions.iter_mut().zip(&bytes).for_each(|(of, bytes)| of.bytes = *bytes);
            let region = footprint.region.as_mut().unwrap();
            region.pages.iter_mut().zip(&bytes).for_each(|(of, bytes)| of.bytes = *bytes);
            (region.private_rw_inside_bytes, region.private_rw_outside_bytes) = (bytes[4], bytes[5]);
        }
        let traced = profile.translation.as_mut().unwrap();
        for (of, (value, bytes)) in traced.configurations.iter_mut().zip(values.iter().zip(&bytes)) {
            let range = Some(fieldstone_stats::Interval { low: *value, likely: -value, high: value / 2.0 });
            (of.data_share, of.instruction_share, of.time) = (range, range, range);
            (of.data.accesses, of.data.walks, of.data.far_walks) = (*bytes, bytes.wrapping_mul(3), u64::MAX);
        }
        for (at, site) in traced.sites.iter_mut().enumerate() {
            (site.walks, site.walks_large, site.bytes) = (bytes[at], bytes[at + 1], bytes[at + 2]);
        }
        for (at, point) in traced.reach.iter_mut().enumerate() {
            (point.entries, point.misses_per_access) = (bytes[at], values[at]);
        }
        for (at, moment) in traced.moments.iter_mut().enumerate() {
            (moment.accesses, moment.counted, moment.walks) = (bytes[at], bytes[at + 1], bytes[..at].to_vec());
        }
        let mosaics = traced.mosaics.as_mut().unwrap();
        for (at, of) in mosaics.mixtures.iter_mut().enumerate() {
            let range = fieldstone_stats::Interval { low: values[at], likely: -values[at], high: values[at + 1] };
            (of.measured_s, of.priced_s, of.walks, of.share) = (range, Some(range), values[at + 2], values[at + 3]);
            (of.fitted_s, of.left_out_s) = (values[at + 4], values[at + 5]);
        }
        prop_assert!(page_of(&profile).contains("</html>"));
        prop_assert!(!text_of(&profile, Style::default()).is_empty());
    }
}
