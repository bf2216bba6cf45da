//! Which local a thread has: a small number for each thread that runs, the same in all heaps.
//!
//! A thread takes the lowest number that is free, and its end frees it; the next thread that takes the number has with it, in
//! each heap, what the former one left: slabs with live objects, free objects, mail. Nothing has to be handed over. Number 0 is
//! everybody's, under a lock of the heap: for threads beyond [`THREADS`], for those that are so near their end that their
//! thread-local values are gone, and for programs without `std`.
//!
//! A forked child has one thread and its number; those of its parent's other threads stay taken, with what they held.
//! Their objects can be freed.

use core::sync::atomic::{AtomicU64, Ordering};

/// Numbers, with 0.
pub(super) const THREADS: usize = 1024;
/// The number that is everybody's.
pub(super) const SHARED: usize = 0;

static TAKEN: [AtomicU64; THREADS / 64] = [const { AtomicU64::new(0) }; THREADS / 64];

/// Takes a number, if it is free. The former holder's writes are seen.
pub(super) fn claim(index: usize) -> bool {
    let bit = 1 << (index % 64);
    index != SHARED && TAKEN[index / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0
}

/// Frees a number that the caller took.
pub(super) fn release(index: usize) {
    TAKEN[index / 64].fetch_and(!(1 << (index % 64)), Ordering::Release);
}

#[cfg(feature = "std")]
pub(super) use own::{cache, cached, index};

#[cfg(feature = "std")]
mod own {
    use core::cell::Cell;
    use core::ptr;

    use super::{SHARED, THREADS, claim, release};
    use crate::heap::local::Local;

    /// A thread that has not asked yet.
    const UNSET: usize = usize::MAX;

    struct Thread {
        index: Cell<usize>,
        /// The heap that was used last, by its number, and what this thread has of it.
        heap: Cell<usize>,
        local: Cell<*const Local>,
    }

    struct AtEnd;

    std::thread_local! {
        // Without a destructor, so that it is there to the thread's very end.
        static THREAD: Thread =
            const { Thread { index: Cell::new(UNSET), heap: Cell::new(usize::MAX), local: Cell::new(ptr::null()) } };
        static AT_END: AtEnd = const { AtEnd };
    }

    /// What this thread has of a heap, if that is the one that it used last; else null.
    #[inline(always)]
    pub(in crate::heap) fn cached(heap: usize) -> *const Local {
        THREAD.with(|thread| if thread.heap.get() == heap { thread.local.get() } else { ptr::null() })
    }

    pub(in crate::heap) fn cache(heap: usize, local: *const Local) {
        THREAD.with(|thread| {
            thread.heap.set(heap);
            thread.local.set(local);
        });
    }

    /// This thread's number.
    pub(in crate::heap) fn index() -> usize {
        THREAD.with(|thread| {
            if thread.index.get() == UNSET {
                let can_end = AT_END.try_with(|_| ()).is_ok();
                let free = (1..THREADS).find(|&index| can_end && claim(index));
                thread.index.set(free.unwrap_or(SHARED));
            }
            thread.index.get()
        })
    }

    impl Drop for AtEnd {
        fn drop(&mut self) {
            THREAD.with(|thread| {
                thread.heap.set(usize::MAX);
                let index = thread.index.replace(SHARED);
                if index != SHARED && index != UNSET {
                    release(index);
                }
            });
        }
    }
}
