//! DIRTY: which pages were written since the last look.
//!
//! Source: Appel and Li: DIRTY "return a list of dirtied pages since the previous call". The kernel notes writes itself where it can
//! (`Mechanism::Scan`); else the first write to a page faults, is noted (`log`), and the page opened.

use std::ops::Range;
use std::sync::Arc;

use fieldstone_sys::userfault::{Modes, WrittenRange};

use crate::choice::{TRACKING, first_that_works};
use crate::error::{Error, Result};
use crate::fault::Outcome;
use crate::fills::Pages;
use crate::log::Log;
use crate::memory::Memory;
use crate::region::{Loss, Mechanism, Plan, Region, Watch};
use crate::signal::without_signals;

/// Memory that knows which of its pages were written. None is dirty at first.
///
/// In a forked child the memory is plain, and what the child writes is not noted.
#[derive(Debug)]
pub struct Tracking {
    region: Box<Region>,
    log: Option<Arc<Log>>,
}

impl Tracking {
    /// Tracks writes by the best mechanism: `pagemap-scan`, else a trap on the first write to each page.
    ///
    /// # Errors
    /// [`Error::System`] where none can be had.
    pub fn new(memory: Memory) -> Result<Self> {
        Self::first(memory, &TRACKING)
    }

    /// By a mechanism of the caller's choice.
    ///
    /// # Errors
    /// As [`Tracking::new`]; nothing else is tried.
    pub fn with(memory: Memory, mechanism: Mechanism) -> Result<Self> {
        Self::first(memory, &[mechanism])
    }

    fn first(memory: Memory, wanted: &[Mechanism]) -> Result<Self> {
        let pages = memory.bytes() / memory.page_bytes();
        let (region, log) = first_that_works(wanted, |mechanism| {
            let log = (mechanism != Mechanism::Scan).then(|| Arc::new(Log::new(pages)));
            let noted = log.clone();
            let handler = Arc::new(move |fault: &crate::Fault<'_>| match &noted {
                Some(log) => fault.note(log),
                None => Outcome::Chain,
            });
            let modes = Modes { missing: false, write_protect: true };
            let region = Region::new(&memory, Plan { mechanism, watch: Watch::Writes, modes }, None, handler)?;
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

    /// The written ranges of the whole memory, each of which counts as clean from the moment that the iterator finds it: read
    /// its contents after that, and a write that came in between makes it dirty again.
    ///
    /// A write that was done before the call is found, if it was made by an instruction or a system call at this memory's
    /// addresses. Writes by other ways to the same frames are not: see [`Tracking::losses`] and [`Tracking::mark`]. Ranges
    /// that are found but not taken from the iterator stay dirty.
    ///
    /// # Errors
    /// [`Error::Forked`] in a child; from the iterator, [`Error::System`] with `EPERM` for memory that the program has mapped
    /// over: all that is left of the range counts as written then.
    pub fn dirty(&self) -> Result<Dirty<'_>> {
        self.dirty_in(0..self.region.memory.bytes())
    }

    /// The written ranges of a part of the memory, given in bytes from its start. See [`Tracking::dirty`].
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Forked`] in a child.
    pub fn dirty_in(&self, range: Range<usize>) -> Result<Dirty<'_>> {
        Dirty::new(&self.region, self.log.as_deref(), range, true)
    }

    /// The written ranges of the whole memory, which stay dirty.
    ///
    /// # Errors
    /// [`Error::Forked`] in a child.
    pub fn peek(&self) -> Result<Dirty<'_>> {
        self.peek_in(0..self.region.memory.bytes())
    }

    /// The written ranges of a part of the memory, given in bytes from its start, which stay dirty.
    ///
    /// # Errors
    /// As [`Tracking::dirty_in`].
    pub fn peek_in(&self, range: Range<usize>) -> Result<Dirty<'_>> {
        Dirty::new(&self.region, self.log.as_deref(), range, false)
    }

    /// Makes pages dirty, given in bytes from the start: for writes that nothing notes, such as those of another process to shared
    /// memory, or of io_uring to a registered buffer.
    ///
    /// # Errors
    /// [`Error::Range`]; [`Error::Forked`] in a child.
    pub fn mark(&self, range: Range<usize>) -> Result<()> {
        give_back(&self.region, self.log.as_deref(), self.region.memory.addresses(&range)?)
    }

    /// How it is done.
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        self.region.mechanism
    }

    /// What another mechanism would give, and which writes may have been missed: [`Loss::SharedMemory`] by the kind of memory,
    /// [`Loss::PinnedPages`] while the process has pinned pages. Reads `/proc/self/status`: some 20 µs.
    #[must_use]
    pub fn losses(&self) -> Vec<Loss> {
        self.region.losses_of_tracking()
    }
}

impl crate::Fault<'_> {
    /// Notes a write in the log, and opens the page.
    pub(crate) fn note(&self, log: &Log) -> Outcome {
        let page = self.page().start / self.page().len();
        match log.note(page, &Pages(self.region())) {
            Ok(()) => Outcome::Resolved,
            Err(_) => Outcome::Chain,
        }
    }
}

/// Makes pages dirty again, given by their addresses.
fn give_back(region: &Region, log: Option<&Log>, range: Range<usize>) -> Result<()> {
    let Some(log) = log else { return region.unprotect(range) };
    // In a child the log may be locked for good.
    region.check_generation()?;
    let first = (range.start - region.range.start) / region.page_bytes;
    without_signals(|| {
        (first..first + range.len() / region.page_bytes).try_for_each(|page| log.note(page, &Pages(region)))
    })
}

/// Ranges that are found at a time, at most.
const FOUND: usize = 1024;

/// The written ranges of a memory, in bytes from its start, lowest first. Neighbours may come as two ranges.
#[derive(Debug)]
pub struct Dirty<'a> {
    region: &'a Region,
    log: Option<&'a Log>,
    found: Vec<WrittenRange>,
    next: usize,
    /// What was not looked at yet, by addresses.
    rest: Range<usize>,
    protect: bool,
}

impl<'a> Dirty<'a> {
    pub(crate) fn new(region: &'a Region, log: Option<&'a Log>, range: Range<usize>, protect: bool) -> Result<Self> {
        let rest = region.memory.addresses(&range)?;
        region.check_generation()?;
        // More than every second page cannot be apart.
        let room = (rest.len() / region.page_bytes).div_ceil(2).clamp(1, FOUND);
        Ok(Self { region, log, found: Vec::with_capacity(room), next: 0, rest, protect })
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self) -> Result<()> {
        self.next = 0;
        self.found.clear();
        let Some(log) = self.log else {
            let (start, bytes) = (self.rest.start, self.rest.len());
            let written =
                self.region.service()?.scan(|scan| scan.written(self.rest.clone(), self.protect, &mut self.found));
            self.rest.start = written.map_err(|error| {
                // Pages before the one that failed may be clean already, and are not in the list.
                if self.protect {
                    self.region.unprotect_what_is_left(start..start + bytes);
                }
                Error::system("PAGEMAP_SCAN", start, bytes, error)
            })?;
            return Ok(());
        };
        let (start, page_bytes) = (self.region.range.start, self.region.page_bytes);
        let pages = (self.rest.start - start) / page_bytes..(self.rest.end - start) / page_bytes;
        let run = match self.protect {
            true => without_signals(|| log.take(pages, &Pages(self.region)))?,
            false => log.peek(pages),
        };
        self.rest.start = run.as_ref().map_or(self.rest.end, |run| start + run.end * page_bytes);
        self.found
            .extend(run.map(|run| WrittenRange::of(start + run.start * page_bytes..start + run.end * page_bytes)));
        Ok(())
    }
}

impl Iterator for Dirty<'_> {
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

impl Drop for Dirty<'_> {
    fn drop(&mut self) {
        if self.protect {
            for found in &self.found[self.next..] {
                // It cannot fail where the look did not; and a page too many is no harm, one too few is none of ours then.
                let _ = give_back(self.region, self.log, found.range());
            }
        }
    }
}
