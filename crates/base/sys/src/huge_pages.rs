//! What the kernel offers in huge pages: the hugetlb pools, and the modes of transparent ones.
//!
//! Source: admin-guide/mm/hugetlbpage and transhuge. Two different things: a *pool* holds pages that somebody set apart, and a
//! program asks for them by name; a *transparent* huge page is given by the kernel, when it finds one, to memory that may have it.

pub(crate) mod pools;
mod transparent;

pub use pools::{Pool, pool, pool_pages_path, pools, settled_pool};
pub use transparent::{FolioMode, Khugepaged, Mode, Transparent, global_mode_path, mode_path, transparent};

/// Whether this user may turn the knobs of both: root where `/sys` is writable, which it is not in many containers.
#[must_use]
pub fn knobs_writable() -> bool {
    let writable = |path: std::path::PathBuf| rustix::fs::access(&path, rustix::fs::Access::WRITE_OK).is_ok();
    let mut knobs = pools().into_iter().map(|pool| pool_pages_path(pool.page_bytes)).chain([global_mode_path()]);
    knobs.any(writable)
}
