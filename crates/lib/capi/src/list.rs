//! Writes dirty ranges to an array of C, as many as fit; the others stay dirty.

#![allow(unsafe_code, reason = "writes to an array of C")]

use std::mem::MaybeUninit;
use std::ops::Range;

use fieldstone_pages::{DirtyRanges, Result};

use crate::memory::range;
use crate::result::{CallError, CallResult};

/// `fs_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FsRange {
    offset: usize,
    bytes: usize,
}

impl FsRange {
    pub(crate) fn of(range: &Range<usize>) -> Self {
        Self { offset: range.start, bytes: range.len() }
    }
}

/// The array and its two counts.
pub(crate) struct RangeArray<'a> {
    pub(crate) rest: Option<&'a mut FsRange>,
    pub(crate) ranges: *mut FsRange,
    pub(crate) capacity: usize,
    pub(crate) count: Option<&'a mut MaybeUninit<usize>>,
}

impl RangeArray<'_> {
    /// Lists the dirty ranges of `rest`, and removes the listed part from it. After a failure the
    /// ranges in the array count too: they are clean already.
    pub(crate) fn list<'d>(self, look: impl FnOnce(Range<usize>) -> Result<DirtyRanges<'d>>) -> CallResult {
        let count = self.count.ok_or(CallError::Argument("the place for the count is null"))?.write(0);
        let rest = self.rest.ok_or(CallError::Argument("the range to list is null"))?;
        if self.ranges.is_null() || self.capacity == 0 {
            return Err(CallError::Argument("the array is null or empty"));
        }
        let whole = range(rest.offset, rest.bytes);
        let mut dirty = look(whole.clone())?;
        while *count < self.capacity {
            let Some(found) = dirty.next().transpose()? else {
                *rest = FsRange { offset: whole.end, bytes: 0 };
                return Ok(());
            };
            // SAFETY: the header requires an array of `capacity` ranges, and `count` is less.
            unsafe { self.ranges.add(*count).write(FsRange::of(&found)) };
            *count += 1;
            *rest = FsRange::of(&(found.end..whole.end));
        }
        Ok(())
    }
}
