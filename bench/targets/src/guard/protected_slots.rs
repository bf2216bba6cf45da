//! Guarded slots by mprotect(2), as GWP-ASan has them.
//!
//! ```text
//! | guard | slot | guard | slot | ... | guard |    all inaccessible at first
//! record    bytes, thread of the allocation, thread of the free
//! ```
//! Algorithm: as `GuardedPoolAllocator` of LLVM. An allocation takes a free slot under a lock, makes
//! its page accessible by mprotect(2), and records size and thread. A free records the thread, maps
//! an inaccessible page over the slot, which drops the contents, and returns the slot. Stacks are
//! not recorded. As in `fieldstone_guard::Slots`, the slot that was freed first is reused first,
//! after a quarantine; GWP-ASan selects one at random.

#![allow(unsafe_code, reason = "maps memory and changes its protection")]

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::{Mutex, MutexGuard};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use rustix::thread::{Pid, gettid};

const PAGE: usize = 4096;

/// Slots of one page.
pub(super) struct ProtectedSlots {
    base: usize,
    bytes: usize,
    pool: Mutex<SlotPool>,
}

struct SlotPool {
    /// The slots without an object; the one that was freed first is first.
    free: VecDeque<usize>,
    records: Vec<SlotRecord>,
}

/// The object of a slot.
#[derive(Clone, Default)]
struct SlotRecord {
    bytes: usize,
    allocated_by: Option<Pid>,
    freed_by: Option<Pid>,
}

impl ProtectedSlots {
    pub(super) fn new(slots: usize) -> std::io::Result<Self> {
        let bytes = (2 * slots + 1) * PAGE;
        // SAFETY: without a requested address mmap replaces no mapping.
        let base = unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        let pool = SlotPool { free: (0..slots).collect(), records: vec![SlotRecord::default(); slots] };
        Ok(Self { base: base.expose_provenance(), bytes, pool: Mutex::new(pool) })
    }

    fn pool(&self) -> MutexGuard<'_, SlotPool> {
        self.pool.lock().expect("no holder of the lock panics")
    }

    /// The address of an object at the end of its page. `None` if no slot is free.
    pub(super) fn alloc(&self, bytes: usize) -> Option<usize> {
        let slot = self.pool().free.pop_front()?;
        let page = self.base + (2 * slot + 1) * PAGE;
        // SAFETY: the page is a slot that this call owns.
        unsafe { mprotect(pointer(page), PAGE, MprotectFlags::READ | MprotectFlags::WRITE) }.ok()?;
        let record = SlotRecord { bytes, allocated_by: Some(gettid()), freed_by: None };
        self.pool().records[slot] = record;
        Some(page + PAGE - bytes)
    }

    /// Frees an object.
    ///
    /// # Safety
    /// `object` was returned by [`ProtectedSlots::alloc`], and no code uses it any more.
    pub(super) unsafe fn free(&self, object: usize) {
        let page = object & !(PAGE - 1);
        let slot = (page - self.base) / PAGE / 2;
        {
            let mut pool = self.pool();
            let record = &mut pool.records[slot];
            let is_live = record.freed_by.is_none() && object + record.bytes == page + PAGE;
            assert!(is_live && record.allocated_by.is_some(), "the caller frees a live object");
            record.freed_by = Some(gettid());
        }
        // SAFETY: the page is a slot, whose object the caller has ended.
        let mapped =
            unsafe { mmap_anonymous(pointer(page), PAGE, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::FIXED) };
        assert!(mapped.is_ok(), "a page is mapped over a page");
        self.pool().free.push_back(slot);
    }
}

impl Drop for ProtectedSlots {
    fn drop(&mut self) {
        // SAFETY: the range is owned, and no code uses its objects any more.
        let _ = unsafe { munmap(pointer(self.base), self.bytes) };
    }
}

fn pointer(address: usize) -> *mut c_void {
    with_exposed_provenance_mut(address)
}
