//! The hugetlb pools: `/sys/kernel/mm/hugepages/hugepages-*kB/`.
//!
//! `free` counts untouched pages; `reserved` counts those of them that are promised to a mapping.
//! So a new mapping can use `free - reserved`. Surplus pages exceed the pool's configured size,
//! within `overcommit`; the kernel frees them with their last user.
//!
//! Pages that were pinned (io_uring, direct I/O) return to the pool some milliseconds after the end
//! of their process. Until then the kernel's count of reserved pages may be negative, which the
//! file shows as a number near 2^64.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::kernel_file;

const POOLS: &str = "/sys/kernel/mm/hugepages";
/// How long to wait for pages of an ended process.
const PATIENCE: Duration = Duration::from_millis(500);

/// One pool, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HugePagePool {
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Pages in the pool, surplus pages included.
    pub total: u64,
    /// Of them, untouched.
    pub free: u64,
    /// Of the free ones, promised to a mapping. Negative while pages of an ended process are
    /// returning.
    pub reserved: i64,
    /// Of all, beyond the pool's configured size.
    pub surplus: u64,
    /// Surplus pages that the kernel may allocate on demand.
    pub overcommit: u64,
}

impl HugePagePool {
    /// Pages available to a new mapping, without overcommit.
    #[must_use]
    pub const fn available(&self) -> u64 {
        self.free.saturating_sub(if self.reserved > 0 { self.reserved.cast_unsigned() } else { 0 })
    }

    /// Whether pages of ended processes may still be returning.
    const fn is_returning(&self) -> bool {
        self.reserved < 0 || self.surplus > 0
    }
}

/// The pools of this machine, smallest page size first; empty without hugetlb in the kernel.
#[must_use]
pub fn pools() -> Vec<HugePagePool> {
    let Ok(entries) = fs::read_dir(POOLS) else { return Vec::new() };
    let sizes = entries.flatten().filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok()
    });
    let mut pools: Vec<HugePagePool> = sizes.filter_map(|kilobytes| pool(kilobytes << 10)).collect();
    pools.sort_unstable_by_key(|pool| pool.page_bytes);
    pools
}

/// The pool of one page size, or `None` if there is none.
#[must_use]
pub fn pool(page_bytes: u64) -> Option<HugePagePool> {
    let directory = pool_directory(page_bytes);
    let number = |name: &str| kernel_file::number(directory.join(name));
    Some(HugePagePool {
        page_bytes,
        total: number("nr_hugepages")?,
        free: number("free_hugepages")?,
        reserved: number("resv_hugepages")?.cast_signed(),
        surplus: number("surplus_hugepages")?,
        // Not every machine can allocate gigantic pages on demand; the file is then missing.
        overcommit: number("nr_overcommit_hugepages").unwrap_or(0),
    })
}

/// The pool of one page size once it has `wanted` pages for a new mapping. Waits at most 500 ms,
/// and only while pages of an ended process may be returning.
#[must_use]
pub fn settled_pool(page_bytes: u64, wanted: u64) -> Option<HugePagePool> {
    settled(wanted, || pool(page_bytes))
}

fn settled(wanted: u64, read: impl Fn() -> Option<HugePagePool>) -> Option<HugePagePool> {
    let until = Instant::now() + PATIENCE;
    loop {
        let pool = read()?;
        if pool.available() >= wanted || !pool.is_returning() || Instant::now() >= until {
            return Some(pool);
        }
        sleep(Duration::from_millis(2));
    }
}

/// The directory of the pool of one page size.
pub(crate) fn pool_directory(page_bytes: u64) -> PathBuf {
    PathBuf::from(format!("{POOLS}/hugepages-{}kB", page_bytes >> 10))
}

/// The file that sets the number of pages of the pool.
#[must_use]
pub fn pool_pages_path(page_bytes: u64) -> PathBuf {
    pool_directory(page_bytes).join("nr_hugepages")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pool_directory_is_a_pool() {
        let pools = pools();
        assert_eq!(pools.len(), fs::read_dir(POOLS).map_or(0, Iterator::count));
        assert!(pools.is_sorted_by_key(|pool| pool.page_bytes));
        for pool in pools {
            assert!(pool.page_bytes.is_power_of_two() && pool.page_bytes > rustix::param::page_size() as u64);
            assert!(pool.available() <= pool.free);
        }
        assert_eq!(pool(12345 << 10), None);
    }

    /// A pool of eight pages, as the kernel's files show it.
    fn with(free: u64, reserved: u64) -> HugePagePool {
        HugePagePool {
            page_bytes: 2 << 20,
            total: 8,
            free,
            reserved: reserved.cast_signed(),
            surplus: 0,
            overcommit: 0,
        }
    }

    #[test]
    fn a_negative_count_reserves_nothing() {
        assert_eq!(with(4, u64::MAX - 3).available(), 4);
        assert_eq!(with(4, 0).available(), 4);
        assert_eq!(with(4, 1).available(), 3);
        assert_eq!(with(4, 9).available(), 0);
    }

    #[test]
    fn returning_pages_are_awaited() {
        let reads = std::cell::Cell::new(0);
        let read = || {
            reads.set(reads.get() + 1);
            Some(if reads.get() < 4 { with(4, u64::MAX - 3) } else { with(8, 0) })
        };
        assert_eq!((settled(8, read), reads.get()), (Some(with(8, 0)), 4));
        let since = Instant::now();
        assert_eq!(settled(9, || Some(with(8, 0))), Some(with(8, 0)), "no page is returning");
        assert!(since.elapsed() < PATIENCE);
        assert_eq!(settled(9, || Some(with(8, u64::MAX))), Some(with(8, u64::MAX)), "the wait is bounded");
    }
}
