//! Black-Scholes prices with the options in contiguous arrays and in trees.
//!
//! A call prices the next [`WINDOW`] options and adds up the bits of all prices, which must be
//! equal on all sides. One function computes prices and is not inlined. The sides differ only in
//! the loads of its arguments.
//!
//! Block sizes are those of the blog, 4 KiB to 1 MiB, on [`SWEEP`] options. The cell of the paper's
//! size (600 MB) has the paper's block size, 32 KiB.

mod arrays;
mod structs;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use anyhow::Result;
use fieldstone_blocks::{PageKind, Pool};
use fieldstone_workloads::blackscholes::{Contract, contracts, price};

use crate::comparison::{BuiltSide, Kernel, Side, compare_sides};
use crate::experiment::{Cell, Quantity, Row, SampleOutcome, Scale};
use crate::pages::{Contiguous, pages_of, pool_on};
use crate::stack_blocks;
use crate::trial::Trial;

/// Options of the cells that sweep the block size: 25 MB.
const SWEEP: usize = 1 << 20;
/// Options of the cells of the paper's size: 600 MB.
const WHOLE: usize = 24 << 20;
/// Options per call, a multiple of the elements of each leaf, so that windows begin with leaves.
const WINDOW: usize = 1 << 18;

const ARRAY: &str = "contiguous, ns an option";
const PAPER_TREE: &str = "the paper's tree, by index, depth at run time";
const THREE_LEVELS: &str = "the paper's tree, by index, always three levels (\"No Branches\")";
const PAPER_ITER: &str = "the paper's tree, by its Iterator";
const TREE: &str = "tree array, by index";
const LEAVES: &str = "tree array, by leaves";
const BOTH: &str = "tree array, by leaves, on a stack of blocks";

/// The layout of the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// An array per field.
    Arrays,
    /// One array of structs.
    Structs,
}

/// The cells: one per block size and shape, and the paper's size in both shapes.
pub(super) fn cells(scale: Scale) -> Vec<Cell> {
    let shapes = [Shape::Arrays, Shape::Structs];
    let sizes: &[usize] = if scale == Scale::Quick { &[8, 16, 32] } else { &[4, 8, 16, 32, 64, 128, 256, 512, 1024] };
    let sweep = shapes.into_iter().flat_map(|shape| sizes.iter().map(move |&kib| cell(shape, kib, SWEEP)));
    let whole = shapes.into_iter().filter(|_| scale == Scale::Full).map(|shape| cell(shape, 32, WHOLE));
    sweep.chain(whole).collect()
}

fn cell(shape: Shape, kib: usize, options: usize) -> Cell {
    let (label, table) = match (shape, options) {
        (Shape::Arrays, WHOLE) => ("arrays", "Black-Scholes, 600 MB in blocks of 32 KiB"),
        (Shape::Structs, WHOLE) => ("structs", "Black-Scholes, 600 MB in blocks of 32 KiB"),
        (Shape::Arrays, _) => ("arrays", "Black-Scholes, five arrays as published, by block size"),
        (Shape::Structs, _) => ("structs", "Black-Scholes, one array of structs, by block size"),
    };
    let of_size = if kib < 1024 { format!("{kib} KB") } else { format!("{} MB", kib / 1024) };
    let size = if options == WHOLE { "whole".to_owned() } else { of_size.replace(' ', "") };
    let column = match (shape, options) {
        (Shape::Arrays, WHOLE) => "five arrays".to_owned(),
        (Shape::Structs, WHOLE) => "one array of structs".to_owned(),
        _ => of_size,
    };
    let id = format!("figure5/blackscholes-{label}/{size}");
    let rows = rows(table, shape, kib, options);
    Cell::new(id, column, bytes_of(options), rows, move |trial| measure(trial, shape, kib, options))
}

fn rows(table: &'static str, shape: Shape, kib: usize, options: usize) -> Vec<Row> {
    let paper = |row: Row| match (row.name.as_str(), shape, kib, options) {
        (PAPER_TREE | PAPER_ITER, _, _, WHOLE) => row.with_paper("figure5/degraded"),
        (PAPER_TREE, Shape::Arrays, 8, _) => row.with_paper("blog/worst"),
        (THREE_LEVELS, Shape::Arrays, 16, _) => row.with_paper("blog/no-branches"),
        _ => row,
    };
    let ratios = [PAPER_TREE, THREE_LEVELS, PAPER_ITER, TREE, LEAVES].map(|name| paper(Row::ratio(table, name)));
    let both = stack_blocks::AVAILABLE.then(|| Row::ratio(table, BOTH));
    [Row::new(Quantity::Nanoseconds, table, ARRAY)].into_iter().chain(ratios).chain(both).collect()
}

/// Bytes of five floats, a flag and a price per option.
const fn bytes_of(options: usize) -> u64 {
    options as u64 * 25
}

fn measure(trial: &Trial, shape: Shape, kib: usize, options: usize) -> Result<SampleOutcome> {
    match kib {
        4 => sides::<{ 4 << 10 }>(trial, shape, options),
        8 => sides::<{ 8 << 10 }>(trial, shape, options),
        16 => sides::<{ 16 << 10 }>(trial, shape, options),
        32 => sides::<{ 32 << 10 }>(trial, shape, options),
        64 => sides::<{ 64 << 10 }>(trial, shape, options),
        128 => sides::<{ 128 << 10 }>(trial, shape, options),
        256 => sides::<{ 256 << 10 }>(trial, shape, options),
        512 => sides::<{ 512 << 10 }>(trial, shape, options),
        _ => sides::<{ 1 << 20 }>(trial, shape, options),
    }
}

fn sides<const B: usize>(trial: &Trial, shape: Shape, options: usize) -> Result<SampleOutcome> {
    let side =
        |build: fn(&Trial, usize) -> Result<BuiltSide>| Side::new(bytes_of(options), move || build(trial, options));
    let sides = match shape {
        Shape::Arrays => vec![
            side(arrays::contiguous),
            side(arrays::paper::<B>),
            side(arrays::three_levels::<B>),
            side(arrays::tree::<B>),
        ],
        Shape::Structs => vec![
            side(structs::contiguous),
            side(structs::paper::<B>),
            side(structs::three_levels::<B>),
            side(structs::tree::<B>),
        ],
    };
    compare_sides(trial, sides)
}

/// The data of a kernel: options, which it may share with other kernels of its side, and prices.
struct Work<O> {
    options: Rc<O>,
    prices: Rc<RefCell<Contiguous<f32>>>,
    next: usize,
}

impl<O> Work<O> {
    /// The data of one side with `count` options.
    fn new(trial: &Trial, options: O, count: usize) -> Result<Self> {
        let prices = Contiguous::small_pages(&trial.layout, count, |_| 0.0)?;
        Ok(Self { options: Rc::new(options), prices: Rc::new(RefCell::new(prices)), next: 0 })
    }

    /// The same data for another kernel of the side.
    fn share(&self) -> Self {
        Self { options: Rc::clone(&self.options), prices: Rc::clone(&self.prices), next: 0 }
    }

    /// Prices the next window by `price_all`, whose arguments are the options, their range, and the
    /// destination of the prices.
    #[inline(always)]
    fn call(&mut self, price_all: impl FnOnce(&O, Range<usize>, &mut [f32]) -> u64) -> u64 {
        let mut prices = self.prices.borrow_mut();
        let range = self.next..(self.next + WINDOW).min(prices.len());
        self.next = if range.end == prices.len() { 0 } else { range.end };
        price_all(&self.options, range.clone(), &mut prices[range])
    }
}

/// Prices options in order. Returns the sum of the bits of all prices.
#[inline(always)]
fn price_each(options: impl Iterator<Item = Contract>, prices: &mut [f32]) -> u64 {
    price_each_by(price, options, prices)
}

/// The same with the function `price`.
#[inline(always)]
fn price_each_by(price: impl Fn(Contract) -> f32, options: impl Iterator<Item = Contract>, prices: &mut [f32]) -> u64 {
    options.zip(prices).fold(0, |sum: u64, (option, place)| {
        *place = price(option);
        sum.wrapping_add(u64::from(place.to_bits()))
    })
}

/// Prices an option in a call that checks its stack and continues in another block if needed.
#[inline(always)]
fn price_grown(option: Contract) -> f32 {
    stack_blocks::grow(|| price(option))
}

/// The kernel of a row. Its side has `count` options.
fn kernel(row: &str, count: usize, call: Box<dyn FnMut() -> u64>) -> Kernel {
    Kernel::contender(row, ARRAY, count.min(WINDOW) as u64, call)
}

/// The kernels of a tree array: by index, by leaves, and by leaves on a stack of blocks if
/// available.
fn tree_kernels(count: usize, [index, leaves, both]: [Box<dyn FnMut() -> u64>; 3]) -> Vec<Kernel> {
    let both = stack_blocks::AVAILABLE.then(|| kernel(BOTH, count, both));
    [kernel(TREE, count, index), kernel(LEAVES, count, leaves)].into_iter().chain(both).collect()
}

/// A pool for `count` options, on 4 KiB pages.
fn small_page_pool(block_bytes: usize, count: usize) -> Result<Pool> {
    pool_on(PageKind::Small4k, block_bytes, bytes_of(count))
}

fn prepared(pool: &Pool, kernels: Vec<Kernel>) -> BuiltSide {
    BuiltSide { kernels, pages: Some(pages_of(pool)) }
}

/// A function that returns a field of each option in order, for the constructors of arrays.
fn field<T: Default>(count: usize, of: impl Fn(Contract) -> T) -> impl FnMut(usize) -> T {
    let mut fields = contracts(count).map(of);
    move |_| fields.next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use fieldstone_workloads::blackscholes::verify;

    use super::*;
    use crate::layout::Layout;
    use crate::trial::Task;

    fn trial() -> Trial {
        Trial {
            cell: String::new(),
            layout: Layout::of_seed(5),
            quick: true,
            memory_bytes: 256 << 20,
            task: Task::Time,
        }
    }

    #[test]
    fn all_sides_price_alike_bit_for_bit() {
        for shape in [Shape::Arrays, Shape::Structs] {
            // The last window is incomplete. The comparison fails if the sums of bits differ.
            for options in [3000, WINDOW + 70_000] {
                let SampleOutcome::Measured { figures, .. } = sides::<4096>(&trial(), shape, options).unwrap() else {
                    unreachable!()
                };
                assert_eq!(figures.len(), 6 + usize::from(stack_blocks::AVAILABLE), "{shape:?}");
            }
        }
    }

    #[test]
    fn what_is_stored_is_what_the_workload_checks() {
        let options: Vec<Contract> = contracts(2000).collect();
        let mut work = Work::new(&trial(), options, 2000).unwrap();
        work.call(|options, range, prices| price_each(options[range].iter().copied(), prices));
        verify(&work.prices.borrow()).unwrap();
    }

    #[test]
    fn no_two_cells_have_one_id() {
        for scale in [Scale::Quick, Scale::Full] {
            let ids: Vec<String> = cells(scale).into_iter().map(|cell| cell.id).collect();
            let mut unique = ids.clone();
            unique.sort();
            unique.dedup();
            assert_eq!(unique.len(), ids.len(), "{ids:?}");
        }
    }
}
