//! The game search of `fieldstone-workloads` with its transposition table in an array and in trees.
//! It corresponds to deepsjeng, which "allocates a single large array as a hashtable and accesses
//! it less predictably".
//!
//! One call solves the board. Entries of the call before belong to another game and do not match.
//! The number of visited positions is equal on all sides unless one of them loses an entry.

use std::ops::IndexMut;

use anyhow::Result;
use fieldstone_blocks::{DEFAULT_BLOCK_BYTES, PageKind};
use fieldstone_workloads::game::{Calls, Plain, PositionValue, Search, TranspositionTable};

use crate::comparison::{BuiltSide, Kernel, Side, compare_sides};
use crate::experiment::{Cell, Quantity, Row, SampleOutcome, Scale};
use crate::figure4::indexed::{Flat, tree_of};
use crate::pages::{Contiguous, pages_of, pool_on};
use crate::paper_tree::{Order, PAPER_BLOCK_BYTES, PaperTree};
use crate::stack_blocks;
use crate::trial::Trial;

const TABLE: &str = "Game search: transposition table";

const ARRAY: &str = "table in an array, ns a position";
const PAPER_TREE: &str = "table in the paper's tree, depth at run time";
const TREE: &str = "table in a tree array";
const BOTH: &str = "table in a tree array, on a stack of blocks";

/// Size of a table for the small board.
const SMALL: u64 = 16 << 20;

/// Name in ids, heading, bytes of the table. The larger two are those of deepsjeng_r and
/// deepsjeng_s.
const SIZES: [(&str, &str, u64); 3] = [("16M", "16 MB", SMALL), ("700M", "700 MB", 700 << 20), ("7G", "7 GB", 7 << 30)];

/// The cells, one per size of the table.
pub(super) fn cells(scale: Scale) -> Vec<Cell> {
    let sizes = SIZES.iter().filter(|(.., bytes)| scale == Scale::Full || *bytes <= SMALL);
    let cell = |&(label, column, bytes): &(&str, &str, u64)| {
        let paper = Row::ratio(TABLE, PAPER_TREE);
        let mut rows = vec![
            Row::new(Quantity::Nanoseconds, TABLE, ARRAY),
            if bytes > SMALL { paper.with_paper("figure5/degraded") } else { paper },
            Row::ratio(TABLE, TREE),
        ];
        rows.extend(stack_blocks::AVAILABLE.then(|| Row::ratio(TABLE, BOTH)));
        Cell::new(format!("figure5/game/{label}"), column, bytes, rows, move |trial| {
            if bytes <= SMALL { sides::<5, 4>(trial, bytes) } else { sides::<6, 4>(trial, bytes) }
        })
    };
    sizes.map(cell).collect()
}

fn sides<const W: u32, const H: u32>(trial: &Trial, bytes: u64) -> Result<SampleOutcome> {
    let words = usize::try_from(bytes)? / size_of::<u64>();
    // The number of positions does not depend on the memory of the table.
    let positions = game::<W, H, _, Plain>(&mut Search::new(TranspositionTable::new(usize::try_from(bytes)?)?));
    let kernel = |row: &str, work| Kernel::contender(row, ARRAY, positions, work);
    let mut sides = vec![
        Side::new(bytes, move || {
            let array = Flat(Contiguous::small_pages(&trial.layout, words, |_| 0_u64)?);
            let pages = Some(array.0.pages());
            let mut search = Search::<W, H, _>::new(TranspositionTable::over(array, words));
            Ok(BuiltSide {
                kernels: vec![kernel(ARRAY, crate::kernel!(trial.layout, move || game(&mut search)))],
                pages,
            })
        }),
        Side::new(bytes, move || {
            let pool = pool_on(PageKind::Small4k, PAPER_BLOCK_BYTES, bytes + bytes / 1024)?;
            let tree = PaperTree::<u64>::build(&pool, words, Order::InOrder, |_| 0)?;
            let mut search = Search::<W, H, _>::new(TranspositionTable::over(tree, words));
            let work = crate::kernel!(trial.layout, move || game(&mut search));
            Ok(BuiltSide { kernels: vec![kernel(PAPER_TREE, work)], pages: Some(pages_of(&pool)) })
        }),
        Side::new(bytes, move || {
            let pool = pool_on(PageKind::Small4k, DEFAULT_BLOCK_BYTES, bytes)?;
            let tree = tree_of(&pool, words, |_| 0_u64)?;
            let mut search = Search::<W, H, _>::new(TranspositionTable::over(tree, words));
            let work = crate::kernel!(trial.layout, move || game(&mut search));
            Ok(BuiltSide { kernels: vec![kernel(TREE, work)], pages: Some(pages_of(&pool)) })
        }),
    ];
    sides.extend(stack_blocks::AVAILABLE.then(|| {
        Side::new(bytes, move || {
            let pool = pool_on(PageKind::Small4k, DEFAULT_BLOCK_BYTES, bytes)?;
            let tree = tree_of(&pool, words, |_| 0_u64)?;
            let mut search = Search::<W, H, _, GrowingStack>::new(TranspositionTable::over(tree, words));
            let work = crate::kernel!(trial.layout, move || game(&mut search));
            Ok(BuiltSide { kernels: vec![kernel(BOTH, work)], pages: Some(pages_of(&pool)) })
        })
    }));
    compare_sides(trial, sides)
}

/// Each call of the search checks its stack and continues in another block if needed.
struct GrowingStack;

impl Calls for GrowingStack {
    #[inline(always)]
    fn call<R>(f: impl FnOnce() -> R) -> R {
        stack_blocks::grow(f)
    }
}

/// Solves the board from the start and checks the value. Returns the number of visited positions.
#[inline(always)]
fn game<const W: u32, const H: u32, E: IndexMut<usize, Output = u64>, C: Calls>(
    search: &mut Search<W, H, E, C>,
) -> u64 {
    search.start_game();
    let before = search.positions();
    let value = search.solve();
    let known = if (W, H) == (6, 4) { PositionValue::Loss } else { PositionValue::Draw };
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
        // The comparison fails if the sides differ.
        let SampleOutcome::Measured { figures, alternately } = sides::<5, 4>(&trial, 1 << 20).unwrap() else {
            unreachable!()
        };
        assert!(
            alternately
                && figures.len() == 3 + usize::from(stack_blocks::AVAILABLE)
                && figures.iter().all(|figure| figure.value > 0.0)
        );
    }
}
