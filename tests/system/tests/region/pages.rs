//! `--stats`: the pages that the memory really has, the memory outside the region, and the reasons.

use crate::common::{ReservedPool, reserved_pages};
use crate::fixture::{counted, has_transparent, outside, primary, run, stderr, stdout, workload};

fn on(stats: &fieldstone_report::RegionStats, kind: &str) -> u64 {
    stats.pages.iter().filter(|share| share.kind == kind).map(|share| share.bytes).sum()
}

#[test]
fn the_region_is_on_transparent_pages() {
    let Some(odd) = workload("odd") else { return };
    if !has_transparent() {
        return;
    }
    let stats = primary("--pages thp", &[&odd, "hold", "64M", "1000"]);
    assert!(on(&stats, "thp") >= 32 << 20, "{:?}", stats.pages);
    assert!(stats.served_bytes >= 64 << 20 && stats.mapped_peak_bytes >= 64 << 20, "{stats:?}");
    assert!(stats.limit > stats.base && stats.base != 0);
    let inside = stats.private_rw_inside_bytes;
    assert!(inside > 10 * stats.private_rw_outside_bytes, "{inside} in the region: {stats:?}");
}

#[test]
fn small_pages_stay_small() {
    let Some(odd) = workload("odd") else { return };
    let stats = primary("--pages 4k", &[&odd, "hold", "64M", "1000"]);
    assert_eq!(on(&stats, "thp"), 0, "{:?}", stats.pages);
    let small: u64 = stats.pages.iter().map(|share| share.bytes).sum();
    // The kernel's tables are read when memory has grown by half, so the last reading may lack
    // a third.
    assert!(small >= 40 << 20, "{:?}", stats.pages);
}

#[test]
fn a_fork_changes_nothing_about_the_pages() {
    let Some(gups) = workload("gups") else { return };
    let script = format!("(exit 0); {gups} 32M; exit 0");
    let stats = primary("--pages 4k", &["sh", "-c", &script]);
    assert_eq!(on(&stats, "thp"), 0, "{:?}", stats.pages);
}

#[test]
fn a_reserve_is_mapped_at_the_start_and_touched_on_request() {
    let Some(odd) = workload("odd") else { return };
    let lazy = primary("--reserve 128M", &[&odd, "hold", "1M", "300"]);
    let used = 1..64 << 20;
    assert!(used.contains(&lazy.mapped_peak_bytes), "what is not given yet is no part of the peak: {lazy:?}");
    let given = primary("--reserve 128M", &[&odd, "hold", "64M", "300"]);
    assert!(given.mapped_peak_bytes >= 64 << 20, "{given:?}");
    assert_eq!(lazy.reserve_bytes, 128 << 20);
    let resident = |stats: &fieldstone_report::RegionStats| stats.pages.iter().map(|share| share.bytes).sum::<u64>();
    assert!(resident(&lazy) < 64 << 20, "{lazy:?}");
    // Pages that the kernel is migrating are not counted: another test compacts memory.
    let touched: Vec<_> = (0..3).map(|_| primary("--reserve 128M --prefault", &[&odd, "hold", "1M", "300"])).collect();
    assert!(touched.iter().any(|stats| resident(stats) >= 128 << 20), "{touched:?}");
}

#[test]
fn the_region_is_on_hugetlb_pages() {
    let Some(odd) = workload("odd") else { return };
    let Some(_pool) = ReservedPool::with_free(100) else { return };
    let stats = primary("--pages hugetlb", &[&odd, "hold", "64M", "1000"]);
    assert!(on(&stats, "hugetlb") >= 40 << 20, "{:?}", stats.pages);
    assert_eq!(stats.fell_back_bytes, 0, "{stats:?}");
}

#[test]
fn a_pool_that_is_too_small_is_reported() {
    let Some(gups) = workload("gups") else { return };
    let Some(_pool) = ReservedPool::with_free(10) else { return };
    let stats = primary("--pages hugetlb", &[&gups, "64M"]);
    assert!(stats.fell_back_bytes >= 64 << 20, "{stats:?}");
    assert!(outside(&stats, "hugetlb pool empty") >= 64 << 20, "{:?}", stats.outside);
}

#[test]
fn memory_outside_the_region_has_a_reason() {
    let Some(stress) = workload("mmap-stress") else { return };
    let (output, stats) = counted("", &[&stress, "4", "200", "--threads", "2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    for reason in ["thread stack", "in place"] {
        // In any process: a child that the program forks may be the largest.
        let is_counted = stats.processes.iter().any(|process| outside(&process.region, reason) > 0);
        assert!(is_counted, "{reason}: {stats:?}");
    }
}

#[test]
fn the_table_goes_to_standard_error() {
    let output = run("--stats -", &["echo", "its own"]);
    assert_eq!(stdout(&output), "its own\n");
    assert!(stderr(&output).contains("echo"), "{}", stderr(&output));
}

#[test]
fn statistics_have_the_command_as_given() {
    let (_, stats) = counted("--pages 4k", &["sh", "-c", "exit 5"]);
    assert_eq!((stats.command.join(" ").as_str(), stats.page_kind.as_str()), ("sh -c exit 5", "4k"));
    assert_eq!(stats.outcome, "exit 5");
    assert_eq!(stats.schema, fieldstone_report::RunStats::SCHEMA);
}

#[test]
fn a_full_disk_is_reported_before_the_run() {
    let output = run("--stats /dev/full", &["echo", "ran"]);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("", Some(2)), "{}", stderr(&output));
    assert!(stderr(&output).contains("/dev/full") && stderr(&output).contains("No space"), "{}", stderr(&output));
}

#[test]
fn an_unwritable_path_is_reported_before_the_run() {
    let output = run("--stats /no/such/directory/stats.json", &["echo", "ran"]);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("", Some(2)));
    assert!(stderr(&output).contains("/no/such/directory/stats.json"), "{}", stderr(&output));
}

#[test]
fn no_page_of_the_pool_stays_reserved() {
    let (Some(odd), Some(stress)) = (workload("odd"), workload("mmap-stress")) else { return };
    let Some(_pool) = ReservedPool::with_free(200) else { return };
    let before = reserved_pages();
    // The heap and mappings from a mostly untouched reserve, mappings that move, and a killed
    // program.
    primary("--pages hugetlb --reserve 64M", &[&odd, "threads", "200"]);
    primary("--pages hugetlb --reserve 64M", &[&odd, "hold", "16M", "10"]);
    primary("--pages hugetlb --reserve 64M", &[&stress, "3", "150", "--skip", "fork"]);
    assert!(!run("--pages hugetlb --reserve 64M", &[&odd, "kill-self"]).status.success());
    assert_eq!(reserved_pages(), before, "the kernel's count of promised pages");
}
