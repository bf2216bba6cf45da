//! DIRTY: the pages written since the last call.
//!
//! Source: Appel and Li: DIRTY "return a list of dirtied pages since the previous call". The kernel
//! records writes if it can (`Mechanism::Scan`). Otherwise the first write to a page faults, is
//! recorded (`dirty_log`), and the page is opened.

use std::ops::Range;
use std::sync::Arc;

use fieldstone_sys::userfault::{Modes, WrittenRange};

use crate::choice::{TRACKING, first_supported};
use crate::controlled_range::NumberedPages;
use crate::dirty_log::DirtyLog;
use crate::error::{Error, Result};
use crate::fault::Outcome;
use crate::mechanism::{Loss, Mechanism, Watch};
use crate::memory::Memory;
use crate::region::{Region, RegionConfig};
use crate::signal_mask::without_signals;

/// Memory that knows which of its pages were written. None is dirty at first.
///
/// In a forked child the memory is plain, and its writes are not recorded.
#[derive(Debug)]
pub struct Tracking {
    region: Box<Region>,
    log: Option<Arc<DirtyLog>>,
}

impl Tracking {
    /// Tracks writes by the best mechanism: `pagemap-scan`, else a trap on the first write to each
    /// page.
    ///
    /// # Errors
    /// [`Error::System`] if no mechanism works.
    pub fn new(memory: Memory) -> Result<Self> {
        Self::with_first(memory, &TRACKING)
    }

    /// Uses the given mechanism.
    ///
    /// # Errors
    /// As [`Tracking::new`]; no other mechanism is tried.
    pub fn with(memory: Memory, mechanism: Mechanism) -> Result<Self> {
        Self::with_first(memory, &[mechanism])
    }

    fn with_first(memory: Memory, wanted: &[Mechanism]) -> Result<Self> {
        let pages = memory.bytes() / memory.page_bytes();
        let (region, log) = first_supported(wanted, |mechanism| {
            let log = (mechanism != Mechanism::Scan).then(|| Arc::new(DirtyLog::new(pages)));
            let shared_log = log.clone();
            let handler = Arc::new(move |fault: &crate::Fault<'_>| match &shared_log {
                Some(log) => fault.record_write(log),
                None => Outcome::Chain,
            });
            let modes = Modes { missing: false, write_protect: true };
            let region = Region::new(&memory, RegionConfig { mechanism, watch: Watch::Writes, modes }, None, handler)?;
            region.protect(region.range.clone())?;
            Ok((region, log))
        })?;
        Ok(Self { region, log })
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.region.memory
    }

    /// The written ranges of the whole memory. A range is clean from the moment that the iterator
    /// finds it: read its contents afterwards, and a write in between makes it dirty again.
    ///
    /// A write that was complete before the call is found if an instruction or a system call made
    /// it at this memory's addresses. Writes to the same frames by other ways are not: see
    /// [`Tracking::losses`] and [`Tracking::mark`]. Ranges that are found but not taken from the
    /// iterator stay dirty.
    ///
    /// # Errors
    /// [`Error::Forked`] in a child; from the iterator, [`Error::System`] with `EPERM` if the
    /// program has mapped over the memory: all of the remaining range then counts as written.
    pub fn dirty(&self) -> Result<DirtyRanges<'_>> {
        self.dirty_in(0..self.region.memory.bytes())
    }

    /// The written ranges of a part of the memory, in bytes from its start. See
    /// [`Tracking::dirty`].
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Forked`] in a child.
    pub fn dirty_in(&self, range: Range<usize>) -> Result<DirtyRanges<'_>> {
        DirtyRanges::new(&self.region, self.log.as_deref(), range, true)
    }

    /// The written ranges of the whole memory, which stay dirty.
    ///
    /// # Errors
    /// [`Error::Forked`] in a child.
    pub fn peek(&self) -> Result<DirtyRanges<'_>> {
        self.peek_in(0..self.region.memory.bytes())
    }

    /// The written ranges of a part of the memory, in bytes from its start, which stay dirty.
    ///
    /// # Errors
    /// As [`Tracking::dirty_in`].
    pub fn peek_in(&self, range: Range<usize>) -> Result<DirtyRanges<'_>> {
        DirtyRanges::new(&self.region, self.log.as_deref(), range, false)
    }

    /// Makes pages dirty, given in bytes from the start: for writes that are not detected, such as
    /// those of another process to shared memory, or of io_uring to a registered buffer.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Forked`] in a child.
    pub fn mark(&self, range: Range<usize>) -> Result<()> {
        mark_dirty(&self.region, self.log.as_deref(), self.region.memory.addresses(&range)?)
    }

    /// The mechanism in use.
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        self.region.mechanism
    }

    /// What other mechanisms support and this one does not, and which writes may have been missed:
    /// [`Loss::SharedMemory`] by the kind of memory, [`Loss::PinnedPages`] while the process has
    /// pinned pages. Reads `/proc/self/status`: about 20 µs.
    #[must_use]
    pub fn losses(&self) -> Vec<Loss> {
        self.region.losses_of_tracking()
    }
}

impl crate::Fault<'_> {
    /// Records a write in the log, and opens the page.
    pub(crate) fn record_write(&self, log: &DirtyLog) -> Outcome {
        let page = self.page().start / self.page().len();
        match log.record(page, &NumberedPages(self.region())) {
            Ok(()) => Outcome::Resolved,
            Err(_) => Outcome::Chain,
        }
    }
}

/// Makes pages dirty, given by their addresses.
fn mark_dirty(region: &Region, log: Option<&DirtyLog>, range: Range<usize>) -> Result<()> {
    let Some(log) = log else { return region.unprotect(range) };
    // In a child the log's lock may be held forever.
    region.check_generation()?;
    let first = (range.start - region.range.start) / region.page_bytes;
    without_signals(|| {
        (first..first + range.len() / region.page_bytes).try_for_each(|page| log.record(page, &NumberedPages(region)))
    })
}

/// Upper bound of ranges found at a time.
const MAX_FOUND: usize = 1024;

/// The written ranges of a memory, in bytes from its start, lowest first. Adjacent pages may appear
/// as two ranges.
#[derive(Debug)]
pub struct DirtyRanges<'a> {
    region: &'a Region,
    log: Option<&'a DirtyLog>,
    found: Vec<WrittenRange>,
    next: usize,
    /// The addresses that were not looked at yet.
    rest: Range<usize>,
    protect: bool,
}

impl<'a> DirtyRanges<'a> {
    pub(crate) fn new(
        region: &'a Region,
        log: Option<&'a DirtyLog>,
        range: Range<usize>,
        protect: bool,
    ) -> Result<Self> {
        let rest = region.memory.addresses(&range)?;
        region.check_generation()?;
        // At most every second page can start a separate range.
        let capacity = (rest.len() / region.page_bytes).div_ceil(2).clamp(1, MAX_FOUND);
        Ok(Self { region, log, found: Vec::with_capacity(capacity), next: 0, rest, protect })
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self) -> Result<()> {
        self.next = 0;
        self.found.clear();
        let Some(log) = self.log else {
            let (start, bytes) = (self.rest.start, self.rest.len());
            let written =
                self.region.userfaultfd()?.scan(|scan| scan.written(self.rest.clone(), self.protect, &mut self.found));
            self.rest.start = written.map_err(|error| {
                // Pages before the failing one may be clean already, and are not in the list.
                if self.protect {
                    self.region.unprotect_remaining(start..start + bytes);
                }
                Error::system("PAGEMAP_SCAN", start, bytes, error)
            })?;
            return Ok(());
        };
        let (start, page_bytes) = (self.region.range.start, self.region.page_bytes);
        let pages = (self.rest.start - start) / page_bytes..(self.rest.end - start) / page_bytes;
        let run = match self.protect {
            true => without_signals(|| log.take(pages, &NumberedPages(self.region)))?,
            false => log.peek(pages),
        };
        self.rest.start = run.as_ref().map_or(self.rest.end, |run| start + run.end * page_bytes);
        self.found
            .extend(run.map(|run| WrittenRange::of(start + run.start * page_bytes..start + run.end * page_bytes)));
        Ok(())
    }
}

impl Iterator for DirtyRanges<'_> {
    type Item = Result<Range<usize>>;

    #[inline]
    fn next(&mut self) -> Option<Result<Range<usize>>> {
        while self.next == self.found.len() {
            if self.rest.is_empty() {
                return None;
            }
            if let Err(error) = self.look() {
                self.rest.start = self.rest.end;
                return Some(Err(error));
            }
        }
        let range = self.found[self.next].range();
        self.next += 1;
        let start = self.region.range.start;
        Some(Ok(range.start - start..range.end - start))
    }
}

impl Drop for DirtyRanges<'_> {
    fn drop(&mut self) {
        if self.protect {
            for found in &self.found[self.next..] {
                // This succeeds if the look did. A page too many is harmless; a missing one no
                // longer belongs to the region.
                let _ = mark_dirty(self.region, self.log, found.range());
            }
        }
    }
}
