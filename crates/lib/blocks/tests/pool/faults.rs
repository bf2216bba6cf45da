//! Errors of a pool: blocks that are free or foreign, its limit, exhausted frames.

use std::ptr::NonNull;

use fieldstone_blocks::{CHUNK_BYTES, Error, HeapFrames, Pool, TreeArray};

use crate::frames::TestFrames;

#[test]
fn a_double_free_and_a_foreign_block_are_errors() {
    // Under Miri creating a pool takes seconds, and each call a tenth of a second.
    for &block_bytes in if cfg!(miri) { &[64 << 10][..] } else { &[4 << 10, 64 << 10, 2 << 20] } {
        let pool = Pool::with_block_bytes(HeapFrames, block_bytes).unwrap();
        let other = Pool::with_block_bytes(HeapFrames, block_bytes).unwrap();
        let (block, theirs) = (pool.alloc().unwrap(), other.alloc().unwrap());
        let free = |block: NonNull<u8>| {
            // SAFETY: nothing uses the blocks; the test checks that invalid addresses are refused.
            unsafe { pool.free(block) }
        };
        let foreign = |block: NonNull<u8>| Err(Error::Foreign { address: block.addr().get() });
        assert_eq!(free(theirs), foreign(theirs));
        let (inside, mut local) = (block.map_addr(|address| address | std::num::NonZero::new(64).unwrap()), 0_u8);
        assert_eq!(free(inside), foreign(inside));
        assert_eq!(free(NonNull::from(&mut local)), foreign(NonNull::from(&mut local)));
        let high = NonNull::without_provenance(std::num::NonZero::new(usize::MAX & !(CHUNK_BYTES - 1)).unwrap());
        assert_eq!(free(high), foreign(high));
        assert_eq!(free(block), Ok(()));
        assert_eq!(free(block), Err(Error::DoubleFree { address: block.addr().get() }));
        assert_eq!(pool.alloc(), Ok(block), "the block was freed once");
        assert_eq!(free(block), Ok(()));
        assert_eq!(pool.release_free(), CHUNK_BYTES);
        assert_eq!(free(block), foreign(block), "its chunk was released");
        assert_eq!(other.stats().used_bytes, block_bytes);
    }
}

#[test]
fn unsupported_block_sizes_are_errors() {
    for bytes in [0, 1, 2048, 4097, 3 << 12, 4 << 20, usize::MAX] {
        assert_eq!(Pool::with_block_bytes(HeapFrames, bytes).unwrap_err(), Error::BlockSize { bytes });
    }
}

#[test]
fn a_limit_holds_until_it_is_raised() {
    let pool = Pool::with_block_bytes(HeapFrames, CHUNK_BYTES).unwrap();
    pool.set_limit(3 * CHUNK_BYTES - 1);
    let taken = [pool.alloc().unwrap(), pool.alloc().unwrap()];
    let exhausted = Error::Exhausted { wanted_bytes: CHUNK_BYTES, held_bytes: 2 * CHUNK_BYTES };
    assert_eq!(pool.alloc(), Err(exhausted));
    assert_eq!(pool.reserve_prefault(CHUNK_BYTES), Err(exhausted));
    assert!(exhausted.to_string().contains("4194304") && exhausted.to_string().contains("raise its limit"));
    pool.set_limit(3 * CHUNK_BYTES);
    let third = pool.alloc().unwrap();
    for block in taken.into_iter().chain([third]) {
        // SAFETY: the test holds no reference into the block.
        unsafe { pool.free(block).unwrap() };
    }
    pool.set_limit(0);
    assert!(pool.alloc().is_ok(), "memory already held can be allocated");
}

#[test]
fn blocks_come_in_address_order() {
    // More blocks than a word of free bits covers.
    const COUNT: usize = if cfg!(miri) { 80 } else { 512 };
    let pool = Pool::with_block_bytes(HeapFrames, 4096).unwrap();
    let blocks: Vec<_> = (0..COUNT).map(|_| pool.alloc().unwrap()).collect();
    assert!(blocks.windows(2).all(|pair| pair[1].addr().get() == pair[0].addr().get() + 4096));
    let [low, middle, high] = if cfg!(miri) { [7, 30, 70] } else { [7, 100, 300] };
    // SAFETY: the test holds no reference into the blocks.
    unsafe { [high, low, middle].iter().for_each(|&at| pool.free(blocks[at]).unwrap()) };
    assert_eq!([pool.alloc(), pool.alloc(), pool.alloc()], [Ok(blocks[low]), Ok(blocks[middle]), Ok(blocks[high])]);
}

/// Padding: under Miri few elements should fill a block.
const PADDING: usize = if cfg!(miri) { 250_000 } else { 0 };

#[derive(Clone, Debug)]
struct PaddedElement {
    number: Box<u32>,
    _padding: [u8; PADDING],
}

fn padded(number: u32) -> PaddedElement {
    PaddedElement { number: Box::new(number), _padding: [0; PADDING] }
}

#[test]
fn arrays_work_again_when_failing_frames_recover() {
    let frames = TestFrames::with_limit(2);
    let pool = Pool::with_block_bytes(frames.clone(), 1 << 20).unwrap();
    let mut array = TreeArray::new_in(&pool);
    let full = (0_u32..).find_map(|number| array.try_push(padded(number)).err()).unwrap();
    assert_eq!(*full.0.number as usize, array.len(), "the element is returned");
    assert_eq!(array.len(), 4 * array.per_leaf());
    assert!(matches!(full.1, Error::System { errno: 12, .. }) && full.1.to_string().contains("errno 12"));
    let len = array.len();
    assert!(array.try_reserve(1).is_err() && array.reserve_prefault(1).is_err() && array.try_clone().is_err());
    assert!(array.try_resize_with(len + 1, || padded(0)).is_err());
    assert!(array.try_extend_from_slice(&[padded(0)]).is_err());
    let mut copied = TreeArray::new_in(&pool);
    assert!(copied.try_extend_from_slice(&vec![0_u64; 1 << 18]).is_err() && copied.is_empty());
    let snapshot = array.snapshot();
    let write = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| *array[0].number = 77));
    assert!(write.is_err(), "there is no memory for the copy of a leaf");
    assert!(array.iter().chain(snapshot.iter()).map(|element| *element.number as usize).eq((0..len).chain(0..len)));
    frames.set_limit(4);
    *array[0].number = 77;
    array.try_push(full.0).unwrap();
    assert_eq!((*snapshot[0].number, *array[0].number, *array[len].number as usize), (0, 77, len));
    drop((array, copied, snapshot));
    assert_eq!(pool.stats().used_bytes, 0);
    assert_eq!((pool.release_free(), frames.in_use()), (3 * CHUNK_BYTES, 0));
}

#[test]
fn frames_that_fail_from_the_first_chunk() {
    let frames = TestFrames::with_limit(0);
    let pool = Pool::new(frames.clone()).unwrap();
    assert!(pool.alloc().is_err() && pool.alloc_run(2).is_err() && pool.reserve_prefault(1).is_err());
    assert_eq!(pool.release_free(), 0);
    let mut array = TreeArray::new_in(&pool);
    array.extend(0..100_u64);
    assert_eq!(array.iter().sum::<u64>(), 4950, "a small array needs no block");
    assert!(array.reserve_leaf().is_err() && array.appender().is_err());
    assert_eq!(array.iter().sum::<u64>(), 4950);
    frames.set_limit(1);
    array.reserve_leaf().unwrap();
    assert_eq!(array.iter().sum::<u64>(), 4950);
    assert_eq!(pool.stats().used_bytes, pool.block_bytes());
}

#[test]
fn an_array_beyond_its_maximum_length_is_an_error() {
    let pool = Pool::with_block_bytes(HeapFrames, 64 << 10).unwrap();
    let mut array = TreeArray::<u64>::new_in(&pool);
    for count in [usize::MAX, usize::MAX / 8, 1 << 60, 1 << 43] {
        assert!(array.try_reserve(count).is_err(), "{count}");
        assert!(array.is_empty() && pool.stats().used_bytes <= pool.block_bytes());
    }
    array.push(1);
    assert_eq!(array[0], 1);
    let too_large = TreeArray::<[u8; 65537]>::try_new_in(&pool).unwrap_err();
    assert_eq!(too_large, Error::ElementTooLarge { element_bytes: 65537, block_bytes: 65536 });
}
