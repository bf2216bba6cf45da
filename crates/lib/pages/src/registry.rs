//! Lookup of an address's region, callable from signal handlers.
//!
//! ```text
//! TABLE -> starts  [ address | ... ]         sorted; immutable, only replaced
//!          regions [ (end, region) | ... ]   in the same order
//! READERS[epoch]                             number of lookups in progress
//! ```
//! A lookup takes no lock and does not allocate: it increments a reader count, does a binary
//! search, pins the region, and decrements the count. A change builds a new table under the lock,
//! switches the epoch, and waits until no lookup uses the old table, which takes nanoseconds. A
//! region is unpinned when its handler returns; dropping a region waits for that. The search reads
//! only the starts, 8 bytes a region, so that those of 10,000 regions stay in the cache.

#![allow(unsafe_code, reason = "publishes tables, and frees unused ones")]

use std::ops::{Deref, Range};
use std::ptr::{self, NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use crate::region::Region;
use crate::spin::pause;
use crate::{fork, spin};

#[derive(Clone, Default)]
struct RegionTable {
    starts: Vec<usize>,
    /// The end and the owner of the memory at the same place in `starts`.
    regions: Vec<(usize, NonNull<Region>)>,
}

impl RegionTable {
    /// The number of regions that start at or below `address`.
    fn count_to(&self, address: usize) -> usize {
        self.starts.partition_point(|&start| start <= address)
    }

    fn get(&self, address: usize) -> Option<NonNull<Region>> {
        let &(end, region) = self.regions.get(self.count_to(address).checked_sub(1)?)?;
        (address < end).then_some(region)
    }

    fn insert(&mut self, region: &Region) {
        let Range { start, end } = region.range;
        let at = self.count_to(start);
        self.starts.insert(at, start);
        self.regions.insert(at, (end, NonNull::from(region)));
    }

    /// Removes `region`, if it is there.
    fn remove(&mut self, region: &Region) {
        if let Some(at) = self.regions.iter().position(|(_, other)| ptr::eq(other.as_ptr(), region)) {
            self.starts.remove(at);
            self.regions.remove(at);
        }
    }
}

static TABLE: AtomicPtr<RegionTable> = AtomicPtr::new(null_mut());
static EPOCH: AtomicUsize = AtomicUsize::new(0);
static READERS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static CHANGING: AtomicBool = AtomicBool::new(false);

/// A region that is not dropped while this exists.
pub(crate) struct PinnedRegion(NonNull<Region>);

impl Deref for PinnedRegion {
    type Target = Region;

    fn deref(&self) -> &Region {
        // SAFETY: the region was pinned while in the table, and its owner waits for the pin.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for PinnedRegion {
    fn drop(&mut self) {
        self.pins.fetch_sub(1, Ordering::Release);
    }
}

/// The region that contains an address.
pub(crate) fn find(address: usize) -> Option<PinnedRegion> {
    let epoch = enter();
    // SAFETY: a table that was current after `enter` is not freed before this thread's count is
    // decremented.
    let table = unsafe { TABLE.load(Ordering::SeqCst).as_ref() };
    let found = table.and_then(|table| table.get(address)).map(|region| {
        // SAFETY: an owner removes its region from the table before dropping it, so the region
        // exists.
        unsafe { region.as_ref() }.pins.fetch_add(1, Ordering::Acquire);
        PinnedRegion(region)
    });
    READERS[epoch].fetch_sub(1, Ordering::Release);
    found
}

/// Increments the reader count; returns its epoch.
fn enter() -> usize {
    loop {
        let epoch = EPOCH.load(Ordering::SeqCst) & 1;
        READERS[epoch].fetch_add(1, Ordering::SeqCst);
        if EPOCH.load(Ordering::SeqCst) & 1 == epoch {
            return epoch;
        }
        READERS[epoch].fetch_sub(1, Ordering::Release);
    }
}

/// Adds a region, which must not move until `remove`.
pub(crate) fn insert(region: &Region) {
    change(|table| table.insert(region));
}

/// Removes a region, and waits until no handler uses it.
pub(crate) fn remove(region: &Region) {
    change(|table| table.remove(region));
    // A child has the pins of its parent's threads, but not the threads. The wait lasts as long as
    // the region's handlers, which must not drop the region themselves.
    let mut tries = 0;
    while region.check_generation().is_ok() && region.pins.load(Ordering::Acquire) != 0 {
        pause(&mut tries);
    }
}

fn change(edit: impl FnOnce(&mut RegionTable)) {
    fork::detect_child();
    lock();
    let old = TABLE.load(Ordering::Relaxed);
    // SAFETY: only the lock's holder replaces and frees tables, and this thread holds it.
    let mut table = unsafe { old.as_ref() }.cloned().unwrap_or_default();
    edit(&mut table);
    TABLE.store(Box::into_raw(Box::new(table)), Ordering::SeqCst);
    let before = EPOCH.fetch_add(1, Ordering::SeqCst) & 1;
    // This terminates: a lookup does not wait.
    let mut tries = 0;
    while READERS[before].load(Ordering::SeqCst) != 0 {
        pause(&mut tries);
    }
    if !old.is_null() {
        // SAFETY: no lookup uses the old table any more, and none can find it.
        drop(unsafe { Box::from_raw(old) });
    }
    unlock();
}

/// Runs `f` on each region, in a forked child with one thread.
pub(crate) fn each_in_child(mut f: impl FnMut(&Region)) {
    // SAFETY: the child's only thread runs this, and the forking thread held the lock, so no change
    // was in progress.
    let table = unsafe { TABLE.load(Ordering::SeqCst).as_ref() };
    for (_, region) in table.iter().flat_map(|table| &table.regions) {
        // SAFETY: an owner removes its region from the table before dropping it, so the region
        // exists.
        f(unsafe { region.as_ref() });
    }
}

/// Resets the counters for a process without other threads.
pub(crate) fn reset_readers_in_child() {
    READERS.iter().for_each(|readers| readers.store(0, Ordering::SeqCst));
}

/// Held while the table changes, and across a fork, so that a child finds it complete.
pub(crate) fn lock() {
    spin::lock(&CHANGING);
}

pub(crate) fn unlock() {
    spin::unlock(&CHANGING);
}
