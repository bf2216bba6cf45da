//! Hugetlb memory that cannot move off its pages: data stay correct, and the statistics give the
//! reason.

use fieldstone_report::RegionStats;

use crate::common::Pool;
use crate::fixture::{compiled, counted, outside, printed, run, said};

const SOURCE: &str = include_str!("../programs/unmovable.c");
const MIB: u64 = 1 << 20;
const DONE: &str = "protect 0 unmap 0 wrong 0";
/// mprotect(2) of a part of such a page fails with ENOMEM; munmap(2) succeeds.
const KEPT: &str = "protect 12 unmap 0 wrong 0";

/// Runs the modes of the program. Checks what it prints of its first and second memory, and the
/// statistics. Prints a skip if the machine has no pool or lacks what a mode needs.
fn kept(modes: &[&str], expect: impl Fn(&[&str], &RegionStats)) {
    let Some((_directory, program)) = compiled(SOURCE, &["-O1"]) else { return };
    let Some(_pool) = Pool::of(20) else { return };
    for mode in modes {
        let (output, stats) = counted("--pages hugetlb", &[&program, mode]);
        assert!(output.status.success(), "{mode}: {}", said(&output));
        let printed = printed(&output);
        if printed.starts_with("no ") {
            println!("SKIP {}", printed.trim());
            continue;
        }
        let lines: Vec<_> = printed.lines().map(str::trim).collect();
        expect(&lines, &stats.primary().unwrap().region);
    }
}

#[test]
fn pages_that_the_kernel_writes_to_are_not_moved() {
    kept(&["ring"], |lines, stats| {
        assert_eq!(lines, [KEPT, DONE], "{stats:?}");
        assert!(outside(stats, "I/O to its frames") >= 8 * MIB, "{:?}", stats.outside);
    });
    kept(&["inside"], |lines, stats| {
        assert_eq!(lines[0].split_once(" wrong").unwrap().0, "protect 12 unmap 0", "{stats:?}");
        assert_eq!(outside(stats, "I/O to its frames"), 2 * MIB, "the other pages move: {:?}", stats.outside);
    });
}

#[test]
fn a_descriptor_for_direct_io_keeps_no_page() {
    kept(&["direct"], |lines, stats| {
        assert_eq!(lines, [DONE, DONE], "{stats:?}");
        assert_eq!(outside(stats, "left on hugetlb"), 0, "{:?}", stats.outside);
    });
}

#[test]
fn rights_and_limits_that_change_later_keep_no_page() {
    kept(&["user", "full", "small"], |lines, stats| {
        assert_eq!(lines, [DONE, DONE], "{stats:?}");
        assert_eq!(outside(stats, "left on hugetlb"), 0, "{:?}", stats.outside);
    });
}

#[test]
fn pages_stay_when_nothing_is_left_to_move_them_with() {
    kept(&["bare", "filter"], |lines, stats| {
        // What is mapped afterwards is not on hugetlb pages.
        assert_eq!(lines, [KEPT, DONE], "{stats:?}");
        assert!(outside(stats, "userfaultfd(2) is refused") >= 4 * MIB, "{:?}", stats.outside);
        assert!(outside(stats, "userfaultfd is not permitted") >= 8 * MIB, "{:?}", stats.outside);
    });
}

#[test]
fn pages_that_the_program_watches_itself_stay() {
    kept(&["watched"], |lines, stats| {
        assert_eq!(lines[0], KEPT, "{stats:?}");
        assert!(outside(stats, "a userfaultfd of the program") >= 2 * MIB, "{:?}", stats.outside);
    });
}

/// The kernel takes pinned pages back some milliseconds after the program has ended.
#[test]
fn a_run_right_after_one_with_pinned_pages_gets_them() {
    let Some((_directory, program)) = compiled(SOURCE, &["-O1"]) else { return };
    let Some(_pool) = Pool::of(20) else { return };
    for round in 0..3 {
        run("--pages hugetlb --reserve 40M", &[&program, "ring"]);
        let output = run("--pages hugetlb --reserve 40M", &[&program]);
        let (printed, said) = (printed(&output), said(&output));
        assert_eq!((printed.as_str(), said.as_str()), (format!("{DONE}\n{DONE}\n").as_str(), ""), "round {round}");
    }
}

/// The kernel compares the limit with all that is mapped, the reserve among it.
#[test]
fn a_reserve_counts_for_mlockall() {
    let Some((_directory, program)) = compiled(SOURCE, &["-O1"]) else { return };
    let Some(_pool) = Pool::of(100) else { return };
    let output = run("--pages hugetlb --reserve 128M", &[&program, "locked"]);
    assert!(printed(&output).starts_with("locked 12 "), "{} {}", printed(&output), said(&output));
}

/// munmap(2) past libc is refused by the kernel, and takes nothing.
#[test]
fn a_raw_call_on_a_part_of_a_page_changes_nothing() {
    kept(&["raw"], |lines, stats| {
        assert_eq!(lines, [format!("raw 22 {DONE}").as_str(), DONE], "{stats:?}");
    });
}
