//! No write is missed: a model of looks against writers, under loom, which runs every interleaving (of a few preemptions).
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p fieldstone-pages --test loom --release`
//!
//! The log is the library's own. A page is a lock around its protection and its contents, since the processor checks the one and
//! writes the other in one step. A writer that finds the page closed notes the write and tries again, as after a trap. The broken
//! protocols below are those that the log's description warns of; that the model finds them shows that it would find ours.

#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a test")]
use std::convert::Infallible;
use std::ops::Range;

use fieldstone_pages::log::{Gate, Log};
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
    /// The seeded bug: what is told is not closed yet, but only after it was read.
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

/// How a first write is noted and a look takes the notes.
trait Protocol: Send + Sync + 'static {
    fn note(&self, page: usize, pages: &Pages);
    fn take(&self, from: usize, pages: &Pages) -> Option<Range<usize>>;
}

impl Protocol for Log {
    fn note(&self, page: usize, pages: &Pages) {
        self.note(page, pages).unwrap();
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
    fn note(&self, page: usize, pages: &Pages) {
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

struct World<P> {
    log: P,
    pages: Pages,
    /// Whose write is done, told by a release.
    done: [AtomicBool; 2],
}

impl<P: Protocol> World<P> {
    fn write(&self, page: usize, contents: u32) {
        loop {
            let mut held = self.pages.pages[page].lock().unwrap();
            if held.open {
                held.contents = contents;
                return;
            }
            drop(held);
            self.log.note(page, &self.pages);
        }
    }

    /// A look that copies what it is told.
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

/// Writers, the last of which writes the first page too, against a look while they write and a last one. Two of them allow two
/// preemptions: with more, loom goes round for ever among those who spin.
fn explore<P: Protocol>(writers: usize, closes_late: bool, log: impl Fn() -> P + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(if writers == 1 { 5 } else { 2 });
    model.max_branches = 20_000;
    model.check(move || {
        let page = || Mutex::new(Page { open: false, contents: 0 });
        let pages = Pages { pages: [page(), page()], closes_late };
        let world = Arc::new(World { log: log(), pages, done: [AtomicBool::new(false), AtomicBool::new(false)] });
        let writers = (0..writers).map(|writer| {
            let (world, is_last) = (world.clone(), writer + 1 == writers);
            thread::spawn(move || {
                world.write(writer, 1);
                world.done[writer].store(true, Ordering::Release);
                if is_last {
                    world.write(0, 2);
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        let mut copy = [0; PAGES];
        let before = [0, 1].map(|writer| world.done[writer].load(Ordering::Acquire));
        world.look(&mut copy);
        for page in 0..PAGES {
            assert!(!before[page] || copy[page] != 0, "a write that was done before the look is missed");
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        world.look(&mut copy);
        let now = [0, 1].map(|page| world.pages.contents(page));
        assert_eq!(copy, now, "the copy is not the pages: a write is missed");
    });
}

#[test]
fn no_write_is_missed() {
    explore(2, false, || Log::new(PAGES));
}

#[test]
fn no_write_of_one_writer_is_missed() {
    explore(1, false, || Log::new(PAGES));
}

#[test]
#[should_panic(expected = "the copy is not the pages: a write is missed")]
fn a_gate_that_closes_after_the_pages_were_told_is_found() {
    explore(2, true, || Log::new(PAGES));
}

#[test]
#[should_panic(expected = "the copy is not the pages: a write is missed")]
fn a_fault_that_opens_after_its_note_without_the_lock_is_found() {
    explore(2, false, || Unlocked { bits: AtomicU64::new(0), opens_first: false });
}

#[test]
#[should_panic(expected = "is missed")]
fn a_fault_that_opens_before_its_note_is_found() {
    explore(2, false, || Unlocked { bits: AtomicU64::new(0), opens_first: true });
}
