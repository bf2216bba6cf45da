//! Merges a save and those that it continues into a complete one.

use crate::checkpointer::Compression;
use crate::error::Result;
use crate::format::{CHUNK_PAGES, Identity, Manifest, PAGE};
use crate::output::{Output, new_id};
use crate::saved::{Buffers, Part, Places};
use crate::sink::SinkWriter;

/// Writes the contents of a chain of saves, oldest first, as one complete save that takes the place of the
/// last. All checks are verified.
///
/// # Errors
/// If a save cannot be read, or the sink fails.
pub(crate) fn merge(parts: &[Part], begin: impl FnOnce(u64) -> Result<Box<dyn SinkWriter>>) -> Result<()> {
    let Some(last) = parts.last() else { return Ok(()) };
    let id = new_id();
    let mut output = Output::begin(begin(id)?, id, compression_of(&last.manifest))?;
    let mut buffers = Buffers::new();
    for (region, &bytes) in last.manifest.regions.iter().enumerate() {
        let places = Places::of(parts, region, bytes as usize / PAGE);
        for first in (0..bytes as usize / PAGE).step_by(CHUNK_PAGES) {
            let mut block = Block::new(parts, &places, first);
            block.read(&mut buffers)?;
            block.write(region, &mut output)?;
        }
    }
    let manifest = &last.manifest;
    let replaced = last.identity();
    output.finish(Identity::default(), replaced, manifest.value, manifest.regions.clone())?;
    Ok(())
}

/// How a save is compressed, by its first chunk that is.
fn compression_of(manifest: &Manifest) -> Compression {
    manifest.chunks.iter().find_map(|chunk| Compression::of(chunk.kind)).unwrap_or_default()
}

/// Adjacent pages of a region, from whichever saves have them.
struct Block<'a> {
    parts: &'a [Part],
    first: usize,
    /// Where each page is.
    places: &'a [(u32, u32)],
    contents: Vec<u8>,
}

impl<'a> Block<'a> {
    fn new(parts: &'a [Part], places: &'a Places, first: usize) -> Self {
        let places = places.from(first, CHUNK_PAGES);
        Self { parts, first, places, contents: vec![0; places.len() * PAGE] }
    }

    /// Reads each chunk once.
    fn read(&mut self, buffers: &mut Buffers) -> Result<()> {
        let mut needed: Vec<_> = self.places.iter().filter(|(part, _)| *part != 0).collect();
        needed.sort_unstable();
        needed.dedup();
        for &&(part, chunk) in &needed {
            let saved = &self.parts[part as usize - 1];
            let found = &saved.manifest.chunks[chunk as usize];
            let contents = saved.read(found, buffers)?;
            for (at, _) in self.places.iter().enumerate().filter(|(_, place)| **place == (part, chunk)) {
                let from = (self.first + at - found.first as usize) * PAGE;
                self.contents[at * PAGE..][..PAGE].copy_from_slice(&contents[from..][..PAGE]);
            }
        }
        Ok(())
    }

    /// Writes the runs of pages that a save has; all others are zeros.
    fn write(&self, region: usize, output: &mut Output<'_>) -> Result<()> {
        let mut at = 0;
        for run in self.places.chunk_by(|one, next| (one.0 == 0) == (next.0 == 0)) {
            if run[0].0 != 0 {
                output.write_chunk(region, self.first + at, &self.contents[at * PAGE..][..run.len() * PAGE])?;
            }
            at += run.len();
        }
        Ok(())
    }
}
