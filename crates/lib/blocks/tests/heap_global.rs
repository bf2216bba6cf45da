//! A whole program on blocks: this test and its harness have no other allocator.

#![cfg(all(feature = "std", not(loom), not(miri)))]

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc;

use fieldstone_blocks::TreeArray;
use fieldstone_blocks::heap::GlobalHeap;

#[global_allocator]
static HEAP: GlobalHeap = GlobalHeap::new();

#[test]
fn collections_are_intact_and_allocated_in_the_pool() {
    let before = HEAP.stats().used_bytes;
    let mut names = BTreeMap::new();
    let mut numbers = HashMap::new();
    for number in 0..50_000_u64 {
        names.insert(format!("the number {number:08}"), vec![number; 3]);
        numbers.insert(number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number.to_string());
    }
    assert!(names.values().zip(0..).all(|(three, number)| *three == [number; 3]));
    assert!(numbers.iter().all(|(key, text)| text.parse::<u64>().unwrap().wrapping_mul(0x9e37_79b9_7f4a_7c15) == *key));
    let used = HEAP.stats().used_bytes - before;
    assert!(used > 50_000 * (19 + 24 + 5), "{used}");
    let pool = HEAP.heap().unwrap().pool().stats();
    assert!(pool.used_bytes >= used && pool.held_bytes >= pool.used_bytes, "{pool:?}");
}

#[test]
fn a_large_vector_grows_by_runs() {
    let mut vector = Vec::new();
    (0..8_000_000_u64).for_each(|number| vector.push(number));
    assert!(vector.iter().zip(0..).all(|(&is, number)| is == number));
    vector.truncate(1000);
    vector.shrink_to_fit();
    assert_eq!(vector.iter().sum::<u64>(), 999 * 500);
    assert!(vec![0_u8; 3_000_000].iter().all(|&byte| byte == 0), "zeros, though the memory was used");
}

#[test]
fn threads_pass_objects_to_another_and_end() {
    for _ in 0..20 {
        let (to, from) = mpsc::channel::<Vec<String>>();
        let threads: Vec<_> = (0..8_usize)
            .map(|thread| {
                let to = to.clone();
                std::thread::spawn(move || {
                    for round in 0..50 {
                        to.send((0..40).map(|word| format!("{thread} {round} {word}")).collect()).unwrap();
                    }
                })
            })
            .collect();
        drop(to);
        let words: usize =
            from.iter().map(|words| words.iter().filter(|word| word.split(' ').count() == 3).count()).sum();
        assert_eq!(words, 8 * 50 * 40);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn the_pools_own_tables_do_not_allocate_from_the_pool() {
    // The pool's lock is held while it records the arrays' chunks. The arrays' directories come
    // from the heap on that pool.
    let pool = HEAP.heap().unwrap().pool();
    let mut arrays: Vec<TreeArray<u64>> = (0..20).map(|_| TreeArray::new_in(pool)).collect();
    for number in 0..100_000 {
        arrays.iter_mut().for_each(|array| array.push(number));
    }
    let copies: Vec<_> = arrays.iter_mut().map(TreeArray::snapshot).collect();
    arrays.iter_mut().for_each(|array| array[5] = 1);
    assert!(copies.iter().all(|copy| copy[5] == 5) && arrays.iter().all(|array| array[5] == 1));
    drop((arrays, copies));
    pool.release_free();
}
