//! Random tests of placement against a kernel that makes mappings unknown to the agent: raw mmap(2)
//! and munmap(2), and stacks that grow down.
//!
//! A random program maps, unmaps, moves and grows memory, through the agent and around it. After
//! each step every page of the program has its value: only mappings that the step names were
//! replaced or unmapped. Memory that the agent returns is mapped, fresh, and not in use.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use proptest::prelude::*;

use super::{OUTSIDE_REGION, install, with};
use crate::calls::{self, MmapCall};
use crate::placement::READ_WRITE;
use crate::raw;
use crate::remap::{self, MremapCall};
use crate::state::{TABLE, clear_exact};
use crate::table::{GranuleState, PAGE};
use crate::{exact, heap, small};

const PAGES: usize = crate::bits::PAGES;
/// Pages of the model: 24 granules, of index the first three are for the heap.
const MEMORY: usize = 24 * PAGES;
const HEAP_GRANULES: usize = 3;
const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// The state of the agent is global, so the tests run one at a time.
static ONE_TEST: Mutex<()> = Mutex::new(());

/// One step of the program. Numbers are pages, or select one of its mappings.
#[derive(Clone, Debug)]
enum ModelStep {
    Map {
        pages: usize,
        flags: i32,
        prot: i32,
    },
    Unmap {
        index: usize,
        from: usize,
        pages: usize,
    },
    Remap {
        index: usize,
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
    /// Raw system calls from here on.
    RawMap {
        at: usize,
        pages: usize,
    },
    RawUnmap {
        index: usize,
        from: usize,
        pages: usize,
    },
    GrowDown {
        index: usize,
        pages: usize,
    },
    Exact,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 1..40_usize, 2 => 40..PAGES, 3 => PAGES..3 * PAGES]
}

fn step() -> impl Strategy<Value = ModelStep> {
    let index = 0..1000_usize;
    let flags =
        prop_oneof![8 => Just(0), 1 => Just(libc::MAP_POPULATE | libc::MAP_LOCKED), 1 => Just(libc::MAP_NORESERVE)];
    let prot = prop_oneof![5 => Just(READ_WRITE), 1 => Just(libc::PROT_NONE)];
    let growing = prop_oneof![Just(0), Just(libc::MAP_GROWSDOWN)];
    prop_oneof![
        10 => (size(), flags, prot).prop_map(|(pages, flags, prot)| ModelStep::Map { pages, flags, prot }),
        8 => (index.clone(), 0..PAGES, size()).prop_map(|(index, from, pages)| ModelStep::Unmap { index, from, pages }),
        4 => (index.clone(), size(), any::<bool>(), any::<bool>())
            .prop_map(|(index, pages, moves, keeps)| ModelStep::Remap { index, pages, moves, keeps }),
        2 => (0..MEMORY, 1..700_usize, growing).prop_map(|(at, pages, flags)| ModelStep::MapFixed { at, pages, flags }),
        3 => (0..4 * PAGES).prop_map(|pages| ModelStep::Break { pages }),
        6 => (0..12 * PAGES, 1..60_usize).prop_map(|(at, pages)| ModelStep::RawMap { at, pages }),
        3 => (index.clone(), 0..PAGES, size()).prop_map(|(index, from, pages)| ModelStep::RawUnmap { index, from, pages }),
        3 => (index, 1..200_usize).prop_map(|(index, pages)| ModelStep::GrowDown { index, pages }),
        1 => Just(ModelStep::Exact),
    ]
}

/// The program: its pages and the values that it wrote there.
struct ModelProgram {
    _lock: MutexGuard<'static, ()>,
    values: Vec<Option<u32>>,
    mappings: Vec<core::ops::Range<usize>>,
    written: u32,
    heap: usize,
}

impl ModelProgram {
    /// Starts on an empty address space, with an agent in its initial state.
    fn start() -> Self {
        let lock = ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner);
        install(MEMORY);
        TABLE.reset();
        TABLE.set_floor(HEAP_GRANULES);
        small::reset();
        clear_exact();
        heap::start();
        Self { _lock: lock, values: std::vec![None; MEMORY], mappings: Vec::new(), written: 0, heap: 0 }
    }

    /// Writes a value to each page. A page is fresh, unless the program had it before.
    fn write(&mut self, first: usize, count: usize) {
        for page in first..first + count {
            let found =
                with(|space| space.page(page)).unwrap_or_else(|| panic!("page {page} is allocated and not mapped"));
            assert_eq!(found.value, self.values[page].unwrap_or(0), "page {page} is allocated and not fresh");
            self.written += 1;
            self.values[page] = Some(self.written);
            with(|space| space.write(page, self.written));
        }
    }

    /// As [`Self::write`], for pages that the program does not have yet.
    fn add(&mut self, first: usize, count: usize) {
        let owned = self.values[first..first + count].iter().position(Option::is_some);
        assert_eq!(owned, None, "a page of {first}+{count} is allocated twice");
        self.write(first, count);
        self.mappings.push(first..first + count);
    }

    fn remove(&mut self, first: usize, count: usize) {
        self.values[first..first + count].fill(None);
        let cut = first..first + count;
        let parts = |mapping: core::ops::Range<usize>| {
            [mapping.start..mapping.end.min(cut.start), mapping.start.max(cut.end)..mapping.end]
        };
        self.mappings = self.mappings.drain(..).flat_map(parts).filter(|part| !part.is_empty()).collect();
    }

    fn nth_mapping(&self, index: usize) -> Option<core::ops::Range<usize>> {
        let count = self.mappings.len();
        (count > 0).then(|| self.mappings[index % count].clone())
    }

    /// A part of one of its mappings.
    fn part_of_mapping(&self, index: usize, from: usize, pages: usize) -> Option<(usize, usize)> {
        let mapping = self.nth_mapping(index)?;
        let first = mapping.start + from % mapping.len();
        Some((first, pages.min(mapping.end - first)))
    }

    fn run(&mut self, step: &ModelStep) {
        match *step {
            ModelStep::Map { pages, flags, prot } => self.map(pages, flags, prot),
            ModelStep::Unmap { index, from, pages } => {
                let Some((first, count)) = self.part_of_mapping(index, from, pages) else { return };
                assert_eq!(calls::munmap(first * PAGE, count * PAGE), 0);
                assert!(with(|space| space.is_free(first, count)));
                self.remove(first, count);
            }
            ModelStep::Remap { index, pages, moves, keeps } => self.remap(index, pages, moves, keeps),
            ModelStep::MapFixed { at, pages, flags } => {
                if with(|space| space.is_free(at, pages)) {
                    let result = calls::mmap(request(at * PAGE, pages, READ_WRITE, libc::MAP_FIXED | flags));
                    assert_eq!(result, (at * PAGE).cast_signed());
                    self.add(at, pages);
                }
            }
            ModelStep::Break { pages } => self.set_break(pages),
            ModelStep::RawMap { at, pages } => {
                if with(|space| space.is_free(at, pages)) {
                    with(|space| space.map(at, pages, true)).unwrap();
                    self.add(at, pages);
                }
            }
            ModelStep::RawUnmap { index, from, pages } => {
                let Some((first, count)) = self.part_of_mapping(index, from, pages) else { return };
                with(|space| space.unmap(first, count)).unwrap();
                self.remove(first, count);
            }
            ModelStep::GrowDown { index, pages } => {
                let Some(mapping) = self.nth_mapping(index) else { return };
                let first = mapping.start.saturating_sub(pages);
                if with(|space| space.is_free(first, mapping.start - first)) && first < mapping.start {
                    with(|space| space.map(first, mapping.start - first, true)).unwrap();
                    self.add(first, mapping.start - first);
                }
            }
            ModelStep::Exact => exact::enable(),
        }
    }

    fn map(&mut self, pages: usize, flags: i32, prot: i32) {
        let result = calls::mmap(request(0, pages, prot, flags));
        // The kernel places a reservation of less than a granule.
        if !raw::failed(result) && result.cast_unsigned() < OUTSIDE_REGION && (prot == READ_WRITE || pages >= PAGES) {
            self.add(result.cast_unsigned() / PAGE, pages);
        }
    }

    fn remap(&mut self, index: usize, pages: usize, moves: bool, keeps: bool) {
        let Some(mapping) = self.nth_mapping(index) else { return };
        let (old, count) = (mapping.start, mapping.len());
        let flags = if keeps { libc::MREMAP_DONTUNMAP | libc::MREMAP_MAYMOVE } else { libc::MREMAP_MAYMOVE };
        let (new_count, flags) = match (keeps, moves) {
            (true, _) => (count, flags),
            (false, true) => (pages, flags),
            (false, false) => (pages, 0),
        };
        let call = MremapCall { old: old * PAGE, old_bytes: count * PAGE, new_bytes: new_count * PAGE, flags, new: 0 };
        let result = remap::mremap(call);
        if raw::failed(result) {
            return;
        }
        let values = self.values[old..old + count].to_vec();
        self.remove(old, count);
        if keeps {
            self.add(old, count);
        }
        let new = result.cast_unsigned() / PAGE;
        if new < MEMORY {
            assert!(
                self.values[new..new + new_count].iter().all(Option::is_none),
                "moved over a mapping of the program"
            );
            let kept = count.min(new_count);
            self.values[new..new + kept].copy_from_slice(&values[..kept]);
            self.write(new, new_count);
            self.mappings.push(new..new + new_count);
        }
    }

    fn set_break(&mut self, pages: usize) {
        let fits = self.break_fits(pages);
        let result = heap::brk(pages * PAGE) / PAGE;
        assert!(result == pages || result == self.heap && !fits, "brk to page {pages} is refused although it fits");
        if result > self.heap {
            self.write_heap(self.heap..result);
        } else {
            self.values[result..self.heap].fill(None);
        }
        self.heap = result;
    }

    /// Whether the program has no memory below this break, and no other granule is in the way.
    fn break_fits(&self, pages: usize) -> bool {
        let granules = self.heap.div_ceil(PAGES).max(1)..pages.div_ceil(PAGES);
        pages <= self.heap
            || self.values[self.heap..pages].iter().all(Option::is_none)
                && granules.into_iter().all(|granule| TABLE.state(granule) == GranuleState::Free)
    }

    fn write_heap(&mut self, pages: core::ops::Range<usize>) {
        assert!(self.values[pages.clone()].iter().all(Option::is_none), "the heap grows over a mapping of the program");
        self.write(pages.start, pages.len());
    }

    /// Checks the value of each page of the program.
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

fn request(address: usize, pages: usize, prot: i32, flags: i32) -> MmapCall {
    MmapCall { address, bytes: pages * PAGE, prot, flags: PRIVATE | flags, fd: -1, offset: 0 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn only_named_mappings_are_replaced_or_unmapped(steps in prop::collection::vec(step(), 1..80)) {
        let mut program = ModelProgram::start();
        for step in &steps {
            program.run(step);
            program.check();
        }
    }
}

#[test]
fn a_heap_lowered_to_its_start_grows_again() {
    for is_exact in [false, true] {
        let mut program = ModelProgram::start();
        for pages in [1, 0, PAGES + 1, 0, 2 * PAGES] {
            if is_exact && pages == 0 {
                exact::enable();
            }
            program.set_break(pages);
            program.check();
        }
        clear_exact();
    }
}

#[test]
fn the_heap_grows_up_to_a_mapping_in_its_last_granule() {
    let mut program = ModelProgram::start();
    for step in [ModelStep::RawMap { at: PAGES + 40, pages: 1 }, ModelStep::Break { pages: PAGES + 39 }] {
        program.run(&step);
    }
    program.check();
}

#[test]
fn heap_pages_that_could_not_be_unmapped_read_as_zeroes() {
    let mut program = ModelProgram::start();
    program.set_break(2 * PAGES + 7);
    with(|space| space.refuses_unmaps = true);
    for pages in [PAGES + 3, 2 * PAGES + 7, 0, 2 * PAGES] {
        program.set_break(pages);
    }
}
