//! One appender, several readers: a reader sees complete elements that do not move, also when a
//! directory cannot grow.

use std::thread;

use fieldstone_blocks::{CHUNK_BYTES, HeapFrames, Pool, TreeArray};

#[test]
fn readers_see_what_the_appender_publishes() {
    const COUNT: usize = if cfg!(miri) { 560 } else { 400_000 };
    let pool = Pool::with_block_bytes(HeapFrames, 4096).unwrap();
    let mut array = TreeArray::new_in(&pool);
    array.extend((0..10).map(|number: usize| Box::new(number)));
    let (mut appender, reader) = array.appender().unwrap();
    thread::scope(|scope| {
        for step in [1, 7, 509] {
            let reader = reader.clone();
            scope.spawn(move || {
                let (mut len, first) = (0, std::ptr::from_ref(reader.get(0).unwrap()));
                while len < COUNT {
                    let before = len;
                    len = reader.len();
                    assert!(len >= before);
                    assert!((before..len).step_by(step).chain([len - 1]).all(|at| **reader.get(at).unwrap() == at));
                    assert_eq!(reader.leaves().map(<[_]>::len).sum::<usize>().min(len), len);
                    assert_eq!(std::ptr::from_ref(reader.get(0).unwrap()), first, "elements do not move");
                    thread::yield_now();
                }
            });
        }
        (10..COUNT).for_each(|number| appender.push(Box::new(number)));
    });
    assert_eq!(reader.len(), appender.len());
    assert!(array.iter().map(|element| **element).eq(0..COUNT));
}

/// Eight of these fill a block.
type Wide = [usize; 64];

#[test]
fn readers_continue_when_a_larger_directory_fails() {
    const LEAVES: usize = if cfg!(miri) { 5 } else { 40 };
    let pool = Pool::with_block_bytes(HeapFrames, 4096).unwrap();
    pool.set_limit(CHUNK_BYTES);
    let mut array = TreeArray::<Wide>::new_in(&pool);
    array.reserve_leaf().unwrap();
    let blocks: Vec<_> = std::iter::from_fn(|| pool.alloc().ok()).take(LEAVES).collect();
    // Allocate the other blocks as runs, since single blocks are slow under Miri.
    [128, 16, 1].into_iter().for_each(|count| while pool.alloc_run(count).is_ok() {});
    let per_leaf = array.per_leaf();
    let mut numbers = 0..;
    for (leaves, &block) in (1..).zip(&blocks) {
        // The block suffices for as many leaves as the directory has entries; there is none for a
        // larger directory.
        let (mut appender, reader) = array.appender().unwrap();
        let refused = numbers.find_map(|number| appender.try_push([number; 64]).err()).unwrap().0[63];
        assert_eq!((refused, reader.len()), (leaves * per_leaf, leaves * per_leaf));
        // These allocations would reuse and overwrite freed memory.
        let _overwriting: Vec<_> = (2..12).map(|size| vec![usize::MAX; 1 << (size / 2)]).collect();
        assert!((0..refused).all(|at| reader.get(at) == Some(&[at; 64])));
        numbers = refused..;
        #[expect(unsafe_code, reason = "frees raw blocks")]
        // SAFETY: the test holds no reference into the block.
        unsafe {
            pool.free(block).unwrap();
        }
    }
}

#[test]
fn an_array_can_be_split_while_a_snapshot_exists() {
    let pool = Pool::with_block_bytes(HeapFrames, 4096).unwrap();
    let mut array = TreeArray::new_in(&pool);
    array.extend(0..700_u64);
    array.reserve(3000);
    let snapshot = array.snapshot();
    let (mut appender, reader) = array.appender().unwrap();
    (700..2000).for_each(|number| appender.push(number));
    assert!((0..2000).zip(0..).all(|(at, element)| reader.get(at) == Some(&element)));
    assert!(snapshot.iter().copied().eq(0..700));
    array.push(2000);
    array[3] = 9;
    assert_eq!((snapshot[3], array[3], array[2000]), (3, 9, 2000));
    drop((array, snapshot));
    assert_eq!(pool.stats().used_bytes, 0);
}
