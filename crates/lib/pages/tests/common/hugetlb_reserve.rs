//! Free pages of the hugetlb pool.

use std::fs::{self, File};

use fieldstone_sys::warm::warm;

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// The hugetlb pool with a number of free pages, for one test of this machine at a time; restored
/// on drop.
pub(crate) struct HugetlbReserve {
    before: u64,
    _alone: File,
}

impl HugetlbReserve {
    /// `None` after a SKIP line if the pool cannot be set.
    pub(crate) fn with_free(pages: u64) -> Option<Self> {
        let path = std::env::temp_dir().join("fieldstone-hugetlb.lock");
        let file = File::open(&path).or_else(|_| File::options().create(true).append(true).open(&path)).unwrap();
        file.lock().unwrap();
        let (Some(total), Some(free)) = (number("nr_hugepages"), number("free_hugepages")) else {
            println!("SKIP no hugetlb pool");
            return None;
        };
        let promised = number("resv_hugepages").unwrap_or(0);
        let this = Self { before: total - number("surplus_hugepages").unwrap_or(0), _alone: file };
        let wanted = (total - free + promised + pages).to_string();
        if fs::write(format!("{POOL}/nr_hugepages"), &wanted).is_err() {
            println!("SKIP not root: the hugetlb pool cannot be changed");
            return None;
        }
        // Cached files may fill the memory.
        if number("free_hugepages") < Some(promised + pages) {
            warm(2 * (pages << 21));
            let _ = fs::write(format!("{POOL}/nr_hugepages"), &wanted);
        }
        if number("free_hugepages") != Some(promised + pages) {
            println!("SKIP not enough memory for a hugetlb pool of {pages} pages");
            return None;
        }
        Some(this)
    }
}

impl Drop for HugetlbReserve {
    fn drop(&mut self) {
        let _ = fs::write(format!("{POOL}/nr_hugepages"), self.before.to_string());
    }
}

/// A number of the pool, by the name of its file.
pub(crate) fn number(name: &str) -> Option<u64> {
    fs::read_to_string(format!("{POOL}/{name}")).ok()?.trim().parse().ok()
}
