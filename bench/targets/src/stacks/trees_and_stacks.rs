//! Trees and stacks of blocks together against contiguous arrays and stacks: option pricing and a
//! game search. All on 4 KiB pages, as in the paper's Figure 5; `fieldstone reproduce figure5` uses
//! its sizes.

use std::hint::black_box;
use std::ops::IndexMut;
use std::time::Duration;

use fieldstone_blocks::{MmapFrames, PageKind, Pool, TreeArray};
use fieldstone_peers::vector;
use fieldstone_stacks::grow;
use fieldstone_workloads::blackscholes::{Contract, contracts, price};
use fieldstone_workloads::game::{Calls, Plain, Search, TranspositionTable};

use crate::cell::GoalCell;
use crate::goals::Goal;
use crate::kernel_comparison::{compare, cpu_seconds};

/// Number of options, 24 MiB.
const OPTIONS: usize = 1 << 20;
/// Words of the transposition table, 16 MiB.
const WORDS: usize = 2 << 20;

fn pool() -> anyhow::Result<Pool> {
    Ok(Pool::new(MmapFrames::new(PageKind::Small4k))?)
}

/// Sum of the bits of all prices, to compare both sides.
fn priced(options: impl Iterator<Item = Contract>, price: impl Fn(Contract) -> f32) -> u64 {
    options.fold(0, |sum: u64, option| sum.wrapping_add(u64::from(price(option).to_bits())))
}

/// Black-Scholes over an array of structs, leaf by leaf. Each price is computed in a call that
/// checks its stack.
pub(crate) fn blackscholes(goal: Goal, time_limit: Duration) -> anyhow::Result<GoalCell> {
    let plain: Vec<Contract> = contracts(OPTIONS).collect();
    let pool = pool()?;
    let mut tree = TreeArray::try_new_in(&pool)?;
    tree.extend(plain.iter().copied());
    let expected = priced(plain.iter().copied(), price);
    let price_on_grown_stack = |option| grow(|| price(option));
    Ok(compare(
        goal,
        "blackscholes",
        "",
        time_limit,
        || {
            cpu_seconds(|| {
                assert_eq!(priced(black_box(&tree).leaves().flatten().copied(), price_on_grown_stack), expected)
            })
        },
        || cpu_seconds(|| assert_eq!(priced(black_box(&plain).iter().copied(), price), expected)),
    ))
}

struct GrowingStack;

impl Calls for GrowingStack {
    #[inline(always)]
    fn call<R>(f: impl FnOnce() -> R) -> R {
        grow(f)
    }
}

/// Solves a game of 5 by 4 again and returns the number of positions.
fn solve<E: IndexMut<usize, Output = u64>, C: Calls>(search: &mut Search<5, 4, E, C>) -> u64 {
    search.start_game();
    let before = search.positions();
    black_box(search.solve());
    search.positions() - before
}

/// Connect Four with its transposition table in a tree. Each call of the search checks its stack.
pub(crate) fn game(goal: Goal, time_limit: Duration) -> anyhow::Result<GoalCell> {
    let mut array = vector::with_capacity(WORDS, PageKind::Small4k);
    array.resize(WORDS, 0);
    let pool = pool()?;
    let mut tree = TreeArray::try_new_in(&pool)?;
    tree.extend(std::iter::repeat_n(0_u64, WORDS));
    let mut plain = Search::<5, 4, _, Plain>::new(TranspositionTable::over(array, WORDS));
    let mut both = Search::<5, 4, _, GrowingStack>::new(TranspositionTable::over(tree, WORDS));
    // The table keeps entries of earlier games, which changes the number of positions on both sides
    // alike.
    let (mut tree_positions, mut plain_positions) = (0, 0);
    let cell = compare(
        goal,
        "game search",
        "",
        time_limit,
        || cpu_seconds(|| tree_positions += solve(&mut both)),
        || cpu_seconds(|| plain_positions += solve(&mut plain)),
    );
    assert_eq!(tree_positions, plain_positions, "both sides look at the same positions");
    Ok(cell)
}
