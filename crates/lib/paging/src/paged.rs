//! Memory of a program with a bound on its resident size, served by a thread of this library.
//!
//! ```text
//! Paged ── as_slice ──→ words, like any memory
//!   └─ Core: Pager, mapping, arena, stores ←── thread `fs-paged`: faults, eviction
//! ```
//! | file | |
//! |---|---|
//! | `builder` | options |
//! | `core_parts` | what the thread and the handle share, and its end |
//! | `thread` | the thread that serves faults |
//! | `advice` | pages that are needed soon, or not any more |
//! | `words` | types that threads may share in such memory |
//! | `stats` | counts |
//!
//! Invariants: the thread and its stores never access the memory. No operation of a forked child
//! reaches the userfaultfd, because that one controls the memory of the parent.

#![allow(unsafe_code, reason = "makes slices of a mapping")]

mod advice;
mod builder;
mod core_parts;
mod stats;
mod thread;
mod words;

use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

pub use advice::Advice;
pub use builder::{OnLoss, PagedBuilder};
use core_parts::Core;
pub use stats::{PagedStats, StoreStats};
use thread::ServiceThread;
pub use words::Words;

use crate::error::{Error, Result};
use crate::kernel::PAGE;

/// Memory with a bound on its resident size. Created by [`Paged::builder`]; unmapped when dropped.
///
/// Pages above the bound are in stores, and come back at their next access. A first access reads
/// zeros.
///
/// A child made by fork(2) does not have the memory: an access raises `SIGSEGV`, and operations return
/// [`Error::Forked`]. It may drop its copy of the handle, and may build memory of its own.
#[derive(Debug)]
pub struct Paged {
    /// Ends the thread before the rest is dropped.
    _thread: ServiceThread,
    core: Arc<Core>,
    len: usize,
    /// Bytes of the words of the slices that were made; 0 before the first one.
    word: AtomicUsize,
}

impl Paged {
    /// The options of memory of `bytes`, which are rounded up to pages. Memory that is larger than
    /// RAM is possible: only resident and stored pages take space.
    pub const fn builder(bytes: usize) -> PagedBuilder {
        PagedBuilder::new(bytes)
    }

    fn new(thread: ServiceThread, core: Arc<Core>, len: usize) -> Self {
        Self { _thread: thread, core, len, word: AtomicUsize::new(0) }
    }

    /// The size in bytes, as given to [`Paged::builder`].
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// False: memory has at least a page.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        self.core.mapping.range().start
    }

    /// A pointer to the first byte. It is valid until this value is dropped.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.core.mapping.start()
    }

    /// The memory as words that all threads may use. A rest that is shorter than `T` is left out.
    ///
    /// # Panics
    /// If a slice of words of another size was made before: threads must not access the same bytes by
    /// words of different sizes. [`Paged::as_mut_slice`] changes the size.
    #[must_use]
    pub fn as_slice<T: Words>(&self) -> &[T] {
        let first = self.word.compare_exchange(0, T::WORD, Relaxed, Relaxed).unwrap_or_else(|word| word);
        assert!(
            first == 0 || first == T::WORD,
            "cannot share memory as words of {} bytes: threads may use it as words of {first} bytes",
            T::WORD
        );
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= PAGE) };
        // SAFETY: the mapping has at least `len` bytes, starts at a page, and lives as long as
        // `self`. Any bytes are valid words, and all slices have words of one size.
        unsafe { slice::from_raw_parts(self.as_ptr().cast().as_ptr(), self.len / size_of::<T>()) }
    }

    /// The memory as words for one thread: `get_mut` of an atomic word is a plain number.
    #[must_use]
    pub fn as_mut_slice<T: Words>(&mut self) -> &mut [T] {
        *self.word.get_mut() = T::WORD;
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= PAGE) };
        // SAFETY: as for `as_slice`; `self` is borrowed exclusively, so no other slice exists.
        unsafe { slice::from_raw_parts_mut(self.as_ptr().cast().as_ptr(), self.len / size_of::<T>()) }
    }

    /// Changes the bound. Pages above the new one leave memory before the call returns.
    ///
    /// # Errors
    /// If `bytes` are less than 256 KiB, or in a forked child.
    pub fn set_resident(&self, bytes: usize) -> Result<()> {
        let pages = builder::bound_pages(bytes)?;
        self.core.control(|pager| pager.change_bound(pages))
    }

    /// Advises on the use of a range of bytes: see [`Advice`].
    ///
    /// # Errors
    /// If the range is not inside the memory, for [`Advice::Drop`] also if it is not whole pages, or
    /// in a forked child.
    pub fn advise(&self, range: Range<usize>, advice: Advice) -> Result<()> {
        let pages = self.pages(range, advice == Advice::Drop)?;
        match advice {
            Advice::Soon => self.core.control(|pager| pager.load_range(pages)),
            Advice::Cold => self.core.control(|pager| pager.evict_range(pages)),
            Advice::Drop => self.core.discard(pages),
        }
    }

    /// The number of resident pages, of 4096 bytes, among those that a range of bytes touches.
    ///
    /// # Errors
    /// If the range is not inside the memory, or in a forked child.
    pub fn resident(&self, range: Range<usize>) -> Result<usize> {
        let pages = self.pages(range, false)?;
        self.core.control(|pager| pager.resident_in(pages))
    }

    /// Counts since the start.
    #[must_use]
    pub fn stats(&self) -> PagedStats {
        self.core.stats()
    }

    /// The addresses of the pages of a range.
    fn pages(&self, range: Range<usize>, needs_pages: bool) -> Result<Range<usize>> {
        let Range { start, end } = range;
        let mapping = self.core.mapping.range();
        let is_inside = start <= end && end <= mapping.len();
        let is_whole = start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE);
        if !is_inside || (needs_pages && !is_whole) {
            return Err(Error::Range { start, end, bytes: self.len, needs_pages });
        }
        let first = mapping.start + (start & !(PAGE - 1));
        Ok(first..mapping.start + end.next_multiple_of(PAGE))
    }
}
