//! Which pages were written since the last look, where the kernel does not note it: a bit a page, set by who faults.
//!
//! ```text
//! a write faults:   lock,  set the bit,             open the page,    unlock
//! a look:           lock,  take a word of bits,     close the pages,  unlock,   tell them
//! ```
//! The lock is what makes it right. Without it a look could take the bit and close the page between the two steps of the fault,
//! which would then open a page whose bit is clear: later writes there would be missed. And since the bit is set before the page
//! is open, a write that is done before a look began is told by that look. `tests/loom.rs` explores both.
//!
//! The lock is a word that spins, as faults are met in signal handlers; who looks blocks signals first (`tracking`).

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use std::ops::Range;

/// What opens and closes pages to writes, by their numbers. A page is closed for good when `close` returns.
pub trait Gate {
    /// Why it failed.
    type Error;
    /// Lets writes pass.
    ///
    /// # Errors
    /// As the system call.
    fn open(&self, page: usize) -> Result<(), Self::Error>;
    /// Has writes fault.
    ///
    /// # Errors
    /// As the system call.
    fn close(&self, pages: Range<usize>) -> Result<(), Self::Error>;
}

/// A bit a page.
#[derive(Debug)]
pub struct Log {
    locked: AtomicBool,
    words: Box<[AtomicU64]>,
    pages: usize,
}

impl Log {
    /// For so many pages, none written.
    #[must_use]
    pub fn new(pages: usize) -> Self {
        let words = (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { locked: AtomicBool::new(false), words, pages }
    }

    /// Notes a page that is about to be written, and opens it.
    ///
    /// # Errors
    /// As [`Gate::open`]; the page is noted all the same.
    pub fn note<G: Gate>(&self, page: usize, gate: &G) -> Result<(), G::Error> {
        self.locked(|| {
            self.words[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
            gate.open(page)
        })
    }

    /// Takes the first written pages that are next to each other, at or after `from`, up to 64 of them, and closes them.
    ///
    /// # Errors
    /// As [`Gate::close`]; the pages stay written.
    pub fn take<G: Gate>(&self, pages: Range<usize>, gate: &G) -> Result<Option<Range<usize>>, G::Error> {
        let mut from = pages.start;
        while from < pages.end {
            // Most words are clear; a write that is not noted yet is one that is not done yet.
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

    /// The first written pages at or after `from` that are next to each other, which stay written and open.
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

    /// The bits of the word that `from` lies in, of the pages from `from` to `end`.
    fn word(&self, from: usize, end: usize) -> u64 {
        let bits = self.words[from / 64].load(Ordering::Acquire) & (u64::MAX << (from % 64));
        let last = end.min(self.pages) - from / 64 * 64;
        if last < 64 { bits & ((1 << last) - 1) } else { bits }
    }

    /// The first run of set bits in the word that `from` lies in.
    fn run(&self, from: usize, end: usize) -> Option<Range<usize>> {
        let bits = self.word(from, end);
        let first = bits.trailing_zeros() as usize;
        (bits != 0).then(|| {
            let start = from / 64 * 64 + first;
            start..start + (bits >> first).trailing_ones() as usize
        })
    }

    fn locked<R>(&self, f: impl FnOnce() -> R) -> R {
        // The wait ends: the holder makes a system call or two and waits for nothing else.
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

    /// Open pages.
    struct Model(RefCell<BTreeSet<usize>>);

    impl Gate for Model {
        type Error = ();
        fn open(&self, page: usize) -> Result<(), ()> {
            self.0.borrow_mut().insert(page);
            Ok(())
        }
        fn close(&self, pages: Range<usize>) -> Result<(), ()> {
            pages.for_each(|page| assert!(self.0.borrow_mut().remove(&page), "what is taken was open"));
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn a_look_takes_what_was_noted_in_its_range(
            noted in prop::collection::btree_set(0_usize..200, 0..120), start in 0_usize..200, length in 0_usize..200,
        ) {
            let (log, gate) = (Log::new(200), Model(RefCell::default()));
            noted.iter().for_each(|&page| log.note(page, &gate).unwrap());
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
