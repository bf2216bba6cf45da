//! The game search of `fieldstone-workloads` with its transposition table in an array and in trees: deepsjeng's role, which
//! "allocates a single large array as a hashtable and accesses it less predictably".
//!
//! One call solves the board from a table that is as good as empty: the entries of the call before are of another game. The
//! number of positions that it looked at is the same on all sides, or one of them lost an entry.

use std::ops::IndexMut;

use anyhow::Result;
use fieldstone_blocks::{DEFAULT_BLOCK_BYTES, PageKind};
use fieldstone_workloads::game::{Calls, Outcome as Value, Plain, Search, Table};

use crate::contest::{Kernel, Prepared, Side, contest};
use crate::experiment::{Cell, Outcome, Row, Scale, Shows};
use crate::figure4::indexed::{Flat, tree_of};
use crate::pages::{Contiguous, pages_of, pool_on};
use crate::paper_tree::{Order, PAPER_BLOCK_BYTES, PaperTree};
use crate::trial::Trial;

const TABLE: &str = "Game search: transposition table";

const ARRAY: &str = "table in an array, ns a position";
const PAPER_TREE: &str = "table in the paper's tree, depth at run time";
const TREE: &str = "table in a tree array";
#[cfg(target_arch = "x86_64")]
const BOTH: &str = "table in a tree array, on a stack of blocks";

/// A table that a small board is enough for.
const SMALL: u64 = 16 << 20;

/// Label in ids, heading, bytes of the table. The larger two are those of deepsjeng_r and deepsjeng_s.
const SIZES: [(&str, &str, u64); 3] = [("16M", "16 MB", SMALL), ("700M", "700 MB", 700 << 20), ("7G", "7 GB", 7 << 30)];

/// The cells: a table's size each.
pub(super) fn cells(scale: Scale) -> Vec<Cell> {
    let sizes = SIZES.iter().filter(|(.., bytes)| scale == Scale::Full || *bytes <= SMALL);
    let cell = |&(label, column, bytes): &(&str, &str, u64)| Cell {
        id: format!("figure5/game/{label}"),
        column: column.to_owned(),
        memory_bytes: bytes,
        rows: vec![
            Row::showing(Shows::Nanoseconds, TABLE, ARRAY),
            if bytes > SMALL {
                Row::ratio(TABLE, PAPER_TREE).with_paper("figure5/degraded")
            } else {
                Row::ratio(TABLE, PAPER_TREE)
            },
            Row::ratio(TABLE, TREE),
            #[cfg(target_arch = "x86_64")]
            Row::ratio(TABLE, BOTH),
        ],
        measure: Box::new(
            move |trial| if bytes <= SMALL { sides::<5, 4>(trial, bytes) } else { sides::<6, 4>(trial, bytes) },
        ),
    };
    sizes.map(cell).collect()
}

fn sides<const W: u32, const H: u32>(trial: &Trial, bytes: u64) -> Result<Outcome> {
    let words = usize::try_from(bytes)? / size_of::<u64>();
    // What the board takes does not depend on where the table lies.
    let positions = game::<W, H, _, Plain>(&mut Search::new(Table::new(usize::try_from(bytes)?)?));
    let kernel = |row: &str, work| Kernel::contender(row, ARRAY, positions, work);
    contest(
        trial,
        vec![
            Side::new(bytes, move || {
                let array = Flat(Contiguous::small_pages(&trial.layout, words, |_| 0_u64)?);
                let pages = Some(array.0.pages());
                let mut search = Search::<W, H, _>::new(Table::over(array, words));
                Ok(Prepared {
                    kernels: vec![kernel(ARRAY, crate::kernel!(trial.layout, move || game(&mut search)))],
                    pages,
                })
            }),
            Side::new(bytes, move || {
                let pool = pool_on(PageKind::Small4k, PAPER_BLOCK_BYTES, bytes + bytes / 1024)?;
                let tree = PaperTree::<u64>::build(&pool, words, Order::InOrder, |_| 0)?;
                let mut search = Search::<W, H, _>::new(Table::over(tree, words));
                let work = crate::kernel!(trial.layout, move || game(&mut search));
                Ok(Prepared { kernels: vec![kernel(PAPER_TREE, work)], pages: Some(pages_of(&pool)) })
            }),
            Side::new(bytes, move || {
                let pool = pool_on(PageKind::Small4k, DEFAULT_BLOCK_BYTES, bytes)?;
                let tree = tree_of(&pool, words, |_| 0_u64)?;
                let mut search = Search::<W, H, _>::new(Table::over(tree, words));
                let work = crate::kernel!(trial.layout, move || game(&mut search));
                Ok(Prepared { kernels: vec![kernel(TREE, work)], pages: Some(pages_of(&pool)) })
            }),
            #[cfg(target_arch = "x86_64")]
            Side::new(bytes, move || {
                let pool = pool_on(PageKind::Small4k, DEFAULT_BLOCK_BYTES, bytes)?;
                let tree = tree_of(&pool, words, |_| 0_u64)?;
                let mut search = Search::<W, H, _, Grown>::new(Table::over(tree, words));
                let work = crate::kernel!(trial.layout, move || game(&mut search));
                Ok(Prepared { kernels: vec![kernel(BOTH, work)], pages: Some(pages_of(&pool)) })
            }),
        ],
    )
}

/// Each call of the search makes sure of its stack, which goes on in blocks.
#[cfg(target_arch = "x86_64")]
struct Grown;

#[cfg(target_arch = "x86_64")]
impl Calls for Grown {
    #[inline(always)]
    fn call<R>(f: impl FnOnce() -> R) -> R {
        fieldstone_stacks::grow(f)
    }
}

/// Solves the board from the start; the positions that it took, or a number that no side agrees with when the value is wrong.
#[inline(always)]
fn game<const W: u32, const H: u32, E: IndexMut<usize, Output = u64>, C: Calls>(
    search: &mut Search<W, H, E, C>,
) -> u64 {
    search.begin();
    let before = search.positions();
    let value = search.solve();
    let known = if (W, H) == (6, 4) { Value::Loss } else { Value::Draw };
    assert_eq!(value, known, "the value of the empty board of {W} by {H}");
    search.positions() - before
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::trial::Task;

    #[test]
    fn all_sides_look_at_the_same_positions() {
        let trial = Trial {
            cell: String::new(),
            layout: Layout::of_seed(1),
            quick: true,
            memory_bytes: 64 << 20,
            task: Task::Time,
        };
        // The contest itself fails when the sides disagree.
        let Outcome::Measured { figures, alternately } = sides::<5, 4>(&trial, 1 << 20).unwrap() else {
            unreachable!()
        };
        assert!(
            alternately
                && figures.len() == if cfg!(target_arch = "x86_64") { 4 } else { 3 }
                && figures.iter().all(|figure| figure.value > 0.0)
        );
    }
}
