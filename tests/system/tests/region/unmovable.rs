//! Hugetlb memory that cannot move off its pages: data stay correct, and the statistics give the
//! reason.

use fieldstone_report::RegionStats;

use crate::common::ReservedPool;
use crate::fixture::{compiled, counted, outside, run, stderr, stdout};

const SOURCE: &str = include_str!("../programs/unmovable.c");
const MIB: u64 = 1 << 20;
const MOVED: &str = "protect 0 unmap 0 wrong 0";
/// mprotect(2) of a part of such a page fails with ENOMEM; munmap(2) succeeds.
const NOT_MOVED: &str = "protect 12 unmap 0 wrong 0";

/// Runs the modes of the program. Checks what it prints of its first and second memory, and the
/// statistics. Prints a skip if the machine has no pool or lacks what a mode needs.
fn check_unmovable(modes: &[&str], expect: impl Fn(&[&str], &RegionStats)) {
    let Some((_directory, program)) = compiled(SOURCE, &["-O1"]) else { return };
    let Some(_pool) = ReservedPool::with_free(20) else { return };
    for mode in modes {
        let (output, stats) = counted("--pages hugetlb", &[&program, mode]);
        assert!(output.status.success(), "{mode}: {}", stderr(&output));
        let text = stdout(&output);
        if text.starts_with("no ") {
            println!("SKIP {}", text.trim());
            continue;
        }
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        expect(&lines, &stats.primary().unwrap().region);
    }
}

#[test]
fn pinned_pages_are_not_moved() {
    check_unmovable(&["ring"], |lines, stats| {
        assert_eq!(lines, [NOT_MOVED, MOVED], "{stats:?}");
        assert!(outside(stats, "I/O to its frames") >= 8 * MIB, "{:?}", stats.outside);
    });
    check_unmovable(&["inside"], |lines, stats| {
        assert_eq!(lines[0].split_once(" wrong").unwrap().0, "protect 12 unmap 0", "{stats:?}");
        assert_eq!(outside(stats, "I/O to its frames"), 2 * MIB, "the other pages move: {:?}", stats.outside);
    });
}

#[test]
fn a_descriptor_for_direct_io_pins_no_page() {
    check_unmovable(&["direct"], |lines, stats| {
        assert_eq!(lines, [MOVED, MOVED], "{stats:?}");
        assert_eq!(outside(stats, "left on hugetlb"), 0, "{:?}", stats.outside);
    });
}

#[test]
fn later_changes_of_rights_and_limits_do_not_prevent_moves() {
    check_unmovable(&["user", "full", "small"], |lines, stats| {
        assert_eq!(lines, [MOVED, MOVED], "{stats:?}");
        assert_eq!(outside(stats, "left on hugetlb"), 0, "{:?}", stats.outside);
    });
}

#[test]
fn pages_stay_without_the_descriptors_to_move_them() {
    check_unmovable(&["bare", "filter"], |lines, stats| {
        // What is mapped afterwards is not on hugetlb pages.
        assert_eq!(lines, [NOT_MOVED, MOVED], "{stats:?}");
        assert!(outside(stats, "userfaultfd(2) is refused") >= 4 * MIB, "{:?}", stats.outside);
        assert!(outside(stats, "userfaultfd is not permitted") >= 8 * MIB, "{:?}", stats.outside);
    });
}

#[test]
fn pages_registered_with_the_programs_userfaultfd_stay() {
    check_unmovable(&["watched"], |lines, stats| {
        assert_eq!(lines[0], NOT_MOVED, "{stats:?}");
        assert!(outside(stats, "a userfaultfd of the program") >= 2 * MIB, "{:?}", stats.outside);
    });
}

/// The kernel takes pinned pages back some milliseconds after the program has ended.
#[test]
fn pinned_pages_are_available_to_the_next_run() {
    let Some((_directory, program)) = compiled(SOURCE, &["-O1"]) else { return };
    let Some(_pool) = ReservedPool::with_free(20) else { return };
    for round in 0..3 {
        run("--pages hugetlb --reserve 40M", &[&program, "ring"]);
        let output = run("--pages hugetlb --reserve 40M", &[&program]);
        let (text, message) = (stdout(&output), stderr(&output));
        assert_eq!((text.as_str(), message.as_str()), (format!("{MOVED}\n{MOVED}\n").as_str(), ""), "round {round}");
    }
}

/// The kernel compares the limit with all that is mapped, the reserve among it.
#[test]
fn a_reserve_counts_for_mlockall() {
    let Some((_directory, program)) = compiled(SOURCE, &["-O1"]) else { return };
    let Some(_pool) = ReservedPool::with_free(100) else { return };
    let output = run("--pages hugetlb --reserve 128M", &[&program, "locked"]);
    assert!(stdout(&output).starts_with("locked 12 "), "{} {}", stdout(&output), stderr(&output));
}

/// munmap(2) past libc is refused by the kernel, and takes nothing.
#[test]
fn a_raw_call_on_a_part_of_a_page_changes_nothing() {
    check_unmovable(&["raw"], |lines, stats| {
        assert_eq!(lines, [format!("raw 22 {MOVED}").as_str(), MOVED], "{stats:?}");
    });
}
