//! Arrays and pools in a process that has no memory left.

use fieldstone_blocks::{Error, MmapFrames, PageKind, Pool, TreeArray};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{alone, status_bytes};

/// Limits the address space to `more` bytes beyond its current size.
fn limit_address_space(more: u64) {
    let current = Some(status_bytes("VmSize") + more);
    setrlimit(Resource::As, Rlimit { current, maximum: getrlimit(Resource::As).maximum }).unwrap();
}

#[test]
fn an_array_that_fills_the_address_space_is_intact() {
    alone("exhaustion::an_array_that_fills_the_address_space_is_intact", || {
        let pool = Pool::new(MmapFrames::new(PageKind::Small4k)).unwrap();
        let mut array = TreeArray::new_in(&pool);
        array.extend(0..1000_u64);
        limit_address_space(80 << 20);
        let (refused, error) = (1000..).find_map(|number| array.try_push(number).err()).unwrap();
        assert!(matches!(error, Error::System { operation: "mmap", .. } | Error::Table { .. }), "{error:?}");
        assert!(error.to_string().contains("ulimit -v") || matches!(error, Error::Table { .. }));
        assert_eq!(refused, array.len() as u64);
        assert!(refused > 2 << 20, "spans shrink to the available space: {refused} elements");
        assert!(array.try_reserve(1 << 20).is_err() && array.try_clone().is_err());
        assert!(array.iter().copied().eq(0..refused), "nothing is lost");
        let snapshot = array.snapshot();
        let write = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| array[5] = 0));
        assert!(write.is_err(), "there is no memory for the copy of a leaf");
        assert!(array.iter().chain(snapshot.iter()).copied().eq((0..refused).chain(0..refused)));
        drop(snapshot);
        array.truncate(1000);
        array.shrink_to_fit();
        assert!(pool.release_free() > 0);
        array.extend(1000..1 << 20);
        assert!(array.iter().copied().eq(0..1 << 20), "released memory is available");
        drop(array);
        assert_eq!(pool.stats().used_bytes, 0);
    });
}

#[test]
fn a_pool_needs_little_address_space_to_begin() {
    alone("exhaustion::a_pool_needs_little_address_space_to_begin", || {
        limit_address_space(16 << 20);
        let pool = Pool::with_block_bytes(MmapFrames::new(PageKind::Thp), 64 << 10).unwrap();
        let blocks: Vec<_> = std::iter::from_fn(|| pool.alloc().ok()).collect();
        assert!(blocks.len() >= 64, "{} blocks", blocks.len());
        assert!(matches!(pool.alloc_run(100), Err(Error::System { .. })));
        assert!(pool.reserve_prefault(2 << 20).is_err());
        // SAFETY: the test holds no reference into the blocks.
        blocks.into_iter().for_each(|block| unsafe { pool.free(block).unwrap() });
        assert_eq!(pool.stats().used_bytes, 0);
    });
}
