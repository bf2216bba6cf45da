//! The counts of the models against numbers that are computed by hand.

use std::collections::BTreeSet;

use fieldstone_translation::TreeCounts;

use super::*;
use crate::quotation;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn run(stream: Stream, array_bytes: u64, warm: usize, counted: usize) -> Run {
    Run { stream, array_bytes, warm, counted }
}

fn paper_machine() -> Mmu {
    Mmu::preset(PAPER_MACHINE).unwrap()
}

/// By page size: misses of the first TLB, walks, and reads of the walks.
fn on_pages(run: &Run) -> Vec<[u64; 3]> {
    let sides = model::array(run, &paper_machine()).unwrap();
    assert!(sides.iter().all(|(_, side)| side.accesses == run.counted as u64), "{sides:?}");
    sides.iter().map(|(_, side)| [side.accesses - side.hits[0], side.walks, side.walk_memory_references]).collect()
}

/// Pointer reads: naive, cursor, accelerators.
fn in_trees(run: &Run) -> [u64; 4] {
    let model::Trees { naive, cursor, accelerators: [small, large] } = model::trees(run);
    let all = [naive, cursor, small, large];
    assert!(all.iter().all(|counts| counts.accesses == run.counted as u64), "{all:?}");
    all.map(|counts: TreeCounts| counts.memory_references)
}

/// 4 MiB in elements of 4 bytes: 128 leaves below one node, 1024 small pages, two pages of 2 MiB.
#[test]
fn a_linear_scan_has_the_counts_computed_by_hand() {
    let lap = 1 << 20;
    let (first, second) = (run(Stream::Linear, 4 * MIB, 0, lap), run(Stream::Linear, 4 * MIB, lap, lap));
    assert_eq!(in_trees(&first), [lap as u64, 128, 128, 128], "a pointer per access, or per block");
    // The large accelerator holds all 128 blocks. The small one evicts each before its next use.
    assert_eq!(in_trees(&second), [lap as u64, 128, 128, 0]);
    // The first walk starts at the root. The walk to the second table of 512 entries reads two, the
    // others one.
    assert_eq!(on_pages(&first), [[1024, 1024, 4 + 2 + 1022], [2, 2, 3 + 1], [1, 1, 2]]);
    // 1024 pages exceed the first TLB, but not the second one of 1536 entries.
    assert_eq!(on_pages(&second), [[1024, 0, 0], [0, 0, 0], [0, 0, 0]]);
    let trees = model::trees(&first);
    // Three instructions per step and two for the depth; with a cursor three per access and six per
    // step.
    assert_eq!((trees.naive.instructions, trees.cursor.instructions), ((2 + 3) << 20, (3 << 20) + 128 * 6));
}

/// 256 MiB, every 4 KiB: eight accesses per leaf, 8192 leaves below two nodes below the root.
#[test]
fn a_strided_scan_has_the_counts_computed_by_hand() {
    let lap = 1 << 16;
    let second = run(Stream::Strided, 256 * MIB, lap, lap);
    // A pointer per leaf, and one more at the start of each of the two nodes.
    assert_eq!(in_trees(&second), [2 << 16, 8192 + 2, 8192 + 2, 8192 + 2]);
    // Each small page needs a walk. The first walk of each table of 512 entries also reads its
    // entry. The second TLB holds the 128 pages of 2 MiB, the first TLB the page of 1 GiB.
    assert_eq!(on_pages(&second), [[1 << 16, 1 << 16, (1 << 16) + 128], [128, 0, 0], [0, 0, 0]]);
}

#[test]
fn a_page_s_stride_is_one_element() {
    let only = run(Stream::Strided, 4096, 10, 100);
    assert_eq!(in_trees(&only), [0; 4]);
    assert_eq!(on_pages(&only), [[0; 3]; 3]);
    let trees = model::trees(&only);
    assert_eq!(
        (trees.naive.instructions, trees.cursor.instructions),
        (200, 300),
        "only checks of the depth and of the leaf"
    );
}

/// With the paper's depth, a naive walk reads exactly one pointer per level except the last.
#[test]
fn a_naive_walk_reads_what_the_paper_s_depth_says() {
    for (_, column, bytes) in table2::sizes(Scale::Full) {
        let rows = tree_rows(Stream::Strided, column);
        let Some(depth) = rows.iter().find_map(|row| row.row.paper.as_deref()) else {
            assert_eq!(column, "256MB", "the paper has no such array");
            continue;
        };
        let depth = quotation::find(depth).unwrap().value.strip_prefix("depth-").unwrap().parse::<u64>().unwrap();
        for stream in Stream::ALL {
            assert_eq!(in_trees(&run(stream, bytes, 7, 1000))[0], (depth - 1) * 1000, "{column}, {stream:?}");
        }
    }
}

/// GUPS has no repeated paths. A random access hits with the share of blocks that are held.
#[test]
fn gups_is_helped_by_entries_alone() {
    let counted = 1 << 17;
    let each = |bytes| in_trees(&run(Stream::Gups, bytes, 1 << 14, counted)).map(|read| read as f64 / counted as f64);
    let near = |found: f64, wanted: f64| (found - wanted).abs() < 0.01;
    let [naive, cursor, small, large] = each(4 * MIB);
    assert!(naive == 1.0 && near(cursor, 127.0 / 128.0) && near(small, 96.0 / 128.0) && large == 0.0, "{small}");
    let [naive, cursor, small, large] = each(64 * GIB);
    assert!(naive == 2.0 && cursor > 1.99 && small > 1.95 && (1.0..1.2).contains(&large), "{cursor} {small} {large}");
    let [.., small, large] = each(4 * GIB);
    // 32 nodes above the leaves: the small accelerator holds some of them, the large one all and a
    // few leaves.
    assert!((1.4..1.7).contains(&small) && (0.97..1.0).contains(&large), "{small} {large}");
}

/// "Beyond 16 GB" in the paper: the second TLB of its processor has 16 entries for 1 GiB pages.
#[test]
fn huge_pages_begin_to_miss_beyond_16_gb() {
    let walks = |gib: u64| on_pages(&run(Stream::Gups, gib * GIB, 1 << 12, 1 << 16))[2][1] as f64 / f64::from(1 << 16);
    assert_eq!((walks(8), walks(16)), (0.0, 0.0));
    assert!((0.3..0.6).contains(&walks(32)) && (0.6..0.85).contains(&walks(64)), "{} {}", walks(32), walks(64));
}

#[test]
fn streams_stay_within_the_array_and_repeat() {
    let offsets = |stream: Stream, bytes, count| stream.offsets(bytes).take(count).collect::<Vec<u64>>();
    assert_eq!(offsets(Stream::Linear, 12, 5), [0, 4, 8, 0, 4]);
    assert_eq!(offsets(Stream::Strided, 8192, 3), [0, 4096, 0]);
    let random = offsets(Stream::Gups, 64 * GIB, 10_000);
    assert!(random.iter().all(|offset| *offset < 64 * GIB && offset.is_multiple_of(8)));
    assert!(random.iter().any(|offset| *offset < GIB) && random.iter().any(|offset| *offset > 63 * GIB));
    let warm = |stream, bytes| Run::of(stream, bytes).warm;
    assert_eq!((warm(Stream::Strided, 4096), warm(Stream::Strided, 64 * GIB)), (1 << 20, 1 << 24), "a lap at least");
    assert_eq!((warm(Stream::Linear, 64 * GIB), warm(Stream::Gups, 64 * GIB)), (1 << 20, 1 << 20));
}

#[test]
fn each_processor_is_listed_and_rows_are_distinct() {
    let experiments = crate::catalog::all();
    let listed =
        experiments.iter().find(|experiment| experiment.name == "tree-walks").expect("the experiment is listed");
    let ids = |scale| (listed.cells)(scale).into_iter().map(|cell| cell.id).collect::<BTreeSet<_>>();
    let full = ids(Scale::Full);
    assert!(full.is_superset(&ids(Scale::Quick)) && full.len() == 8 * 3 * (1 + Mmu::presets().len()));
    for machine in Mmu::presets() {
        assert!(full.contains(&format!("tree-walks/{}/gups/64G", machine.name)), "{}", machine.name);
    }
    for cell in (listed.cells)(Scale::Full) {
        let names: BTreeSet<String> = cell.rows.iter().map(Row::value_name).collect();
        assert_eq!(names.len(), cell.rows.len(), "{}", cell.id);
    }
    assert!(paper_machine().source.contains("i7-7700"), "the headings of the tables name the processor");
}
