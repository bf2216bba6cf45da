//! Copies written pages, in rounds, while the program writes.
//!
//! Each round copies the pages that were written during the one before. The rounds end when the pages
//! that are left fit into the stop, or when the program writes faster than they are copied.

use std::ops::Range;
use std::time::{Duration, Instant};

use fieldstone_pages::{Memory, Tracking};

use crate::checkpointer::{Compression, Region};
use crate::error::{Error, Result};
use crate::format::{CHUNK_PAGES, Chunk, HEADER_BYTES, Kind, PAGE, check};
use crate::memory_words::{copy, is_zero};
use crate::page_set::PageSet;
use crate::sink::SinkWriter;

/// Rounds after the first one.
const ROUNDS: usize = 12;

/// The part of a save that is written.
pub(crate) struct Output<'a> {
    writer: &'a mut dyn SinkWriter,
    compression: Compression,
    id: u64,
    contents: Vec<u8>,
    packed: Vec<u8>,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) offset: u64,
    /// Pages of all chunks.
    pub(crate) pages: u64,
    /// Time to copy pages from the memory.
    copying: Duration,
}

impl<'a> Output<'a> {
    pub(crate) fn new(writer: &'a mut dyn SinkWriter, compression: Compression, id: u64) -> Self {
        Self {
            writer,
            compression,
            id,
            contents: vec![0; CHUNK_PAGES * PAGE],
            packed: vec![0; lz4_flex::block::get_maximum_output_size(CHUNK_PAGES * PAGE)],
            chunks: Vec::new(),
            offset: HEADER_BYTES as u64,
            pages: 0,
            copying: Duration::ZERO,
        }
    }

    /// Bytes that the buffers take.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.contents.len() + self.packed.len()
    }

    /// Bytes of memory that are copied in a second; a low estimate before any were.
    fn copied_per_second(&self) -> f64 {
        const LOW: f64 = 1e9;
        let bytes = self.pages as f64 * PAGE as f64;
        if self.pages < 1024 { LOW } else { (bytes / self.copying.as_secs_f64().max(1e-9)).max(LOW / 4.0) }
    }

    /// Copies a run of pages from the memory, and writes it.
    fn copy_run(&mut self, region: usize, memory: &Memory, run: Range<usize>) -> Result<()> {
        let mut contents = std::mem::take(&mut self.contents);
        let mut result = Ok(());
        for first in run.clone().step_by(CHUNK_PAGES) {
            let end = run.end.min(first + CHUNK_PAGES);
            let bytes = &mut contents[..(end - first) * PAGE];
            let begun = Instant::now();
            copy(memory, first * PAGE..end * PAGE, bytes);
            self.copying += begun.elapsed();
            result = self.write_chunk(region, first, bytes);
            if result.is_err() {
                break;
            }
        }
        self.contents = contents;
        result
    }

    /// Writes the contents of a run of at most [`CHUNK_PAGES`] pages.
    pub(crate) fn write_chunk(&mut self, region: usize, first: usize, contents: &[u8]) -> Result<()> {
        let check = check(contents, self.id, region as u32, first as u64);
        let (kind, stored) = self.pack(contents);
        let bytes = if kind == Kind::Lz4 { &self.packed[..stored] } else { &contents[..stored] };
        self.writer.write(bytes)?;
        let pages = contents.len() / PAGE;
        self.chunks.push(Chunk {
            region: region as u32,
            kind,
            first: first as u64,
            pages: pages as u32,
            stored: stored as u32,
            offset: self.offset,
            check,
        });
        self.offset += stored as u64;
        self.pages += pages as u64;
        Ok(())
    }

    /// How contents are stored, and in how many bytes.
    fn pack(&mut self, contents: &[u8]) -> (Kind, usize) {
        if is_zero(contents) {
            return (Kind::Zeros, 0);
        }
        if self.compression == Compression::Lz4
            && let Ok(bytes) = lz4_flex::block::compress_into(contents, &mut self.packed)
            && bytes < contents.len()
        {
            return (Kind::Lz4, bytes);
        }
        (Kind::Raw, contents.len())
    }
}

/// Copies written pages until those that are left fit into the stop; returns how many bytes it may copy.
///
/// # Errors
/// [`Error::Outrun`], and those of the memory and the sink.
pub(crate) fn copy_rounds(
    regions: &mut [Region],
    output: &mut Output<'_>,
    stop_limit: Duration,
    largest_stop: usize,
) -> Result<usize> {
    let mut before = usize::MAX;
    for round in 0..=ROUNDS {
        for (index, region) in regions.iter_mut().enumerate() {
            let Region { tracking, used, unsaved, round: written } = region;
            if round == 0 {
                // What was written before the save, and what an earlier one has not saved.
                written.add(unsaved);
            }
            take_written(tracking, written)?;
            unsaved.add(written);
            used.add(written);
            for run in written.runs() {
                output.copy_run(index, tracking.memory(), run)?;
            }
            written.clear();
        }
        let left_bytes = left(regions)?;
        // Half of the time: the rest of the stop is for the search for written pages.
        let fits = (output.copied_per_second() * stop_limit.as_secs_f64() / 2.0) as usize;
        let limit_bytes = fits.min(largest_stop);
        if left_bytes <= limit_bytes {
            return Ok(limit_bytes);
        }
        if round == ROUNDS || round > 1 && left_bytes > before / 4 * 3 {
            return Err(Error::Outrun { left_bytes, limit_bytes });
        }
        before = left_bytes;
    }
    unreachable!("the last round returns")
}

/// Moves the pages that were written from the tracking to a set.
fn take_written(tracking: &Tracking, set: &mut PageSet) -> Result<()> {
    for range in tracking.dirty()? {
        set.insert(pages(range?));
    }
    Ok(())
}

/// Bytes of pages that are written and not copied.
fn left(regions: &[Region]) -> Result<usize> {
    let mut bytes = 0;
    for region in regions {
        for range in region.tracking.peek()? {
            bytes += range?.len();
        }
    }
    Ok(bytes)
}

/// The pages of a range of bytes.
pub(crate) fn pages(range: Range<usize>) -> Range<usize> {
    range.start / PAGE..range.end / PAGE
}
