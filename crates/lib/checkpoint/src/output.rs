//! The part of a save that is written.

use std::ops::Range;
use std::time::{Duration, Instant};

use fieldstone_pages::Memory;

use crate::checkpointer::Compression;
use crate::error::Result;
use crate::format::{CHUNK_PAGES, Chunk, HEADER_BYTES, Identity, Kind, Manifest, PAGE, check, header, trailer};
use crate::memory_words::{copy, is_zero};
use crate::save::Report;
use crate::sink::SinkWriter;

/// The part of a save that is written.
pub(crate) struct Output<'a> {
    writer: &'a mut dyn SinkWriter,
    compression: Compression,
    id: u64,
    contents: Vec<u8>,
    packed: Vec<u8>,
    chunks: Vec<Chunk>,
    offset: u64,
    /// Pages of all chunks.
    pages: u64,
    /// Time to copy pages from the memory.
    copying: Duration,
}

impl<'a> Output<'a> {
    /// Begins a save.
    ///
    /// # Errors
    /// Those of the sink.
    pub(crate) fn begin(writer: &'a mut dyn SinkWriter, compression: Compression) -> Result<Self> {
        let id = new_id();
        writer.write(&header(id))?;
        Ok(Self {
            writer,
            compression,
            id,
            contents: vec![0; CHUNK_PAGES * PAGE],
            packed: vec![0; lz4_flex::block::get_maximum_output_size(CHUNK_PAGES * PAGE)],
            chunks: Vec::new(),
            offset: HEADER_BYTES as u64,
            pages: 0,
            copying: Duration::ZERO,
        })
    }

    /// Writes the manifest; the identity of the save, and what is known of its report.
    ///
    /// # Errors
    /// Those of the sink.
    pub(crate) fn finish(self, parent: Identity, value: u64, memories: &[Memory]) -> Result<(Identity, Report)> {
        let Self { writer, id, chunks, offset, pages, .. } = self;
        let regions = memories.iter().map(|memory| memory.bytes() as u64).collect();
        let (manifest, digest) = Manifest { id, parent, value, regions, chunks }.encode();
        writer.write(&manifest)?;
        let end = trailer(offset, manifest.len() as u64, id);
        writer.write(&end)?;
        let bytes = offset + (manifest.len() + end.len()) as u64;
        Ok((Identity { id, digest }, Report { pages, bytes, ..Report::default() }))
    }

    /// Pages that were written.
    pub(crate) const fn pages(&self) -> u64 {
        self.pages
    }

    /// Bytes that the buffers take.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.contents.len() + self.packed.len()
    }

    /// Bytes of memory that are copied in a second; a low estimate before any were.
    pub(crate) fn copied_per_second(&self) -> f64 {
        const LOW: f64 = 1e9;
        let bytes = self.pages as f64 * PAGE as f64;
        if self.pages < 1024 { LOW } else { (bytes / self.copying.as_secs_f64().max(1e-9)).max(LOW / 4.0) }
    }

    /// Copies a run of pages from the memory, and writes it.
    pub(crate) fn copy_run(&mut self, region: usize, memory: &Memory, run: Range<usize>) -> Result<()> {
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

/// A random number, never 0.
fn new_id() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) | 1
}
