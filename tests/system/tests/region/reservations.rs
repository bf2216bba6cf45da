//! Memory that is reserved without access and opened later, or that has to stay at its address: its
//! pages, checked by the kernel's tables.

use fieldstone_report::RegionStats;
use tempfile::TempDir;

use crate::fixture::{compiled, has_transparent, outside, primary, run, stderr};

const MIB: u64 = 1 << 20;

fn program() -> Option<(TempDir, String)> {
    compiled(include_str!("../programs/reservations.c"), &["-O1"])
}

/// Resident bytes under reasons that contain `words`.
fn resident(stats: &RegionStats, words: &str) -> u64 {
    stats.outside.iter().filter(|one| one.reason.contains(words)).map(|one| one.resident_bytes).sum()
}

#[test]
fn memory_opened_later_is_on_huge_pages() {
    let Some((_directory, program)) = program() else { return };
    if !has_transparent() {
        return;
    }
    for way in ["scattered", "mapped", "mapped-in-steps", "protected", "unhinted", "reopened", "low", "executable"] {
        for options in ["", "--also hinted"] {
            let stats = primary(options, &[&program, way]);
            let served = stats.private_rw_inside_bytes + stats.private_rw_in_place_bytes;
            assert!(served >= 62 * MIB && stats.private_rw_outside_bytes < 2 * MIB, "{way} {options}: {stats:?}");
            assert!(stats.private_rw_huge_bytes >= 56 * MIB, "{way} {options}: {stats:?}");
        }
    }
}

#[test]
fn memory_opened_in_place_is_counted_and_other_memory_is_inside() {
    let Some((_directory, program)) = program() else { return };
    for way in ["mapped", "protected", "low"] {
        let stats = primary("", &[&program, way]);
        assert!(
            outside(&stats, "in place") >= 64 * MIB && resident(&stats, "in place") >= 62 * MIB,
            "{way}: {stats:?}"
        );
    }
    let inside = primary("", &[&program, "unhinted"]);
    assert!(inside.private_rw_inside_bytes >= 62 * MIB && inside.served_bytes >= 64 * MIB, "{inside:?}");
}

#[test]
fn opened_memory_is_on_small_pages_if_requested() {
    let Some((_directory, program)) = program() else { return };
    for way in ["scattered", "mapped", "protected", "low"] {
        let stats = primary("--pages 4k", &[&program, way]);
        assert_eq!(stats.private_rw_huge_bytes, 0, "{way}: {stats:?}");
    }
}

#[test]
fn memory_mapped_by_raw_system_calls_is_reported() {
    let Some((_directory, program)) = program() else { return };
    let stats = primary("", &[&program, "raw"]);
    assert!(resident(&stats, "system calls that bypass libc") >= 62 * MIB, "{stats:?}");
    let largest = stats.outside.iter().max_by_key(|one| one.resident_bytes).unwrap();
    assert!(largest.reason.contains("bypass libc"), "{stats:?}");
}

#[test]
fn disabled_huge_pages_are_reported_and_can_be_enabled() {
    let Some((_directory, program)) = program() else { return };
    if !has_transparent() {
        return;
    }
    let off = primary("", &[&program, "disabled"]);
    assert!(off.huge_pages_disabled && off.private_rw_huge_bytes == 0, "{off:?}");
    let report = stderr(&run("--stats -", &[&program, "disabled"]));
    let words = report.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("PR_SET_THP_DISABLE") && words.contains("--also disabled"), "{report}");
    let on = primary("--also disabled", &[&program, "disabled"]);
    assert!(!on.huge_pages_disabled && on.private_rw_huge_bytes >= 56 * MIB, "{on:?}");
}
