//! Where slots and objects lie: arithmetic on addresses only.
//!
//! ```text
//! range   [ class 0 | class 1 | ... ]                       each `span` bytes, a power of two
//! class c [ guard | slot 0 | guard | slot 1 | guard | ... ] a slot has 2^c pages
//! slot    [ unused | guard | used pages ]                   right: the object ends with the slot
//!         [ used pages | guard | unused ]                   left: the object starts with the slot
//! used    [ padding | object | padding ]                    less than a page of padding on each side,
//!                                                           for alignments up to a page
//! ```
//! A guard inside a slot is needed only if pages are unused on that side. So an object with `n`
//! pages costs `n` pages of memory, and rounding to a power of two costs address space only.

use core::ops::Range;

use crate::kernel::PAGE;

/// The number of size classes: the largest slot has 2^(MAX_CLASSES - 1) pages.
pub(crate) const MAX_CLASSES: usize = 24;

/// The range of all slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) base: usize,
    /// log2 of the bytes of a class.
    pub(crate) span_shift: u32,
    pub(crate) classes: u32,
}

/// A slot: its class, and its number in the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) class: u32,
    pub(crate) index: u32,
}

/// What an address of the range belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The pages of a slot.
    Inside(Slot),
    /// The guard between two slots, or before the first one of a class.
    Between(Option<Slot>, Slot),
}

/// The bytes of a slot and of the guard behind it.
pub(crate) const fn stride(class: u32) -> usize {
    (PAGE << class) + PAGE
}

/// The class of slots with at least `pages` pages; `pages` is at least 1.
pub(crate) const fn class_for(pages: usize) -> u32 {
    usize::BITS - (pages - 1).leading_zeros()
}

impl Geometry {
    /// The size of the range in bytes.
    pub(crate) const fn bytes(&self) -> usize {
        (self.classes as usize) << self.span_shift
    }

    /// The number of slots in a class.
    pub(crate) const fn capacity(&self, class: u32) -> usize {
        ((1 << self.span_shift) - PAGE) / stride(class)
    }

    /// The pages of a slot.
    pub(crate) const fn pages(&self, slot: Slot) -> Range<usize> {
        let start = self.base + ((slot.class as usize) << self.span_shift) + PAGE;
        let start = start + slot.index as usize * stride(slot.class);
        start..start + (PAGE << slot.class)
    }

    /// What an address belongs to. `None` outside the range, and behind the last slot of a class.
    pub(crate) fn locate(&self, address: usize) -> Option<Place> {
        let offset = address.checked_sub(self.base).filter(|&offset| offset < self.bytes())?;
        let class = (offset >> self.span_shift) as u32;
        let offset = offset & ((1 << self.span_shift) - 1);
        let Some(offset) = offset.checked_sub(PAGE) else {
            return Some(Place::Between(None, Slot { class, index: 0 }));
        };
        // The cast keeps the value: a class has fewer than 2^32 slots, because a span has at most 2^43 bytes.
        let (index, rest) = (offset / stride(class), offset % stride(class));
        if index >= self.capacity(class) {
            return None;
        }
        let slot = Slot { class, index: index as u32 };
        if rest < PAGE << class {
            return Some(Place::Inside(slot));
        }
        Some(Place::Between(Some(slot), Slot { class, index: slot.index + 1 }))
    }
}

/// An object's place in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The size as requested.
    pub(crate) bytes: usize,
    /// log2 of the alignment.
    pub(crate) alignment: u32,
    pub(crate) is_left: bool,
}

impl Placement {
    /// The pages that an object needs at most, wherever its slot is; `None` on overflow.
    pub(crate) fn pages(self) -> Option<usize> {
        // Slots are aligned to a page. A larger alignment may leave all but a page of it unused.
        let extra = (1_usize << self.alignment).saturating_sub(PAGE);
        Some(self.bytes.max(1).checked_add(extra)?.checked_next_multiple_of(PAGE)? / PAGE)
    }

    /// The address of the object in a slot that has [`Placement::pages`].
    pub(crate) const fn start(self, slot: &Range<usize>) -> usize {
        let mask = (1 << self.alignment) - 1;
        if self.is_left {
            return (slot.start + mask) & !mask;
        }
        // An object without bytes has an address of its own, inside the slot.
        let bytes = if self.bytes == 0 { 1 } else { self.bytes };
        (slot.end - bytes) & !mask
    }

    /// The whole pages that the object uses.
    pub(crate) const fn used(self, slot: &Range<usize>) -> Range<usize> {
        let start = self.start(slot);
        let bytes = if self.bytes == 0 { 1 } else { self.bytes };
        start & !(PAGE - 1)..(start + bytes).next_multiple_of(PAGE)
    }
}
