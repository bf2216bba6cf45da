//! The instant of a save: writers wait while the pages that are left are copied.
//!
//! Nothing is allocated and nothing is written to the sink meanwhile.

use std::ops::Range;
use std::time::{Duration, Instant};

use fieldstone_pages::DirtyRanges;

use crate::checkpointer::Region;
use crate::error::{Error, Result};
use crate::format::{CHUNK_PAGES, PAGE};
use crate::memory_words::copy;
use crate::output::Output;
use crate::page_hashes::PageHashes;
use crate::rounds::pages;

/// Room for the pages that are copied during the stop.
pub(crate) struct StopBuffer {
    contents: Vec<u8>,
    /// Bytes of it that are in use.
    filled: usize,
    /// The region and the pages of each run, in the order of their contents.
    runs: Vec<(usize, Range<usize>)>,
}

/// What a stop did.
pub(crate) struct Stop {
    pub(crate) value: u64,
    pub(crate) duration: Duration,
    /// Pages that had changed without being recorded as written.
    pub(crate) missed: u64,
}

impl StopBuffer {
    /// Room for at least `bytes`, all of it touched.
    pub(crate) fn new(bytes: usize) -> Self {
        let pages = bytes.div_ceil(PAGE).max(1);
        Self { contents: vec![1; pages * PAGE], filled: 0, runs: Vec::with_capacity(pages) }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.contents.len() + self.runs.capacity() * size_of::<(usize, Range<usize>)>()
    }

    /// Runs the safe point, and copies the pages that are left while it holds what it holds. With hashes, all
    /// pages are compared with them meanwhile.
    ///
    /// # Errors
    /// [`Error::Outrun`] if they do not fit, and [`Error::WriterRan`] if one was written meanwhile.
    pub(crate) fn take<G>(
        &mut self,
        regions: &mut [Region],
        safe_point: &impl Fn() -> (G, u64),
        hashes: Option<&PageHashes>,
    ) -> Result<Stop> {
        // The kernel is asked when the first range is taken.
        let written: Result<Vec<_>> = regions.iter().map(|region| Ok(region.tracking.dirty()?)).collect();
        let later: Result<Vec<_>> = regions.iter().map(|region| Ok(region.tracking.peek()?)).collect();
        let (mut written, mut later) = (written?, later?);
        let (guard, value) = safe_point();
        let begun = Instant::now();
        let copied = self.copy(regions, &mut written);
        let missed = match hashes {
            Some(hashes) if copied.is_ok() => self.compare(regions, hashes),
            _ => Ok(0),
        };
        let is_quiet = copied.is_ok() && is_clean(&mut later)?;
        let duration = begun.elapsed();
        drop(guard);
        // Ranges that were found and not taken are dirty again.
        drop((written, later));
        for (index, run) in &self.runs {
            regions[*index].unsaved.insert(run.clone());
            regions[*index].used.insert(run.clone());
        }
        copied?;
        let missed = missed?;
        if is_quiet { Ok(Stop { value, duration, missed }) } else { Err(Error::WriterRan) }
    }

    fn copy(&mut self, regions: &[Region], written: &mut [DirtyRanges<'_>]) -> Result<()> {
        for (index, (ranges, region)) in written.iter_mut().zip(regions).enumerate() {
            for range in ranges {
                let range = range?;
                let Some(room) = self.room(index, &range) else {
                    // It is clean for the kernel already.
                    let _ = region.tracking.mark(range.clone());
                    return Err(self.outrun(range.len()));
                };
                copy(region.tracking.memory(), range, room);
            }
        }
        Ok(())
    }

    /// Copies the pages that were not written, and differ from their hashes nevertheless; returns how many.
    fn compare(&mut self, regions: &[Region], hashes: &PageHashes) -> Result<u64> {
        let mut missed = 0;
        let copied = self.runs.clone();
        for (index, region) in regions.iter().enumerate() {
            let mut unwritten = region.used.clone();
            let runs = copied.iter().filter(|(of, _)| *of == index);
            runs.for_each(|(_, run)| unwritten.remove(run.clone()));
            for page in unwritten.runs().flatten() {
                let range = page * PAGE..(page + 1) * PAGE;
                let mut contents = [0; PAGE];
                copy(region.tracking.memory(), range.clone(), &mut contents);
                if hashes.differs(index, page, &contents) {
                    let Some(room) = self.room(index, &range) else { return Err(self.outrun(PAGE)) };
                    room.copy_from_slice(&contents);
                    missed += 1;
                }
            }
        }
        Ok(missed)
    }

    /// Room for the pages of a range of a region, if there is enough.
    fn room(&mut self, region: usize, range: &Range<usize>) -> Option<&mut [u8]> {
        let room = self.contents.get_mut(self.filled..self.filled + range.len())?;
        self.filled += range.len();
        self.runs.push((region, pages(range.clone())));
        Some(room)
    }

    const fn outrun(&self, bytes: usize) -> Error {
        Error::Outrun { left_bytes: self.filled + bytes, limit_bytes: self.contents.len() }
    }

    /// Writes what was copied.
    pub(crate) fn write(&self, output: &mut Output<'_>) -> Result<()> {
        let mut contents = &self.contents[..];
        for (index, run) in &self.runs {
            for first in run.clone().step_by(CHUNK_PAGES) {
                let bytes = (run.end - first).min(CHUNK_PAGES) * PAGE;
                let (chunk, rest) = contents.split_at(bytes);
                output.write_chunk(*index, first, chunk)?;
                contents = rest;
            }
        }
        Ok(())
    }
}

/// Whether no page is written.
fn is_clean(ranges: &mut [DirtyRanges<'_>]) -> Result<bool> {
    for ranges in ranges {
        if let Some(range) = ranges.next() {
            range?;
            return Ok(false);
        }
    }
    Ok(true)
}
