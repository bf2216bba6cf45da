//! From an address to the object that an access missed.
//!
//! ```text
//! address in a freed slot                  use after free, at any distance from the object
//! address beside the object of a live slot overflow or underflow
//! address in the guard between two slots   the object of either slot that is nearer
//! address in a slot that was never used    the nearest object of the class: `explain_far`
//! ```
//! All of this reads records without a lock, so it works in a signal handler.

use crate::finding::{Event, Finding, Kind, Object};
use crate::slots::Slots;
use crate::slots::geometry::{Place, Slot};
use crate::slots::record::{Phase, View};

/// How far [`Slots::explain_far`] searches: 16 MiB in the class of one page.
const FAR_SLOTS: u32 = 2048;

/// A slot that has or had an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occupant {
    pub(super) slot: Slot,
    pub(super) view: View,
    pub(super) object: Object,
}

impl Occupant {
    const fn end(&self) -> usize {
        self.object.start + self.object.bytes
    }

    /// The bytes between the object and an address outside it.
    fn distance(&self, address: usize) -> usize {
        if address < self.object.start { self.object.start - address } else { address.saturating_sub(self.end()) }
    }

    pub(super) fn is_live(&self) -> bool {
        self.view.phase() == Phase::Live
    }

    /// What an access to an address is; `None` inside a live object.
    fn access(&self, address: usize) -> Option<Kind> {
        if !self.is_live() {
            Some(Kind::UseAfterFree)
        } else if address < self.object.start {
            Some(Kind::HeapBufferUnderflow)
        } else {
            (address >= self.end()).then_some(Kind::HeapBufferOverflow)
        }
    }

    /// The finding for this object.
    pub(super) fn finding(&self, kind: Kind, address: usize) -> Finding {
        let origin = if kind == Kind::HeapBufferOverflow { self.end() } else { self.object.start };
        Finding {
            kind,
            address,
            object: self.object,
            offset: address.wrapping_sub(origin).cast_signed(),
            allocated: self.view.allocated,
            freed: self.view.freed(),
            padding: false,
        }
    }

    /// The finding for a byte beside the object that was changed before the free.
    pub(super) fn changed_padding(&self, address: usize) -> Finding {
        let is_before = address < self.object.start;
        let kind = if is_before { Kind::HeapBufferUnderflow } else { Kind::HeapBufferOverflow };
        Finding { padding: true, ..self.finding(kind, address) }
    }
}

/// The finding for a free of an address that never was in an object.
pub(super) fn invalid_free(address: usize) -> Finding {
    Finding {
        kind: Kind::InvalidFree,
        address,
        object: Object { start: address, bytes: 0 },
        offset: 0,
        allocated: Event::default(),
        freed: None,
        padding: false,
    }
}

impl Slots {
    /// The object of a slot, if it ever had one.
    pub(super) fn occupant(&self, slot: Slot) -> Option<Occupant> {
        let view = self.memory.records(slot.class).get(slot.index as usize)?.view();
        let start = view.placement.start(&self.memory.geometry.pages(slot));
        let object = Object { start, bytes: view.placement.bytes };
        (view.phase() != Phase::Unused).then_some(Occupant { slot, view, object })
    }

    /// The object that an address belongs to, or missed by the least distance.
    pub(super) fn nearest(&self, address: usize) -> Option<Occupant> {
        match self.memory.geometry.locate(address)? {
            Place::Inside(slot) => self.occupant(slot),
            Place::Between(before, after) => {
                let both = [before.and_then(|slot| self.occupant(slot)), self.occupant(after)];
                both.into_iter().flatten().min_by_key(|occupant| (occupant.distance(address), !occupant.is_live()))
            }
        }
    }

    /// Explains a fault in memory that never had an object, by the nearest object of the same size
    /// class: an access far past its end or before its start. It may be freed. `None` elsewhere, and
    /// if the class has no object within [`FAR_SLOTS`] slots. Async-signal-safe.
    #[must_use]
    pub fn explain_far(&self, address: usize) -> Option<Finding> {
        let (Place::Inside(slot) | Place::Between(_, slot)) = self.memory.geometry.locate(address)?;
        if self.nearest(address).is_some() {
            return None;
        }
        let at = |index: Option<u32>| self.occupant(Slot { index: index?, ..slot });
        let around = |distance| [at(slot.index.checked_sub(distance)), at(slot.index.checked_add(distance))];
        let nearest = (1..=FAR_SLOTS).find_map(|distance| {
            around(distance).into_iter().flatten().min_by_key(|occupant| occupant.distance(address))
        })?;
        let is_before = address < nearest.object.start;
        let kind = if is_before { Kind::HeapBufferUnderflow } else { Kind::HeapBufferOverflow };
        Some(nearest.finding(kind, address))
    }

    /// Explains a fault at an address. `None` outside the range, in memory without an object, and
    /// inside a live object. Async-signal-safe.
    #[must_use]
    pub fn explain(&self, address: usize) -> Option<Finding> {
        let occupant = self.nearest(address)?;
        Some(occupant.finding(occupant.access(address)?, address))
    }
}
