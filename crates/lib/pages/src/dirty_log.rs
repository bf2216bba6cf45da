//! The pages written since the last look, where the kernel does not record it: one bit per page,
//! set by the faulting thread.
//!
//! ```text
//! a write faults:   lock,  set the bit,             open the page,    unlock
//! a look:           lock,  take a word of bits,     close the pages,  unlock,   return them
//! ```
//! Invariant: the bit of each open page is set. Without the lock, a look could take the bit and
//! close the page between the two steps of the fault. The fault would then open a page whose bit is
//! clear, and later writes would be missed. The bit is set before the page opens, so a look returns
//! every write that was complete before it began. `tests/loom.rs` explores both.
//!
//! The lock is a spinning word, because faults are handled in signal handlers; callers of a look
//! block signals first (`tracking`).

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use std::ops::Range;

/// Opens and closes pages to writes, by number. A page is closed when `close` returns.
pub trait Gate {
    /// The error of a failed operation.
    type Error;
    /// Permits writes to a page.
    ///
    /// # Errors
    /// As the system call.
    fn open(&self, page: usize) -> Result<(), Self::Error>;
    /// Makes writes to pages fault.
    ///
    /// # Errors
    /// As the system call.
    fn close(&self, pages: Range<usize>) -> Result<(), Self::Error>;
}

/// One bit per page.
#[derive(Debug)]
pub struct DirtyLog {
    locked: AtomicBool,
    words: Box<[AtomicU64]>,
    pages: usize,
}

impl DirtyLog {
    /// A log for this many pages, none of them written.
    #[must_use]
    pub fn new(pages: usize) -> Self {
        let words = (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { locked: AtomicBool::new(false), words, pages }
    }

    /// Records that a page is about to be written, and opens it.
    ///
    /// # Errors
    /// As [`Gate::open`]; the page is recorded in any case.
    pub fn record<G: Gate>(&self, page: usize, gate: &G) -> Result<(), G::Error> {
        self.locked(|| {
            self.words[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
            gate.open(page)
        })
    }

    /// Takes the first adjacent written pages at or after `pages.start`, at most 64, and closes
    /// them.
    ///
    /// # Errors
    /// As [`Gate::close`]; the pages stay written.
    pub fn take<G: Gate>(&self, pages: Range<usize>, gate: &G) -> Result<Option<Range<usize>>, G::Error> {
        let mut from = pages.start;
        while from < pages.end {
            // Most words are zero; a write that is not recorded yet is not complete yet.
            if self.word(from, pages.end) != 0 {
                let run = self.locked(|| {
                    let Some(run) = self.run(from, pages.end) else { return Ok(None) };
                    let bits = (u64::MAX >> (64 - run.len())) << (run.start % 64);
                    gate.close(run.clone())?;
                    self.words[run.start / 64].fetch_and(!bits, Ordering::Relaxed);
                    Ok(Some(run))
                })?;
                if run.is_some() {
                    return Ok(run);
                }
            }
            from = (from / 64 + 1) * 64;
        }
        Ok(None)
    }

    /// The first adjacent written pages at or after `pages.start`, which stay written and open.
    #[must_use]
    pub fn peek(&self, pages: Range<usize>) -> Option<Range<usize>> {
        let mut from = pages.start;
        while from < pages.end {
            if let Some(run) = self.run(from, pages.end) {
                return Some(run);
            }
            from = (from / 64 + 1) * 64;
        }
        None
    }

    /// The bits of the word of `from`, for the pages from `from` to `end`.
    fn word(&self, from: usize, end: usize) -> u64 {
        let bits = self.words[from / 64].load(Ordering::Acquire) & (u64::MAX << (from % 64));
        let last = end.min(self.pages) - from / 64 * 64;
        if last < 64 { bits & ((1 << last) - 1) } else { bits }
    }

    /// The first run of set bits in the word of `from`.
    fn run(&self, from: usize, end: usize) -> Option<Range<usize>> {
        let bits = self.word(from, end);
        let first = bits.trailing_zeros() as usize;
        (bits != 0).then(|| {
            let start = from / 64 * 64 + first;
            start..start + (bits >> first).trailing_ones() as usize
        })
    }

    fn locked<R>(&self, f: impl FnOnce() -> R) -> R {
        // The wait terminates: the holder makes one or two system calls and does not wait.
        #[cfg(not(loom))]
        let mut tries = 0;
        while self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            #[cfg(loom)]
            loom::thread::yield_now();
            #[cfg(not(loom))]
            crate::spin::pause(&mut tries);
        }
        let result = f();
        self.locked.store(false, Ordering::Release);
        result
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    /// The open pages.
    struct PageModel(RefCell<BTreeSet<usize>>);

    impl Gate for PageModel {
        type Error = ();
        fn open(&self, page: usize) -> Result<(), ()> {
            self.0.borrow_mut().insert(page);
            Ok(())
        }
        fn close(&self, pages: Range<usize>) -> Result<(), ()> {
            pages.for_each(|page| assert!(self.0.borrow_mut().remove(&page), "a taken page was open"));
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn a_look_takes_the_recorded_pages_of_its_range(
            noted in prop::collection::btree_set(0_usize..200, 0..120), start in 0_usize..200, length in 0_usize..200,
        ) {
            let (log, gate) = (DirtyLog::new(200), PageModel(RefCell::default()));
            noted.iter().for_each(|&page| log.record(page, &gate).unwrap());
            let range = start..(start + length).min(200);
            let mut peeked = Vec::new();
            let mut from = range.start;
            while let Some(run) = log.peek(from..range.end) {
                from = run.end;
                peeked.extend(run);
            }
            let mut taken = Vec::new();
            while let Some(run) = log.take(range.clone(), &gate).unwrap() {
                taken.extend(run);
            }
            let expected: Vec<_> = noted.range(range.clone()).copied().collect();
            prop_assert_eq!(&taken, &expected);
            prop_assert_eq!(peeked, expected);
            let left: BTreeSet<_> = noted.difference(&taken.into_iter().collect()).copied().collect();
            prop_assert_eq!(&*gate.0.borrow(), &left);
        }
    }
}
