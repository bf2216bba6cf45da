//! Which region an address lies in, asked from signal handlers.
//!
//! ```text
//! TABLE -> [ (start, end, region) | ... ]   sorted; never changed, only replaced
//! READERS[epoch]                            how many are looking right now
//! ```
//! A look-up takes no lock and allocates nothing: it counts itself in, searches by halves, pins what it found, counts itself out. A
//! change makes a new table under the lock, turns the epoch, and waits until nobody looks at the old one, which is a matter of
//! nanoseconds. A region is unpinned when its handler has returned; who drops it waits for that.

#![allow(unsafe_code, reason = "publishes tables, and frees them when nobody looks at them")]

use std::ops::{Deref, Range};
use std::ptr::{self, NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use crate::region::Region;
use crate::spin::pause;
use crate::{fork, spin};

#[derive(Clone, Copy)]
struct Entry {
    start: usize,
    end: usize,
    region: NonNull<Region>,
}

static TABLE: AtomicPtr<Vec<Entry>> = AtomicPtr::new(null_mut());
static EPOCH: AtomicUsize = AtomicUsize::new(0);
static READERS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static CHANGING: AtomicBool = AtomicBool::new(false);

/// A region that stays while this is held.
pub(crate) struct Pinned(NonNull<Region>);

impl Deref for Pinned {
    type Target = Region;

    fn deref(&self) -> &Region {
        // SAFETY: it was pinned while it was in the table, and its owner waits for the pin.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.pins.fetch_sub(1, Ordering::Release);
    }
}

/// The region that an address lies in.
pub(crate) fn find(address: usize) -> Option<Pinned> {
    let epoch = enter();
    // SAFETY: a table that was current after this thread counted itself in is not freed before it counts itself out.
    let table = unsafe { TABLE.load(Ordering::SeqCst).as_ref() };
    let found = table.and_then(|table| {
        let after = table.partition_point(|entry| entry.start <= address);
        let entry = table.get(after.checked_sub(1)?)?;
        (address < entry.end).then(|| {
            // SAFETY: a region in the table is there; its owner takes it out first.
            unsafe { entry.region.as_ref() }.pins.fetch_add(1, Ordering::Acquire);
            Pinned(entry.region)
        })
    });
    READERS[epoch].fetch_sub(1, Ordering::Release);
    found
}

/// Counts this thread in; the epoch that it is counted in.
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

/// Adds a region, which must stay where it is until `remove`.
pub(crate) fn insert(region: &Region) {
    let Range { start, end } = region.range;
    let entry = Entry { start, end, region: NonNull::from(region) };
    change(|table| {
        let at = table.partition_point(|other| other.start < start);
        table.insert(at, entry);
    });
}

/// Takes a region out, and waits until no handler uses it.
pub(crate) fn remove(region: &Region) {
    change(|table| table.retain(|entry| !ptr::eq(entry.region.as_ptr(), region)));
    // A child has the pins of its parent's threads, but not the threads.
    // The wait lasts as long as the region's handlers, which do not drop it themselves.
    let mut tries = 0;
    while region.check_generation().is_ok() && region.pins.load(Ordering::Acquire) != 0 {
        pause(&mut tries);
    }
}

fn change(edit: impl FnOnce(&mut Vec<Entry>)) {
    fork::notice();
    lock();
    let old = TABLE.load(Ordering::Relaxed);
    // SAFETY: only who has the lock replaces and frees tables.
    let mut table = unsafe { old.as_ref() }.cloned().unwrap_or_default();
    table.reserve_exact(1);
    edit(&mut table);
    TABLE.store(Box::into_raw(Box::new(table)), Ordering::SeqCst);
    let before = EPOCH.fetch_add(1, Ordering::SeqCst) & 1;
    // It ends: a look-up waits for nothing.
    let mut tries = 0;
    while READERS[before].load(Ordering::SeqCst) != 0 {
        pause(&mut tries);
    }
    if !old.is_null() {
        // SAFETY: nobody looks at the old table any more, and nobody can find it.
        drop(unsafe { Box::from_raw(old) });
    }
    unlock();
}

/// Runs `f` on each region: for a forked child, which is alone.
pub(crate) fn each_in_child(mut f: impl FnMut(&Region)) {
    // SAFETY: the child's only thread runs this, and no change was under way: who forked had the lock.
    for entry in unsafe { TABLE.load(Ordering::SeqCst).as_ref() }.into_iter().flatten() {
        // SAFETY: as in `find`.
        f(unsafe { entry.region.as_ref() });
    }
}

/// Makes the counters those of a process without other threads.
pub(crate) fn forget_readers_in_child() {
    READERS.iter().for_each(|readers| readers.store(0, Ordering::SeqCst));
}

/// Held while the table changes, and over a fork, so that a child finds it whole.
pub(crate) fn lock() {
    spin::lock(&CHANGING);
}

pub(crate) fn unlock() {
    spin::unlock(&CHANGING);
}
