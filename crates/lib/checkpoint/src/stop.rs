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
use crate::rounds::pages;

/// Room for the pages that are copied during the stop.
pub(crate) struct StopBuffer {
    contents: Vec<u8>,
    /// The region and the pages of each run, in the order of their contents.
    runs: Vec<(usize, Range<usize>)>,
}

/// What a stop did.
pub(crate) struct Stop {
    pub(crate) value: u64,
    pub(crate) duration: Duration,
}

impl StopBuffer {
    /// Room for at least `bytes`, all of it touched.
    pub(crate) fn new(bytes: usize) -> Self {
        let pages = bytes.div_ceil(PAGE).max(1);
        Self { contents: vec![1; pages * PAGE], runs: Vec::with_capacity(pages) }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.contents.len() + self.runs.capacity() * size_of::<(usize, Range<usize>)>()
    }

    /// Runs the safe point, and copies the pages that are left while it holds what it holds.
    ///
    /// # Errors
    /// [`Error::Outrun`] if they do not fit, and [`Error::WriterRan`] if one was written meanwhile.
    pub(crate) fn take<G>(&mut self, regions: &mut [Region], safe_point: &impl Fn() -> (G, u64)) -> Result<Stop> {
        self.runs.clear();
        // The kernel is asked when the first range is taken.
        let written: Result<Vec<_>> = regions.iter().map(|region| Ok(region.tracking.dirty()?)).collect();
        let later: Result<Vec<_>> = regions.iter().map(|region| Ok(region.tracking.peek()?)).collect();
        let (mut written, mut later) = (written?, later?);
        let (guard, value) = safe_point();
        let begun = Instant::now();
        let copied = self.copy(regions, &mut written);
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
        if is_quiet { Ok(Stop { value, duration }) } else { Err(Error::WriterRan) }
    }

    fn copy(&mut self, regions: &[Region], written: &mut [DirtyRanges<'_>]) -> Result<()> {
        let mut filled = 0;
        for (index, (ranges, region)) in written.iter_mut().zip(regions).enumerate() {
            for range in ranges {
                let range = range?;
                if filled + range.len() > self.contents.len() {
                    // It is clean for the kernel already.
                    let _ = region.tracking.mark(range.clone());
                    return Err(Error::Outrun { left_bytes: filled + range.len(), limit_bytes: self.contents.len() });
                }
                self.runs.push((index, pages(range.clone())));
                copy(region.tracking.memory(), range.clone(), &mut self.contents[filled..filled + range.len()]);
                filled += range.len();
            }
        }
        Ok(())
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
