//! The hugetlb pools: `/sys/kernel/mm/hugepages/hugepages-*kB/`.
//!
//! `free` counts pages that nobody has touched, `reserved` those of them that a mapping was promised. So a new mapping can have
//! `free - reserved`. Surplus pages exist beyond the pool's set size, borrowed under `overcommit`; they go when they are freed.
//!
//! Pages that were pinned (io_uring, direct I/O) come back some milliseconds after the end of their process. Until then the
//! kernel's count of reserved pages may be below zero, which the file shows as a number near 2^64.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::kernel_file;

const POOLS: &str = "/sys/kernel/mm/hugepages";
/// How long to wait for pages that the kernel is taking back from a process that has ended.
const PATIENCE: Duration = Duration::from_millis(500);

/// One pool, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Pool {
    /// The size of its pages.
    pub page_bytes: u64,
    /// Pages there are, surplus ones among them.
    pub total: u64,
    /// Of them, not touched by anybody.
    pub free: u64,
    /// Of the free ones, promised to a mapping. Negative while pages of an ended process are still coming back.
    pub reserved: i64,
    /// Of all, beyond the pool's set size.
    pub surplus: u64,
    /// Surplus pages that the kernel may make on demand.
    pub overcommit: u64,
}

impl Pool {
    /// Pages that a new mapping can have now, without overcommit.
    #[must_use]
    pub const fn available(&self) -> u64 {
        self.free.saturating_sub(if self.reserved > 0 { self.reserved.cast_unsigned() } else { 0 })
    }

    /// Whether the kernel may still be taking back pages of processes that have ended.
    const fn is_returning(&self) -> bool {
        self.reserved < 0 || self.surplus > 0
    }
}

/// The pools of this machine, smallest page first; empty where the kernel has no hugetlb.
#[must_use]
pub fn pools() -> Vec<Pool> {
    let Ok(entries) = fs::read_dir(POOLS) else { return Vec::new() };
    let sizes = entries.flatten().filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok()
    });
    let mut pools: Vec<Pool> = sizes.filter_map(|kilobytes| pool(kilobytes << 10)).collect();
    pools.sort_unstable_by_key(|pool| pool.page_bytes);
    pools
}

/// The pool of one page size, or `None` where there is none.
#[must_use]
pub fn pool(page_bytes: u64) -> Option<Pool> {
    let directory = pool_directory(page_bytes);
    let number = |name: &str| kernel_file::number(directory.join(name));
    Some(Pool {
        page_bytes,
        total: number("nr_hugepages")?,
        free: number("free_hugepages")?,
        reserved: number("resv_hugepages")?.cast_signed(),
        surplus: number("surplus_hugepages")?,
        // A gigantic page cannot be made on demand on every machine; then there is no such file.
        overcommit: number("nr_overcommit_hugepages").unwrap_or(0),
    })
}

/// The pool of one page size once it has `wanted` pages for a new mapping. Waits half a second at most, and only while pages
/// of an ended process may still come back.
#[must_use]
pub fn settled_pool(page_bytes: u64, wanted: u64) -> Option<Pool> {
    settled(wanted, || pool(page_bytes))
}

fn settled(wanted: u64, read: impl Fn() -> Option<Pool>) -> Option<Pool> {
    let until = Instant::now() + PATIENCE;
    loop {
        let pool = read()?;
        if pool.available() >= wanted || !pool.is_returning() || Instant::now() >= until {
            return Some(pool);
        }
        sleep(Duration::from_millis(2));
    }
}

/// Where the pool of one page size is.
pub(crate) fn pool_directory(page_bytes: u64) -> PathBuf {
    PathBuf::from(format!("{POOLS}/hugepages-{}kB", page_bytes >> 10))
}

/// The knob that says how many pages the pool of one page size has.
#[must_use]
pub fn pool_pages_path(page_bytes: u64) -> PathBuf {
    pool_directory(page_bytes).join("nr_hugepages")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pools_are_those_of_the_directory() {
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
    fn with(free: u64, reserved: u64) -> Pool {
        Pool { page_bytes: 2 << 20, total: 8, free, reserved: reserved.cast_signed(), surplus: 0, overcommit: 0 }
    }

    #[test]
    fn a_count_below_zero_promises_nothing() {
        assert_eq!(with(4, u64::MAX - 3).available(), 4);
        assert_eq!(with(4, 0).available(), 4);
        assert_eq!(with(4, 1).available(), 3);
        assert_eq!(with(4, 9).available(), 0);
    }

    #[test]
    fn pages_that_come_back_are_waited_for() {
        let reads = std::cell::Cell::new(0);
        let read = || {
            reads.set(reads.get() + 1);
            Some(if reads.get() < 4 { with(4, u64::MAX - 3) } else { with(8, 0) })
        };
        assert_eq!((settled(8, read), reads.get()), (Some(with(8, 0)), 4));
        let since = Instant::now();
        assert_eq!(settled(9, || Some(with(8, 0))), Some(with(8, 0)), "nothing is coming back");
        assert!(since.elapsed() < PATIENCE);
        assert_eq!(settled(9, || Some(with(8, u64::MAX))), Some(with(8, u64::MAX)), "the wait is bounded");
    }
}
