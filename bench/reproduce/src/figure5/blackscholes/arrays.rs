//! The published layout: an array for each of the six fields.

use std::ops::{Index, Range};

use anyhow::Result;
use fieldstone_blocks::TreeArray;
use fieldstone_workloads::blackscholes::{Arrays, Contract, price};

use super::{ARRAY, PAPER_ITER, PAPER_TREE, THREE_LEVELS};
use super::{Work, field, kernel, prepared, price_each, price_each_by, price_grown, small_page_pool, tree_kernels};
use crate::comparison::BuiltSide;
use crate::figure4::indexed::{Flat, ThreeLevels, tree_of};
use crate::pages::Contiguous;
use crate::paper_tree::{Order, PaperTree};
use crate::trial::Trial;

type PaperTrees<const B: usize> = Arrays<PaperTree<f32, B>, PaperTree<bool, B>>;
type TreeArrays = Arrays<TreeArray<f32>, TreeArray<bool>>;

/// Contiguous arrays, the baseline.
pub(super) fn contiguous(trial: &Trial, count: usize) -> Result<BuiltSide> {
    let layout = &trial.layout;
    let options = Arrays::try_new(
        |of| Contiguous::small_pages(layout, count, field(count, of)).map(Flat),
        |of| Contiguous::small_pages(layout, count, field(count, of)).map(Flat),
    )?;
    let pages = Some(options.spot.0.pages());
    let mut work = Work::new(trial, options, count)?;
    let call = crate::kernel!(layout, move || work.call(by_index));
    Ok(BuiltSide { kernels: vec![kernel(ARRAY, count, call)], pages })
}

/// The trees of the paper, with the smallest depth.
pub(super) fn paper<const B: usize>(trial: &Trial, count: usize) -> Result<BuiltSide> {
    let pool = small_page_pool(B, count)?;
    let options: PaperTrees<B> = Arrays::try_new(
        |of| PaperTree::build(&pool, count, Order::InOrder, field(count, of)),
        |of| PaperTree::build(&pool, count, Order::InOrder, field(count, of)),
    )?;
    let mut work = Work::new(trial, options, count)?;
    let mut second = work.share();
    let index = crate::kernel!(trial.layout, move || work.call(by_index));
    let iter = crate::kernel!(trial.layout, move || second.call(by_iterator));
    Ok(prepared(&pool, vec![kernel(PAPER_TREE, count, index), kernel(PAPER_ITER, count, iter)]))
}

/// The trees of the paper, with three levels.
pub(super) fn three_levels<const B: usize>(trial: &Trial, count: usize) -> Result<BuiltSide> {
    let pool = small_page_pool(B, count)?;
    let options: PaperTrees<B> = Arrays::try_new(
        |of| PaperTree::with_depth(&pool, 3, count, Order::InOrder, field(count, of)),
        |of| PaperTree::with_depth(&pool, 3, count, Order::InOrder, field(count, of)),
    )?;
    let mut work = Work::new(trial, options, count)?;
    let call = crate::kernel!(trial.layout, move || work.call(by_fixed_index));
    Ok(prepared(&pool, vec![kernel(THREE_LEVELS, count, call)]))
}

/// Tree arrays.
pub(super) fn tree<const B: usize>(trial: &Trial, count: usize) -> Result<BuiltSide> {
    let pool = small_page_pool(B, count)?;
    let options: TreeArrays =
        Arrays::try_new(|of| tree_of(&pool, count, field(count, of)), |of| tree_of(&pool, count, field(count, of)))?;
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
fn by_index<F, B>(options: &Arrays<F, B>, range: Range<usize>, prices: &mut [f32]) -> u64
where
    F: Index<usize, Output = f32>,
    B: Index<usize, Output = bool>,
{
    price_each(range.map(|at| options.get(at)), prices)
}

#[inline(always)]
fn by_fixed_index<const B: usize>(options: &PaperTrees<B>, range: Range<usize>, prices: &mut [f32]) -> u64 {
    let Arrays { spot, strike, rate, volatility, time, put } = options;
    let numbers = [spot, strike, rate, volatility, time].map(ThreeLevels::of);
    let ([Some(spot), Some(strike), Some(rate), Some(volatility), Some(time)], Some(put)) =
        (numbers, ThreeLevels::of(put))
    else {
        // This sum reveals a tree of another depth.
        return 0;
    };
    by_index(&Arrays { spot, strike, rate, volatility, time, put }, range, prices)
}

#[inline(always)]
fn by_iterator<const B: usize>(options: &PaperTrees<B>, range: Range<usize>, prices: &mut [f32]) -> u64 {
    let Arrays { spot, strike, rate, volatility, time, put } = options;
    let mut numbers = [spot, strike, rate, volatility, time].map(|tree| tree.iter_from(range.clone()));
    let mut puts = put.iter_from(range);
    let next = || {
        let [Some(&spot), Some(&strike), Some(&rate), Some(&volatility), Some(&time)] =
            numbers.each_mut().map(Iterator::next)
        else {
            return None;
        };
        Some(Contract { spot, strike, rate, volatility, time, put: *puts.next()? })
    };
    price_each(std::iter::from_fn(next), prices)
}

/// Leaf by leaf. The leaves of all arrays end at the same element, except those of the flags, which
/// have four times as many elements.
#[inline(always)]
fn by_leaves(
    price: impl Fn(Contract) -> f32 + Copy,
    options: &TreeArrays,
    range: Range<usize>,
    prices: &mut [f32],
) -> u64 {
    let Arrays { spot, strike, rate, volatility, time, put } = options;
    let per_leaf = spot.per_leaf();
    let mut numbers = [spot, strike, rate, volatility, time].map(|tree| tree.leaves_in(range.clone()));
    let mut puts = put.leaves_in(range).flat_map(|leaf| leaf.chunks(per_leaf));
    let (mut sum, mut prices) = (0_u64, prices);
    while let ([Some(spot), Some(strike), Some(rate), Some(volatility), Some(time)], Some(put)) =
        (numbers.each_mut().map(Iterator::next), puts.next())
    {
        let (these, others) = prices.split_at_mut(spot.len());
        let fields = spot.iter().zip(strike).zip(rate).zip(volatility).zip(time).zip(put);
        let options = fields.map(|(((((&spot, &strike), &rate), &volatility), &time), &put)| Contract {
            spot,
            strike,
            rate,
            volatility,
            time,
            put,
        });
        sum = sum.wrapping_add(price_each_by(price, options, these));
        prices = others;
    }
    sum
}

#[cfg(test)]
mod tests {
    use fieldstone_blocks::{HeapFrames, Pool};
    use fieldstone_workloads::blackscholes::contracts;

    use super::*;

    #[test]
    fn every_way_stores_the_same_bits() {
        const B: usize = 4096;
        let count = 20_000;
        let pool = Pool::with_block_bytes(HeapFrames, B).unwrap();
        let expected: Vec<u32> = contracts(count).map(|option| price(option).to_bits()).collect();
        let walked: PaperTrees<B> = Arrays::try_new(
            |of| PaperTree::with_depth(&pool, 3, count, Order::InOrder, field(count, of)),
            |of| PaperTree::with_depth(&pool, 3, count, Order::InOrder, field(count, of)),
        )
        .unwrap();
        let trees: TreeArrays =
            Arrays::try_new(|of| tree_of(&pool, count, field(count, of)), |of| tree_of(&pool, count, field(count, of)))
                .unwrap();
        type Way<'a> = &'a dyn Fn(&mut [f32]) -> u64;
        let ways: [(&str, Way); 6] = [
            ("index", &|prices| by_index(&walked, 4096..count, prices)),
            ("fixed index", &|prices| by_fixed_index(&walked, 4096..count, prices)),
            ("iterator", &|prices| by_iterator(&walked, 4096..count, prices)),
            ("tree index", &|prices| by_index(&trees, 4096..count, prices)),
            ("leaves", &|prices| by_leaves(price, &trees, 4096..count, prices)),
            ("leaves, grown", &|prices| by_leaves(price_grown, &trees, 4096..count, prices)),
        ];
        for (name, way) in ways {
            let mut prices = vec![0.0; count - 4096];
            way(&mut prices);
            assert!(prices.iter().map(|price| price.to_bits()).eq(expected[4096..].iter().copied()), "{name}");
        }
    }
}
