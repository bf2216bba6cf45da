//! Heap overflow detection by Appel and Li: a guard page at the end of the heap, against a
//! comparison at each allocation.
//!
//! ```text
//! compare   load next, load end, compare, branch, store next, write the object
//! guard     load next, write the last word (faults at the guard), write the rest, store next
//! ```
//! Source: Appel and Li, *Virtual Memory Primitives for User Programs* (slides), "Heap Overflow
//! Detection". The text has no time of an allocation; it has the time of a trap on each machine,
//! which is the price of a full heap.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fieldstone_guard::Bump;
use fieldstone_peers::bump::{ComparingBump, ObjectHeap, list_cells, tree_leaves};
use fieldstone_stats::median;

use crate::appel_li::{machines, this_machine};
use crate::comparison::{BuiltSide, Kernel, Side, compare_sides};
use crate::experiment::{Cell, Experiment, MeasuredValue, Needs, Quantity, Row, SampleOutcome, Scale};
use crate::kernel;
use crate::layout::Layout;
use crate::trial::Trial;

/// The limit check by object size, and a full heap.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "heap-overflow",
        title: "Heap overflow detection",
        source: "Appel and Li, Heap Overflow Detection",
        about: "\"Ordinarily, heap overflow is detected by compare & conditional branch during each memory allocation.\" \
                Both allocators bump a pointer in a heap of 4 MiB that was touched before, and write the object; only \
                the check differs. A run fills the heap, which includes one call of the slow path, and clears it. The \
                last column builds binary trees whose leaves have lists, about four objects per leaf. Times of the \
                first table are per object, or per leaf. A full heap is the time from an allocation that finds no room \
                to the return of the error to its caller. For the machines of 1991 it is TRAP, \"Useful for \
                heap-overflow detections\"; the paper's text has no time of an allocation.",
        needs: Needs { minutes: 1, memory_bytes: 16 << 20, disk_bytes: 0 },
        cells,
    }
}

const SIZES: &str = "Allocation by object size";
const FULL: &str = "A full heap, µs, 1991 and now";
const ADDS: &str = "A full heap, in ADDs";

const COMPARE: &str = "compare and branch";
const GUARD: &str = "guard page";

const BYTES: usize = 4 << 20;
/// A heap that is always full.
const FULL_BYTES: usize = 4096;
/// Allocations that are timed together.
const REPETITIONS: u32 = 100;

fn cells(_: Scale) -> Vec<Cell> {
    let mut cells = machine_cells();
    cells.push(Cell::new("heap-overflow/full", MICROSECONDS, 0, full_rows(), full));
    cells.push(size_cell::<0>("16"));
    cells.push(size_cell::<2>("32"));
    cells.push(size_cell::<6>("64"));
    cells.push(size_cell::<30>("256"));
    cells.push(time_cell("trees", "a leaf of a tree", |layout| {
        sides(layout, tree_leaves::<ComparingBump>, tree_leaves::<Bump>)
    }));
    cells
}

fn size_cell<const N: usize>(bytes: &'static str) -> Cell {
    time_cell(bytes, format!("{bytes} bytes"), |layout| {
        sides(layout, list_cells::<N, ComparingBump>, list_cells::<N, Bump>)
    })
}

fn time_cell(label: &str, column: impl Into<String>, sides: impl Fn(Layout) -> Vec<Side<'static>> + 'static) -> Cell {
    let rows = Row::compared(SIZES, COMPARE, &[GUARD]);
    Cell::new(format!("heap-overflow/time/{label}"), column, 2 * BYTES as u64, rows, move |trial| {
        compare_sides(trial, sides(trial.layout))
    })
}

/// Both heaps, filled by the same workload.
fn sides(
    layout: Layout,
    compare: impl Fn(&ComparingBump) -> u64 + Copy + 'static,
    guard: impl Fn(&Bump) -> u64 + Copy + 'static,
) -> Vec<Side<'static>> {
    let compared = Side::new(BYTES as u64, move || {
        let (objects, call) = fill(layout, ComparingBump::new(BYTES)?, compare);
        Ok(BuiltSide { kernels: vec![Kernel::baseline(COMPARE, objects, call)], pages: None })
    });
    let guarded = Side::new(BYTES as u64, move || {
        let (objects, call) = fill(layout, Bump::builder(BYTES).build()?, guard);
        Ok(BuiltSide { kernels: vec![Kernel::contender(GUARD, COMPARE, objects, call)], pages: None })
    });
    vec![compared, guarded]
}

/// The number of objects of a full heap, and a kernel that fills and clears it.
fn fill<H: ObjectHeap + 'static>(
    layout: Layout,
    mut heap: H,
    work: impl Fn(&H) -> u64 + Copy + 'static,
) -> (u64, Box<dyn FnMut() -> u64>) {
    let objects = work(&heap);
    heap.clear();
    let call = kernel!(layout, move || {
        let objects = work(&heap);
        heap.clear();
        objects
    });
    (objects, call)
}

const MICROSECONDS: &str = "µs";

fn full_rows() -> Vec<Row> {
    let name = |check: &str| format!("{}, {check}", this_machine());
    let times = [GUARD, COMPARE].map(|check| Row::new(Quantity::Microseconds, FULL, name(check)));
    let adds = Row::new(Quantity::Adds, ADDS, name(GUARD)).in_column(ADDS_COLUMN);
    times.into_iter().chain([adds]).collect()
}

const ADDS_COLUMN: &str = "ADDs";

fn full(trial: &Trial) -> Result<SampleOutcome> {
    let rounds = if trial.quick { 10 } else { 30 };
    let guard_ns = full_ns(rounds, &Bump::builder(FULL_BYTES).build()?)?;
    let compare_ns = full_ns(rounds, &ComparingBump::new(FULL_BYTES)?)?;
    let add_ns = crate::appel_li::add_ns(rounds).context("an ADD has a time")?;
    let values = [guard_ns, compare_ns, guard_ns / add_ns];
    let figures = full_rows().into_iter().zip(values).map(|(row, value)| MeasuredValue::of(row.value_name(), value));
    Ok(SampleOutcome::measured(figures.collect()))
}

/// Nanoseconds of an allocation that finds no room.
fn full_ns(rounds: usize, heap: &impl ObjectHeap) -> Result<f64> {
    while heap.place(0_u64).is_some() {}
    let mut times_ns = Vec::new();
    for _ in 0..rounds {
        let since = Instant::now();
        let placed = (0..REPETITIONS).filter(|&number| heap.place(u64::from(number)).is_some()).count();
        times_ns.push(since.elapsed().as_secs_f64() * 1e9 / f64::from(REPETITIONS));
        ensure!(placed == 0, "the heap is full");
    }
    median(&times_ns).context("a measurement has rounds")
}

/// The machines of 1991 whose TRAP the paper has.
fn machine_cells() -> Vec<Cell> {
    let names = machines::with_trap();
    let traps =
        names.iter().map(|name| Row::new(Quantity::Published, FULL, name.clone()).with_paper(machines::trap_id(name)));
    let adds =
        names.iter().map(|name| Row::new(Quantity::Adds, ADDS, name.clone()).with_computed(machines::trap_adds(name)));
    vec![
        machines::published("heap-overflow", MICROSECONDS, traps.collect()),
        machines::published("heap-overflow", ADDS_COLUMN, adds.collect()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Task;

    #[test]
    fn each_cell_fills_its_rows() {
        let mut measured = 0;
        for cell in cells(Scale::Quick).iter().filter(|cell| !cell.is_published()) {
            let trial = Trial {
                cell: cell.id.clone(),
                layout: Layout::of_seed(3),
                quick: true,
                memory_bytes: 1 << 30,
                task: Task::Time,
            };
            let SampleOutcome::Measured { figures, .. } = (cell.measure)(&trial).unwrap() else {
                panic!("{} needs nothing that a machine lacks", cell.id)
            };
            let rows: Vec<_> = cell.rows.iter().map(Row::value_name).collect();
            assert_eq!(figures.iter().map(|figure| figure.row.clone()).collect::<Vec<_>>(), rows, "{}", cell.id);
            assert!(figures.iter().all(|figure| figure.value > 0.0), "{figures:?}");
            measured += 1;
        }
        assert_eq!(measured, 6);
    }

    #[test]
    fn a_full_heap_calls_the_slow_path_once() {
        let guarded = Bump::builder(FULL_BYTES).build().unwrap();
        assert_eq!(list_cells::<0, _>(&guarded), 256);
        assert!(full_ns(3, &guarded).unwrap() > full_ns(3, &ComparingBump::new(FULL_BYTES).unwrap()).unwrap());
    }

    #[test]
    fn the_machines_of_1991_have_the_paper_s_trap() {
        assert_eq!(machines::with_trap().len(), 5);
        // 760 by 0.12.
        let adds = machines::trap_adds("Sun 3/60 SunOS 4.0").unwrap();
        assert!((adds - 6333.33).abs() < 0.01, "{adds}");
    }
}
