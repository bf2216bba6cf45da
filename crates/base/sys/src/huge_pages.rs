//! The kernel's huge pages: hugetlb pools and modes of transparent huge pages.
//!
//! A *pool* holds reserved pages, which a program must request explicitly. A *transparent* huge
//! page is used by the kernel, when one is available, for memory whose mode allows it. Source:
//! admin-guide/mm/hugetlbpage and transhuge.

pub(crate) mod pools;
mod transparent;

pub use pools::{HugePagePool, pool, pool_pages_path, pools, settled_pool};
pub use transparent::{FolioMode, Khugepaged, ThpMode, Transparent, global_mode_path, mode_path, transparent};

/// Whether this user may write the settings of both. Root may where `/sys` is writable, which it is
/// not in many containers.
#[must_use]
pub fn knobs_writable() -> bool {
    let writable = |path: std::path::PathBuf| rustix::fs::access(&path, rustix::fs::Access::WRITE_OK).is_ok();
    let mut knobs = pools().into_iter().map(|pool| pool_pages_path(pool.page_bytes)).chain([global_mode_path()]);
    knobs.any(writable)
}
