//! The hugetlb pool of a profile: programs that map more memory than they touch.
//!
//! sort(1) allocates its buffer at once, several times as large as a file, or of the size of
//! `--buffer-size` for a pipe. It touches only what the input fills.

use std::fmt::Write as _;
use std::fs;

use fieldstone_report::{KindVerdict, RegionStats, Summary, reports, text};

use crate::common::ReservedPool;
use crate::fixture::Fixture;

/// Writes 24 MiB of lines to sort.
fn lines(fixture: &Fixture) -> String {
    let file = fixture.path("lines");
    let mut lines = String::new();
    for number in 0..(24 << 20) / 64_u64 {
        writeln!(lines, "{:063}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15)).unwrap();
    }
    fs::write(&file, lines).unwrap();
    file.display().to_string()
}

fn resident(region: &RegionStats, is_hugetlb: bool) -> u64 {
    region.pages.iter().filter(|pages| (pages.kind == "hugetlb") == is_hugetlb).map(|pages| pages.bytes).sum()
}

#[test]
fn the_pool_is_large_enough_for_memory_that_is_mapped_and_not_touched() {
    let Some(fixture) = Fixture::new() else { return };
    let Some(_pool) = ReservedPool::with_free(0) else { return };
    let profile = fixture.measured("--runs 1 --pages hugetlb", &["sort", &lines(&fixture)], 0);
    let region = profile.footprint("hugetlb").unwrap().region.as_ref().unwrap();
    assert!(region.mapped_peak_bytes > 2 * profile.footprint("4k").unwrap().peak().unwrap().resident_bytes);
    assert_eq!(region.fell_back_bytes, 0, "{:?}", region.outside);
    assert!(resident(region, true) > resident(region, false), "{:?}", region.pages);
}

#[test]
fn a_page_kind_whose_pool_is_too_small_has_a_note_and_no_verdict() {
    let Some(fixture) = Fixture::new() else { return };
    let Some(_pool) = ReservedPool::with_free(0) else { return };
    let line = format!("cat {} | sort --buffer-size=70%", lines(&fixture));
    let profile = fixture.measured("--runs 6 --pages hugetlb", &["sh", "-c", &line], 0);
    assert_eq!(profile.program.primary, "sort");
    let summary = Summary::of(&profile);
    assert_eq!(summary.kind("hugetlb").unwrap().verdict, Some(KindVerdict::OtherPages));
    let report = text::render(&reports::profile::document(&profile, &summary), text::Style::default());
    let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(report.contains("so this kind has no verdict: requests of"), "{report}");
}
