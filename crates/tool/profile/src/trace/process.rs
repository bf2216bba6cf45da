//! A process of the traced program: what of its memory is in the primary region, and who made it.

use fieldstone_translation::PrimaryRegion;
use fieldstone_wire::trace::{Event, Record};

use super::allocations::Allocations;

/// The memory of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    pub(super) region: PrimaryRegion,
    pub(super) allocations: Allocations,
}

impl Process {
    /// What an event changes; whether that is where the region lies.
    pub(super) fn change(&mut self, code: u64, operands: &[Record]) -> bool {
        let [Record(first), Record(second), Record(third), Record(fourth)] = *operands else { return false };
        match Event::from_code(code) {
            Some(Event::Map) => self.map(first, second, third != 0),
            Some(Event::Unmap) => self.map(first, second, false),
            Some(Event::Move) => self.moved(first, second, third, fourth),
            Some(Event::Alloc) => self.allocations.add(first, second, third),
            Some(Event::Free) => self.allocations.remove(first),
            Some(Event::MapSite) => self.allocations.add_mapped(first, second, third),
            None => {}
        }
        matches!(Event::from_code(code), Some(Event::Map | Event::Unmap | Event::Move))
    }

    /// Whatever was there is no more.
    fn map(&mut self, address: u64, bytes: u64, in_region: bool) {
        self.allocations.clear(address, bytes);
        if in_region {
            self.region.add(address, bytes);
        } else {
            self.region.remove(address, bytes);
        }
    }

    /// What becomes longer stays what it was.
    fn moved(&mut self, from: u64, bytes: u64, to: u64, bytes_there: u64) {
        self.allocations.moved(from, bytes, to, bytes_there);
        let inside = self.region.offset_of(from).is_some();
        self.region.moved(from, to, bytes);
        match bytes_there.checked_sub(bytes) {
            Some(more) if inside => self.region.add(to + bytes, more),
            Some(more) => self.region.remove(to + bytes, more),
            None => self.region.remove(to + bytes_there, bytes - bytes_there),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Whose;

    fn change(process: &mut Process, event: Event, operands: [u64; 4]) -> bool {
        process.change(event as u64, &operands.map(Record))
    }

    #[test]
    fn what_is_moved_keeps_its_place_as_far_as_it_goes() {
        let mut process = Process::default();
        assert!(change(&mut process, Event::Map, [0x10_0000, 0x4000, 1, 0]));
        let placed = |process: &mut Process, address| process.region.offset_of(address);
        assert!(change(&mut process, Event::Move, [0x10_0000, 0x4000, 0x20_0000, 0x6000]));
        assert_eq!((process.region.bytes(), placed(&mut process, 0x20_3fff)), (0x6000, Some(0x3fff)));
        assert_eq!((placed(&mut process, 0x10_0000), placed(&mut process, 0x20_5000).is_some()), (None, true));
        change(&mut process, Event::Move, [0x20_0000, 0x6000, 0x20_0000, 0x1000]);
        assert_eq!((process.region.bytes(), placed(&mut process, 0x20_0fff)), (0x1000, Some(0xfff)));
        assert_eq!(placed(&mut process, 0x20_1000), None, "its tail is gone");
        change(&mut process, Event::Map, [0x30_0000, 0x2000, 0, 0]);
        change(&mut process, Event::Move, [0x30_0000, 0x2000, 0x40_0000, 0x4000]);
        assert_eq!(process.region.bytes(), 0x1000, "what was outside stays outside, however long");
    }

    #[test]
    fn a_mapping_has_a_site_until_it_goes() {
        let mut process = Process::default();
        change(&mut process, Event::Map, [0x10_0000, 0x4000, 1, 0]);
        assert!(!change(&mut process, Event::MapSite, [0x10_0000, 0x4000, 5, 0]));
        assert!(!change(&mut process, Event::Alloc, [0x10_1000, 0x10, 6, 0]));
        let whose = |process: &Process, at| process.allocations.whose(at, true);
        assert_eq!([0x10_0fff, 0x10_1000].map(|at| whose(&process, at)), [Whose::Site(5), Whose::Site(6)]);
        change(&mut process, Event::Free, [0x10_1000, 0, 0, 0]);
        assert_eq!(whose(&process, 0x10_1000), Whose::Site(5));
        change(&mut process, Event::Move, [0x10_0000, 0x4000, 0x20_0000, 0x2000]);
        assert_eq!(whose(&process, 0x20_1fff), Whose::Site(5));
        change(&mut process, Event::Map, [0x20_0000, 0x1000, 1, 0]);
        change(&mut process, Event::Unmap, [0x20_1000, 0x1000, 0, 0]);
        assert_eq!(
            [0x20_0000, 0x20_1000].map(|at| whose(&process, at)),
            [Whose::Mapped; 2],
            "another mapping, and none"
        );
    }
}
