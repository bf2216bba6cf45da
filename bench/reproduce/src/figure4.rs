//! Figure 4: random updates of a large table (GUPS), and a red-black tree.

pub mod indexed;
pub mod red_black;

use std::cell::Cell as Shared;
use std::ops::IndexMut;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use fieldstone_blocks::{DEFAULT_BLOCK_BYTES, PageKind, Pool, TreeArray};
use fieldstone_workloads::gups;
use rustix::thread::disable_transparent_huge_pages;

use crate::comparison::{BuiltSide, Kernel, Side, compare_sides};
use crate::experiment::{Cell, Experiment, MeasuredValue, Needs, Quantity, Row, SampleOutcome, Scale};
use crate::pages::{Contiguous, large_page_pool, pages_of};
use crate::paper_tree::{Order, PAPER_BLOCK_BYTES, PaperTree};
use crate::provenance::thread_cpu_s;
use crate::trial::{Task, Trial};
use red_black::{InBlocks, Malloc, Nodes, RedBlack, UnlinkedNodes};

/// Block size of the heap of nodes; a block is one slab.
const SLAB_BYTES: usize = 64 << 10;

const MIB: u64 = 1 << 20;

/// Nodes of the largest red-black tree, which is compared with the paper's "up to".
const LARGEST_TREE: usize = 1 << 23;
/// Nodes that one call traverses; the next call continues after them.
const WINDOW: usize = 1 << 18;

/// Updates per call.
const UPDATES: u64 = 1 << 16;

const GUPS_TABLE: &str = "GUPS: read, xor, write at random";
const TREES_TABLE: &str = "Red-black tree: the same code, nodes from malloc or in blocks";

const ARRAY: &str = "array, 4 KiB pages";
const HUGE_ARRAY: &str = "array, transparent huge pages";
const PAPER_TREE: &str = "the paper's tree, depth at run time";
const TREE: &str = "tree array, by index";
const TREE_BATCHES: &str = "tree array, in batches (update)";

const TRAVERSED: &str = "in-order traversal, malloc on 4 KiB pages";
const TRAVERSED_BLOCKS: &str = "in-order traversal, nodes in blocks";
const INSERTED: &str = "insertion, malloc on 4 KiB pages";
const INSERTED_BLOCKS: &str = "insertion, nodes in blocks";
const BOTH: &str = "insertion and traversal, malloc on 4 KiB pages";
const BOTH_BLOCKS: &str = "insertion and traversal, nodes in blocks";

/// Figure 4.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "figure4",
        title: "Random updates, and a red-black tree",
        source: "Zagieboylo, Suh and Myers, section 4.2, Figure 4",
        about: "GUPS reads, xors and writes 8 bytes at random places of a table: a contiguous array on 4 KiB pages against \
                trees of blocks on 1 GiB pages if enough are reserved, else on transparent huge pages. A contiguous array \
                on huge pages is included: a ratio below it is a gain of the tree, not of the pages. The red-black tree is \
                the same code on both sides, with 40-byte nodes from malloc on 4 KiB pages, or from the library's heap in \
                blocks on huge pages. All nodes are allocated and written before the first insertion. Ratios below 1 are \
                faster than the baseline.",
        needs: Needs { minutes: 20, memory_bytes: 16 << 30, disk_bytes: 0 },
        cells,
    }
}

fn cells(scale: Scale) -> Vec<Cell> {
    let quick = scale == Scale::Quick;
    let tables: &[u64] = if quick { &[4, 256] } else { &[4, 256, 1 << 10, 4 << 10, 8 << 10, 16 << 10] };
    let trees: &[usize] = if quick { &[1 << 16, 1 << 18] } else { &[1 << 16, 1 << 18, 1 << 20, LARGEST_TREE] };
    let tables = tables.iter().map(|&mib| gups_cell(mib));
    tables.chain(trees.iter().map(|&nodes| red_black_cell(nodes))).collect()
}

fn size_name(mib: u64) -> String {
    if mib < 1 << 10 { format!("{mib} MB") } else { format!("{} GB", mib >> 10) }
}

fn gups_cell(mib: u64) -> Cell {
    let column = size_name(mib);
    let paper = Row::ratio(GUPS_TABLE, PAPER_TREE);
    let id = format!("figure4/gups/{}", column.replace(" MB", "M").replace(" GB", "G"));
    let rows = vec![
        Row::new(Quantity::Nanoseconds, GUPS_TABLE, ARRAY),
        Row::ratio(GUPS_TABLE, HUGE_ARRAY),
        if mib == 16 << 10 { paper.with_paper("figure4/gups") } else { paper },
        Row::ratio(GUPS_TABLE, TREE),
        Row::ratio(GUPS_TABLE, TREE_BATCHES),
    ];
    Cell::new(id, column, mib * MIB, rows, move |trial| measure_gups(trial, mib * MIB))
}

fn measure_gups(trial: &Trial, bytes: u64) -> Result<SampleOutcome> {
    let words = usize::try_from(bytes)? / size_of::<u64>();
    compare_sides(
        trial,
        vec![
            Side::new(bytes, move || array_side(trial, PageKind::Small4k, words)),
            Side::new(bytes, move || array_side(trial, PageKind::Thp, words)),
            Side::new(bytes, move || paper_side(trial, words)),
            Side::new(bytes, move || tree_side(trial, words)),
            Side::new(bytes, move || batch_side(trial, words)),
        ],
    )
}

/// One call: new updates, and a sum over some words of the table, which finds a lost update.
#[inline(always)]
fn call(table: &mut (impl IndexMut<usize, Output = u64> + ?Sized), words: usize, seed: &mut u64) -> u64 {
    *seed += 1;
    let written = gups::update(table, words, UPDATES, *seed);
    written.wrapping_add(probe(table, words, *seed))
}

/// The sum of some words that the last updates wrote.
#[inline(always)]
fn probe(table: &(impl IndexMut<usize, Output = u64> + ?Sized), words: usize, seed: u64) -> u64 {
    gups::updates(words, 256, seed).fold(0, |sum, (place, _)| sum.wrapping_add(table[place]))
}

fn array_side(trial: &Trial, kind: PageKind, words: usize) -> Result<BuiltSide> {
    let mut table = Contiguous::new(kind, &trial.layout, words, |at| at as u64)?;
    let (pages, mut seed) = (Some(table.pages()), 0);
    let work = crate::kernel!(trial.layout, move || call(&mut *table, words, &mut seed));
    let row = if kind == PageKind::Small4k { ARRAY } else { HUGE_ARRAY };
    Ok(BuiltSide { kernels: vec![Kernel::contender(row, ARRAY, UPDATES, work)], pages })
}

fn paper_side(trial: &Trial, words: usize) -> Result<BuiltSide> {
    let pool = tree_pool(PAPER_BLOCK_BYTES, words)?;
    let mut table = PaperTree::<u64>::build(&pool, words, Order::InOrder, |at| at as u64)?;
    let (pages, mut seed) = (Some(pages_of(&pool)), 0);
    let work = crate::kernel!(trial.layout, move || call(&mut table, words, &mut seed));
    Ok(BuiltSide { kernels: vec![Kernel::contender(PAPER_TREE, ARRAY, UPDATES, work)], pages })
}

fn tree_side(trial: &Trial, words: usize) -> Result<BuiltSide> {
    let (mut table, pages) = tree_array(words)?;
    let mut seed = 0;
    let work = crate::kernel!(trial.layout, move || call(&mut table, words, &mut seed));
    Ok(BuiltSide { kernels: vec![Kernel::contender(TREE, ARRAY, UPDATES, work)], pages })
}

fn batch_side(trial: &Trial, words: usize) -> Result<BuiltSide> {
    let (mut table, pages) = tree_array(words)?;
    let mut seed = 0;
    let work = crate::kernel!(trial.layout, move || call_batched(&mut table, &mut seed));
    Ok(BuiltSide { kernels: vec![Kernel::contender(TREE_BATCHES, ARRAY, UPDATES, work)], pages })
}

#[inline(always)]
fn call_batched(table: &mut TreeArray<u64>, seed: &mut u64) -> u64 {
    *seed += 1;
    let (words, mut written) = (table.len(), 0);
    let updates = gups::updates(words, UPDATES, *seed).inspect(|(_, draw)| written ^= draw);
    table.update(updates, |word, draw| *word ^= draw);
    written.wrapping_add(probe(table, words, *seed))
}

fn tree_array(words: usize) -> Result<(TreeArray<u64>, Option<String>)> {
    let pool = tree_pool(DEFAULT_BLOCK_BYTES, words)?;
    let table = indexed::tree_of(&pool, words, |at| at as u64)?;
    Ok((table, Some(pages_of(&pool))))
}

/// A pool for a tree of `words` words with its inner nodes.
fn tree_pool(block_bytes: usize, words: usize) -> Result<Pool> {
    let bytes = words * size_of::<u64>();
    large_page_pool(block_bytes, (bytes + bytes / 1024 + 4 * block_bytes) as u64)
}

fn red_black_cell(nodes: usize) -> Cell {
    let column = if nodes < 1 << 20 { format!("{}K nodes", nodes >> 10) } else { format!("{}M nodes", nodes >> 20) };
    let both = Row::ratio(TREES_TABLE, BOTH_BLOCKS);
    let id = format!("figure4/red-black/{}", column.replace(" nodes", ""));
    let rows = vec![
        Row::new(Quantity::Nanoseconds, TREES_TABLE, TRAVERSED),
        Row::ratio(TREES_TABLE, TRAVERSED_BLOCKS),
        Row::new(Quantity::Nanoseconds, TREES_TABLE, INSERTED),
        Row::ratio(TREES_TABLE, INSERTED_BLOCKS),
        Row::new(Quantity::Nanoseconds, TREES_TABLE, BOTH),
        if nodes == LARGEST_TREE { both.with_paper("figure4/red-black") } else { both },
    ];
    Cell::new(id, column, node_bytes(nodes), rows, move |trial| measure_red_black(trial, nodes))
}

/// Memory of `nodes` nodes: 48 bytes each with malloc, and 8 in the list of unlinked nodes.
const fn node_bytes(nodes: usize) -> u64 {
    nodes as u64 * 56
}

fn measure_red_black(trial: &Trial, nodes: usize) -> Result<SampleOutcome> {
    let (malloc_ns, blocks_ns) = (Rc::new(Shared::new(0.0)), Rc::new(Shared::new(0.0)));
    let (malloc_time, blocks_time) = (Rc::clone(&malloc_ns), Rc::clone(&blocks_ns));
    let outcome = compare_sides(
        trial,
        vec![
            Side::new(node_bytes(nodes), move || malloc_side(trial, nodes, &malloc_time)),
            Side::new(node_bytes(nodes), move || blocks_side(trial, nodes, &blocks_time)),
        ],
    )?;
    match outcome {
        SampleOutcome::Measured { mut figures, alternately } if trial.task == Task::Time => {
            add_insertions(&mut figures, malloc_ns.get(), blocks_ns.get())?;
            Ok(SampleOutcome::Measured { figures, alternately })
        }
        other => Ok(other),
    }
}

/// Adds the times of insertions, and of both phases together.
fn add_insertions(figures: &mut Vec<MeasuredValue>, malloc_ns: f64, blocks_ns: f64) -> Result<()> {
    let [malloc, blocks] = &figures[..] else {
        bail!("cannot add insertions: {} traversals were timed, not 2", figures.len())
    };
    let whole = (malloc.value + malloc_ns, blocks.value + blocks_ns);
    let (malloc_pages, blocks_pages) = (malloc.pages.clone(), blocks.pages.clone());
    let mut add = |row: &str, value, ratio, pages: &Option<String>| {
        figures.push(MeasuredValue { ratio, pages: pages.clone(), ..MeasuredValue::of(row, value) });
    };
    add(INSERTED, malloc_ns, None, &malloc_pages);
    add(INSERTED_BLOCKS, blocks_ns, Some(blocks_ns / malloc_ns), &blocks_pages);
    add(BOTH, whole.0, None, &malloc_pages);
    add(BOTH_BLOCKS, whole.1, Some(whole.1 / whole.0), &blocks_pages);
    Ok(())
}

fn malloc_side(trial: &Trial, count: usize, insertion_ns: &Shared<f64>) -> Result<BuiltSide> {
    // While the nodes are first touched. Small pages mostly stay small, because khugepaged scans
    // only a few megabytes during a measurement.
    disable_transparent_huge_pages(true).context("cannot disable transparent huge pages (prctl)")?;
    let nodes = UnlinkedNodes::new(Malloc, count);
    disable_transparent_huge_pages(false).context("cannot enable transparent huge pages (prctl)")?;
    let nodes = nodes?;
    let pages = crate::pages::under(nodes.range());
    let tree = timed_insertion(nodes, count, insertion_ns)?;
    let (mut last, window) = (u64::MAX, count.min(WINDOW));
    let work = crate::kernel!(trial.layout, move || tree.traverse(&mut last, window));
    Ok(BuiltSide { kernels: vec![Kernel::baseline(TRAVERSED, window as u64, work)], pages: Some(pages) })
}

fn blocks_side(trial: &Trial, count: usize, insertion_ns: &Shared<f64>) -> Result<BuiltSide> {
    let pool = large_page_pool(SLAB_BYTES, node_bytes(count))?;
    let nodes = UnlinkedNodes::new(InBlocks::new(&pool)?, count)?;
    let tree = timed_insertion(nodes, count, insertion_ns)?;
    let (mut last, window) = (u64::MAX, count.min(WINDOW));
    let work = crate::kernel!(trial.layout, move || tree.traverse(&mut last, window));
    let kernels = vec![Kernel::contender(TRAVERSED_BLOCKS, TRAVERSED, window as u64, work)];
    Ok(BuiltSide { kernels, pages: Some(pages_of(&pool)) })
}

/// Inserts the nodes into a tree and verifies it. Stores the time per insertion.
fn timed_insertion<N: Nodes>(nodes: UnlinkedNodes<N>, count: usize, insertion_ns: &Shared<f64>) -> Result<RedBlack<N>> {
    let start = thread_cpu_s();
    let tree = nodes.insert();
    insertion_ns.set((thread_cpu_s() - start) * 1e9 / count as f64);
    tree.verify(count)?;
    Ok(tree)
}
