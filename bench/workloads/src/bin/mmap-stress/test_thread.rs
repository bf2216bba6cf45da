//! The memory of one thread under test, and the checks that all steps use.

use crate::{
    memory::{Errno, MemoryCalls},
    model::{MemoryModel, ModelPage, PAGE, PageAccess},
    probe::{ProbeKind, is_accessible},
    program_break::KeptBreak,
    reservation::Reservation,
    steps::StepKind,
};
use fieldstone_workloads::{blocks::Blocks, random::SplitMix64};
use std::{ops::Range, os::fd::RawFd};

/// The result of a step or a check; the error describes the difference from the model.
pub(crate) type CheckResult = Result<(), String>;

/// The memory of one thread, and its model.
pub(crate) struct TestThread {
    pub(crate) memory: MemoryCalls,
    pub(crate) model: MemoryModel,
    pub(crate) reservations: Vec<Reservation>,
    pub(crate) breaks: Vec<KeptBreak>,
    pub(crate) heap: Blocks,
    pub(crate) random: SplitMix64,
    /// Whether this is the only thread of the process. Only then does an unmapped range certainly
    /// stay unmapped until it is probed.
    pub(crate) is_only_thread: bool,
    /// Whether all memory of the process belongs to this test: there is no other thread, now or
    /// before the fork.
    pub(crate) owns_all_memory: bool,
    /// The number of forks between the first process and this one.
    pub(crate) generation: u32,
    /// The kinds of steps that are left out.
    pub(crate) skip: Vec<StepKind>,
    /// The mapped file: [`FILE_PAGES`] pages of `file_page`.
    pub(crate) file: RawFd,
}

/// Pages of the mapped file.
pub(crate) const FILE_PAGES: usize = 256;
/// Maximum bytes of one thread's heap blocks.
const HEAP_BYTES: usize = 48 << 20;

/// Compares the result of the call `what` with the expected one.
pub(crate) fn expect_result<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: Result<T, Errno>,
    expected: Result<T, i32>,
) -> CheckResult {
    let expected = expected.map_err(Errno);
    if found == expected { Ok(()) } else { Err(format!("{what} returned {found:x?}, expected {expected:x?}")) }
}

impl TestThread {
    /// The test of one thread, without memory.
    pub(crate) fn new(memory: MemoryCalls, file: RawFd, seed: u64, is_only_thread: bool, skip: &[StepKind]) -> Self {
        Self {
            memory,
            model: MemoryModel::default(),
            reservations: Vec::new(),
            breaks: Vec::new(),
            heap: Blocks::new(HEAP_BYTES),
            random: SplitMix64::new(seed),
            is_only_thread,
            owns_all_memory: is_only_thread,
            generation: 0,
            skip: skip.to_vec(),
            file,
        }
    }

    /// A number of pages: mostly small, sometimes around or above a 2 MiB page.
    pub(crate) fn draw_pages(&mut self) -> usize {
        let random = &mut self.random;
        match random.below(10) {
            0..=5 => 1 + random.below(16),
            6..=7 => 16 + random.below(240),
            8 => 512 * (1 + random.below(3)),
            _ => 500 + random.below(1100),
        }
    }

    /// Checks all: every page, reservation, kept break and heap block.
    pub(crate) fn check_all(&self) -> CheckResult {
        for index in 0..self.model.spans.len() {
            self.check_pages(index, 0..self.model.spans[index].pages.len())?;
        }
        self.reservations.iter().try_for_each(|reservation| reservation.check(self.memory))?;
        self.breaks.iter().try_for_each(|piece| piece.check(self.memory))?;
        self.heap.check().map_err(|error| error.to_string())
    }

    /// Checks contents and access of a range of a span.
    pub(crate) fn check_pages(&self, span: usize, range: Range<usize>) -> CheckResult {
        let span = &self.model.spans[span];
        range.into_iter().try_for_each(|index| check_page(self.memory, span.address(index), &span.pages[index]))
    }

    /// Checks an address that mmap or mremap chose: page-aligned, and no overlap with memory in
    /// use.
    pub(crate) fn check_fresh(&self, address: usize, pages: usize) -> CheckResult {
        if !address.is_multiple_of(PAGE) {
            return Err(format!("the address {address:#x} is not page-aligned"));
        }
        self.check_free(address, pages * PAGE)
    }

    /// Checks that no memory of this test overlaps these bytes.
    pub(crate) fn check_free(&self, address: usize, bytes: usize) -> CheckResult {
        let taken = self.model.overlap(address, bytes).map(|span| ("a span", span.start));
        let meets = |r: &Range<usize>| r.start < address + bytes && address < r.end;
        let taken = taken
            .or_else(|| {
                self.reservations.iter().map(Reservation::range).find(meets).map(|r| ("a reservation", r.start))
            })
            .or_else(|| self.breaks.iter().map(KeptBreak::range).find(meets).map(|r| ("the break", r.start)))
            .or_else(|| self.heap.ranges().find(meets).map(|r| ("a heap block", r.start)));
        match taken {
            Some((what, start)) => Err(format!("{bytes} bytes at {address:#x} overlap {what} at {start:#x}")),
            None => Ok(()),
        }
    }

    /// Checks by every call that just unmapped pages are gone. This must run before anything
    /// allocates, since malloc may map there.
    pub(crate) fn check_hole(&self, address: usize, pages: usize) -> CheckResult {
        if !self.is_only_thread {
            return Ok(());
        }
        for page in [0, pages / 2, pages - 1] {
            let address = address + page * PAGE;
            for probe in [ProbeKind::Read, ProbeKind::Write] {
                if is_accessible(address, probe) {
                    return Err(format!("unmapped {address:#x} allows a {probe:?} access"));
                }
            }
            let memory = self.memory;
            expect_result("mincore of an unmapped page", memory.resident(address), Err(libc::ENOMEM))?;
            expect_result("msync of an unmapped page", memory.sync(address), Err(libc::ENOMEM))?;
            expect_result(
                "mprotect of an unmapped page",
                memory.protect(address, PAGE, libc::PROT_READ),
                Err(libc::ENOMEM),
            )?;
            let discarded = memory.advise(address, PAGE, libc::MADV_DONTNEED);
            expect_result("madvise of an unmapped page", discarded, Err(libc::ENOMEM))?;
            let moved = memory.remap(address, PAGE, PAGE, libc::MREMAP_MAYMOVE, 0);
            expect_result("mremap of an unmapped page", moved, Err(libc::EFAULT))?;
            expect_result("munmap of an unmapped page", memory.unmap(address, PAGE), Ok(()))?;
        }
        Ok(())
    }

    /// Writes `bytes` from byte `at` of a page on, in memory and in the model. All pages up to the
    /// last byte are writable.
    pub(crate) fn write(&mut self, span: usize, page: usize, at: usize, bytes: &[u8]) {
        self.memory.write(self.model.spans[span].address(page) + at, bytes);
        self.record_write(span, page, at, bytes);
    }

    /// Records a write only in the model, when another process or the kernel made it.
    pub(crate) fn record_write(&mut self, span: usize, page: usize, at: usize, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(PAGE - at));
        let pages = &mut self.model.spans[span].pages[page..];
        pages[0].write(at, first);
        pages[1..].iter_mut().zip(rest.chunks(PAGE)).for_each(|(page, bytes)| page.write(0, bytes));
    }
}

/// Checks one page against the model: its bytes if it is readable, and the faults of forbidden
/// accesses.
pub(crate) fn check_page(memory: MemoryCalls, address: usize, page: &ModelPage) -> CheckResult {
    if page.access == PageAccess::None {
        return check_fault(address, ProbeKind::Read, page).and_then(|()| check_fault(address, ProbeKind::Write, page));
    }
    let (found, expected) = (memory.read(address), page.expected());
    if let Some(at) = (found != expected).then(|| found.iter().zip(&expected).position(|(a, b)| a != b)).flatten() {
        let (found, expected) = (found[at], expected[at]);
        let (at, origin) = (address + at, page.origin);
        return Err(format!("byte {at:#x} is {found:#04x}, expected {expected:#04x} ({origin:?})"));
    }
    if page.access == PageAccess::Read { check_fault(address, ProbeKind::Write, page) } else { Ok(()) }
}

fn check_fault(address: usize, probe: ProbeKind, page: &ModelPage) -> CheckResult {
    if is_accessible(address, probe) {
        return Err(format!("the page {address:#x} allows a {probe:?} access, expected {:?}", page.access));
    }
    Ok(())
}
