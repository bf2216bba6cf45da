//! Compares a tree array with a vector: random sequences of all operations, on elements of every
//! kind and blocks of several sizes.
//!
//! The vector is the oracle; each snapshot has its own. At the end every element is dropped and
//! every block is free.

#![expect(clippy::unwrap_used, reason = "a test")]

mod check;
mod element;
mod op;

use fieldstone_blocks::{HeapFrames, Pool, TreeArray};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use check::check;
use element::{AlignedNothing, Bulky, Element, LineAligned, Nothing, PageAligned, Text, Triple, live};
use op::{Op, Pair, ops};

const CASES: u32 = if cfg!(miri) { 1 } else { 32 };
const MAX_OPS: usize = if cfg!(miri) { 8 } else { 40 };

fn same_as_a_vector<T: Element>(block_bytes: usize) {
    let pool = Pool::with_block_bytes(HeapFrames, block_bytes).unwrap();
    let config = Config { cases: CASES, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let probes = (any::<u16>(), any::<u16>(), prop::collection::vec(any::<(u8, u16)>(), 0..24));
    let strategy = (ops(MAX_OPS), probes);
    let result = TestRunner::new(config).run(&strategy, |(ops, probe)| {
        let mut pair = Pair::<T>::new(TreeArray::new_in(&pool));
        for op in &ops {
            pair.apply(op);
            check(&mut pair, &probe);
        }
        drop(pair);
        assert_eq!((live(), pool.stats().used_bytes), (0, 0), "every element is dropped, every block is free");
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Runs every operation once: Miri draws few random cases.
#[test]
fn each_operation_once() {
    use Op::*;
    let pool = Pool::with_block_bytes(HeapFrames, 4096).unwrap();
    let mut pair = Pair::<Text>::new(TreeArray::new_in(&pool));
    let updates = [(9_000, 1), (60_000, 2), (9_000, 3)];
    let script = [Push, TryPush, Pop, ReserveLeaf, Extend(30_000), Snapshot, ExtendFromSlice(60_000), Set(5_000)];
    let script = script.into_iter().chain([Update(updates.to_vec()), Snapshot, CloneSnapshot(0), Swap(100, 60_000)]);
    let script = script.chain([SwapRemove(9_000), Append(20_000), DropSnapshot(1), RangeMut(20_000, 50_000), Snapshot]);
    let script =
        script.chain([LeavesMut, Appender(30_000), Clone, Resize(50_000), ResizeWith(60_000), Reserve(30_000)]);
    let script =
        script.chain([ReservePrefault(9_000), Truncate(30_000), Shrink, IntoIter(5, 2), IntoIter(3, 1), Clear]);
    let probe = (9_000, 50_000, vec![(0, 0), (1, 0), (2, 9_000), (3, 30_000), (6, 60_000)]);
    for op in script {
        pair.apply(&op);
        check(&mut pair, &probe);
    }
    drop(pair);
    assert_eq!((live(), pool.stats().used_bytes), (0, 0));
}

macro_rules! same_as_a_vector {
    ($($name:ident: $element:ty, $block_bytes:expr;)*) => {
        $(#[test]
        fn $name() {
            same_as_a_vector::<$element>($block_bytes);
        })*
    };
}

same_as_a_vector! {
    bytes_in_the_smallest_blocks: u8, 4096;
    numbers_in_the_smallest_blocks: u64, 4096;
    numbers_in_blocks_of_32k: u64, 32 << 10;
    odd_sizes_in_the_smallest_blocks: Triple, 4096;
    odd_sizes_in_blocks_of_64k: Triple, 64 << 10;
    one_element_per_leaf: Bulky, 4096;
    five_elements_per_leaf: Bulky, 16 << 10;
    lines: LineAligned, 4096;
    pages_of_a_block_each: PageAligned, 4096;
    pages_in_large_blocks: PageAligned, 256 << 10;
    texts: Text, 4096;
    texts_in_blocks_of_a_chunk: Text, 2 << 20;
    nothings: Nothing, 4096;
    aligned_nothings: AlignedNothing, 4096;
}
