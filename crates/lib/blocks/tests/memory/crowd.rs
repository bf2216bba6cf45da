//! Many arrays, and a forked process.

use fieldstone_blocks::{MmapFrames, PageKind, Pool, TreeArray};

use crate::{alone, status_bytes};

#[test]
fn a_million_arrays_at_once() {
    alone("crowd::a_million_arrays_at_once", || {
        const COUNT: u32 = 1_000_000;
        let pool = Pool::with_block_bytes(MmapFrames::new(PageKind::Thp), 64 << 10).unwrap();
        let before = status_bytes("VmRSS");
        let mut arrays: Vec<TreeArray<u32>> = Vec::with_capacity(COUNT as usize);
        for number in 0..COUNT {
            let mut array = TreeArray::new_in(&pool);
            array.extend(number..number + number % 9);
            arrays.push(array);
        }
        let each = (status_bytes("VmRSS") - before) / u64::from(COUNT);
        assert!(each <= 256, "{each} bytes an array");
        assert_eq!(pool.stats().held_bytes, 0, "small arrays need no block");
        // One in a thousand becomes large.
        arrays.iter_mut().step_by(1000).for_each(|array| array.extend(0..50_000));
        for (number, array) in (0..COUNT).zip(&arrays) {
            let small = number..number + number % 9;
            let large = if number.is_multiple_of(1000) { 0..50_000 } else { 0..0 };
            assert!(array.iter().copied().eq(small.chain(large)), "array {number}");
        }
        assert_eq!(pool.stats().used_bytes, 1000 * 4 * pool.block_bytes());
        drop(arrays);
        assert_eq!(pool.stats().used_bytes, 0);
        assert!(pool.release_free() >= 1000 * 4 * pool.block_bytes());
    });
}

#[test]
fn ten_thousand_arrays_with_a_block_each() {
    let pool = Pool::with_block_bytes(MmapFrames::new(PageKind::Small4k), 4096).unwrap();
    let mut arrays: Vec<TreeArray<u64>> = (0..10_000).map(|_| TreeArray::new_in(&pool)).collect();
    for (number, array) in (0..).zip(&mut arrays) {
        array.reserve_leaf().unwrap();
        array.extend([number; 5]);
    }
    assert_eq!(pool.stats().used_bytes, 10_000 * 4096);
    assert!((0..).zip(&arrays).all(|(number, array)| array.iter().all(|&element| element == number)));
    // Free every other array. The others stay unchanged, and new blocks reuse the freed ones.
    let held = pool.stats().held_bytes;
    let kept: Vec<_> = arrays.into_iter().enumerate().filter(|(at, _)| at % 2 == 1).collect();
    let more: Vec<_> = (0..5000).map(|_| pool.alloc().unwrap()).collect();
    assert_eq!(pool.stats().held_bytes, held);
    assert!(kept.iter().all(|(at, array)| array.iter().all(|element| *element == *at as u64)));
    // SAFETY: the test holds no reference into the blocks.
    more.into_iter().for_each(|block| unsafe { pool.free(block).unwrap() });
}

#[test]
fn a_forked_child_has_its_own_memory() {
    alone("crowd::a_forked_child_has_its_own_memory", || {
        let pool = Pool::with_block_bytes(MmapFrames::new(PageKind::Thp), 64 << 10).unwrap();
        let mut array = TreeArray::new_in(&pool);
        array.extend(0..300_000_u64);
        let snapshot = array.snapshot();
        // SAFETY: this process runs no other thread, and the child needs none.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        array.iter_mut().for_each(|element| *element += if child == 0 { 1 } else { 2 });
        array.extend(0..300_000);
        let sum = array.iter().take(300_000).sum::<u64>() - snapshot.iter().sum::<u64>();
        if child == 0 {
            drop((array, snapshot));
            let whole = sum == 300_000 && pool.stats().used_bytes == 0 && pool.release_free() > 0;
            // SAFETY: ends the child at once, without running the parent's exit handlers.
            unsafe { libc::_exit(if whole { 7 } else { 8 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was forked above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "the child ended with {status:#x}");
        assert_eq!(sum, 600_000);
    });
}
