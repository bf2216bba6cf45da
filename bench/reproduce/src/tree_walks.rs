//! Arrays as trees beside arrays under address translation: what finding an element reads, with a walk cache in software and in hardware.
//!
//! Source: Zagieboylo, Suh and Myers, section 4.4 ("Discussion"), over the arrays and access patterns of section 4.2. The paper discusses
//! and does not measure this: no hardware walks such trees. So both sides are models (`fieldstone-translation`), and nothing is timed.
//!
//! ```text
//! stream ── offsets ─┬─→ model::array   TLBs, walk caches, page table    on 4 KiB, 2 MiB, 1 GiB pages     a cell for each processor
//!                    └─→ model::trees   naive, cursor, accelerators      blocks of 32 KiB                 a cell
//! reading            a row of a table, and the count that fills it
//! ```
//! Where we differ:
//! - the paper's Iterator goes down from the root when it leaves its leaf; the modelled cursor climbs no higher than it has to;
//! - what is read counts the same here whether it lies in a cache or not. Caches hold the trees' pointers the more easily: there is one for
//!   each 32 KiB, and a page table entry for each 4 KiB.

mod model;
mod reading;
mod stream;
#[cfg(test)]
mod tests;

use fieldstone_translation::Mmu;

use crate::experiment::{Cell, Experiment, Figure, Needs, Outcome, Row, Scale};
use crate::table2;

use model::Run;
use reading::{Reading, array_readings, tree_readings};
use stream::Stream;

/// The paper's processor, an i7-7700, among the machines that can be modelled.
const PAPER_MACHINE: &str = "skylake";

/// Memory that a cell takes: tables of TLBs and caches. The arrays are addresses only.
const MODEL_BYTES: u64 = 16 << 20;

/// Walk caches, in software and in hardware.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "tree-walks",
        title: "Walk caches in software, tree walks in hardware",
        source: "Zagieboylo, Suh and Myers, section 4.4, over the arrays of section 4.2; all modelled",
        about: "Nothing is timed and no array exists: the addresses of the paper's scans and of GUPS run through models, and two \
                million accesses are counted after a warm-up. Numbers are an access (of GUPS, an update), the access to the \
                element itself not among them, and what is read counts the same from a cache and from memory. An array takes \
                page walks: on the paper's processor, an i7-7700, and in the last tables on the others that `profile --tlb` \
                knows; `tree-walks/zen4` is one of them alone. A tree of 32 KiB blocks in physical memory takes the pointers \
                above the leaf, one fewer than it is deep: naive, all of them each time; with a cursor, the paper's Iterator \
                (\"a PTW cache in software\"), those beside the path of the access before; with an accelerator (\"hardware \
                acceleration of tree traversals\"), those that it does not hold, in as many entries as the processor's PDE \
                cache has, or its second TLB. Scans need no hardware: a cursor reads a pointer for each leaf, 1 in 8192 \
                accesses of a linear scan and 1 in 8 of a strided one, where walks for 4 KiB pages read eight times as much. \
                GUPS is a program \"where no static optimization can help\": on a large array a cursor saves next to \
                nothing and costs instructions. The small accelerator helps as far as its entries reach, which is not far at 64 GB; the large \
                one takes away one pointer of two, and the last is read each time. Of a linear scan 8 MiB are counted: \
                those begin no new page of 1 GiB.",
        needs: Needs { minutes: 1, memory_bytes: MODEL_BYTES, disk_bytes: 0 },
        cells,
    }
}

/// The paper's processor beside the trees, then the other processors: so stand their tables.
fn cells(scale: Scale) -> Vec<Cell> {
    let (paper, others): (Vec<Mmu>, Vec<Mmu>) =
        Mmu::presets().into_iter().partition(|machine| machine.name == PAPER_MACHINE);
    let places = || table2::sizes(scale).flat_map(|size| Stream::ALL.map(|stream| (stream, size)));
    let beside = places().flat_map(|(stream, size)| {
        let arrays = paper.iter().map(move |machine| array_cell(machine, stream, size));
        arrays.chain([tree_cell(stream, size)])
    });
    let elsewhere = places().flat_map(|(stream, size)| others.iter().map(move |of| array_cell(of, stream, size)));
    beside.chain(elsewhere).collect()
}

/// Label in ids, column, bytes.
type Size = (&'static str, &'static str, u64);

fn array_cell(machine: &Mmu, stream: Stream, size: Size) -> Cell {
    let readings = array_readings(machine, stream, size.1);
    let (rows, run, machine) = (rows(&readings), Run::of(stream, size.2), machine.clone());
    cell(&machine.name.clone(), stream, size, rows, move || {
        Ok(figures(&readings, &model::array(&run, &machine)?, &run))
    })
}

fn tree_cell(stream: Stream, size: Size) -> Cell {
    let readings = tree_readings(stream, size.1);
    let (rows, run) = (rows(&readings), Run::of(stream, size.2));
    cell("trees", stream, size, rows, move || Ok(figures(&readings, &model::trees(&run), &run)))
}

fn cell(
    group: &str,
    stream: Stream,
    (label, column, _): Size,
    rows: Vec<Row>,
    figures: impl Fn() -> anyhow::Result<Vec<Figure>> + 'static,
) -> Cell {
    Cell {
        id: format!("tree-walks/{group}/{}/{label}", stream.label()),
        column: column.to_owned(),
        memory_bytes: MODEL_BYTES,
        rows,
        measure: Box::new(move |_| Ok(Outcome::Measured { figures: figures()?, alternately: true })),
    }
}

fn rows<T>(readings: &[Reading<T>]) -> Vec<Row> {
    readings.iter().map(|reading| reading.row.clone()).collect()
}

fn figures<T>(readings: &[Reading<T>], counted: &T, run: &Run) -> Vec<Figure> {
    readings.iter().map(|reading| reading.figure(counted, run.counted)).collect()
}
