//! A page of objects: all of one type, in slots of the same size.
//!
//! ```text
//!   0 check          8 number           12 kind 3          13 unused
//!  14 runs of pointers                  16 type            20 size of an object in bytes
//!  22 slots         24 unused
//!  32 a bit for each slot, set if it is in use             64 bytes
//!  96 for each run of pointers: offset in the object, number of pointers
//!   … objects, each at a multiple of 8 bytes, with the low 32 bits of their pointers
//!   … for each pointer of each slot, the bits above: one byte; the last bytes of the page
//! ```
//! A pointer in the file is an address: the number of units of 8 bytes from the start of the file, or 0.
//! A page describes itself, so that it can be read without the tree of the types.

use crate::object::layout::Layout;
use crate::page::{OBJECT, PAGE, Page, set_kind, set_u16, set_u32, u16_at, u32_at, u64_at};

const RUNS: usize = 14;
const TYPE: usize = 16;
const SIZE: usize = 20;
const SLOTS: usize = 22;
const USED: usize = 32;
/// Words of the bits of the slots.
const USED_WORDS: usize = 8;
const RUN_LIST: usize = USED + USED_WORDS * 8;
/// Units of 8 bytes in a page.
pub(crate) const UNITS: u64 = (PAGE / 8) as u64;

/// Addresses are smaller: they have 40 bits.
pub(crate) const MOST_ADDRESSES: u64 = 1 << 40;

/// The page of an address.
pub(crate) const fn page_of(address: u64) -> u64 {
    address / UNITS
}

/// The address of a unit of a page.
pub(crate) const fn address(page: u32, unit: usize) -> u64 {
    page as u64 * UNITS + unit as u64
}

/// A page of objects.
#[derive(Clone, Copy)]
pub(crate) struct ObjectPage<'a>(pub(crate) &'a Page);

/// Where a slot and its pointers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    /// Of the first slot, in bytes.
    start: usize,
    /// From slot to slot, in bytes.
    stride: usize,
    pub(crate) count: usize,
    /// Of each slot.
    pointers: usize,
    /// Where the high bytes of the pointers begin.
    high: usize,
}

impl Slots {
    /// The slots of a page with `runs` runs and `pointers` pointers in objects of `size` bytes.
    fn new(runs: usize, pointers: usize, size: usize, count: usize) -> Self {
        let start = (RUN_LIST + 4 * runs).next_multiple_of(8);
        let high = PAGE.saturating_sub(count * pointers);
        Self { start, stride: size.next_multiple_of(8), count, pointers, high }
    }

    /// The offset of a slot in the page, in bytes.
    pub(crate) const fn offset(&self, slot: usize) -> usize {
        self.start + slot * self.stride
    }

    /// The unit with which a slot begins.
    pub(crate) const fn unit(&self, slot: usize) -> usize {
        self.offset(slot) / 8
    }

    /// The place of a pointer of a slot, by its number and its offset in the object.
    pub(crate) const fn pointer(&self, slot: usize, index: usize, offset: usize) -> PointerPlace {
        PointerPlace { low: self.offset(slot) + offset, high: self.high + slot * self.pointers + index }
    }

    /// The slot that begins at the unit of an address.
    pub(crate) fn slot_of(&self, address: u64) -> Option<usize> {
        let offset = ((address % UNITS) as usize * 8).checked_sub(self.start)?;
        (offset.is_multiple_of(self.stride) && offset / self.stride < self.count).then_some(offset / self.stride)
    }
}

/// Makes a page one of unused slots for objects of a type. Returns false if not even one fits.
pub(crate) fn clear(page: &mut Page, number: u32, layout: &Layout) -> bool {
    let pointers: usize = layout.runs.iter().map(|run| run.count).sum();
    let start = Slots::new(layout.runs.len(), pointers, layout.size, 0).start;
    let each = layout.size.next_multiple_of(8) + pointers;
    let count = PAGE.saturating_sub(start) / each.max(8);
    if count == 0 {
        return false;
    }
    page.fill(0);
    set_kind(page, OBJECT);
    set_u16(page, RUNS, layout.runs.len());
    set_u32(page, TYPE, number);
    set_u16(page, SIZE, layout.size);
    set_u16(page, SLOTS, count);
    for (index, run) in layout.runs.iter().enumerate() {
        set_u16(page, RUN_LIST + 4 * index, run.offset);
        set_u16(page, RUN_LIST + 4 * index + 2, run.count);
    }
    true
}

pub(crate) fn set_used(page: &mut Page, slot: usize) {
    page[USED + slot / 8] |= 1 << (slot % 8);
}

pub(crate) fn set_unused(page: &mut Page, slot: usize) {
    page[USED + slot / 8] &= !(1 << (slot % 8));
}

impl<'a> ObjectPage<'a> {
    /// The number of the type of its objects.
    pub(crate) fn type_number(self) -> u32 {
        u32_at(self.0, TYPE)
    }

    pub(crate) fn size(self) -> usize {
        u16_at(self.0, SIZE)
    }

    /// Offset in an object and length of each run of pointers.
    pub(crate) fn runs(self) -> impl Iterator<Item = (usize, usize)> + Clone + use<'a> {
        let page = self.0;
        let at = |index| RUN_LIST + 4 * index;
        (0..u16_at(page, RUNS)).map(move |index| (u16_at(page, at(index)), u16_at(page, at(index) + 2)))
    }

    /// Whether its objects are of a type.
    pub(crate) fn has_type(self, number: u32, layout: &Layout) -> bool {
        let has_pointers = self.runs().eq(layout.runs.iter().map(|run| (run.offset, run.count)));
        has_pointers && self.type_number() == number && self.size() == layout.size
    }

    pub(crate) fn slots(self) -> Slots {
        let pointers = self.runs().map(|(_, count)| count).sum();
        Slots::new(u16_at(self.0, RUNS), pointers, self.size(), u16_at(self.0, SLOTS))
    }

    pub(crate) fn is_used(self, slot: usize) -> bool {
        self.0[USED + slot / 8] >> (slot % 8) & 1 == 1
    }

    /// The slots in use.
    pub(crate) fn used(self) -> impl Iterator<Item = usize> + use<'a> {
        (0..USED_WORDS).flat_map(move |word| {
            let mut bits = u64_at(self.0, USED + 8 * word);
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits.wrapping_sub(1);
                (bit < 64).then_some(word * 64 + bit)
            })
        })
    }

    /// A slot that is not in use.
    pub(crate) fn unused(self) -> Option<usize> {
        let count = u16_at(self.0, SLOTS);
        let word = (0..USED_WORDS).find(|word| u64_at(self.0, USED + 8 * word) != u64::MAX)?;
        let slot = word * 64 + u64_at(self.0, USED + 8 * word).trailing_ones() as usize;
        (slot < count).then_some(slot)
    }

    /// Whether all places that it names are inside of the page. The other methods need that.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn check(self) -> Result<(), &'static str> {
        let (runs, size) = (u16_at(self.0, RUNS), self.size());
        if RUN_LIST + 4 * runs > PAGE || size == 0 {
            return Err("it has impossible objects");
        }
        if self.runs().any(|(offset, count)| !offset.is_multiple_of(4) || offset + 4 * count > size) {
            return Err("it has pointers outside of its objects");
        }
        let slots = self.slots();
        if slots.count == 0 || slots.offset(slots.count) + slots.count * slots.pointers > PAGE {
            return Err("its objects do not fit into it");
        }
        if self.used().any(|slot| slot >= slots.count) {
            return Err("it has more objects than slots");
        }
        Ok(())
    }

    /// Whether all its pointers are of 32 bits.
    pub(crate) fn is_short(self) -> bool {
        self.0[self.slots().high..].iter().all(|&byte| byte == 0)
    }

    /// The places of the pointers of a slot.
    pub(crate) fn pointers(self, slot: usize) -> impl Iterator<Item = PointerPlace> + use<'a> {
        let slots = self.slots();
        let offsets = self.runs().flat_map(|(offset, count)| (0..count).map(move |index| offset + 4 * index));
        offsets.enumerate().map(move |(index, offset)| slots.pointer(slot, index, offset))
    }
}

/// Where a pointer is in its page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointerPlace {
    /// Of the low 32 bits.
    pub(crate) low: usize,
    high: usize,
}

impl PointerPlace {
    /// The address to which the pointer leads; 0 for none.
    pub(crate) fn address(self, page: &Page) -> u64 {
        u64::from(u32_at(page, self.low)) | u64::from(page[self.high]) << 32
    }

    pub(crate) fn set_address(self, page: &mut Page, address: u64) {
        set_u32(page, self.low, address as u32);
        page[self.high] = (address >> 32) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::Random;
    use crate::object::stored::Ptr;

    crate::stored! {
        struct Leaf { byte: u8 }
        struct Wide { number: u64, to: [Ptr<Leaf>; 5], again: [Ptr<Wide>; 2] }
        struct Huge { to: [Ptr<Leaf>; 1000] }
    }

    fn page(layout: &Layout) -> Page {
        let mut page = [0; PAGE];
        assert!(clear(&mut page, 9, layout));
        page
    }

    #[test]
    fn slots_and_pointers_of_a_page_do_not_overlap() {
        let mut page = page(&Layout::of::<Wide>());
        let slots = ObjectPage(&page).slots();
        for slot in 0..slots.count {
            assert_eq!(ObjectPage(&page).unused(), Some(slot));
            set_used(&mut page, slot);
            page[slots.offset(slot)..][..8].fill(slot as u8);
            let places: Vec<_> = ObjectPage(&page).pointers(slot).collect();
            for (index, place) in places.into_iter().enumerate() {
                place.set_address(&mut page, (slot * 10 + index) as u64 | 0x12_0000_0000);
            }
        }
        assert_eq!((ObjectPage(&page).unused(), ObjectPage(&page).check()), (None, Ok(())));
        for slot in 0..slots.count {
            assert_eq!(page[slots.offset(slot)..][..8], [slot as u8; 8]);
            let found: Vec<_> = ObjectPage(&page).pointers(slot).map(|place| place.address(&page)).collect();
            assert_eq!(found, (0..7).map(|index| (slot as u64 * 10 + index) | 0x12_0000_0000).collect::<Vec<_>>());
            assert_eq!(slots.slot_of(address(77, slots.unit(slot))), Some(slot));
            assert_eq!(slots.slot_of(address(77, slots.unit(slot) + 1)), None);
        }
        assert!(slots.count > 70 && !ObjectPage(&page).is_short());
    }

    #[test]
    fn a_page_has_hundreds_of_small_objects_and_no_object_that_is_too_large() {
        let mut small = page(&Layout::of::<Leaf>());
        let slots = ObjectPage(&small).slots().count;
        assert!((490..512).contains(&slots), "{slots}");
        (0..slots).for_each(|slot| set_used(&mut small, slot));
        set_unused(&mut small, 300);
        assert_eq!((ObjectPage(&small).used().count(), ObjectPage(&small).unused()), (slots - 1, Some(300)));
        assert!(!clear(&mut small, 1, &Layout::of::<Huge>()));
    }

    #[test]
    fn a_damaged_page_is_refused_or_read_inside_of_its_bounds() {
        let whole = page(&Layout::of::<Wide>());
        let mut random = Random(5);
        let mut refused = 0;
        for _ in 0..20_000 {
            let mut page = whole;
            for _ in 0..3 {
                page[13 + random.below(100) as usize] = random.below(256) as u8;
            }
            if ObjectPage(&page).check().is_err() {
                refused += 1;
                continue;
            }
            let page = ObjectPage(&page);
            let read = page.used().flat_map(|slot| page.pointers(slot)).map(|place| place.address(page.0));
            assert!(read.count() <= PAGE && page.unused().is_none_or(|slot| slot < page.slots().count));
        }
        assert!(refused > 10_000, "{refused}");
    }
}
