//! The hugetlb pools: `/sys/kernel/mm/hugepages/hugepages-*kB/`.
//!
//! `free` counts pages that nobody has touched, `reserved` those of them that a mapping was promised. So a new mapping can have
//! `free - reserved`. Surplus pages exist beyond the pool's set size, borrowed under `overcommit`; they go when they are freed.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;

use crate::kernel_file;

const POOLS: &str = "/sys/kernel/mm/hugepages";

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
    /// Of the free ones, promised to a mapping.
    pub reserved: u64,
    /// Of all, beyond the pool's set size.
    pub surplus: u64,
    /// Surplus pages that the kernel may make on demand.
    pub overcommit: u64,
}

impl Pool {
    /// Pages that a new mapping can have now, without overcommit.
    #[must_use]
    pub const fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserved)
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
        reserved: number("resv_hugepages")?,
        surplus: number("surplus_hugepages")?,
        // A gigantic page cannot be made on demand on every machine; then there is no such file.
        overcommit: number("nr_overcommit_hugepages").unwrap_or(0),
    })
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
}
