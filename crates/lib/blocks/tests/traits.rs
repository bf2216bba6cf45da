//! Traits of vectors and optional features: conversions, byte files, serde, rayon, `gather`,
//! threads.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::cell::OnceCell;
use std::io::Write;

use fieldstone_blocks::{Cursor, HeapFrames, Iter, IterMut, Pool, Reader, Snapshot, TreeArray};

fn pool() -> Pool {
    Pool::with_block_bytes(HeapFrames, 4096).unwrap()
}

fn panics(f: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err()
}

/// An array in its own pool. Under Miri, where creating a pool takes seconds, in this thread's
/// pool.
fn numbers(count: u64) -> TreeArray<u64> {
    thread_local! {
        static POOL: OnceCell<Pool> = const { OnceCell::new() };
    }
    let pool = if cfg!(miri) { POOL.with(|shared| shared.get_or_init(pool).clone()) } else { pool() };
    let mut array = TreeArray::new_in(&pool);
    array.extend((0..count).map(|number| number * number));
    array
}

#[test]
fn byte_arrays_are_written_and_read_like_files() {
    let bytes: Vec<u8> = (0..20_000_u32).map(|number| number.to_le_bytes()[0] ^ 5).collect();
    let mut array = TreeArray::new_in(&pool());
    for part in bytes.chunks(777) {
        array.write_all(part).unwrap();
    }
    assert!(array == bytes);
    let mut copy = Vec::new();
    array.write_to(&mut copy).unwrap();
    assert_eq!(copy, bytes);
    let slices = array.io_slices();
    assert_eq!(slices.len(), 5);
    assert!(slices.iter().flat_map(|slice| slice.iter()).eq(&bytes));
    array.pool().set_limit(0);
    // Allocate runs, since single blocks are slow under Miri.
    let take_all = |count| std::iter::from_fn(|| array.pool().alloc_run(count).ok()).count();
    let held: usize = [128, 16, 1].into_iter().map(take_all).sum();
    let error = array.write(&[0; 5000]).unwrap_err();
    assert_eq!((error.kind(), array.len(), held > 0), (std::io::ErrorKind::OutOfMemory, 20_000, true));
}

#[test]
fn gather_returns_what_indexing_returns() {
    let array = numbers(5000);
    for count in [0, 1, 31, 32, 33, 64, 1000] {
        let indices: Vec<_> = (0..count).map(|at| at * 7919 % 5000).collect();
        let mut out = vec![0; count];
        array.gather(&indices, &mut out);
        assert!(indices.iter().map(|&index| array[index]).eq(out));
    }
    let beyond = panics(|| array.gather(&[1, 5000], &mut [0; 2]));
    assert!(beyond, "an index beyond the end");
    assert!(panics(|| array.gather(&[1], &mut [0; 2])));
}

#[test]
fn updates_of_the_same_element_are_in_order() {
    let mut array = numbers(3000);
    let before = array.snapshot();
    array.update((0..100_usize).map(|at| (at % 3 * 1000, at)), |element, at| *element = *element * 2 + at as u64);
    let mut model: Vec<_> = before.iter().copied().collect();
    (0..100).for_each(|at| model[at % 3 * 1000] = model[at % 3 * 1000] * 2 + at as u64);
    assert!(array == model && before[1000] == 1_000_000);
    let beyond = panics(|| array.update([(3000, ())], |_, ()| {}));
    assert!(beyond && array == model);
}

#[test]
fn invalid_ranges_are_refused() {
    let array = numbers(1000);
    assert_eq!(array.range(1000..).len(), 0);
    assert_eq!(array.range(..=998).len(), 999);
    for (start, end) in [(5, 4), (0, 1001), (1001, 1001), (usize::MAX, usize::MAX)] {
        assert!(panics(|| drop(array.range(start..end))), "{start}..{end}");
    }
    assert!(panics(|| drop(array.stride(0))));
    assert!(panics(|| assert_eq!(array[1000], 0, "the index panics")));
}

#[test]
fn types_are_send_and_sync_where_sound() {
    fn both<T: Send + Sync>() {}
    both::<(TreeArray<u64>, Snapshot<u64>, Iter<'_, u64>, IterMut<'_, u64>, Cursor<'_, u64>, Reader<'_, u64>, Pool)>();
}

#[test]
#[cfg_attr(miri, ignore = "Miri does not support mmap, which the default pool needs")]
fn vectors_convert_to_and_from_arrays() {
    let strings: Vec<String> = (0..30_000).map(|number| number.to_string()).collect();
    let array = TreeArray::from(strings.clone());
    assert!(array == strings && TreeArray::from(&strings[..]).to_vec() == strings);
    assert_eq!(format!("{:?}", TreeArray::from(vec![1, 2])), "[1, 2]");
    assert_eq!(Vec::from(array), strings);
    assert!(TreeArray::<u8>::default().is_empty());
    assert!(TreeArray::<u8>::with_capacity(100_000).capacity() >= 100_000);
}

#[cfg(all(feature = "serde", not(miri)))]
#[test]
fn json_is_the_same_as_of_a_vector() {
    let array = numbers(3000);
    let json = serde_json::to_string(&array).unwrap();
    assert_eq!(json, serde_json::to_string(&array.to_vec()).unwrap());
    assert_eq!(serde_json::to_string(&*array).unwrap(), json);
    assert!(serde_json::from_str::<TreeArray<u64>>(&json).unwrap() == array);
    assert!(serde_json::from_str::<TreeArray<u64>>("[1, 2, \"three\"]").is_err());
}

#[cfg(all(feature = "rayon", not(miri)))]
#[test]
fn leaves_are_iterated_in_parallel() {
    use rayon::iter::ParallelIterator;
    let mut array = numbers(100_000);
    let before = array.snapshot();
    array.par_leaves_mut().for_each(|leaf| leaf.iter_mut().for_each(|element| *element += 1));
    let sum: u64 = array.par_leaves().map(|leaf| leaf.iter().sum::<u64>()).sum();
    assert_eq!(sum, before.iter().sum::<u64>() + 100_000);
}
