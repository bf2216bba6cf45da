//! Random operations against a model: objects do not overlap, keep their contents, lie beside
//! guards, and are inaccessible after their free.

#![allow(unsafe_code, reason = "accesses objects")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "sizes in tests are small"
)]

mod common;

use std::collections::BTreeMap;
use std::ptr::NonNull;

use common::*;
use fieldstone_guard::{Kind, Side, Slots};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Operation {
    Alloc {
        bytes: usize,
        alignment: usize,
    },
    /// Frees one of the live objects.
    Free(usize),
    /// As realloc(3).
    Resize(usize, usize),
    /// Writes a byte of the padding behind an object, and frees it.
    Overflow(usize),
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![0..64_usize, 0..5000_usize, 0..100_000_usize]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (size(), 0..15_u32).prop_map(|(bytes, shift)| Operation::Alloc { bytes, alignment: 1 << shift }),
        3 => any::<usize>().prop_map(Operation::Free),
        1 => (any::<usize>(), size()).prop_map(|(which, bytes)| Operation::Resize(which, bytes)),
        1 => any::<usize>().prop_map(Operation::Overflow),
    ]
}

/// A live object: its size, and the byte that it is filled with.
struct Live {
    bytes: usize,
    fill: u8,
}

struct Model {
    slots: Slots,
    live: BTreeMap<usize, Live>,
    count: usize,
}

fn object(address: usize) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap()
}

impl Model {
    fn alloc(&mut self, bytes: usize, alignment: usize) {
        let Some(object) = self.slots.alloc(layout(bytes, alignment)) else {
            assert!(self.slots.stats().memory + bytes + (2 << 20) > 32 << 20, "refused below the limit");
            return;
        };
        let address = object.as_ptr().expose_provenance();
        assert!(address.is_multiple_of(alignment) && self.slots.owns(address));
        let before = self.live.range(..=address).next_back();
        assert!(before.is_none_or(|(start, live)| start + live.bytes.max(1) <= address), "overlaps");
        assert!(self.live.range(address..).next().is_none_or(|(start, _)| address + bytes.max(1) <= *start));
        assert!(is_filled(object, bytes, 0), "zero");
        // Up to the guard there is padding, less than a page.
        let end = (address + bytes.max(1)).next_multiple_of(PAGE);
        assert!(!is_accessible(end) && !is_accessible((address & !(PAGE - 1)) - 1));
        self.count += 1;
        let fill = self.count as u8;
        common::fill(object, bytes, fill);
        self.live.insert(address, Live { bytes, fill });
    }

    fn pick(&self, which: usize) -> Option<usize> {
        self.live.keys().nth(which % self.live.len().max(1)).copied()
    }

    fn free(&mut self, address: usize) {
        let live = self.live.remove(&address).unwrap();
        assert!(is_filled(object(address), live.bytes, live.fill), "the contents are kept");
        assert_eq!(self.slots.bytes_of(object(address)), Some(live.bytes));
        free(&self.slots, object(address));
        assert!(!is_accessible(address));
        assert_eq!(self.slots.explain(address).map(|finding| finding.kind), Some(Kind::UseAfterFree));
        // SAFETY: the object is not live.
        assert_eq!(unsafe { self.slots.free(object(address)) }.unwrap_err().kind, Kind::DoubleFree);
    }

    fn overflow(&mut self, address: usize) {
        let live = &self.live[&address];
        let end = address + live.bytes;
        let padding = end.max(address).next_multiple_of(PAGE) - end;
        if padding == 0 || live.bytes == 0 {
            return;
        }
        let offset = self.count % padding;
        write(object(end), offset as isize, 0);
        self.live.remove(&address);
        // SAFETY: the object is not used afterwards.
        let finding = unsafe { self.slots.free(object(address)) }.unwrap_err();
        assert_eq!((finding.kind, finding.offset, finding.padding), (Kind::HeapBufferOverflow, offset as isize, true));
    }

    fn run(&mut self, operation: &Operation) {
        match *operation {
            Operation::Alloc { bytes, alignment } => self.alloc(bytes, alignment),
            Operation::Free(which) => self.pick(which).into_iter().for_each(|address| self.free(address)),
            Operation::Resize(which, bytes) => {
                self.alloc(bytes, 16);
                self.pick(which).into_iter().for_each(|address| self.free(address));
            }
            Operation::Overflow(which) => self.pick(which).into_iter().for_each(|address| self.overflow(address)),
        }
        assert_eq!(self.slots.stats().live, self.live.len());
    }
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Right), Just(Side::Left), Just(Side::Both)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn slots_behave_as_the_model(
        side in side(),
        protect in any::<bool>(),
        quarantine in 0..40_usize,
        operations in prop::collection::vec(operation(), 1..200),
    ) {
        let builder = Slots::builder().memory(32 << 20).side(side).quarantine(quarantine);
        let slots = if protect { builder.force_protect() } else { builder }.build().unwrap();
        let mut model = Model { slots, live: BTreeMap::new(), count: 0 };
        operations.iter().for_each(|operation| model.run(operation));
        while let Some(address) = model.pick(0) {
            model.free(address);
        }
    }
}
