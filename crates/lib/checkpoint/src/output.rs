//! The part of a save that is written.
//!
//! ```text
//! pages ─→ runs ─→ check, compression (a batch of runs by several threads) ─→ sink, in order
//! ```

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use fieldstone_pages::Memory;

use crate::checkpointer::Compression;
use crate::error::{Error, Result};
use crate::format::{CHUNK_PAGES, Chunk, HEADER_BYTES, Identity, Manifest, PAGE, header, trailer};
use crate::memory_words::copy;
use crate::packing::Run;
use crate::page_hashes::PageHashes;
use crate::save::Report;
use crate::sink::SinkWriter;

/// Runs of a batch for each thread that compresses: enough that starting it is cheap.
const RUNS_OF_THREAD: usize = 8;
/// The most threads that compress.
const MOST_THREADS: usize = 8;

/// The part of a save that is written.
pub(crate) struct Output<'a> {
    writer: Box<dyn SinkWriter>,
    compression: Compression,
    id: u64,
    /// Runs that are not written yet come first.
    batch: Vec<Run>,
    filled: usize,
    chunks: Vec<Chunk>,
    offset: u64,
    /// Pages of all chunks.
    pages: u64,
    /// Time to copy pages from the memory.
    copying: Duration,
    /// Hashes of all pages as they are written.
    hashes: Option<&'a mut PageHashes>,
    is_cancelled: Option<&'a AtomicBool>,
}

impl<'a> Output<'a> {
    /// Begins the save `id`.
    ///
    /// # Errors
    /// Those of the sink.
    pub(crate) fn begin(mut writer: Box<dyn SinkWriter>, id: u64, compression: Compression) -> Result<Self> {
        writer.write(&header(id))?;
        Ok(Self {
            writer,
            compression,
            id,
            batch: vec![Run::new()],
            filled: 0,
            chunks: Vec::new(),
            offset: HEADER_BYTES as u64,
            pages: 0,
            copying: Duration::ZERO,
            hashes: None,
            is_cancelled: None,
        })
    }

    /// Compresses by several threads, in buffers of at most `bytes`.
    pub(crate) fn with_threads(mut self, bytes: usize) -> Self {
        if self.compression != Compression::None {
            let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
            let most = (bytes / (2 * CHUNK_PAGES * PAGE)).max(1);
            self.batch.resize_with((threads * RUNS_OF_THREAD).min(most), Run::new);
        }
        self
    }

    /// Keeps a hash of each page that is written.
    pub(crate) fn with_hashes(mut self, hashes: Option<&'a mut PageHashes>) -> Self {
        self.hashes = hashes;
        self
    }

    /// Fails when the flag is set.
    pub(crate) const fn cancelled_by(mut self, flag: &'a AtomicBool) -> Self {
        self.is_cancelled = Some(flag);
        self
    }

    /// Writes the manifest, and makes the save durable; its identity, and what is known of its report.
    ///
    /// # Errors
    /// Those of the sink.
    pub(crate) fn finish(
        mut self,
        parent: Identity,
        replaced: Identity,
        value: u64,
        regions: Vec<u64>,
    ) -> Result<(Identity, Report)> {
        self.flush()?;
        let Self { writer, id, chunks, offset, pages, .. } = self;
        let (mut manifest, digest) = Manifest { id, parent, replaced, value, regions, chunks }.encode();
        manifest.extend(trailer(offset, manifest.len() as u64, id));
        writer.finish(&manifest)?;
        let bytes = offset + manifest.len() as u64;
        Ok((Identity { id, digest }, Report { pages, bytes, value, ..Report::default() }))
    }

    /// The hashes of all pages as they were written, if they are kept.
    pub(crate) fn hashes(&self) -> Option<&PageHashes> {
        self.hashes.as_deref()
    }

    /// Pages that were written.
    pub(crate) const fn pages(&self) -> u64 {
        self.pages
    }

    /// Bytes that the buffers take at most.
    pub(crate) fn buffer_bytes(&self) -> usize {
        let buffers = if self.compression == Compression::None { 1 } else { 2 };
        self.batch.len() * buffers * CHUNK_PAGES * PAGE
    }

    /// Bytes of memory that are copied in a second; a low estimate before any were.
    pub(crate) fn copied_per_second(&self) -> f64 {
        const LOW: f64 = 1e9;
        let bytes = self.pages as f64 * PAGE as f64;
        if self.pages < 1024 { LOW } else { (bytes / self.copying.as_secs_f64().max(1e-9)).max(LOW / 4.0) }
    }

    /// Copies a run of pages from the memory, and writes it.
    pub(crate) fn copy_run(&mut self, region: usize, memory: &Memory, run: Range<usize>) -> Result<()> {
        for first in run.clone().step_by(CHUNK_PAGES) {
            let end = run.end.min(first + CHUNK_PAGES);
            let begun = Instant::now();
            copy(memory, first * PAGE..end * PAGE, self.buffer((end - first) * PAGE));
            self.copying += begun.elapsed();
            self.add(region, first)?;
        }
        Ok(())
    }

    /// Writes the contents of a run of at most [`CHUNK_PAGES`] pages.
    pub(crate) fn write_chunk(&mut self, region: usize, first: usize, contents: &[u8]) -> Result<()> {
        self.buffer(contents.len()).copy_from_slice(contents);
        self.add(region, first)
    }

    /// Writes the contents of a buffer, and leaves another one in its place.
    pub(crate) fn exchange(&mut self, region: usize, first: usize, buffer: &mut Vec<u8>) -> Result<()> {
        std::mem::swap(&mut self.batch[self.filled].contents, buffer);
        self.add(region, first)
    }

    /// Room for the contents of the next run, which [`Output::add`] adds.
    pub(crate) fn buffer(&mut self, bytes: usize) -> &mut [u8] {
        let contents = &mut self.batch[self.filled].contents;
        contents.resize(bytes, 0);
        contents
    }

    /// Adds the run whose contents are in the buffer.
    pub(crate) fn add(&mut self, region: usize, first: usize) -> Result<()> {
        let run = &mut self.batch[self.filled];
        (run.region, run.first) = (region as u32, first as u64);
        if let Some(hashes) = &mut self.hashes {
            hashes.set(region, first, &run.contents);
        }
        self.pages += (run.contents.len() / PAGE) as u64;
        self.filled += 1;
        if self.filled == self.batch.len() { self.flush() } else { Ok(()) }
    }

    /// Writes all runs of the batch.
    fn flush(&mut self) -> Result<()> {
        if self.is_cancelled.is_some_and(|flag| flag.load(Relaxed)) {
            return Err(Error::Cancelled);
        }
        let runs = &mut self.batch[..self.filled];
        pack_all(runs, self.id, self.compression);
        for run in runs {
            let stored = run.stored();
            self.writer.write(stored)?;
            self.chunks.push(Chunk {
                region: run.region,
                kind: run.kind,
                first: run.first,
                pages: (run.contents.len() / PAGE) as u32,
                stored: stored.len() as u32,
                offset: self.offset,
                check: run.check,
            });
            self.offset += stored.len() as u64;
        }
        self.filled = 0;
        Ok(())
    }
}

/// Packs runs, by a thread for every [`RUNS_OF_THREAD`].
fn pack_all(runs: &mut [Run], id: u64, compression: Compression) {
    let pack = |runs: &mut [Run]| runs.iter_mut().for_each(|run| run.pack(id, compression));
    thread::scope(|threads| {
        let mut parts = runs.chunks_mut(RUNS_OF_THREAD);
        let own = parts.next();
        for part in parts {
            threads.spawn(move || pack(part));
        }
        own.map(pack);
    });
}

/// A random number, never 0.
pub(crate) fn new_id() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) | 1
}
