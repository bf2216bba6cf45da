//! Placement against a kernel that places mappings unseen: raw mmap(2) and munmap(2), stacks that grow down.
//!
//! A random program maps, unmaps, moves and grows memory through the agent, and past it. After each step every page that
//! the program holds has its value: no mapping was replaced or unmapped that the step did not name. What the agent gives
//! is mapped, fresh, and held by nobody.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use proptest::prelude::*;

use super::{ELSEWHERE, install, with};
use crate::calls::{self, Request};
use crate::place::READ_WRITE;
use crate::raw;
use crate::remap::{self, Move};
use crate::state::{TABLE, clear_exact};
use crate::table::{PAGE, State};
use crate::{exact, heap, small};

const PAGES: usize = crate::bits::PAGES;
/// The model's memory: 24 granules, the first of which are the heap's.
const MEMORY: usize = 24 * PAGES;
const HEAP_GRANULES: usize = 3;
const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// The agent's state is one for all threads: one test at a time has it.
static ALONE: Mutex<()> = Mutex::new(());

/// What the program does next. Numbers are pages, or choose one of what it holds.
#[derive(Clone, Debug)]
enum Step {
    Map {
        pages: usize,
        flags: i32,
        prot: i32,
    },
    Unmap {
        which: usize,
        from: usize,
        pages: usize,
    },
    Remap {
        which: usize,
        pages: usize,
        moves: bool,
        keeps: bool,
    },
    MapFixed {
        at: usize,
        pages: usize,
        flags: i32,
    },
    Break {
        pages: usize,
    },
    /// Past libc from here on.
    RawMap {
        at: usize,
        pages: usize,
    },
    RawUnmap {
        which: usize,
        from: usize,
        pages: usize,
    },
    GrowDown {
        which: usize,
        pages: usize,
    },
    Exact,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 1..40_usize, 2 => 40..PAGES, 3 => PAGES..3 * PAGES]
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..1000_usize;
    let flags =
        prop_oneof![8 => Just(0), 1 => Just(libc::MAP_POPULATE | libc::MAP_LOCKED), 1 => Just(libc::MAP_NORESERVE)];
    let prot = prop_oneof![5 => Just(READ_WRITE), 1 => Just(libc::PROT_NONE)];
    let growing = prop_oneof![Just(0), Just(libc::MAP_GROWSDOWN)];
    prop_oneof![
        10 => (size(), flags, prot).prop_map(|(pages, flags, prot)| Step::Map { pages, flags, prot }),
        8 => (which.clone(), 0..PAGES, size()).prop_map(|(which, from, pages)| Step::Unmap { which, from, pages }),
        4 => (which.clone(), size(), any::<bool>(), any::<bool>())
            .prop_map(|(which, pages, moves, keeps)| Step::Remap { which, pages, moves, keeps }),
        2 => (0..MEMORY, 1..700_usize, growing).prop_map(|(at, pages, flags)| Step::MapFixed { at, pages, flags }),
        3 => (0..4 * PAGES).prop_map(|pages| Step::Break { pages }),
        6 => (0..12 * PAGES, 1..60_usize).prop_map(|(at, pages)| Step::RawMap { at, pages }),
        3 => (which.clone(), 0..PAGES, size()).prop_map(|(which, from, pages)| Step::RawUnmap { which, from, pages }),
        3 => (which, 1..200_usize).prop_map(|(which, pages)| Step::GrowDown { which, pages }),
        1 => Just(Step::Exact),
    ]
}

/// The program: what it holds, and what it wrote there.
struct Program {
    _alone: MutexGuard<'static, ()>,
    values: Vec<Option<u32>>,
    mappings: Vec<core::ops::Range<usize>>,
    written: u32,
    heap: usize,
}

impl Program {
    /// On an empty address space, with an agent that has just started.
    fn start() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        install(MEMORY);
        TABLE.reset();
        TABLE.set_floor(HEAP_GRANULES);
        small::reset();
        clear_exact();
        heap::start();
        Self { _alone: alone, values: std::vec![None; MEMORY], mappings: Vec::new(), written: 0, heap: 0 }
    }

    /// Writes a value to each page; they were given just now, unless the program had them before.
    fn hold(&mut self, first: usize, count: usize) {
        for page in first..first + count {
            let found =
                with(|space| space.page(page)).unwrap_or_else(|| panic!("page {page} was given and is not mapped"));
            assert_eq!(found.value, self.values[page].unwrap_or(0), "page {page} was given and is not fresh");
            self.written += 1;
            self.values[page] = Some(self.written);
            with(|space| space.write(page, self.written));
        }
    }

    /// As [`Self::hold`], for pages that nobody may have yet.
    fn receive(&mut self, first: usize, count: usize) {
        let given = self.values[first..first + count].iter().position(Option::is_some);
        assert_eq!(given, None, "a page of {first}+{count} is given twice");
        self.hold(first, count);
        self.mappings.push(first..first + count);
    }

    fn lose(&mut self, first: usize, count: usize) {
        self.values[first..first + count].fill(None);
        let cut = first..first + count;
        let parts =
            |held: core::ops::Range<usize>| [held.start..held.end.min(cut.start), held.start.max(cut.end)..held.end];
        self.mappings = self.mappings.drain(..).flat_map(parts).filter(|part| !part.is_empty()).collect();
    }

    fn pick(&self, which: usize) -> Option<core::ops::Range<usize>> {
        let count = self.mappings.len();
        (count > 0).then(|| self.mappings[which % count].clone())
    }

    /// A part of something that it holds.
    fn pick_part(&self, which: usize, from: usize, pages: usize) -> Option<(usize, usize)> {
        let held = self.pick(which)?;
        let first = held.start + from % held.len();
        Some((first, pages.min(held.end - first)))
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Map { pages, flags, prot } => self.map(pages, flags, prot),
            Step::Unmap { which, from, pages } => {
                let Some((first, count)) = self.pick_part(which, from, pages) else { return };
                assert_eq!(calls::munmap(first * PAGE, count * PAGE), 0);
                assert!(with(|space| space.is_free(first, count)));
                self.lose(first, count);
            }
            Step::Remap { which, pages, moves, keeps } => self.remap(which, pages, moves, keeps),
            Step::MapFixed { at, pages, flags } => {
                if with(|space| space.is_free(at, pages)) {
                    let result = calls::mmap(request(at * PAGE, pages, READ_WRITE, libc::MAP_FIXED | flags));
                    assert_eq!(result, (at * PAGE).cast_signed());
                    self.receive(at, pages);
                }
            }
            Step::Break { pages } => self.set_break(pages),
            Step::RawMap { at, pages } => {
                if with(|space| space.is_free(at, pages)) {
                    with(|space| space.map(at, pages, true)).unwrap();
                    self.receive(at, pages);
                }
            }
            Step::RawUnmap { which, from, pages } => {
                let Some((first, count)) = self.pick_part(which, from, pages) else { return };
                with(|space| space.unmap(first, count)).unwrap();
                self.lose(first, count);
            }
            Step::GrowDown { which, pages } => {
                let Some(held) = self.pick(which) else { return };
                let first = held.start.saturating_sub(pages);
                if with(|space| space.is_free(first, held.start - first)) && first < held.start {
                    with(|space| space.map(first, held.start - first, true)).unwrap();
                    self.receive(first, held.start - first);
                }
            }
            Step::Exact => exact::begin(),
        }
    }

    fn map(&mut self, pages: usize, flags: i32, prot: i32) {
        let result = calls::mmap(request(0, pages, prot, flags));
        // A reservation of less than a granule is the kernel's to place.
        if !raw::failed(result) && result.cast_unsigned() < ELSEWHERE && (prot == READ_WRITE || pages >= PAGES) {
            self.receive(result.cast_unsigned() / PAGE, pages);
        }
    }

    fn remap(&mut self, which: usize, pages: usize, moves: bool, keeps: bool) {
        let Some(held) = self.pick(which) else { return };
        let (old, count) = (held.start, held.len());
        let flags = if keeps { libc::MREMAP_DONTUNMAP | libc::MREMAP_MAYMOVE } else { libc::MREMAP_MAYMOVE };
        let (new_count, flags) = match (keeps, moves) {
            (true, _) => (count, flags),
            (false, true) => (pages, flags),
            (false, false) => (pages, 0),
        };
        let call = Move { old: old * PAGE, old_bytes: count * PAGE, new_bytes: new_count * PAGE, flags, new: 0 };
        let result = remap::mremap(call);
        if raw::failed(result) {
            return;
        }
        let values = self.values[old..old + count].to_vec();
        self.lose(old, count);
        if keeps {
            self.receive(old, count);
        }
        let new = result.cast_unsigned() / PAGE;
        if new < MEMORY {
            assert!(self.values[new..new + new_count].iter().all(Option::is_none), "moved to what is held");
            let kept = count.min(new_count);
            self.values[new..new + kept].copy_from_slice(&values[..kept]);
            self.hold(new, new_count);
            self.mappings.push(new..new + new_count);
        }
    }

    fn set_break(&mut self, pages: usize) {
        let fits = self.break_fits(pages);
        let reached = heap::brk(pages * PAGE) / PAGE;
        assert!(reached == pages || reached == self.heap && !fits, "brk to page {pages} is refused, and it fits");
        if reached > self.heap {
            self.hold_heap(self.heap..reached);
        } else {
            self.values[reached..self.heap].fill(None);
        }
        self.heap = reached;
    }

    /// Whether nothing that the program holds lies below this break, and no granule of another.
    fn break_fits(&self, pages: usize) -> bool {
        let granules = self.heap.div_ceil(PAGES).max(1)..pages.div_ceil(PAGES);
        pages <= self.heap
            || self.values[self.heap..pages].iter().all(Option::is_none)
                && granules.into_iter().all(|granule| TABLE.state(granule) == State::Free)
    }

    fn hold_heap(&mut self, pages: core::ops::Range<usize>) {
        assert!(self.values[pages.clone()].iter().all(Option::is_none), "the heap takes what is held");
        self.hold(pages.start, pages.len());
    }

    /// Everything that the program holds is there.
    fn check(&self) {
        for (page, value) in self.values.iter().enumerate().filter(|(_, value)| value.is_some()) {
            assert_eq!(
                with(|space| space.page(page)).map(|page| page.value),
                *value,
                "page {page} was replaced or unmapped"
            );
        }
    }
}

fn request(address: usize, pages: usize, prot: i32, flags: i32) -> Request {
    Request { address, bytes: pages * PAGE, prot, flags: PRIVATE | flags, fd: -1, offset: 0 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_mapping_of_another_is_replaced_or_unmapped(steps in prop::collection::vec(step(), 1..80)) {
        let mut program = Program::start();
        for step in &steps {
            program.take(step);
            program.check();
        }
    }
}

#[test]
fn a_heap_that_is_lowered_to_its_start_grows_again() {
    for is_exact in [false, true] {
        let mut program = Program::start();
        for pages in [1, 0, PAGES + 1, 0, 2 * PAGES] {
            if is_exact && pages == 0 {
                exact::begin();
            }
            program.set_break(pages);
            program.check();
        }
        clear_exact();
    }
}

#[test]
fn the_heap_reaches_a_mapping_that_lies_in_its_last_granule() {
    let mut program = Program::start();
    for step in [Step::RawMap { at: PAGES + 40, pages: 1 }, Step::Break { pages: PAGES + 39 }] {
        program.take(&step);
    }
    program.check();
}

#[test]
fn heap_that_could_not_be_unmapped_reads_as_zeroes() {
    let mut program = Program::start();
    program.set_break(2 * PAGES + 7);
    with(|space| space.refuses_unmaps = true);
    for pages in [PAGES + 3, 2 * PAGES + 7, 0, 2 * PAGES] {
        program.set_break(pages);
    }
}
