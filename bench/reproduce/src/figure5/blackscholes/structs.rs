//! The modified layout: one array of structs of 24 bytes.

use std::ops::{Index, Range};

use anyhow::Result;
use fieldstone_blocks::TreeArray;
use fieldstone_workloads::blackscholes::{Contract, price};

use super::{ARRAY, PAPER_ITER, PAPER_TREE, THREE_LEVELS};
use super::{Work, field, kernel, prepared, price_each, price_each_by, price_grown, small_page_pool, tree_kernels};
use crate::comparison::BuiltSide;
use crate::figure4::indexed::{Flat, ThreeLevels, tree_of};
use crate::pages::Contiguous;
use crate::paper_tree::{Order, PaperTree};
use crate::trial::Trial;

/// A contiguous array, the baseline.
pub(super) fn contiguous(trial: &Trial, count: usize) -> Result<BuiltSide> {
    let options = Flat(Contiguous::small_pages(&trial.layout, count, field(count, |contract| contract))?);
    let pages = Some(options.0.pages());
    let mut work = Work::new(trial, options, count)?;
    let call = crate::kernel!(trial.layout, move || work.call(by_index));
    Ok(BuiltSide { kernels: vec![kernel(ARRAY, count, call)], pages })
}

/// The tree of the paper, with the smallest depth.
pub(super) fn paper<const B: usize>(trial: &Trial, count: usize) -> Result<BuiltSide> {
    let pool = small_page_pool(B, count)?;
    let options = PaperTree::<_, B>::build(&pool, count, Order::InOrder, field(count, |contract| contract))?;
    let mut work = Work::new(trial, options, count)?;
    let mut second = work.share();
    let index = crate::kernel!(trial.layout, move || work.call(by_index));
    let iter = crate::kernel!(trial.layout, move || second.call(by_iterator));
    Ok(prepared(&pool, vec![kernel(PAPER_TREE, count, index), kernel(PAPER_ITER, count, iter)]))
}

/// The tree of the paper, with three levels.
pub(super) fn three_levels<const B: usize>(trial: &Trial, count: usize) -> Result<BuiltSide> {
    let pool = small_page_pool(B, count)?;
    let options = PaperTree::<_, B>::with_depth(&pool, 3, count, Order::InOrder, field(count, |contract| contract))?;
    let mut work = Work::new(trial, options, count)?;
    let call = crate::kernel!(trial.layout, move || work.call(by_fixed_index));
    Ok(prepared(&pool, vec![kernel(THREE_LEVELS, count, call)]))
}

/// A tree array.
pub(super) fn tree<const B: usize>(trial: &Trial, count: usize) -> Result<BuiltSide> {
    let pool = small_page_pool(B, count)?;
    let options = tree_of(&pool, count, field(count, |contract| contract))?;
    let mut work = Work::new(trial, options, count)?;
    let (mut second, mut third) = (work.share(), work.share());
    let index = crate::kernel!(trial.layout, move || work.call(by_index));
    let leaves =
        crate::kernel!(trial.layout, move || second.call(|o, range, prices| by_leaves(price, o, range, prices)));
    let both =
        crate::kernel!(trial.layout, move || third.call(|o, range, prices| by_leaves(price_grown, o, range, prices)));
    Ok(prepared(&pool, tree_kernels(count, [index, leaves, both])))
}

#[inline(always)]
fn by_index<O: Index<usize, Output = Contract>>(options: &O, range: Range<usize>, prices: &mut [f32]) -> u64 {
    price_each(range.map(|at| options[at]), prices)
}

#[inline(always)]
fn by_fixed_index<const B: usize>(options: &PaperTree<Contract, B>, range: Range<usize>, prices: &mut [f32]) -> u64 {
    // The sum reveals a tree of another depth.
    ThreeLevels::of(options).map_or(0, |options| by_index(&options, range, prices))
}

#[inline(always)]
fn by_iterator<const B: usize>(options: &PaperTree<Contract, B>, range: Range<usize>, prices: &mut [f32]) -> u64 {
    price_each(options.iter_from(range).copied(), prices)
}

#[inline(always)]
fn by_leaves(
    price: impl Fn(Contract) -> f32 + Copy,
    options: &TreeArray<Contract>,
    range: Range<usize>,
    prices: &mut [f32],
) -> u64 {
    let mut prices = prices;
    options.leaves_in(range).fold(0, |sum: u64, leaf| {
        let (these, others) = std::mem::take(&mut prices).split_at_mut(leaf.len());
        prices = others;
        price_each_by(price, leaf.iter().copied(), these).wrapping_add(sum)
    })
}
