//! One thread's memory under test, and the checks that all steps use.

use crate::{
    breaks::Break,
    giant::Giant,
    memory::{Errno, Memory},
    model::{Access, Model, PAGE, Page},
    probe::{Touch, bears},
    steps::Kind,
};
use fieldstone_workloads::{blocks::Blocks, random::SplitMix64};
use std::{ops::Range, os::fd::RawFd};

/// What a step or a check says: what differed from the model, in words.
pub(crate) type Verdict = Result<(), String>;

/// One thread's memory and what it must hold.
pub(crate) struct World {
    pub(crate) memory: Memory,
    pub(crate) model: Model,
    pub(crate) giants: Vec<Giant>,
    pub(crate) breaks: Vec<Break>,
    pub(crate) heap: Blocks,
    pub(crate) random: SplitMix64,
    /// Whether this is the process's only thread: only then a range just unmapped is sure to stay so until it is probed.
    pub(crate) alone: bool,
    /// Whether all of the process's memory is in this world: no thread, here or before the fork, has or had another.
    pub(crate) sole: bool,
    /// How many forks lie between the first process and this one.
    pub(crate) generation: u32,
    /// Kinds of steps that are left out.
    pub(crate) skip: Vec<Kind>,
    /// The file that file mappings show: [`FILE_PAGES`] pages of `file_page`.
    pub(crate) file: RawFd,
}

/// Pages of the file.
pub(crate) const FILE_PAGES: usize = 256;
/// Heap blocks of one thread.
const HEAP_BYTES: usize = 48 << 20;

/// `found` must be `expected`; `what` was asked.
pub(crate) fn answers<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: Result<T, Errno>,
    expected: Result<T, i32>,
) -> Verdict {
    let expected = expected.map_err(Errno);
    if found == expected { Ok(()) } else { Err(format!("{what} answered {found:x?}, expected {expected:x?}")) }
}

impl World {
    /// A thread's empty world.
    pub(crate) fn new(memory: Memory, file: RawFd, seed: u64, alone: bool, skip: &[Kind]) -> Self {
        Self {
            memory,
            model: Model::default(),
            giants: Vec::new(),
            breaks: Vec::new(),
            heap: Blocks::new(HEAP_BYTES),
            random: SplitMix64::new(seed),
            alone,
            sole: alone,
            generation: 0,
            skip: skip.to_vec(),
            file,
        }
    }

    /// A number of pages: mostly few, sometimes around and over a 2 MiB page.
    pub(crate) fn draw_pages(&mut self) -> usize {
        let random = &mut self.random;
        match random.below(10) {
            0..=5 => 1 + random.below(16),
            6..=7 => 16 + random.below(240),
            8 => 512 * (1 + random.below(3)),
            _ => 500 + random.below(1100),
        }
    }

    /// Checks all: every page, giant, piece of the break and heap block.
    pub(crate) fn check_all(&self) -> Verdict {
        for index in 0..self.model.spans.len() {
            self.check_pages(index, 0..self.model.spans[index].pages.len())?;
        }
        self.giants.iter().try_for_each(|giant| giant.check(self.memory))?;
        self.breaks.iter().try_for_each(|piece| piece.check(self.memory))?;
        self.heap.check().map_err(|error| error.to_string())
    }

    /// Checks what `range` of a span holds and allows.
    pub(crate) fn check_pages(&self, span: usize, range: Range<usize>) -> Verdict {
        let span = &self.model.spans[span];
        range.into_iter().try_for_each(|index| check_page(self.memory, span.address(index), &span.pages[index]))
    }

    /// Checks an address that mmap or mremap chose: page-aligned, and over nothing that is in use.
    pub(crate) fn check_fresh(&self, address: usize, pages: usize) -> Verdict {
        if !address.is_multiple_of(PAGE) {
            return Err(format!("the address {address:#x} is not page-aligned"));
        }
        self.check_free(address, pages * PAGE)
    }

    /// Checks that nothing of ours is at these bytes.
    pub(crate) fn check_free(&self, address: usize, bytes: usize) -> Verdict {
        let taken = self.model.overlap(address, bytes).map(|span| ("a span", span.start));
        let meets = |r: &Range<usize>| r.start < address + bytes && address < r.end;
        let taken = taken
            .or_else(|| self.giants.iter().map(Giant::range).find(meets).map(|r| ("a giant", r.start)))
            .or_else(|| self.breaks.iter().map(Break::range).find(meets).map(|r| ("the break", r.start)))
            .or_else(|| self.heap.ranges().find(meets).map(|r| ("a heap block", r.start)));
        match taken {
            Some((what, start)) => Err(format!("{bytes} bytes at {address:#x} overlap {what} at {start:#x}")),
            None => Ok(()),
        }
    }

    /// Checks that just unmapped pages are gone in every way. Before anything allocates: malloc may map right there.
    pub(crate) fn check_hole(&self, address: usize, pages: usize) -> Verdict {
        if !self.alone {
            return Ok(());
        }
        for page in [0, pages / 2, pages - 1] {
            let address = address + page * PAGE;
            for touch in [Touch::Read, Touch::Write] {
                if bears(address, touch) {
                    return Err(format!("unmapped {address:#x} bears a {touch:?}"));
                }
            }
            let memory = self.memory;
            answers("mincore of an unmapped page", memory.resident(address), Err(libc::ENOMEM))?;
            answers("msync of an unmapped page", memory.sync(address), Err(libc::ENOMEM))?;
            answers("mprotect of an unmapped page", memory.protect(address, PAGE, libc::PROT_READ), Err(libc::ENOMEM))?;
            let discarded = memory.advise(address, PAGE, libc::MADV_DONTNEED);
            answers("madvise of an unmapped page", discarded, Err(libc::ENOMEM))?;
            let moved = memory.remap(address, PAGE, PAGE, libc::MREMAP_MAYMOVE, 0);
            answers("mremap of an unmapped page", moved, Err(libc::EFAULT))?;
            answers("munmap of an unmapped page", memory.unmap(address, PAGE), Ok(()))?;
        }
        Ok(())
    }

    /// Writes `bytes` from byte `at` of a page on, in memory and in the model. All pages up to the last byte are writable.
    pub(crate) fn write(&mut self, span: usize, page: usize, at: usize, bytes: &[u8]) {
        self.memory.write(self.model.spans[span].address(page) + at, bytes);
        self.note(span, page, at, bytes);
    }

    /// Notes such a write in the model only: someone else made it.
    pub(crate) fn note(&mut self, span: usize, page: usize, at: usize, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(PAGE - at));
        let pages = &mut self.model.spans[span].pages[page..];
        pages[0].write(at, first);
        pages[1..].iter_mut().zip(rest.chunks(PAGE)).for_each(|(page, bytes)| page.write(0, bytes));
    }
}

/// Checks one page against the model: its bytes where it can be read, and that it faults where it must.
pub(crate) fn check_page(memory: Memory, address: usize, page: &Page) -> Verdict {
    if page.access == Access::None {
        return refuses(address, Touch::Read, page).and_then(|()| refuses(address, Touch::Write, page));
    }
    let (found, expected) = (memory.read(address), page.expected());
    if let Some(at) = (found != expected).then(|| found.iter().zip(&expected).position(|(a, b)| a != b)).flatten() {
        let (found, expected) = (found[at], expected[at]);
        let (at, origin) = (address + at, page.origin);
        return Err(format!("byte {at:#x} is {found:#04x}, expected {expected:#04x} ({origin:?})"));
    }
    if page.access == Access::Read { refuses(address, Touch::Write, page) } else { Ok(()) }
}

fn refuses(address: usize, touch: Touch, page: &Page) -> Verdict {
    if bears(address, touch) {
        return Err(format!("the page {address:#x} bears a {touch:?}, but allows {:?}", page.access));
    }
    Ok(())
}
