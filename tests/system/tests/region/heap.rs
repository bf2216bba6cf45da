//! The heap behaves as the kernel's: it shrinks and grows again, and a page that the program
//! protected is unchanged.

use std::process::Command;

use crate::common::ReservedPool;
use crate::fixture::{compiled, run, stderr, stdout};

const RIGHT: &str = "0 refused, 0 wrong\n";

fn holds(options: &str, program: &str) {
    for seed in ["1", "2", "3"] {
        for words in [&[program, seed][..], &[program, seed, "locked"]] {
            let output = run(options, words);
            assert_eq!(stdout(&output), RIGHT, "{options} {words:?}: {:?} {}", output.status, stderr(&output));
        }
    }
}

#[test]
fn a_lowered_heap_grows_again_and_keeps_its_last_page() {
    let Some((_directory, program)) = compiled(include_str!("../programs/heap.c"), &["-O1"]) else { return };
    assert_eq!(stdout(&Command::new(&program).output().unwrap()), RIGHT, "natively");
    for options in ["--pages thp", "--pages 4k", "--pages thp:25%", "--reserve 16M", "--prefault"] {
        holds(options, &program);
    }
    let Some(_pool) = ReservedPool::with_free(40) else { return };
    for options in ["--pages hugetlb", "--pages hugetlb --reserve 16M"] {
        holds(options, &program);
    }
}
