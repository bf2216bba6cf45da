//! The memory of a heap: an accessible part that can grow, and inaccessible pages behind it.
//!
//! ```text
//! start            end of the accessible part              end of the reservation
//! | objects | free | inaccessible: at least GUARD bytes ... |
//! ```
//! The whole range is reserved at first, so the heap grows in place and is one range of addresses.

#![allow(unsafe_code, reason = "maps memory and changes its protection")]

use core::ops::Range;

use crate::error::{Error, Result};
use crate::kernel::{self, PAGE};

/// Inaccessible bytes behind the accessible part: the largest object that is not checked.
pub(crate) const GUARD: usize = 64 << 10;

/// The share of the address space limit that a heap reserves at most.
const LIMIT_SHARE: usize = 8;

const ENOMEM: i32 = 12;

/// The memory of a heap.
#[derive(Debug)]
pub(crate) struct Area {
    reserved: Range<usize>,
    end: usize,
}

impl Area {
    /// Reserves memory for `most` bytes, or for a half of it as often as necessary, and makes the
    /// first `bytes` accessible.
    pub(crate) fn new(bytes: usize, most: usize) -> Result<Self> {
        let bytes = whole_pages(bytes.max(1))?;
        let share = kernel::address_space_limit().map_or(usize::MAX, |limit| limit / LIMIT_SHARE);
        let mut size = whole_pages(most.min(share).max(bytes))?.max(bytes);
        let start = loop {
            match kernel::map(size.saturating_add(GUARD), false) {
                Ok(start) => break start,
                Err(errno) if size == bytes => return Err(Error::Map { bytes: size, errno }),
                Err(_) => size = (size / 2).next_multiple_of(PAGE).max(bytes),
            }
        };
        let mut area = Self { reserved: start..start + size + GUARD, end: start };
        area.grow(bytes)?;
        Ok(area)
    }

    /// Makes more bytes accessible, rounded up to whole pages.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<()> {
        let bytes = whole_pages(bytes)?;
        if bytes > self.reserved.end - GUARD - self.end {
            return Err(Error::Limit { bytes, limit: self.reserved.len() - GUARD });
        }
        // SAFETY: the pages are in the reservation, and nothing uses them yet.
        unsafe { kernel::protect(self.end..self.end + bytes, true) }.map_err(|errno| Error::Map { bytes, errno })?;
        self.end += bytes;
        Ok(())
    }

    /// The accessible part.
    pub(crate) const fn accessible(&self) -> Range<usize> {
        self.reserved.start..self.end
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the range is owned, and its objects are borrowed from the heap that owns it.
        unsafe { kernel::unmap(self.reserved.clone()) };
    }
}

fn whole_pages(bytes: usize) -> Result<usize> {
    bytes.checked_next_multiple_of(PAGE).ok_or(Error::Map { bytes, errno: ENOMEM })
}
