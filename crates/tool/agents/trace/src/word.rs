//! The word that QEMU keeps for each call-back: what the block costs, so that nothing has to be looked up.
//!
//! ```text
//!  63 .. 60  59     58      57, 56  55 ...... 46  45 .. 36  35 .............. 0
//!            stack  chases          instructions  accesses  page of the block
//! ```
//!
//! The signs of an access lie where a record has them ([`Record`](fieldstone_wire::trace::Record)).

use std::ffi::c_void;

use fieldstone_wire::trace::{CHASES, STACK};

use crate::decode::Nature;

const PAGE_SHIFT: u32 = 12;
const PAGE_BITS: u32 = 36;
const COUNT_BITS: u32 = 10;
/// The most that either count can be.
const MOST: u64 = (1 << COUNT_BITS) - 1;

/// The word of a call-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(u64);

impl Word {
    /// A call-back that stands for no block.
    pub(crate) const NONE: Self = Self(0);

    /// A block on the page of `address`, with so many instructions and accesses.
    pub(crate) fn new(address: u64, instructions: usize, accesses: usize) -> Self {
        let count = |count: usize| (count as u64).min(MOST);
        let page = address >> PAGE_SHIFT & ((1 << PAGE_BITS) - 1);
        Self(count(instructions) << (PAGE_BITS + COUNT_BITS) | count(accesses) << PAGE_BITS | page)
    }

    /// The same, for an access of this nature.
    pub(crate) fn with(self, nature: Nature) -> Self {
        match nature {
            Nature::Plain => self,
            Nature::Chase(_) => Self(self.0 | CHASES),
            Nature::Stack => Self(self.0 | STACK),
        }
    }

    #[inline(always)]
    pub(crate) fn page(self) -> u64 {
        self.0 & ((1 << PAGE_BITS) - 1)
    }

    #[inline(always)]
    pub(crate) fn accesses(self) -> u64 {
        self.0 >> PAGE_BITS & MOST
    }

    #[inline(always)]
    pub(crate) fn instructions(self) -> u64 {
        self.0 >> (PAGE_BITS + COUNT_BITS) & MOST
    }

    /// The signs of the access, as its record has them.
    #[inline(always)]
    pub(crate) fn signs(self) -> u64 {
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
    fn nothing_gets_into_its_neighbour() {
        let word = Word::new(0x7fff_ffff_f123, 512, 5000).with(Nature::Chase(1));
        assert_eq!((word.page(), word.instructions(), word.accesses()), (0x7_ffff_ffff, 512, MOST));
        assert!(word.signs() == CHASES);
        let plain = Word::new(u64::MAX, 0, 0);
        assert_eq!((plain.instructions(), plain.accesses(), plain.signs()), (0, 0, 0));
        assert_eq!(Word::of(word.pointer()), word);
    }
}
