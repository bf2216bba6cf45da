//! The options of a heap.

use std::cell::{Cell, RefCell};

use crate::bump::area::Area;
use crate::bump::heap::Heap;
use crate::bump::{Bump, OnFull, store};
use crate::error::Result;

/// The address space that a heap reserves by default.
const DEFAULT_LIMIT: usize = 1 << 36;

/// The options of a [`Bump`], made by [`Bump::builder`].
#[must_use]
pub struct BumpBuilder {
    bytes: usize,
    limit: usize,
    on_full: Option<OnFull>,
}

impl std::fmt::Debug for BumpBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BumpBuilder").field("bytes", &self.bytes).field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl BumpBuilder {
    pub(super) fn new(bytes: usize) -> Self {
        Self { bytes, limit: DEFAULT_LIMIT, on_full: None }
    }

    /// Bounds the size in bytes to which the heap can grow. It is reserved as address space, or less
    /// if `RLIMIT_AS` is small. Default: 64 GiB.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Sets the handler of a full heap, which collects, grows, or returns an error that the
    /// allocation then returns. It runs in the allocating thread as an ordinary function call: it
    /// may allocate elsewhere, lock and panic. After `Ok` the allocation is retried. The handler is
    /// called again if there is still no room, as long as it changes the heap.
    pub fn on_full(mut self, handler: impl FnMut(&mut Heap<'_>) -> Result<()> + 'static) -> Self {
        self.on_full = Some(Box::new(handler));
        self
    }

    /// Maps the heap, and installs the handler of `SIGSEGV` of `fieldstone-pages` in the process.
    ///
    /// # Errors
    /// [`Error::Map`](crate::Error::Map), [`Error::Signal`](crate::Error::Signal).
    pub fn build(self) -> Result<Bump> {
        store::prepare()?;
        let area = Area::new(self.bytes, self.limit)?;
        let accessible = area.accessible();
        Ok(Bump {
            next: Cell::new(std::ptr::with_exposed_provenance_mut(accessible.start)),
            end: Cell::new(accessible.end),
            area: RefCell::new(area),
            on_full: RefCell::new(self.on_full),
        })
    }
}
