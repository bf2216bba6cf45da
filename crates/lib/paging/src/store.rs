//! Stores of pages that are not resident.

use core::fmt;

use crate::kernel::{EIO, ENODATA, ENOMEM, ENOSPC, ETIMEDOUT, Errno, PAGE};

/// The contents of a page.
pub type Page = [u8; PAGE];

/// The largest key of a page in a store.
pub const MAX_KEY: u32 = (1 << 29) - 1;

/// Why a store did not store or return a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store takes no more pages of this kind now. The pager asks the next store.
    #[error("it is full")]
    Full,
    /// The store failed, with an errno. The pager keeps the page and asks the next store.
    #[error("{}", Cause(*.0))]
    Failed(Errno),
    /// The contents are not those that were stored. The pager checks that; a store may find it
    /// earlier.
    #[error("the contents have changed in the store")]
    Damaged,
}

/// Shows an errno by what it means for a store.
struct Cause(Errno);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            EIO => "it cannot be reached or read (EIO)",
            ENODATA => "it no longer has the page (ENODATA)",
            ENOMEM => "it has no memory (ENOMEM)",
            ENOSPC => "it is full (ENOSPC)",
            ETIMEDOUT => "it does not answer (ETIMEDOUT)",
            errno => return write!(f, "errno {errno}"),
        })
    }
}

/// A place for pages that are not resident.
///
/// The pager checks the contents of each page that comes back, so a store needs no checksum.
/// Its functions run in the thread that serves faults and in threads that give advice, several at a
/// time. They never access memory that this pager pages, and never call its `Paged`: otherwise they
/// wait forever. A panic ends the process.
pub trait Store: Send + Sync {
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

    /// The name in reports and messages, such as `lz4`. Default: the name of the type.
    fn name(&self) -> &'static str {
        let path = core::any::type_name::<Self>();
        let path = path.split('<').next().unwrap_or(path);
        path.rsplit(':').next().unwrap_or(path)
    }

    /// Bytes that the stored pages take here, for reports. Default: 0.
    fn bytes(&self) -> u64 {
        0
    }
}
