//! No write is missed: a model of looks and writers under loom, which runs every interleaving with
//! a few preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p fieldstone-pages --test loom`
//!
//! The log is the library's own. A page is a lock around its protection and its contents, because
//! the processor checks one and writes the other in one step. A writer that finds the page closed
//! records the write and retries, as after a trap. The log's description warns of the broken
//! protocols below. That the model detects them shows that it would detect such errors in the log.

#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a test")]
use std::convert::Infallible;
use std::ops::Range;

use fieldstone_pages::dirty_log::{DirtyLog, Gate};
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

const PAGES: usize = 2;

struct Page {
    open: bool,
    contents: u32,
}

struct Pages {
    pages: [Mutex<Page>; PAGES],
    /// The seeded bug: pages are closed only after they were read.
    closes_late: bool,
}

impl Pages {
    fn contents(&self, page: usize) -> u32 {
        self.pages[page].lock().unwrap().contents
    }

    fn set_open(&self, page: usize, open: bool) {
        self.pages[page].lock().unwrap().open = open;
    }
}

impl Gate for Pages {
    type Error = Infallible;

    fn open(&self, page: usize) -> Result<(), Infallible> {
        self.set_open(page, true);
        Ok(())
    }

    fn close(&self, pages: Range<usize>) -> Result<(), Infallible> {
        if !self.closes_late {
            pages.for_each(|page| self.set_open(page, false));
        }
        Ok(())
    }
}

/// How a first write is recorded and a look takes the records.
trait Protocol: Send + Sync + 'static {
    fn record(&self, page: usize, pages: &Pages);
    fn take(&self, from: usize, pages: &Pages) -> Option<Range<usize>>;
}

impl Protocol for DirtyLog {
    fn record(&self, page: usize, pages: &Pages) {
        self.record(page, pages).unwrap();
    }

    fn take(&self, from: usize, pages: &Pages) -> Option<Range<usize>> {
        self.take(from..PAGES, pages).unwrap()
    }
}

/// The log's steps without its lock.
struct Unlocked {
    bits: AtomicU64,
    opens_first: bool,
}

impl Protocol for Unlocked {
    fn record(&self, page: usize, pages: &Pages) {
        if self.opens_first {
            pages.set_open(page, true);
        }
        self.bits.fetch_or(1 << page, Ordering::AcqRel);
        if !self.opens_first {
            pages.set_open(page, true);
        }
    }

    fn take(&self, from: usize, pages: &Pages) -> Option<Range<usize>> {
        let page = (from..PAGES).find(|page| self.bits.load(Ordering::Acquire) & (1 << page) != 0)?;
        pages.set_open(page, false);
        self.bits.fetch_and(!(1 << page), Ordering::AcqRel);
        Some(page..page + 1)
    }
}

struct Model<P> {
    log: P,
    pages: Pages,
    /// Set with release ordering after each write.
    done: [AtomicBool; 2],
}

impl<P: Protocol> Model<P> {
    fn write(&self, page: usize, contents: u32) {
        loop {
            let mut held = self.pages.pages[page].lock().unwrap();
            if held.open {
                held.contents = contents;
                return;
            }
            drop(held);
            self.log.record(page, &self.pages);
        }
    }

    /// A look that copies the returned pages.
    fn look(&self, copy: &mut [u32; PAGES]) {
        let mut from = 0;
        while let Some(run) = self.log.take(from, &self.pages) {
            from = run.end;
            for page in run {
                copy[page] = self.pages.contents(page);
                if self.pages.closes_late {
                    self.pages.set_open(page, false);
                }
            }
        }
    }
}

/// Runs writers, the last of which also writes the first page, with a look during and after the
/// writes. Two writers allow two preemptions: with more, loom does not end on spinning threads.
fn explore<P: Protocol>(writers: usize, closes_late: bool, log: impl Fn() -> P + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(if writers == 1 { 5 } else { 2 });
    builder.max_branches = 20_000;
    builder.check(move || {
        let page = || Mutex::new(Page { open: false, contents: 0 });
        let pages = Pages { pages: [page(), page()], closes_late };
        let model = Arc::new(Model { log: log(), pages, done: [AtomicBool::new(false), AtomicBool::new(false)] });
        let writers = (0..writers).map(|writer| {
            let (model, is_last) = (model.clone(), writer + 1 == writers);
            thread::spawn(move || {
                model.write(writer, 1);
                model.done[writer].store(true, Ordering::Release);
                if is_last {
                    model.write(0, 2);
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        let mut copy = [0; PAGES];
        let before = [0, 1].map(|writer| model.done[writer].load(Ordering::Acquire));
        model.look(&mut copy);
        for page in 0..PAGES {
            assert!(!before[page] || copy[page] != 0, "a write that was complete before the look is missed");
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        model.look(&mut copy);
        let now = [0, 1].map(|page| model.pages.contents(page));
        assert_eq!(copy, now, "the copy differs from the pages: a write is missed");
    });
}

#[test]
fn no_write_is_missed() {
    explore(2, false, || DirtyLog::new(PAGES));
}

#[test]
fn no_write_of_one_writer_is_missed() {
    explore(1, false, || DirtyLog::new(PAGES));
}

#[test]
#[should_panic(expected = "the copy differs from the pages: a write is missed")]
fn a_gate_that_closes_after_the_look_is_detected() {
    explore(2, true, || DirtyLog::new(PAGES));
}

#[test]
#[should_panic(expected = "the copy differs from the pages: a write is missed")]
fn a_fault_that_opens_without_the_lock_is_detected() {
    explore(2, false, || Unlocked { bits: AtomicU64::new(0), opens_first: false });
}

#[test]
#[should_panic(expected = "is missed")]
fn a_fault_that_opens_before_its_record_is_detected() {
    explore(2, false, || Unlocked { bits: AtomicU64::new(0), opens_first: true });
}
