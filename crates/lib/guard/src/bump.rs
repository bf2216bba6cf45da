//! A bump allocator without a limit check: the end of its memory is a guard page.
//!
//! ```text
//! | object | object | object | free        | guard, 64 KiB at least |
//!                            ^ next        ^ end
//! ```
//! | file | |
//! |---|---|
//! | `builder`, `heap` | options; a full heap as its handler sees it |
//! | `area` | the memory and its growth |
//! | `store` | the store that reports the guard (x86-64); `plain_store` elsewhere |
//!
//! Algorithm: Appel and Li's heap overflow detection (*Virtual Memory Primitives for User Programs*,
//! ASPLOS 1991). An allocation writes the last word of the object before it advances `next`. In
//! the guard, that store faults. The signal handler of `fieldstone-pages` knows the instruction and
//! continues in the slow path, which calls the owner: it grows the heap, collects, or fails. So an
//! allocation has no comparison and no branch, and does not read `end`.
//!
//! Invariants: `next` is at most `end`, and is changed only after the store succeeded. An object that
//! is checked by the guard is not larger than the guard, so its last word is in the heap or in the
//! guard. Larger ones are checked by a comparison.
//!
//! Cost: docs/guard.md of the repository has the instructions and the times. A fault costs about
//! 3 µs, once for each call of the handler.

#![allow(unsafe_code, reason = "writes objects")]

mod area;
mod builder;
mod heap;
#[cfg_attr(not(all(target_arch = "x86_64", not(miri))), path = "bump/plain_store.rs")]
mod store;

use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
use std::ptr::NonNull;

use crate::bump::area::{Area, GUARD};
use crate::error::{Error, Result};

pub use builder::BumpBuilder;
pub use heap::Heap;

type OnFull = Box<dyn FnMut(&mut Heap<'_>) -> Result<()>>;

/// Alignment of each object, at least: the guard is checked by a store of a word.
const WORD: usize = 8;

/// A heap of one thread, whose objects are freed together.
///
/// Objects are not dropped: their destructors do not run. They are valid until the heap is reset or
/// dropped.
pub struct Bump {
    next: Cell<*mut u8>,
    /// The end of the accessible part, for objects that the guard does not check.
    end: Cell<usize>,
    area: RefCell<Area>,
    on_full: RefCell<Option<OnFull>>,
}

impl std::fmt::Debug for Bump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bump").field("used", &self.used()).field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Bump {
    /// The options of a heap of `bytes` bytes at first, rounded up to whole pages.
    pub fn builder(bytes: usize) -> BumpBuilder {
        BumpBuilder::new(bytes)
    }

    /// Allocates an object.
    ///
    /// # Errors
    /// [`Error::Full`] if the heap is full and has no handler, or its handler made no room; else the
    /// error of the handler.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "each object is new")]
    pub fn alloc<T>(&self, value: T) -> Result<&mut T> {
        let (bytes, alignment) = (size_of::<T>(), align_of::<T>().max(WORD));
        let mut value = ManuallyDrop::new(value);
        let source = (&raw const value).cast::<u8>();
        let start = align_up(self.next.get(), alignment);
        // SAFETY: `source` has `bytes` bytes. `start` is at most an alignment behind the end of the
        // heap, so the last word is in the heap or in the guard. In the heap, no object is behind
        // `next`. What is copied is a valid `T` at an aligned address.
        unsafe {
            if store::IS_CHECKED_BY_GUARD && bytes > 0 && bytes + alignment <= GUARD {
                // The last word first: if it is refused, nothing was changed.
                let rest = last_word::<T>();
                let mut word = MaybeUninit::<u64>::uninit();
                source.add(rest).copy_to_nonoverlapping(word.as_mut_ptr().cast(), bytes - rest);
                if store::store_is_refused::<T>(start, word) {
                    return self.alloc_and_write(&mut value);
                }
                source.copy_to_nonoverlapping(start, rest);
            } else {
                if self.is_full_for(start, bytes) {
                    return self.alloc_and_write(&mut value);
                }
                source.copy_to_nonoverlapping(start, bytes);
            }
            // After the contents: the stores to the object's cache lines are not interrupted.
            self.advance(start, bytes);
            Ok(&mut *start.cast())
        }
    }

    /// Allocates memory, whose contents are undefined. The limit is checked by a comparison.
    ///
    /// # Errors
    /// As [`Bump::alloc`].
    pub fn alloc_layout(&self, layout: Layout) -> Result<NonNull<u8>> {
        let alignment = layout.align().max(WORD);
        let mut start = align_up(self.next.get(), alignment);
        while self.is_full_for(start, layout.size()) {
            self.make_room(layout)?;
            start = align_up(self.next.get(), alignment);
        }
        self.advance(start, layout.size());
        NonNull::new(start).ok_or(Error::Full { bytes: layout.size() })
    }

    /// Takes the memory of an object. The end is a whole number of words, so rounding up does not pass
    /// it.
    #[inline(always)]
    fn advance(&self, start: *mut u8, bytes: usize) {
        self.next.set(start.wrapping_add(bytes.next_multiple_of(WORD)));
    }

    #[inline]
    fn is_full_for(&self, start: *mut u8, bytes: usize) -> bool {
        self.end.get().checked_sub(start.addr()).is_none_or(|room| room < bytes)
    }

    /// Allocates an object with a comparison, after the guard refused its last word. Moves the value
    /// out, or drops it. Inlined: a call would need the value in memory, where the fast path would
    /// have to read it.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "each object is new")]
    fn alloc_and_write<T>(&self, value: &mut ManuallyDrop<T>) -> Result<&mut T> {
        match self.alloc_slowly(Layout::new::<T>()) {
            // SAFETY: the memory is new and has the layout of `T`. The caller does not use the value
            // afterwards. If a heap that is not full was refused, its memory was unmapped or
            // protected by the program, and this store faults.
            Ok(object) => unsafe {
                let object = object.cast::<T>().as_ptr();
                object.copy_from_nonoverlapping((&raw const *value).cast(), 1);
                Ok(&mut *object)
            },
            Err(error) => {
                // SAFETY: the caller does not use the value afterwards.
                unsafe { ManuallyDrop::drop(value) };
                Err(error)
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn alloc_slowly(&self, layout: Layout) -> Result<NonNull<u8>> {
        self.alloc_layout(layout)
    }

    /// Calls the handler.
    fn make_room(&self, request: Layout) -> Result<()> {
        let full = Error::Full { bytes: request.size() };
        let mut area = self.area.try_borrow_mut().map_err(|_| full)?;
        let mut on_full = self.on_full.try_borrow_mut().map_err(|_| full)?;
        let handler = on_full.as_mut().ok_or(full)?;
        let mut next = self.next.get().addr();
        let before = (next, area.accessible());
        let result = handler(&mut Heap { area: &mut area, next: &mut next, request });
        self.next.set(self.next.get().with_addr(next));
        self.end.set(area.accessible().end);
        result?;
        if before == (next, area.accessible()) { Err(full) } else { Ok(()) }
    }

    /// The addresses of all objects.
    #[must_use]
    pub fn used(&self) -> Range<usize> {
        let end = self.next.get().addr();
        self.area.try_borrow().map_or(end..end, |area| area.accessible().start..end)
    }

    /// The size in bytes to which the heap has grown.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.area.try_borrow().map_or(0, |area| area.accessible().len())
    }

    /// Frees all objects, without running their destructors. The memory stays mapped.
    pub fn reset(&mut self) {
        let start = self.area.get_mut().accessible().start;
        self.next.set(self.next.get().with_addr(start));
    }
}

/// The offset of the last word of a `T`: 0 if it is smaller than a word.
const fn last_word<T>() -> usize {
    size_of::<T>().saturating_sub(WORD)
}

#[inline(always)]
fn align_up(address: *mut u8, alignment: usize) -> *mut u8 {
    // Objects end at a word, so most types need no rounding.
    if alignment <= WORD { address } else { address.map_addr(|address| (address + alignment - 1) & !(alignment - 1)) }
}
