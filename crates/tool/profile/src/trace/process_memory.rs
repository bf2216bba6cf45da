//! The memory of a traced process: its primary region and its allocations.

use fieldstone_translation::PrimaryRegion;
use fieldstone_wire::trace::{MemoryEvent, Record};

use super::allocations::Allocations;

/// The memory of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct TracedMemory {
    pub(super) region: PrimaryRegion,
    pub(super) allocations: Allocations,
}

impl TracedMemory {
    /// Applies an event. Returns whether it may change the primary region.
    pub(super) fn apply_event(&mut self, code: u64, operands: &[Record]) -> bool {
        let [Record(first), Record(second), Record(third), Record(fourth)] = *operands else { return false };
        match MemoryEvent::from_code(code) {
            Some(MemoryEvent::Map) => self.replace_mapping(first, second, third != 0),
            Some(MemoryEvent::Unmap) => self.replace_mapping(first, second, false),
            Some(MemoryEvent::Move) => self.move_range(first, second, third, fourth),
            Some(MemoryEvent::Alloc) => self.allocations.add(first, second, third),
            Some(MemoryEvent::Free) => self.allocations.remove(first),
            Some(MemoryEvent::MapSite) => self.allocations.add_mapped(first, second, third),
            None => {}
        }
        matches!(MemoryEvent::from_code(code), Some(MemoryEvent::Map | MemoryEvent::Unmap | MemoryEvent::Move))
    }

    /// Replaces all mappings in the range by one mapping, or by none.
    fn replace_mapping(&mut self, address: u64, bytes: u64, in_region: bool) {
        self.allocations.clear(address, bytes);
        if in_region {
            self.region.add(address, bytes);
        } else {
            self.region.remove(address, bytes);
        }
    }

    /// Moves a mapping. An extension is in the region if the mapping was.
    fn move_range(&mut self, from: u64, bytes: u64, to: u64, new_bytes: u64) {
        self.allocations.move_range(from, bytes, to, new_bytes);
        let inside = self.region.offset_of(from).is_some();
        self.region.relocate(from, to, bytes);
        match new_bytes.checked_sub(bytes) {
            Some(more) if inside => self.region.add(to + bytes, more),
            Some(more) => self.region.remove(to + bytes, more),
            None => self.region.remove(to + new_bytes, bytes - new_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::AddressOwner;

    fn apply_event(process: &mut TracedMemory, event: MemoryEvent, operands: [u64; 4]) -> bool {
        process.apply_event(event as u64, &operands.map(Record))
    }

    #[test]
    fn a_moved_mapping_keeps_its_offset_in_the_region() {
        let mut process = TracedMemory::default();
        assert!(apply_event(&mut process, MemoryEvent::Map, [0x10_0000, 0x4000, 1, 0]));
        let placed = |process: &mut TracedMemory, address| process.region.offset_of(address);
        assert!(apply_event(&mut process, MemoryEvent::Move, [0x10_0000, 0x4000, 0x20_0000, 0x6000]));
        assert_eq!((process.region.bytes(), placed(&mut process, 0x20_3fff)), (0x6000, Some(0x3fff)));
        assert_eq!((placed(&mut process, 0x10_0000), placed(&mut process, 0x20_5000).is_some()), (None, true));
        apply_event(&mut process, MemoryEvent::Move, [0x20_0000, 0x6000, 0x20_0000, 0x1000]);
        assert_eq!((process.region.bytes(), placed(&mut process, 0x20_0fff)), (0x1000, Some(0xfff)));
        assert_eq!(placed(&mut process, 0x20_1000), None, "its end is unmapped");
        apply_event(&mut process, MemoryEvent::Map, [0x30_0000, 0x2000, 0, 0]);
        apply_event(&mut process, MemoryEvent::Move, [0x30_0000, 0x2000, 0x40_0000, 0x4000]);
        assert_eq!(process.region.bytes(), 0x1000, "a mapping outside the region stays outside when it grows");
    }

    #[test]
    fn a_mapping_has_its_site_until_it_is_replaced() {
        let mut process = TracedMemory::default();
        apply_event(&mut process, MemoryEvent::Map, [0x10_0000, 0x4000, 1, 0]);
        assert!(!apply_event(&mut process, MemoryEvent::MapSite, [0x10_0000, 0x4000, 5, 0]));
        assert!(!apply_event(&mut process, MemoryEvent::Alloc, [0x10_1000, 0x10, 6, 0]));
        let owner = |process: &TracedMemory, at| process.allocations.owner(at, true);
        assert_eq!(
            [0x10_0fff, 0x10_1000].map(|at| owner(&process, at)),
            [AddressOwner::Site(5), AddressOwner::Site(6)]
        );
        apply_event(&mut process, MemoryEvent::Free, [0x10_1000, 0, 0, 0]);
        assert_eq!(owner(&process, 0x10_1000), AddressOwner::Site(5));
        apply_event(&mut process, MemoryEvent::Move, [0x10_0000, 0x4000, 0x20_0000, 0x2000]);
        assert_eq!(owner(&process, 0x20_1fff), AddressOwner::Site(5));
        apply_event(&mut process, MemoryEvent::Map, [0x20_0000, 0x1000, 1, 0]);
        apply_event(&mut process, MemoryEvent::Unmap, [0x20_1000, 0x1000, 0, 0]);
        assert_eq!(
            [0x20_0000, 0x20_1000].map(|at| owner(&process, at)),
            [AddressOwner::Mapped; 2],
            "a new mapping, and no mapping"
        );
    }
}
