//! Programs whose memory changes without the agent's knowledge: they map by raw system calls, their
//! stacks grow, they serve page faults, they lock all mapped memory.

use crate::common::ReservedPool;
use crate::fixture::{compiled, counted, has_transparent, outside, run, stderr, stdout};

/// Each page kind, and options that place other memory nearby.
const OPTIONS: [&str; 5] = ["--pages thp", "--pages 4k", "--reserve 64M", "--also stacks,globals", "--prefault"];

fn prints(options: &str, program: &[&str], expected: &str) {
    let output = run(options, program);
    assert_eq!(stdout(&output), expected, "{options} {program:?}: {:?} {}", output.status, stderr(&output));
}

#[test]
fn memory_mapped_by_raw_system_calls_is_not_replaced() {
    let Some((_directory, program)) = compiled(include_str!("../programs/raw_syscalls.c"), &["-O1", "-pthread"]) else {
        return;
    };
    for mode in ["hints", "holes", "shared", "replaced", "keyed", "growing"] {
        for options in OPTIONS {
            prints(options, &[&program, mode], "0 wrong\n");
        }
    }
    prints("--reserve 64M", &[&program, "mixed"], "0 wrong\n");
    let Some(_pool) = ReservedPool::with_free(64) else { return };
    for mode in ["hints", "shared", "replaced", "keyed", "growing", "mixed"] {
        prints("--pages hugetlb", &[&program, mode], "0 wrong\n");
    }
}

#[test]
fn an_unlimited_main_stack_grows() {
    let options = ["-O1", "-fno-optimize-sibling-calls"];
    let Some((_directory, program)) = compiled(include_str!("../programs/main_stack.c"), &options) else { return };
    let script = format!("ulimit -s unlimited; exec {program}");
    for options in OPTIONS {
        prints(options, &["sh", "-c", &script], "10001 and 10001 frames\n");
    }
}

#[test]
fn a_second_libc_has_its_own_memory() {
    let Some((_directory, program)) = compiled(include_str!("../programs/two_libcs.c"), &["-O1", "-ldl"]) else {
        return;
    };
    for options in OPTIONS {
        prints(options, &[&program], "0 wrong\n");
    }
}

#[test]
fn a_program_gets_the_faults_on_all_its_missing_pages() {
    let Some((_directory, program)) = compiled(include_str!("../programs/own_userfault.c"), &["-O1", "-pthread"])
    else {
        return;
    };
    if run("", &[&program]).status.code() == Some(77) {
        println!("SKIP userfaultfd is not permitted");
        return;
    }
    for options in OPTIONS.iter().chain(&["--pages folio-64k"]) {
        prints(options, &[&program], "1536 asked, 0 wrong\n");
        prints(options, &[&program, "late"], "1536 asked, 0 wrong\n");
    }
    let (_, stats) = counted("", &[&program, "late"]);
    if has_transparent() {
        assert!(outside(&stats.primary().unwrap().region, "resident before") > 0, "{stats:?}");
    }
    let (_, stats) = counted("", &[&program]);
    assert!(outside(&stats.primary().unwrap().region, "serves page faults") > 0, "{stats:?}");
}

#[test]
fn the_limit_of_locked_memory_allows_as_much_as_natively() {
    let Some((_directory, program)) = compiled(include_str!("../programs/locked.c"), &["-O1"]) else { return };
    let expected = "10 of 10 blocks, then up to 3 MiB, Resource temporarily unavailable\nnothing resident\n";
    for options in ["--pages thp", "--pages 4k", "--reserve 64M", "--prefault", "--pages hugetlb --reserve 16M"] {
        prints(options, &[&program], expected);
    }
    let grown_ahead = run("--also stacks", &[&program]);
    assert!(
        stderr(&grown_ahead).contains("mlockall"),
        "documented: the whole first stack counts: {}",
        stderr(&grown_ahead)
    );
}
