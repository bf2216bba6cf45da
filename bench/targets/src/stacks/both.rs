//! Trees and stacks of blocks together, against contiguous arrays on a plain stack: pricing of options, and a game search. As in the
//! paper's Figure 5, all on 4 KiB pages; `fieldstone reproduce figure5` has them at the paper's sizes.

use std::hint::black_box;
use std::ops::IndexMut;
use std::time::Duration;

use fieldstone_blocks::{MmapFrames, PageKind, Pool, TreeArray};
use fieldstone_peers::vector;
use fieldstone_stacks::grow;
use fieldstone_workloads::blackscholes::{Contract, contracts, price};
use fieldstone_workloads::game::{Calls, Plain, Search, Table};

use crate::cell::Cell;
use crate::duel::{cpu_seconds, duel};
use crate::goals::Goal;

/// Options: 24 MiB of them.
const OPTIONS: usize = 1 << 20;
/// Words of the table: 16 MiB.
const WORDS: usize = 2 << 20;

fn pool() -> anyhow::Result<Pool> {
    Ok(Pool::new(MmapFrames::new(PageKind::Small4k))?)
}

/// Sum of the prices' bits, so that both sides can be compared.
fn priced(options: impl Iterator<Item = Contract>, price: impl Fn(Contract) -> f32) -> u64 {
    options.fold(0, |sum: u64, option| sum.wrapping_add(u64::from(price(option).to_bits())))
}

/// Black-Scholes over an array of structs, by leaves; each price is computed in a call that makes sure of its stack.
pub(crate) fn blackscholes(goal: Goal, most: Duration) -> anyhow::Result<Cell> {
    let plain: Vec<Contract> = contracts(OPTIONS).collect();
    let pool = pool()?;
    let mut tree = TreeArray::try_new_in(&pool)?;
    tree.extend(plain.iter().copied());
    let expected = priced(plain.iter().copied(), price);
    let grown = |option| grow(|| price(option));
    Ok(duel(
        goal,
        "blackscholes",
        "",
        most,
        || cpu_seconds(|| assert_eq!(priced(black_box(&tree).leaves().flatten().copied(), grown), expected)),
        || cpu_seconds(|| assert_eq!(priced(black_box(&plain).iter().copied(), price), expected)),
    ))
}

struct Grown;

impl Calls for Grown {
    #[inline(always)]
    fn call<R>(f: impl FnOnce() -> R) -> R {
        grow(f)
    }
}

/// Positions of a game of 5 by 4 that is solved anew.
fn solve<E: IndexMut<usize, Output = u64>, C: Calls>(search: &mut Search<5, 4, E, C>) -> u64 {
    search.begin();
    let before = search.positions();
    black_box(search.solve());
    search.positions() - before
}

/// Connect Four with its transposition table in a tree; each call of the search makes sure of its stack.
pub(crate) fn game(goal: Goal, most: Duration) -> anyhow::Result<Cell> {
    let mut array = vector::with_capacity(WORDS, PageKind::Small4k);
    array.resize(WORDS, 0);
    let pool = pool()?;
    let mut tree = TreeArray::try_new_in(&pool)?;
    tree.extend(std::iter::repeat_n(0_u64, WORDS));
    let mut plain = Search::<5, 4, _, Plain>::new(Table::over(array, WORDS));
    let mut both = Search::<5, 4, _, Grown>::new(Table::over(tree, WORDS));
    // What an earlier game left in the table changes how many positions the next one looks at, on both sides alike.
    let (mut by_both, mut by_plain) = (0, 0);
    let cell = duel(
        goal,
        "game search",
        "",
        most,
        || cpu_seconds(|| by_both += solve(&mut both)),
        || cpu_seconds(|| by_plain += solve(&mut plain)),
    );
    assert_eq!(by_both, by_plain, "both sides look at the same positions");
    Ok(cell)
}
