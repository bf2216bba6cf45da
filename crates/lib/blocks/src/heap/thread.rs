//! Thread numbers: a small number for each running thread, which selects its `ThreadHeap` in every
//! heap.
//!
//! A thread takes the lowest free number, and its end frees the number. The next thread with that
//! number inherits the former one's slabs, free objects and queue in each heap, so nothing is
//! handed over. Number 0 is shared, under a lock of the heap. It serves threads beyond [`THREADS`],
//! threads whose thread-local values are destroyed, and programs without `std`.
//!
//! A forked child has one thread and its number. The numbers of the parent's other threads stay
//! taken, with what they held; their objects can be freed.

use core::sync::atomic::{AtomicU64, Ordering};

/// The number of thread numbers, including 0.
pub(super) const THREADS: usize = 1024;
/// The shared number.
pub(super) const SHARED: usize = 0;

static TAKEN: [AtomicU64; THREADS / 64] = [const { AtomicU64::new(0) }; THREADS / 64];

/// Takes a number if it is free. Acquires the former holder's writes.
pub(super) fn claim(index: usize) -> bool {
    let bit = 1 << (index % 64);
    index != SHARED && TAKEN[index / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0
}

/// Frees a number that the caller took.
pub(super) fn release(index: usize) {
    TAKEN[index / 64].fetch_and(!(1 << (index % 64)), Ordering::Release);
}

#[cfg(feature = "std")]
pub(super) use current::{cache, cached, index};

#[cfg(feature = "std")]
mod current {
    use core::cell::Cell;
    use core::ptr;

    use super::{SHARED, THREADS, claim, release};
    use crate::heap::thread_heap::ThreadHeap;

    /// The index of a thread that has not taken a number yet.
    const UNSET: usize = usize::MAX;

    struct HeapThread {
        index: Cell<usize>,
        /// The number of the heap used last, and this thread's part of it.
        heap: Cell<usize>,
        local: Cell<*const ThreadHeap>,
    }

    struct ThreadExit;

    std::thread_local! {
        // Without a destructor, so that it stays accessible until the thread has ended.
        static THREAD: HeapThread =
            const { HeapThread { index: Cell::new(UNSET), heap: Cell::new(usize::MAX), local: Cell::new(ptr::null()) } };
        static THREAD_EXIT: ThreadExit = const { ThreadExit };
    }

    /// This thread's part of a heap if it used that heap last; else null.
    #[inline(always)]
    pub(in crate::heap) fn cached(heap: usize) -> *const ThreadHeap {
        THREAD.with(|thread| if thread.heap.get() == heap { thread.local.get() } else { ptr::null() })
    }

    pub(in crate::heap) fn cache(heap: usize, local: *const ThreadHeap) {
        THREAD.with(|thread| {
            thread.heap.set(heap);
            thread.local.set(local);
        });
    }

    /// This thread's number; the first call takes one.
    pub(in crate::heap) fn index() -> usize {
        THREAD.with(|thread| {
            if thread.index.get() == UNSET {
                let has_exit_hook = THREAD_EXIT.try_with(|_| ()).is_ok();
                let free = (1..THREADS).find(|&index| has_exit_hook && claim(index));
                thread.index.set(free.unwrap_or(SHARED));
            }
            thread.index.get()
        })
    }

    impl Drop for ThreadExit {
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
