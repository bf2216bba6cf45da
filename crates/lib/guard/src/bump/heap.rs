//! A full heap, as its handler sees it.

use std::alloc::Layout;
use std::ops::Range;

use crate::bump::area::Area;
use crate::error::Result;

/// A heap that is too full for an allocation. The handler of [`BumpBuilder::on_full`] makes room in
/// it.
///
/// [`BumpBuilder::on_full`]: crate::BumpBuilder::on_full
#[derive(Debug)]
pub struct Heap<'a> {
    pub(super) area: &'a mut Area,
    /// The address of the next object.
    pub(super) next: &'a mut usize,
    pub(super) request: Layout,
}

impl Heap<'_> {
    /// The allocation that found no room.
    #[must_use]
    pub fn request(&self) -> Layout {
        self.request
    }

    /// The addresses of all objects. A collector finds its live objects there.
    #[must_use]
    pub fn used(&self) -> Range<usize> {
        self.area.accessible().start..*self.next
    }

    /// The size in bytes, without what was not yet added by [`Heap::grow`].
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.area.accessible().len()
    }

    /// Adds bytes at the end, rounded up to whole pages. Objects stay where they are.
    ///
    /// # Errors
    /// [`Error::Limit`](crate::Error::Limit) at the limit of
    /// [`BumpBuilder::limit`](crate::BumpBuilder::limit), [`Error::Map`](crate::Error::Map) if the
    /// kernel refuses.
    pub fn grow(&mut self, bytes: usize) -> Result<()> {
        self.area.grow(bytes)
    }

    /// Makes all memory of the heap free. The contents stay until they are overwritten.
    ///
    /// # Safety
    /// No code uses an object of this heap any more: a collector has copied those that live, and has
    /// changed all references to them.
    #[allow(unsafe_code, reason = "invalidates references, as the caller permits")]
    pub unsafe fn reset(&mut self) {
        *self.next = self.area.accessible().start;
    }
}
