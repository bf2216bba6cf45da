//! Dirty ranges into an array of C's, so much as fits; what does not fit stays dirty.

#![allow(unsafe_code, reason = "writes to an array of C's")]

use std::mem::MaybeUninit;
use std::ops::Range;

use fieldstone_pages::{DirtyRanges, Result};

use crate::answer::{Answer, Refusal};
use crate::memory::range;

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
pub(crate) struct Array<'a> {
    pub(crate) rest: Option<&'a mut FsRange>,
    pub(crate) ranges: *mut FsRange,
    pub(crate) room: usize,
    pub(crate) count: Option<&'a mut MaybeUninit<usize>>,
}

impl Array<'_> {
    /// Looks at `rest`, and takes what was looked at off it. After a failure, what the array has by then is told as well: it is
    /// clean already.
    pub(crate) fn list<'d>(self, look: impl FnOnce(Range<usize>) -> Result<DirtyRanges<'d>>) -> Answer {
        let count = self.count.ok_or(Refusal::Argument("the place for the count is null"))?.write(0);
        let rest = self.rest.ok_or(Refusal::Argument("the range to look at is null"))?;
        if self.ranges.is_null() || self.room == 0 {
            return Err(Refusal::Argument("the array is null or has no room"));
        }
        let whole = range(rest.offset, rest.bytes);
        let mut dirty = look(whole.clone())?;
        while *count < self.room {
            let Some(found) = dirty.next().transpose()? else {
                *rest = FsRange { offset: whole.end, bytes: 0 };
                return Ok(());
            };
            // SAFETY: the header asks for an array of `room` ranges.
            unsafe { self.ranges.add(*count).write(FsRange::of(&found)) };
            *count += 1;
            *rest = FsRange::of(&(found.end..whole.end));
        }
        Ok(())
    }
}
