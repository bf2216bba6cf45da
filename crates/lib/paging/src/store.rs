//! Stores of pages that are not resident.

use crate::kernel::{Errno, PAGE};

/// The contents of a page.
pub type Page = [u8; PAGE];

/// The largest key of a page in a store.
pub const MAX_KEY: u32 = (1 << 29) - 1;

/// Why a store did not do what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The store takes no more pages of this kind now. The pager asks the next store.
    Full,
    /// The store failed, with an errno. The pager keeps the page and asks the next store.
    Failed(Errno),
}

/// A place for pages that are not resident.
///
/// The pager checks the contents of each page that comes back, so a store needs no checksum.
/// Its functions run in the thread that serves faults: they never access memory that this pager
/// pages, or they wait forever.
pub trait Store: Sync {
    /// The name in reports, such as `lz4`.
    fn name(&self) -> &'static str;

    /// Stores pages, and sets the key of each, at most [`MAX_KEY`]. Returns how many were stored: the
    /// first ones, unless an error stopped it.
    ///
    /// # Errors
    /// Why not even the first page was stored.
    fn put(&self, pages: &[&Page], keys: &mut [u32]) -> Result<usize, StoreError>;

    /// Reads back pages by their keys. The pages stay stored.
    ///
    /// # Errors
    /// Why a page cannot be read.
    fn get(&self, keys: &[u32], pages: &mut [Page]) -> Result<(), StoreError>;

    /// Frees the places of pages.
    fn forget(&self, keys: &[u32]);

    /// Bytes that the stored pages take here.
    fn bytes(&self) -> u64;
}
