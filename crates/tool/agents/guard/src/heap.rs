//! The agent's own allocator, for the lists of the unwinder.
//!
//! ```text
//! class 0: 32 bytes   class 1: 64 bytes  ...  class 11: 64 KiB      freed blocks, a list for each class
//! chunk | block | block | ... | free |                               chunks of 256 KiB from the kernel
//! ```
//! The program's allocator cannot be used: the agent runs inside its calls. Blocks are few (a module
//! each), so one lock with a bounded wait is enough. A thread that does not get it maps its block.
//! A forked child takes a new lock and leaves the parent's free blocks unused.

#![allow(unsafe_code, reason = "implements an allocator")]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::raw;

const CLASSES: usize = 12;
const SMALLEST: usize = 32;
const CHUNK: usize = 256 << 10;
/// Attempts to get the lock, about 100 µs.
const ATTEMPTS: u32 = 20_000;

struct Lists {
    free: [*mut u8; CLASSES],
    chunk: *mut u8,
    left: usize,
}

/// The allocator.
pub(crate) struct Heap {
    is_locked: AtomicBool,
    lists: UnsafeCell<Lists>,
}

// SAFETY: `lists` is accessed only by the holder of the lock.
unsafe impl Sync for Heap {}

impl Heap {
    pub(crate) const fn new() -> Self {
        let lists = Lists { free: [null_mut(); CLASSES], chunk: null_mut(), left: 0 };
        Self { is_locked: AtomicBool::new(false), lists: UnsafeCell::new(lists) }
    }

    /// Runs `work` with the lists; `None` if another thread holds the lock for long.
    fn with_lists<R>(&self, work: impl FnOnce(&mut Lists) -> R) -> Option<R> {
        let is_free = |_: &u32| self.is_locked.compare_exchange_weak(false, true, Acquire, Acquire).is_ok();
        (0..ATTEMPTS).inspect(|_| core::hint::spin_loop()).find(is_free)?;
        // SAFETY: this thread holds the lock.
        let result = work(unsafe { &mut *self.lists.get() });
        self.is_locked.store(false, Release);
        Some(result)
    }

    /// In the child of a fork: another thread of the parent may have held the lock.
    pub(crate) fn after_fork(&self) {
        // SAFETY: the child has one thread, which is not inside this allocator.
        unsafe { *self.lists.get() = Lists { free: [null_mut(); CLASSES], chunk: null_mut(), left: 0 } };
        self.is_locked.store(false, Release);
    }
}

/// The class of a block; `None` for a block with a mapping of its own.
fn class_of(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(SMALLEST).next_power_of_two();
    let class = (bytes / SMALLEST).trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

impl Lists {
    fn take(&mut self, class: usize) -> *mut u8 {
        let freed = self.free[class];
        if !freed.is_null() {
            // SAFETY: a freed block holds the address of the next one.
            #[allow(clippy::cast_ptr_alignment, reason = "blocks are aligned to their class")]
            let next = unsafe { freed.cast::<*mut u8>().read() };
            self.free[class] = next;
            return freed;
        }
        let bytes = SMALLEST << class;
        // A block is aligned to its class: chunks are aligned to pages, larger classes waste a part.
        let skip = self.chunk.align_offset(bytes.min(4096)).min(self.left);
        if self.left < skip + bytes {
            let Some(chunk) = raw::map(CHUNK) else { return null_mut() };
            (self.chunk, self.left) = (chunk.as_ptr(), CHUNK);
            return self.take(class);
        }
        let block = self.chunk.wrapping_add(skip);
        self.chunk = block.wrapping_add(bytes);
        self.left -= skip + bytes;
        block
    }
}

// SAFETY: blocks of one class do not overlap, are as large as their layout, and are aligned to
// their class up to a page, which is more than any layout of the agent needs.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let listed = class_of(layout).and_then(|class| self.with_lists(|lists| lists.take(class)));
        listed.unwrap_or_else(|| raw::map(layout.size()).map_or(null_mut(), core::ptr::NonNull::as_ptr))
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // A block without a class, or whose class's lock is busy, stays mapped: both are rare.
        if let Some(class) = class_of(layout) {
            self.with_lists(|lists| {
                // SAFETY: the block is at least 32 bytes long and no longer in use.
                #[allow(clippy::cast_ptr_alignment, reason = "blocks are aligned to their class")]
                unsafe {
                    block.cast::<*mut u8>().write(lists.free[class]);
                }
                lists.free[class] = block;
            });
        } else if let Some(block) = core::ptr::NonNull::new(block) {
            // SAFETY: `alloc` mapped this block, and its owner gives it up.
            unsafe { raw::unmap(block, layout.size()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn blocks_are_separate_and_used_again() {
        let heap = Heap::new();
        let layouts: Vec<Layout> = (0..200)
            .map(|step| Layout::from_size_align(1 + step * step * 7 % 90_000, 1 << (step % 6)).unwrap())
            .collect();
        // SAFETY: no layout has size 0.
        let blocks: Vec<*mut u8> = layouts.iter().map(|&layout| unsafe { heap.alloc(layout) }).collect();
        for (index, (&block, layout)) in blocks.iter().zip(&layouts).enumerate() {
            assert!(!block.is_null() && (block as usize).is_multiple_of(layout.align()));
            // SAFETY: the block is that long.
            unsafe { block.write_bytes(index as u8, layout.size()) };
        }
        for (index, (&block, &layout)) in blocks.iter().zip(&layouts).enumerate() {
            // SAFETY: the block was filled above, and is freed once.
            unsafe {
                assert!((0..layout.size()).all(|at| *block.add(at) == index as u8), "{index}");
                heap.dealloc(block, layout);
            }
        }
        let layout = Layout::from_size_align(40, 8).unwrap();
        // SAFETY: the layout has no size 0.
        assert!(blocks.contains(&unsafe { heap.alloc(layout) }));
    }
}
