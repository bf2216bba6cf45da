//! The reads that find an element: of arrays as trees, and of arrays under address translation,
//! with a walk cache in software and in hardware.
//!
//! ```text
//! stream ── offsets ─┬─→ model::array   TLBs, walk caches, page table    on 4 KiB, 2 MiB, 1 GiB pages     a cell for each processor
//!                    └─→ model::trees   naive, cursor, accelerators      blocks of 32 KiB                 a cell
//! rows               the rows of the tables, each with the count that fills it
//! ```
//! Source: Zagieboylo, Suh and Myers, section 4.4 ("Discussion"), for the arrays and access
//! patterns of section 4.2. The paper does not measure this, because no hardware walks such trees.
//! So both sides are models (`fieldstone-translation`), and nothing is timed.
//!
//! Differences from the paper:
//! - The paper's Iterator starts at the root when it leaves its leaf. The modelled cursor only
//!   climbs to the lowest common node.
//! - A read counts the same from a cache and from memory. Caches hold pointers of trees more
//!   easily: there is one per 32 KiB, and one page table entry per 4 KiB.

mod model;
mod rows;
mod stream;
#[cfg(test)]
mod tests;

use fieldstone_translation::Mmu;

use crate::experiment::{Cell, Experiment, MeasuredValue, Needs, Row, SampleOutcome, Scale};
use crate::table2;

use model::Run;
use rows::{CountedRow, array_rows, tree_rows};
use stream::Stream;

/// The preset of the paper's processor, an i7-7700.
const PAPER_MACHINE: &str = "skylake";

/// Memory of a cell: tables of TLBs and caches. The arrays are only addresses.
const MODEL_BYTES: u64 = 16 << 20;

/// Walk caches, in software and in hardware.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "tree-walks",
        title: "Walk caches in software, tree walks in hardware",
        source: "Zagieboylo, Suh and Myers, section 4.4, over the arrays of section 4.2; all modelled",
        about: "Nothing is timed and no array exists. The addresses of the paper's scans and of GUPS run through models, and \
                two million accesses are counted after a warm-up. Numbers are per access (of GUPS, per update), without the \
                access to the element itself. A read counts the same from a cache and from memory. An array needs page \
                walks: on the paper's processor, an i7-7700, and in the last tables on the other processors of `profile \
                --tlb`; `tree-walks/zen4` selects one of them. A tree of 32 KiB blocks in physical memory needs the pointers \
                above the leaf, one fewer than its depth. Naive: all pointers for each access. Cursor, the paper's Iterator \
                (\"a PTW cache in software\"): those that are not on the path of the access before. Accelerator (\"hardware \
                acceleration of tree traversals\"): those that are not among its entries, as many as in the processor's PDE \
                cache or in its second TLB. Scans need no hardware: a cursor reads one pointer per leaf, for 1 in 8192 \
                accesses of a linear scan and 1 in 8 of a strided one. Walks for 4 KiB pages read eight times as much. GUPS \
                is a program \"where no static optimization can help\": on a large array a cursor saves almost nothing and \
                costs instructions. The small accelerator helps within the reach of its entries, which is short for 64 GB. \
                The large one saves one of two pointers; the last one is read each time. For a linear scan 8 MiB are \
                counted, which begin no new page of 1 GiB.",
        needs: Needs { minutes: 1, memory_bytes: MODEL_BYTES, disk_bytes: 0 },
        cells,
    }
}

/// The cells of the paper's processor and of the trees, then those of other processors, in the
/// order of their tables.
fn cells(scale: Scale) -> Vec<Cell> {
    let (paper, other_machines): (Vec<Mmu>, Vec<Mmu>) =
        Mmu::presets().into_iter().partition(|machine| machine.name == PAPER_MACHINE);
    let places = || table2::sizes(scale).flat_map(|size| Stream::ALL.map(|stream| (stream, size)));
    let with_trees = places().flat_map(|(stream, size)| {
        let arrays = paper.iter().map(move |machine| array_cell(machine, stream, size));
        arrays.chain([tree_cell(stream, size)])
    });
    let others = places().flat_map(|(stream, size)| other_machines.iter().map(move |of| array_cell(of, stream, size)));
    with_trees.chain(others).collect()
}

/// Name in ids, column, bytes.
type Size = (&'static str, &'static str, u64);

fn array_cell(machine: &Mmu, stream: Stream, size: Size) -> Cell {
    let counted = array_rows(machine, stream, size.1);
    let (rows, run, machine) = (plain_rows(&counted), Run::of(stream, size.2), machine.clone());
    cell(&machine.name.clone(), stream, size, rows, move || Ok(values(&counted, &model::array(&run, &machine)?, &run)))
}

fn tree_cell(stream: Stream, size: Size) -> Cell {
    let counted = tree_rows(stream, size.1);
    let (rows, run) = (plain_rows(&counted), Run::of(stream, size.2));
    cell("trees", stream, size, rows, move || Ok(values(&counted, &model::trees(&run), &run)))
}

fn cell(
    group: &str,
    stream: Stream,
    (label, column, _): Size,
    rows: Vec<Row>,
    values: impl Fn() -> anyhow::Result<Vec<MeasuredValue>> + 'static,
) -> Cell {
    let id = format!("tree-walks/{group}/{}/{label}", stream.label());
    Cell::new(id, column, MODEL_BYTES, rows, move |_| Ok(SampleOutcome::measured(values()?)))
}

fn plain_rows<T>(rows: &[CountedRow<T>]) -> Vec<Row> {
    rows.iter().map(|row| row.row.clone()).collect()
}

fn values<T>(rows: &[CountedRow<T>], counts: &T, run: &Run) -> Vec<MeasuredValue> {
    rows.iter().map(|row| row.value(counts, run.counted)).collect()
}
