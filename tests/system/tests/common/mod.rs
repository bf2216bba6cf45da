//! Shared by all test programs: waiting, signals, locks between tests, and the hugetlb pool for one
//! test at a time.

use std::fs::{self, File};

use fieldstone_sys::warm::warm;

mod wait;
pub(crate) use wait::{kill, wait_until};

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// A file that all tests on this machine lock. It may belong to another user; reading it is enough
/// to lock it.
pub(crate) fn lock_file(name: &str) -> File {
    let path = std::env::temp_dir().join(name);
    File::open(&path).or_else(|_| File::options().create(true).append(true).open(&path)).unwrap()
}

/// The pool of 2 MiB pages with a given number of free pages, for one test at a time. Restored when
/// dropped.
pub(crate) struct ReservedPool {
    before: u64,
    _lock: File,
}

impl ReservedPool {
    /// `None`, printed as a skip, if this user may not change the pool, or if there is too
    /// little memory.
    pub(crate) fn with_free(free: u64) -> Option<Self> {
        let lock = lock_file("fieldstone-hugetlb.lock");
        lock.lock().unwrap();
        let (Some(pages), Some(free_pages)) = (pool("nr_hugepages"), pool("free_hugepages")) else {
            println!("SKIP no hugetlb pool");
            return None;
        };
        let (reserved, surplus) = (reserved_pages(), pool("surplus_hugepages").unwrap_or(0));
        let this = Self { before: pages - surplus, _lock: lock };
        let wanted = pages - free_pages + reserved + free;
        if set_pool(wanted).is_err() {
            println!("SKIP not root: the hugetlb pool cannot be changed");
            return None;
        }
        // Cached files may fill the memory.
        if pool("nr_hugepages") < Some(wanted) {
            warm(2 * (free << 21));
            let _ = set_pool(wanted);
        }
        if pool("nr_hugepages") != Some(wanted) {
            println!("SKIP not enough memory for a hugetlb pool of {free} pages");
            return None;
        }
        Some(this)
    }
}

/// Reserved pages of the pool. While pinned pages of an ended program return, the count is
/// negative, a number near 2^64.
pub(crate) fn reserved_pages() -> u64 {
    wait_until("the pool to settle", || pool("resv_hugepages").filter(|&pages| i64::try_from(pages).is_ok()))
}

impl Drop for ReservedPool {
    fn drop(&mut self) {
        let _ = set_pool(self.before);
    }
}

fn set_pool(pages: u64) -> std::io::Result<()> {
    fs::write(format!("{POOL}/nr_hugepages"), pages.to_string())
}

/// A counter of the pool.
pub(crate) fn pool(name: &str) -> Option<u64> {
    fs::read_to_string(format!("{POOL}/{name}")).ok()?.trim().parse().ok()
}
