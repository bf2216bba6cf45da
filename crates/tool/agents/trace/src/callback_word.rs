//! The data word of a call-back: the counts of its block, so that nothing has to be looked up.
//!
//! ```text
//!  63 .. 60  59     58      57, 56  55 ...... 46  45 .. 36  35 .............. 0
//!            stack  chases          instructions  accesses  page of the block
//! ```
//!
//! The flags of an access are at the same bits as in a [`Record`](fieldstone_wire::trace::Record).

use std::ffi::c_void;

use fieldstone_wire::trace::{CHASES, STACK};

use crate::decode::AccessKind;

const PAGE_SHIFT: u32 = 12;
const PAGE_BITS: u32 = 36;
const COUNT_BITS: u32 = 10;
/// The largest value of either count.
const MAX_COUNT: u64 = (1 << COUNT_BITS) - 1;

/// The data word of a call-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallbackWord(u64);

impl CallbackWord {
    /// A call-back that counts no block.
    pub(crate) const NONE: Self = Self(0);

    /// A block on the page of `address`, with these counts.
    pub(crate) fn new(address: u64, instructions: usize, accesses: usize) -> Self {
        let count = |count: usize| (count as u64).min(MAX_COUNT);
        let page = address >> PAGE_SHIFT & ((1 << PAGE_BITS) - 1);
        Self(count(instructions) << (PAGE_BITS + COUNT_BITS) | count(accesses) << PAGE_BITS | page)
    }

    /// Adds the flags of an access.
    pub(crate) fn with(self, nature: AccessKind) -> Self {
        match nature {
            AccessKind::Plain => self,
            AccessKind::Chase(_) => Self(self.0 | CHASES),
            AccessKind::Stack => Self(self.0 | STACK),
        }
    }

    #[inline(always)]
    pub(crate) fn page(self) -> u64 {
        self.0 & ((1 << PAGE_BITS) - 1)
    }

    #[inline(always)]
    pub(crate) fn accesses(self) -> u64 {
        self.0 >> PAGE_BITS & MAX_COUNT
    }

    #[inline(always)]
    pub(crate) fn instructions(self) -> u64 {
        self.0 >> (PAGE_BITS + COUNT_BITS) & MAX_COUNT
    }

    /// The flags of the access, as in its record.
    #[inline(always)]
    pub(crate) fn flags(self) -> u64 {
        self.0 & (CHASES | STACK)
    }

    pub(crate) fn pointer(self) -> *mut c_void {
        std::ptr::without_provenance_mut(usize::try_from(self.0).unwrap_or(0))
    }

    #[inline(always)]
    pub(crate) fn of(pointer: *mut c_void) -> Self {
        Self(pointer.addr() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_overlap() {
        let word = CallbackWord::new(0x7fff_ffff_f123, 512, 5000).with(AccessKind::Chase(1));
        assert_eq!((word.page(), word.instructions(), word.accesses()), (0x7_ffff_ffff, 512, MAX_COUNT));
        assert!(word.flags() == CHASES);
        let plain = CallbackWord::new(u64::MAX, 0, 0);
        assert_eq!((plain.instructions(), plain.accesses(), plain.flags()), (0, 0, 0));
        assert_eq!(CallbackWord::of(word.pointer()), word);
    }
}
