//! Mosaics (`--pages thp:25%`): exactly the selected chunks are huge, checked by the kernel's
//! tables.

use std::ops::Range;

use fieldstone_sys::smaps::{self, Mapping};
use fieldstone_translation::mosaic_is_huge;

use crate::common::wait_until;
use crate::fixture::{Waiting, child, compiled, has_transparent, primary, region, run, stderr, workload};

const CHUNK: u64 = 2 << 20;

/// Fills a block of 600 MiB, prints its address, and waits for stdin. The block grows and moves
/// once in between.
const SOURCE: &str = "#define _GNU_SOURCE\n#include <stdio.h>\n#include <string.h>\n#include <unistd.h>\n#include <sys/mman.h>\n\
    int main(void) { size_t all = 600 << 20, half = all / 2; char c;\n\
        char *block = mmap(0, half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n\
        mmap(0, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n\
        memset(block, 7, 64); block = mremap(block, half, all, MREMAP_MAYMOVE);\n\
        if (block == MAP_FAILED || block[63] != 7) return 3;\n\
        memset(block + 4096, 1, all - 4096);\n\
        printf(\"%lu\\n\", (unsigned long)block); fflush(stdout);\n\
        while (read(0, &c, 1) > 0) {}\n\
        return 0; }\n";
const BLOCK_BYTES: u64 = 600 << 20;

/// The mappings of the full block, and the base of the region.
fn block(pages: &str) -> Option<(Vec<Mapping>, u64)> {
    let (directory, program) = compiled(SOURCE, &["-O1"])?;
    let stats = directory.path().join("stats.json");
    let waiting = Waiting::start(region(&format!("--pages {pages} --stats {}", stats.display()), &[&program]));
    let pid = wait_until("the program", || child(waiting.running.id(), "program"));
    let start: u64 = waiting.line.trim().parse().unwrap();
    let inside = |mapping: &Mapping| start <= mapping.start && mapping.end <= start + BLOCK_BYTES;
    let mappings: Vec<Mapping> = smaps::read(pid).unwrap().into_iter().filter(inside).collect();
    assert!(waiting.end().success());
    let stats: fieldstone_report::RunStats = serde_json::from_slice(&std::fs::read(stats).unwrap()).unwrap();
    assert_eq!(stats.page_kind, pages);
    Some((mappings, stats.primary().unwrap().region.base))
}

fn chunks(mapping: &Mapping, base: u64) -> Range<u64> {
    (mapping.start - base) / CHUNK..(mapping.end - base).div_ceil(CHUNK)
}

#[test]
fn exactly_the_selected_chunks_are_huge() {
    if !has_transparent() {
        return;
    }
    for percent in [25_u32, 50, 75] {
        let Some((mappings, base)) = block(&format!("thp:{percent}%")) else { return };
        let (mut all, mut huge, mut picked) = (0, 0, 0);
        for mapping in &mappings {
            // The kernel merges adjacent mappings with equal advice.
            let choices: Vec<bool> =
                chunks(mapping, base).map(|chunk| mosaic_is_huge(chunk, f64::from(percent) / 100.0)).collect();
            assert!(choices.iter().all(|&choice| choice == choices[0]), "{percent} %: {mapping:?}");
            // The first page was touched at another place, and moved.
            assert!(choices[0] || mapping.anon_huge_bytes == 0, "{percent} %: {mapping:?}");
            picked += if choices[0] { mapping.bytes() } else { 0 };
            all += mapping.bytes();
            huge += mapping.anon_huge_bytes;
        }
        assert!(
            all >= BLOCK_BYTES - 2 * CHUNK,
            "{percent} %: {all} of the block were seen in {} pieces",
            mappings.len()
        );
        // With fragmented memory, a selected chunk may stay small.
        assert!(huge >= picked / 2 && huge > 0, "{percent} %: {huge} of {picked} are huge");
        let share = picked as f64 / all as f64;
        assert!((share - f64::from(percent) / 100.0).abs() < 0.1, "{percent} %: {share} is picked");
    }
}

#[test]
fn a_program_that_moves_and_splits_its_memory_runs_on_a_mosaic() {
    let Some(stress) = workload("mmap-stress") else { return };
    for pages in ["thp:25%", "thp:75%"] {
        let stats = primary(&format!("--pages {pages}"), &[&stress, "3", "150"]);
        assert!(stats.served_bytes > 0, "{stats:?}");
    }
}

#[test]
fn an_impossible_mosaic_is_refused_with_an_example() {
    for pages in ["hugetlb:25%", "thp:0%", "thp:half", "4k:50%"] {
        let output = run(&format!("--pages {pages}"), &["true"]);
        assert!(output.status.code() == Some(2) && stderr(&output).contains("thp:25%"), "{pages}: {}", stderr(&output));
    }
}
