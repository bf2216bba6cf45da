//! The pages that back a pool, as the kernel reports them.

use std::fs::{self, File};

use fieldstone_blocks::{CHUNK_BYTES, MmapFrames, PageKind, Pool, TreeArray};

use crate::alone;
use crate::hugetlb_reserve::{HugetlbReserve, number};

fn filled(kind: PageKind, chunks: usize) -> (Pool, TreeArray<u64>) {
    let pool = Pool::new(MmapFrames::new(kind)).unwrap();
    let mut array = TreeArray::new_in(&pool);
    array.extend(0..(chunks * CHUNK_BYTES / 8) as u64);
    (pool, array)
}

#[test]
fn small_pages_are_small() {
    alone("pages::small_pages_are_small", || {
        let (pool, _array) = filled(PageKind::Small4k, 4);
        let placement = pool.placement().unwrap();
        assert_eq!((placement.huge_bytes, placement.hugetlb_bytes), (0, 0));
        assert_eq!(placement.resident_bytes, 4 * CHUNK_BYTES as u64);
        if let Some(folios) = placement.folios {
            assert_eq!(folios, [(4096, 4 * CHUNK_BYTES as u64)]);
        }
    });
}

#[test]
fn huge_pages_are_used_if_the_kernel_has_any() {
    alone("pages::huge_pages_are_used_if_the_kernel_has_any", || {
        let _mode = lock("fieldstone-transparent.lock");
        let (pool, _array) = filled(PageKind::Thp, 4);
        let placement = pool.placement().unwrap();
        assert_eq!(placement.resident_bytes, 4 * CHUNK_BYTES as u64);
        if placement.huge_bytes == 0 {
            println!("SKIP the kernel gave no transparent huge page");
            return;
        }
        assert!(placement.huge_bytes.is_multiple_of(CHUNK_BYTES as u64) && placement.hugetlb_bytes == 0);
        assert!(placement.huge_bytes <= placement.resident_bytes);
    });
}

/// Enables 64 KiB folios and no larger ones, for one test on this machine at a time. Dropping it
/// restores the settings.
struct Folios {
    before: [(String, String); 2],
    _alone: File,
}

impl Folios {
    /// `None`, reported as a skip, if they cannot be enabled.
    fn alone() -> Option<Self> {
        let file = lock("fieldstone-transparent.lock");
        let read = |kib: u32| {
            let path = format!("/sys/kernel/mm/transparent_hugepage/hugepages-{kib}kB/enabled");
            let modes = fs::read_to_string(&path).ok()?;
            Some((path, modes.split(['[', ']']).nth(1)?.to_owned()))
        };
        let (Some(folio), Some(huge)) = (read(64), read(2048)) else {
            println!("SKIP this kernel has no folios of several sizes");
            return None;
        };
        let this = Self { before: [folio, huge], _alone: file };
        if this.before.iter().zip(["madvise", "never"]).any(|((path, _), mode)| fs::write(path, mode).is_err()) {
            println!("SKIP folios of 64 KiB cannot be switched on here");
            return None;
        }
        Some(this)
    }
}

impl Drop for Folios {
    fn drop(&mut self) {
        for (path, mode) in &self.before {
            let _ = fs::write(path, mode);
        }
    }
}

#[test]
fn folios_are_used_and_the_contents_are_right() {
    alone("pages::folios_are_used_and_the_contents_are_right", || {
        let Some(_mode) = Folios::alone() else { return };
        let (pool, array) = filled(PageKind::Folio64k, 4);
        assert!((0..).zip(array.iter()).all(|(at, &element)| at == element));
        let placement = pool.placement().unwrap();
        assert_eq!((placement.resident_bytes, placement.hugetlb_bytes), (4 * CHUNK_BYTES as u64, 0));
        let folios = placement.folios.expect("root can enable folios and read page frames");
        // With fragmented memory some allocations get smaller folios.
        let in_folios: u64 = folios.iter().filter(|(size, _)| *size == 64 << 10).map(|(_, bytes)| bytes).sum();
        assert!(in_folios >= 2 * CHUNK_BYTES as u64, "{folios:?}");
    });
}

#[test]
fn prefaulted_memory_is_resident_and_released_memory_is_not() {
    for kind in [PageKind::Small4k, PageKind::Thp] {
        let resident = |pool: &Pool| pool.placement().unwrap().resident_bytes;
        let pool = Pool::new(MmapFrames::new(kind)).unwrap();
        pool.reserve_prefault(3 * CHUNK_BYTES).unwrap();
        assert_eq!((resident(&pool), pool.stats().used_bytes), (3 * CHUNK_BYTES as u64, 0));
        pool.reserve_prefault(2 * CHUNK_BYTES).unwrap();
        assert_eq!(pool.stats().held_bytes, 3 * CHUNK_BYTES, "the resident memory suffices");
        let mut array = TreeArray::<u64>::new_in(&pool);
        array.reserve_prefault(5 * CHUNK_BYTES / 8).unwrap();
        assert_eq!(resident(&pool), 5 * CHUNK_BYTES as u64);
        array.extend(0..1000);
        array.shrink_to_fit();
        assert_eq!(pool.release_free(), 4 * CHUNK_BYTES);
        assert_eq!(resident(&pool), CHUNK_BYTES as u64);
        assert!(array.iter().copied().eq(0..1000));
    }
}

/// Takes a file lock shared by all tests on this machine. Dropping the file releases it.
fn lock(name: &str) -> File {
    let path = std::env::temp_dir().join(name);
    let file = File::open(&path).or_else(|_| File::options().create(true).append(true).open(&path)).unwrap();
    file.lock().unwrap();
    file
}

#[test]
fn hugetlb_pages_are_used_first_then_transparent_ones() {
    let Some(_pool) = HugetlbReserve::with_free(3) else { return };
    let (pool, mut array) = filled(PageKind::Hugetlb2m, 5);
    let placement = pool.placement().unwrap();
    assert_eq!(placement.hugetlb_bytes, 3 * CHUNK_BYTES as u64, "{placement:?}");
    assert!(placement.resident_bytes >= 5 * CHUNK_BYTES as u64, "{placement:?}");
    assert!((0..).zip(array.iter()).all(|(at, &element)| at == element));
    array.truncate(1);
    array.shrink_to_fit();
    assert_eq!(pool.release_free(), 4 * CHUNK_BYTES);
    assert_eq!(number("free_hugepages").map(|free| free - number("resv_hugepages").unwrap_or(0)), Some(2));
    array.extend(1..(2 * CHUNK_BYTES / 8) as u64);
    assert!((0..).zip(array.iter()).all(|(at, &element)| at == element));
    drop((array, pool));
    assert_eq!(number("free_hugepages").map(|free| free - number("resv_hugepages").unwrap_or(0)), Some(3));
}
