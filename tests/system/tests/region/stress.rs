//! The oracle: each call that changes memory has the same effect in a region, on every kind of
//! page.

use crate::common::ReservedPool;
use crate::fixture::{run, stderr, workload};

fn passes(options: &str, seeds: std::ops::Range<u32>, steps: u32, threads: u32) {
    let Some(stress) = workload("mmap-stress") else { return };
    for seed in seeds {
        let (seed, steps, threads) = (seed.to_string(), steps.to_string(), threads.to_string());
        let output = run(options, &[&stress, &seed, &steps, "--threads", &threads]);
        assert!(output.status.success(), "{options}, seed {seed}, {threads} threads: {}", stderr(&output));
    }
}

#[test]
fn memory_calls_work_on_transparent_pages() {
    passes("--pages thp", 1..3, 200, 1);
    passes("--pages thp", 3..4, 100, 4);
}

/// With this seed, step 35 moves a range again that has left the region as two mappings.
#[test]
fn a_range_that_left_the_region_can_move_and_grow() {
    passes("", 9..10, 200, 2);
}

#[test]
fn memory_calls_work_on_small_pages() {
    passes("--pages 4k", 4..5, 200, 1);
    passes("--pages 4k", 5..6, 100, 4);
}

#[test]
fn memory_calls_work_in_a_prefaulted_reserve() {
    passes("--pages thp --reserve 64M --prefault", 6..7, 200, 1);
    passes("--pages thp --reserve 64M --prefault", 7..8, 100, 4);
}

#[test]
fn memory_calls_work_on_hugetlb_pages() {
    let Some(_pool) = ReservedPool::with_free(1000) else { return };
    passes("--pages hugetlb", 8..10, 200, 1);
    passes("--pages hugetlb", 10..11, 100, 4);
    passes("--pages hugetlb --reserve 256M", 11..12, 200, 2);
}

#[test]
fn memory_calls_work_when_the_pool_runs_out() {
    let Some(_pool) = ReservedPool::with_free(20) else { return };
    passes("--pages hugetlb", 12..13, 200, 1);
    passes("--pages hugetlb", 13..14, 100, 4);
}

#[test]
fn memory_calls_work_with_an_empty_pool() {
    let Some(_pool) = ReservedPool::with_free(0) else { return };
    passes("--pages hugetlb", 14..15, 150, 2);
}

/// Without a fork memory is never moved off hugetlb pages, so all other calls meet them.
#[test]
fn memory_calls_work_on_hugetlb_pages_without_a_fork() {
    let Some(_pool) = ReservedPool::with_free(1000) else { return };
    let Some(stress) = workload("mmap-stress") else { return };
    for (seed, threads) in [("5", "4"), ("8", "1")] {
        let output = run("--pages hugetlb", &[&stress, seed, "300", "--threads", threads, "--skip", "fork"]);
        assert!(output.status.success(), "seed {seed}: {}", stderr(&output));
    }
}
