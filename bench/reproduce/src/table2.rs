//! Table 2 of the paper: linear and strided scans of trees against contiguous arrays. Also scans of
//! `TreeArray`, the library's array.
//!
//! Each size has four cells with the same baseline: the tree of the paper, the same with shuffled
//! leaves, `TreeArray`, and a contiguous array on huge pages as a control that the paper lacks.
//! Elements have 4 bytes, and the stride is "every 1024th element (i.e., 4 KB apart)".
//!
//! Source: Zagieboylo, Suh and Myers, section 4.2.
//!
//! Differences from the paper:
//! - The scans of the paper's rows load each element into a register, so that compilers do not
//!   vectorise only the array's loop. With a vectorised array the naive tree would be 6 to 12 times
//!   as slow. A vectorised pair has its own rows.
//! - A linear scan of more than 256 MiB continues where the call before it ended, 256 MiB per call.
//! - Scans of few elements are repeated within a call: a strided scan of 4 KB reads one element.

pub(crate) mod scan;

use std::rc::Rc;

use anyhow::Result;
use fieldstone_blocks::{PageKind, TreeArray};

use crate::comparison::{BuiltSide, Kernel, Side, compare_sides};
use crate::experiment::{Cell, Experiment, Needs, Quantity, Row, SampleOutcome, Scale};
use crate::kernel;
use crate::layout::Layout;
use crate::pages::{Contiguous, large_page_kind, large_page_pool, pages_of};
use crate::paper_tree::{Order, PAPER_BLOCK_BYTES};
use crate::trial::Trial;
use scan::{
    Paper, STRIDE, Scan, add, array_by_index, array_linear, array_strided, array_vector, element, laps, tree_naive,
    tree_static,
};

/// Table 2.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "table2",
        title: "Scans of arrays as trees",
        source: "Zagieboylo, Suh and Myers, Table 2",
        about: "Time per element, as a ratio to a contiguous array on 4 KiB pages; below 1 is faster. Trees are on 1 GiB \
                pages if reserved, else on transparent huge pages. The trees of the paper have blocks of 32 KiB, TreeArray \
                has its default size. The last rows scan a contiguous array on huge pages: a ratio below theirs is a gain \
                of the tree, not of the pages.",
        needs: Needs { minutes: 12, memory_bytes: 64 << 30, disk_bytes: 0 },
        cells,
    }
}

/// Name in ids, column of the paper, bytes.
const SIZES: [(&str, &str, u64); 8] = [
    ("4K", "4KB", 4 << 10),
    ("4M", "4MB", 4 << 20),
    ("256M", "256MB", 256 << 20),
    ("4G", "4GB", 4 << 30),
    ("8G", "8GB", 8 << 30),
    ("16G", "16GB", 16 << 30),
    ("32G", "32GB", 32 << 30),
    ("64G", "64GB", 64 << 30),
];
/// The largest size of a quick run.
const QUICK_BYTES: u64 = 256 << 20;

const LINEAR: &str = "Linear scan";
const STRIDED: &str = "Strided scan, every 1024th element";
const ARRAY_LINEAR: &str = "array, ns an element";
const ARRAY_VECTOR: &str = "array, vectorised, ns an element";
const ARRAY_STRIDED: &str = "array, ns an access";

fn cells(scale: Scale) -> Vec<Cell> {
    sizes(scale).flat_map(|(label, column, bytes)| cells_of(label, column, bytes)).collect()
}

/// The arrays of a scale: name in ids, column of the paper, bytes.
pub(crate) fn sizes(scale: Scale) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
    SIZES.into_iter().filter(move |(.., bytes)| scale == Scale::Full || *bytes <= QUICK_BYTES)
}

fn cells_of(label: &str, column: &str, bytes: u64) -> [Cell; 4] {
    let cell = |group: &str, rows: Vec<Row>, measure: fn(&Trial, u64) -> Result<SampleOutcome>| {
        Cell::new(format!("table2/{group}/{label}"), column, bytes, rows, move |trial| measure(trial, bytes))
    };
    [
        cell("paper-tree", paper_rows(column), |trial, bytes| paper(trial, bytes, Order::InOrder)),
        cell("shuffled", shuffled_rows(), |trial, bytes| paper(trial, bytes, Order::Shuffled(trial.layout.seed))),
        cell("tree-array", tree_array_rows(), tree_array),
        cell("huge-array", huge_array_rows(), huge_array),
    ]
}

fn paper_rows(column: &str) -> Vec<Row> {
    let quoted = |table, name: &str| {
        let row = Row::ratio(table, name);
        // The paper has no column of 256 MB.
        if column == "256MB" { row } else { row.with_paper(format!("table2/{name}/{column}")) }
    };
    vec![
        Row::new(Quantity::Nanoseconds, LINEAR, ARRAY_LINEAR),
        quoted(LINEAR, "Linear Scan: Naive"),
        quoted(LINEAR, "Linear Scan: Iter"),
        Row::ratio(LINEAR, "naive, depth static"),
        Row::new(Quantity::Nanoseconds, STRIDED, ARRAY_STRIDED),
        quoted(STRIDED, "Strided Scan: Naive"),
        quoted(STRIDED, "Strided Scan: Iter"),
        Row::ratio(STRIDED, "strided naive, depth static"),
    ]
}

fn shuffled_rows() -> Vec<Row> {
    let rows = [(LINEAR, "Linear Scan: Naive"), (LINEAR, "Linear Scan: Iter"), (LINEAR, "naive, depth static")];
    let strided =
        [(STRIDED, "Strided Scan: Naive"), (STRIDED, "Strided Scan: Iter"), (STRIDED, "strided naive, depth static")];
    rows.iter().chain(&strided).map(|(table, name)| Row::ratio(table, shuffled(name))).collect()
}

fn shuffled(name: &str) -> String {
    format!("{name}, blocks shuffled")
}

fn tree_array_rows() -> Vec<Row> {
    vec![
        Row::ratio(LINEAR, "TreeArray, by index"),
        Row::ratio(LINEAR, "TreeArray, by leaves"),
        Row::new(Quantity::Nanoseconds, LINEAR, ARRAY_VECTOR),
        Row::ratio(LINEAR, "TreeArray, by leaves, both vectorised"),
        Row::ratio(STRIDED, "TreeArray, strided by index"),
        Row::ratio(STRIDED, "TreeArray, stride with prefetch"),
    ]
}

fn huge_array_rows() -> Vec<Row> {
    vec![
        Row::ratio(LINEAR, "array on huge pages"),
        Row::ratio(LINEAR, "array on huge pages, both vectorised"),
        Row::ratio(STRIDED, "array on huge pages, strided"),
    ]
}

fn elements(bytes: u64) -> usize {
    usize::try_from(bytes / size_of::<u32>() as u64).unwrap_or(usize::MAX)
}

/// The contiguous array on pages of `kind`. Its kernels are baselines or their contenders.
fn array_side(layout: Layout, kind: PageKind, bytes: u64, names: [(&'static str, &'static str); 3]) -> Side<'static> {
    Side::new(bytes, move || {
        let len = elements(bytes);
        let array = Rc::new(Contiguous::new(kind, &layout, len, element)?);
        let pages = Some(array.pages());
        let (mut linear, mut vector, mut strided) = (Scan::linear(len), Scan::linear(len), Scan::strided(len));
        let operations = [linear.linear_operations(), vector.linear_operations(), strided.strided_operations()];
        let [a, b, c] = [0; 3].map(|_| Rc::clone(&array));
        let calls = [
            kernel!(layout, move || laps(&mut linear, &a[..], array_linear)),
            kernel!(layout, move || laps(&mut vector, &b[..], array_vector)),
            kernel!(layout, move || laps(&mut strided, &c[..], array_strided)),
        ];
        let kernels = names.into_iter().zip(operations).zip(calls);
        let kernels =
            kernels.map(|(((row, against), operations), call)| Kernel::contender(row, against, operations, call));
        Ok(BuiltSide { kernels: kernels.collect(), pages })
    })
}

const BASELINES: [(&str, &str); 3] =
    [(ARRAY_LINEAR, ARRAY_LINEAR), (ARRAY_VECTOR, ARRAY_VECTOR), (ARRAY_STRIDED, ARRAY_STRIDED)];

fn baseline(trial: &Trial, bytes: u64) -> Side<'static> {
    array_side(trial.layout, PageKind::Small4k, bytes, BASELINES)
}

fn huge_array(trial: &Trial, bytes: u64) -> Result<SampleOutcome> {
    let names = [
        ("array on huge pages", ARRAY_LINEAR),
        ("array on huge pages, both vectorised", ARRAY_VECTOR),
        ("array on huge pages, strided", ARRAY_STRIDED),
    ];
    let huge = array_side(trial.layout, large_page_kind(bytes), bytes, names);
    compare_sides(trial, vec![baseline(trial, bytes), huge])
}

fn paper(trial: &Trial, bytes: u64, order: Order) -> Result<SampleOutcome> {
    let layout = trial.layout;
    let tree = Side::new(bytes, move || {
        let len = elements(bytes);
        let pool = large_page_pool(PAPER_BLOCK_BYTES, bytes)?;
        let tree = Rc::new(Paper::build(&pool, len, order, element)?);
        let mut kernels = paper_kernels(layout, &tree);
        if order != Order::InOrder {
            kernels.iter_mut().for_each(|kernel| kernel.row = shuffled(&kernel.row));
        }
        Ok(BuiltSide { kernels, pages: Some(pages_of(&pool)) })
    });
    compare_sides(trial, vec![baseline(trial, bytes), tree])
}

fn paper_kernels(layout: Layout, tree: &Rc<Paper>) -> Vec<Kernel> {
    let (linear, strided) = (Scan::linear(tree.len()), Scan::strided(tree.len()));
    let own = || Rc::clone(tree);
    let (a, b, c, d) = (own(), own(), own(), own());
    let (mut sa, mut sb, mut sc, mut sd) = (linear, linear, strided, strided);
    let naive = kernel!(layout, move || laps(&mut sa, &*a, |tree, range| tree_naive(tree, range, 1)));
    let iter = kernel!(layout, move || laps(&mut sb, &*b, |tree, range| {
        tree.iter_from(range).fold(0, |sum, element| add(sum, *element))
    }));
    let strided_naive = kernel!(layout, move || laps(&mut sc, &*c, |tree, range| tree_naive(tree, range, STRIDE)));
    let strided_iter = kernel!(layout, move || laps(&mut sd, &*d, |tree, range| {
        tree.stride(STRIDE, range).fold(0, |sum, element| add(sum, *element))
    }));
    let (linear_operations, strided_operations) = (linear.linear_operations(), strided.strided_operations());
    let linear_row = |row, call| Kernel::contender(row, ARRAY_LINEAR, linear_operations, call);
    let strided_row = |row, call| Kernel::contender(row, ARRAY_STRIDED, strided_operations, call);
    vec![
        linear_row("Linear Scan: Naive", naive),
        linear_row("Linear Scan: Iter", iter),
        linear_row("naive, depth static", static_call(layout, own(), linear, 1)),
        strided_row("Strided Scan: Naive", strided_naive),
        strided_row("Strided Scan: Iter", strided_iter),
        strided_row("strided naive, depth static", static_call(layout, own(), strided, STRIDE)),
    ]
}

fn static_call(layout: Layout, tree: Rc<Paper>, mut scan: Scan, step: usize) -> Box<dyn FnMut() -> u64> {
    match tree.depth() {
        1 => kernel!(layout, move || laps(&mut scan, &*tree, |tree, range| tree_static::<1>(tree, range, step))),
        2 => kernel!(layout, move || laps(&mut scan, &*tree, |tree, range| tree_static::<2>(tree, range, step))),
        _ => kernel!(layout, move || laps(&mut scan, &*tree, |tree, range| tree_static::<3>(tree, range, step))),
    }
}

fn tree_array(trial: &Trial, bytes: u64) -> Result<SampleOutcome> {
    let layout = trial.layout;
    let tree = Side::new(bytes, move || {
        let len = elements(bytes);
        let pool = large_page_pool(fieldstone_blocks::DEFAULT_BLOCK_BYTES, bytes)?;
        let mut array = TreeArray::<u32>::try_new_in(&pool)?;
        array.try_reserve(len)?;
        array.extend((0..len).map(element));
        Ok(BuiltSide { kernels: tree_array_kernels(layout, &Rc::new(array)), pages: Some(pages_of(&pool)) })
    });
    compare_sides(trial, vec![baseline(trial, bytes), tree])
}

fn tree_array_kernels(layout: Layout, array: &Rc<TreeArray<u32>>) -> Vec<Kernel> {
    let (linear, strided) = (Scan::linear(array.len()), Scan::strided(array.len()));
    let [a, b, c, d, e] = [0; 5].map(|_| Rc::clone(array));
    let (mut sa, mut sb, mut sc, mut sd, mut se) = (linear, linear, linear, strided, strided);
    let by_index = kernel!(layout, move || laps(&mut sa, &*a, |array, range| array_by_index(array, range, 1)));
    let by_leaves = kernel!(layout, move || laps(&mut sb, &*b, |array, range| {
        array.leaves_in(range).flatten().fold(0, |sum, element| add(sum, *element))
    }));
    let vectorised = kernel!(layout, move || laps(&mut sc, &*c, |array, range| {
        array.leaves_in(range).map(|leaf| array_vector(leaf, 0..leaf.len())).sum()
    }));
    let strided_by_index =
        kernel!(layout, move || laps(&mut sd, &*d, |array, range| array_by_index(array, range, STRIDE)));
    // A strided scan covers the whole array, so its range is not used.
    let prefetched = kernel!(layout, move || laps(&mut se, &*e, |array, _| {
        array.stride(STRIDE).fold(0, |sum, element| add(sum, *element))
    }));
    let (linear_operations, strided_operations) = (linear.linear_operations(), strided.strided_operations());
    vec![
        Kernel::contender("TreeArray, by index", ARRAY_LINEAR, linear_operations, by_index),
        Kernel::contender("TreeArray, by leaves", ARRAY_LINEAR, linear_operations, by_leaves),
        Kernel::contender("TreeArray, by leaves, both vectorised", ARRAY_VECTOR, linear_operations, vectorised),
        Kernel::contender("TreeArray, strided by index", ARRAY_STRIDED, strided_operations, strided_by_index),
        Kernel::contender("TreeArray, stride with prefetch", ARRAY_STRIDED, strided_operations, prefetched),
    ]
}
