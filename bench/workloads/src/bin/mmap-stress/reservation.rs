//! Reservations much larger than memory, as garbage collectors and language runtimes make them:
//! MAP_NORESERVE, committed page by page, unmapped in parts.

use crate::{
    memory::{MemoryCalls, Request},
    model::{ModelPage, Origin, PAGE, PageAccess},
    probe::{ProbeKind, is_accessible},
    test_thread::{CheckResult, TestThread, check_page, expect_result},
};
use std::{collections::BTreeMap, ops::Range};

/// One reservation.
#[derive(Debug)]
pub(crate) struct Reservation {
    start: usize,
    bytes: usize,
    /// The access of pages that are not committed.
    access: PageAccess,
    committed: BTreeMap<usize, ModelPage>,
}

const MAX_RESERVATIONS: usize = 2;

impl Reservation {
    /// The address range.
    pub(crate) const fn range(&self) -> Range<usize> {
        self.start..self.start + self.bytes
    }

    /// Checks each committed page and the page behind it.
    pub(crate) fn check(&self, memory: MemoryCalls) -> CheckResult {
        self.committed.iter().try_for_each(|(address, page)| check_page(memory, *address, page))?;
        let neighbours = self.committed.keys().map(|address| address + PAGE);
        let plain = ModelPage::fresh(self.access, Origin::Anonymous, 0);
        neighbours
            .filter(|address| self.range().contains(address) && !self.committed.contains_key(address))
            .try_for_each(|address| check_page(memory, address, &plain))
    }

    /// Removes the pages of `range` from the model.
    fn forget(&mut self, range: &Range<usize>) {
        self.committed.retain(|address, _| !range.contains(address));
    }
}

/// Makes a reservation, or uses one.
pub(crate) fn use_reservation(test: &mut TestThread) -> CheckResult {
    if test.reservations.len() < MAX_RESERVATIONS && test.random.below(3) == 0 {
        return reserve(test);
    }
    if test.reservations.is_empty() {
        return Ok(());
    }
    let index = test.random.below(test.reservations.len());
    let middle = test.reservations[index].bytes / 2 / PAGE * PAGE;
    match test.random.below(16) {
        0 => release(test, index, 0),
        1 if middle > 0 => release(test, index, middle),
        2..=4 => discard(test, index),
        _ => commit(test, index),
    }
}

fn reserve(test: &mut TestThread) -> CheckResult {
    // With overcommit forbidden, the kernel ignores NORESERVE and refuses writable reservations of
    // this size.
    let strict = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2");
    let access = if strict || test.random.below(2) == 0 { PageAccess::None } else { PageAccess::Write };
    let bytes = (1 << 34) + test.random.below(1 << 38) / PAGE * PAGE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let request = Request { address: 0, bytes, protection: access.protection(), flags, file: None };
    let start = test.memory.map(request).map_err(|errno| format!("{request:x?} answered {errno:?}"))?;
    test.check_fresh(start, bytes / PAGE)?;
    test.reservations.push(Reservation { start, bytes, access, committed: BTreeMap::new() });
    Ok(())
}

/// Writes to a random page, after making it writable if necessary.
fn commit(test: &mut TestThread, index: usize) -> CheckResult {
    let reservation = &mut test.reservations[index];
    let address = reservation.start + test.random.below(reservation.bytes / PAGE) * PAGE;
    if reservation.access == PageAccess::None {
        let answer = test.memory.protect(address, PAGE, PageAccess::Write.protection());
        expect_result("mprotect in a reservation", answer, Ok(()))?;
    }
    let page =
        reservation.committed.entry(address).or_insert(ModelPage::fresh(PageAccess::Write, Origin::Anonymous, 0));
    check_page(test.memory, address, page)?;
    let word = test.random.draw().to_le_bytes();
    let at = test.random.below(PAGE - word.len());
    test.memory.write(address + at, &word);
    page.write(at, &word);
    reservation.check(test.memory)
}

/// Drops the contents of 1 GiB around a committed page; its access stays.
fn discard(test: &mut TestThread, index: usize) -> CheckResult {
    let reservation = &mut test.reservations[index];
    let nth = test.random.below(reservation.committed.len());
    let Some(&address) = reservation.committed.keys().nth(nth) else { return Ok(()) };
    let start = reservation.start.max(address.saturating_sub(1 << 29));
    let range = start..(start + (1 << 30)).min(reservation.range().end);
    let answer = test.memory.advise(range.start, range.len(), libc::MADV_DONTNEED);
    expect_result("MADV_DONTNEED in a reservation", answer, Ok(()))?;
    reservation.committed.range_mut(range).for_each(|(_, page)| page.bytes = None);
    reservation.check(test.memory)
}

/// Unmaps a reservation from byte `kept` to its end.
fn release(test: &mut TestThread, index: usize, kept: usize) -> CheckResult {
    let reservation = &mut test.reservations[index];
    let range = reservation.start + kept..reservation.range().end;
    expect_result("munmap of a reservation", test.memory.unmap(range.start, range.len()), Ok(()))?;
    if test.is_only_thread && is_accessible(range.start, ProbeKind::Read) {
        return Err(format!("the unmapped reservation can be read at {:#x}", range.start));
    }
    reservation.bytes = kept;
    reservation.forget(&range);
    if kept == 0 {
        test.reservations.swap_remove(index);
    }
    Ok(())
}

/// Unmaps all reservations.
pub(crate) fn release_all(test: &mut TestThread) -> CheckResult {
    (0..test.reservations.len()).rev().try_for_each(|index| release(test, index, 0))
}
