//! The arrays of the blog: block sizes, static and dynamic depth, random access on small and large
//! arrays, instruction counts.
//!
//! The pointer chase "initializes the values of an array to a set of pseudorandom values (generated
//! by multiplying the index by a large prime number)". It continues by "looking up the value at
//! location 0 and then treating the value as the next index to inspect (modulo array size)".
//!
//! Source: Zagieboylo, *Evaluating the Performance Implications of Physical Addressing*,
//! "Evaluating Tree Overheads" and "Random Access Overheads".
//!
//! Differences from the blog:
//! - The block sizes are measured with a plain scan. `figure5` measures them with blackscholes.
//! - Value `i` is `(i + 1) * PRIME`, because a chase from location 0 would never leave it.
//! - The prime is 5 modulo 8, so that the chase visits the whole array (Hull and Dobell, 1962).

#![allow(unsafe_code, reason = "reads trees without bounds checks, as the blog does")]

use std::hint::black_box;
use std::rc::Rc;

use anyhow::Result;
use fieldstone_blocks::{PageKind, TreeArray};

use crate::comparison::{BuiltSide, Kernel, Side, compare_sides};
use crate::count::instructions;
use crate::experiment::{Cell, Experiment, Needs, Quantity, Row, Scale};
use crate::kernel;
use crate::layout::{Layout, consume};
use crate::pages::{Contiguous, pages_of, pool_on};
use crate::paper_tree::{Order, PaperTree};

/// The sweep of block sizes and the pointer chase.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "blog",
        title: "Block sizes, static depth, random access",
        source: "Zagieboylo's blog, Large Object Allocations",
        about: "Time per element or step, as a ratio to a contiguous array; below 1 is faster. As in the blog, both \
                sides are on 4 KiB pages. \"No Branches\" trees have depth three (the small array: one), which is known \
                at compile time. The small array is one block of 4 KiB, the large one has 256 MiB. Instructions are \
                counted on arrays of 4 KiB and 16 MiB.",
        needs: Needs { minutes: 8, memory_bytes: 600 << 20, disk_bytes: 0 },
        cells,
    }
}

const SWEEP: &str = "Linear scan by block size";
const CHASE: &str = "Random pointer chase";
const COUNT: &str = "Instructions of the chase";

const ARRAY: &str = "contiguous array";
const TREE: &str = "Array (depth at run time)";
const NO_BRANCHES: &str = "No Branches (depth static)";
const TREE_ARRAY: &str = "TreeArray, by index";
const LEAVES: &str = "TreeArray, by leaves";

/// A prime that is 5 modulo 8.
const PRIME: u64 = 2_654_435_789;
const _: () = assert!(PRIME % 8 == 5, "the chase must reach every element");

/// Elements of the scanned array: 64 MiB, or 16 MiB in a quick run, which fits in the caches of
/// many machines.
const SWEPT: (usize, usize) = (8 << 20, 2 << 20);
const STEPS: u64 = 1 << 14;
/// Block size of the chased trees.
const CHASED_BLOCK: usize = 4 << 10;

fn cells(scale: Scale) -> Vec<Cell> {
    let mut cells = vec![
        sweep::<{ 4 << 10 }>("4K", scale),
        sweep::<{ 8 << 10 }>("8K", scale),
        sweep::<{ 16 << 10 }>("16K", scale),
        sweep::<{ 32 << 10 }>("32K", scale),
        sweep::<{ 64 << 10 }>("64K", scale),
        sweep::<{ 128 << 10 }>("128K", scale),
        sweep::<{ 256 << 10 }>("256K", scale),
        sweep::<{ 512 << 10 }>("512K", scale),
        sweep::<{ 1 << 20 }>("1M", scale),
    ];
    cells.push(chase_cell("chase/small", "small, 4 KiB", 4 << 10));
    cells.push(chase_cell("chase/large", "large, 256 MiB", 256 << 20));
    cells.push(count_cell("count/small", "small, 4 KiB", 4 << 10));
    cells.push(count_cell("count/large", "large, 16 MiB", 16 << 20));
    cells
}

fn sweep<const BLOCK: usize>(label: &str, scale: Scale) -> Cell {
    let (full, quick) = SWEPT;
    let len = if scale == Scale::Full { full } else { quick };
    let id = format!("blog/sweep-{}M/{label}", (len * 8) >> 20);
    let rows = Row::compared(SWEEP, ARRAY, &[TREE, NO_BRANCHES, LEAVES]);
    Cell::new(id, label, 16 * len as u64, rows, move |trial| {
        compare_sides(trial, sweep_sides::<BLOCK>(trial.layout, len))
    })
}

fn element(index: usize) -> u64 {
    (index as u64 + 1).wrapping_mul(PRIME)
}

#[inline(always)]
fn add(sum: u64, element: u64) -> u64 {
    sum.wrapping_add(consume(element))
}

fn sweep_sides<const BLOCK: usize>(layout: Layout, len: usize) -> Vec<Side<'static>> {
    let bytes = 8 * len as u64;
    let array = Side::new(bytes, move || {
        let array = Contiguous::small_pages(&layout, len, element)?;
        let pages = Some(array.pages());
        let scan = kernel!(layout, move || black_box(&*array).iter().fold(0, |sum, element| add(sum, *element)));
        Ok(BuiltSide { kernels: vec![Kernel::baseline(ARRAY, len as u64, scan)], pages })
    });
    let tree = Side::new(2 * bytes, move || sweep_trees::<BLOCK>(layout, len));
    let leaves = Side::new(bytes, move || {
        let array = tree_array(BLOCK, len)?;
        let pages = Some(pages_of(array.pool()));
        let scan =
            kernel!(layout, move || black_box(&array).leaves().flatten().fold(0, |sum, element| add(sum, *element)));
        Ok(BuiltSide { kernels: vec![Kernel::contender(LEAVES, ARRAY, len as u64, scan)], pages })
    });
    vec![array, tree, leaves]
}

fn sweep_trees<const BLOCK: usize>(layout: Layout, len: usize) -> Result<BuiltSide> {
    let pool = pool_on(PageKind::Small4k, BLOCK, 16 * len as u64)?;
    let tree = PaperTree::<u64, BLOCK>::build(&pool, len, Order::InOrder, element)?;
    let deep = PaperTree::<u64, BLOCK>::with_depth(&pool, 3, len, Order::InOrder, element)?;
    let pages = Some(pages_of(&pool));
    let scan = kernel!(layout, move || {
        let tree = black_box(&tree);
        // SAFETY: `0..len` keeps each index below the length of the tree.
        (0..len).fold(0, |sum, at| add(sum, unsafe { *tree.get_unchecked(at) }))
    });
    let fixed = kernel!(layout, move || deep.fixed::<3>().map_or(0, |tree| {
        // SAFETY: `0..len` keeps each index below the length of the tree.
        (0..len).fold(0, |sum, at| add(sum, unsafe { *tree.get_unchecked(at) }))
    }));
    let kernels = vec![
        Kernel::contender(TREE, ARRAY, len as u64, scan),
        Kernel::contender(NO_BRANCHES, ARRAY, len as u64, fixed),
    ];
    Ok(BuiltSide { kernels, pages })
}

fn tree_array(block_bytes: usize, len: usize) -> Result<TreeArray<u64>> {
    let pool = pool_on(PageKind::Small4k, block_bytes, 8 * len as u64)?;
    let mut array = TreeArray::try_new_in(&pool)?;
    array.try_reserve(len)?;
    array.extend((0..len).map(element));
    Ok(array)
}

/// The contenders of a chase.
const CHASERS: [&str; 3] = [TREE, NO_BRANCHES, TREE_ARRAY];

fn chase_cell(id: &str, column: &str, bytes: u64) -> Cell {
    let rows = Row::compared(CHASE, ARRAY, &CHASERS);
    Cell::new(format!("blog/{id}"), column, bytes, rows, move |trial| {
        compare_sides(trial, chase_sides(trial.layout, bytes))
    })
}

fn count_cell(id: &str, column: &str, bytes: u64) -> Cell {
    let is_small = bytes == CHASED_BLOCK as u64;
    let ratios = CHASERS.map(|name| match Row::ratio(COUNT, name) {
        row if is_small && name == NO_BRANCHES => row.with_paper("blog/no-branches-instructions"),
        row => row,
    });
    let rows = std::iter::once(Row::new(Quantity::Instructions, COUNT, ARRAY)).chain(ratios).collect();
    Cell::new(format!("blog/{id}"), column, bytes, rows, move |trial| {
        instructions(trial, ARRAY, &CHASERS, || chase_sides(trial.layout, bytes))
    })
}

/// Follows the values of an array from element `at`. `mask` is the length, a power of two, minus 1.
#[inline(always)]
fn chase(at: &mut usize, mask: usize, get: impl Fn(usize) -> u64) -> u64 {
    let mut sum = 0_u64;
    for _ in 0..STEPS {
        let value = consume(get(*at));
        sum = sum.wrapping_add(value);
        *at = next(value) & mask;
    }
    sum
}

#[expect(clippy::cast_possible_truncation, reason = "the mask only needs the low bits")]
const fn next(value: u64) -> usize {
    value as usize
}

fn chase_sides(layout: Layout, bytes: u64) -> Vec<Side<'static>> {
    let len = usize::try_from(bytes / 8).unwrap_or(usize::MAX);
    let mask = len - 1;
    let array = Side::new(bytes, move || {
        let array = Contiguous::small_pages(&layout, len, element)?;
        let (pages, mut at) = (Some(array.pages()), 0);
        let walk = kernel!(layout, move || {
            let array = &black_box(&array)[..=mask];
            // SAFETY: `chase` applies the mask, which keeps the index below the length.
            chase(&mut at, mask, |at| unsafe { *array.get_unchecked(at) })
        });
        Ok(BuiltSide { kernels: vec![Kernel::baseline(ARRAY, STEPS, walk)], pages })
    });
    let tree = Side::new(bytes, move || chase_trees(layout, len));
    let ours = Side::new(bytes, move || {
        let array = Rc::new(tree_array(CHASED_BLOCK, len)?);
        let (pages, mut at) = (Some(pages_of(array.pool())), 0);
        // SAFETY: `chase` applies the mask, which keeps the index below the length.
        let walk = kernel!(layout, move || chase(&mut at, mask, |at| unsafe { *array.get_unchecked(at) }));
        Ok(BuiltSide { kernels: vec![Kernel::contender(TREE_ARRAY, ARRAY, STEPS, walk)], pages })
    });
    vec![array, tree, ours]
}

type Chased = PaperTree<u64, CHASED_BLOCK>;

fn chase_trees(layout: Layout, len: usize) -> Result<BuiltSide> {
    let mask = len - 1;
    let pool = pool_on(PageKind::Small4k, CHASED_BLOCK, 8 * len as u64)?;
    let tree = Rc::new(Chased::build(&pool, len, Order::InOrder, element)?);
    let fixed = fixed_call(layout, Rc::clone(&tree), mask);
    let mut at = 0;
    let walk = kernel!(layout, move || {
        let tree = black_box(&*tree);
        // SAFETY: `chase` applies the mask, which keeps the index below the length.
        chase(&mut at, mask, |at| unsafe { *tree.get_unchecked(at) })
    });
    let kernels =
        vec![Kernel::contender(TREE, ARRAY, STEPS, walk), Kernel::contender(NO_BRANCHES, ARRAY, STEPS, fixed)];
    Ok(BuiltSide { kernels, pages: Some(pages_of(&pool)) })
}

/// The chase with the depth of the tree as a constant.
fn fixed_call(layout: Layout, tree: Rc<Chased>, mask: usize) -> Box<dyn FnMut() -> u64> {
    let mut at = 0;
    match tree.depth() {
        1 => kernel!(layout, move || fixed_chase::<1>(&tree, &mut at, mask)),
        2 => kernel!(layout, move || fixed_chase::<2>(&tree, &mut at, mask)),
        _ => kernel!(layout, move || fixed_chase::<3>(&tree, &mut at, mask)),
    }
}

#[inline(always)]
fn fixed_chase<const DEPTH: u32>(tree: &Chased, at: &mut usize, mask: usize) -> u64 {
    // SAFETY: `chase` applies the mask, which keeps the index below the length.
    tree.fixed::<DEPTH>().map_or(0, |tree| chase(at, mask, |at| unsafe { *tree.get_unchecked(at) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chase_goes_through_the_whole_array() {
        let (len, mut at) = (512_usize, 0);
        let mut seen = vec![false; len];
        for _ in 0..len {
            assert!(!std::mem::replace(&mut seen[at], true));
            at = next(element(at)) & (len - 1);
        }
        assert_eq!(at, 0);
    }
}
