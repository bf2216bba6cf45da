//! Commits: the changed lines of a transaction become durable by one write to the log.

#![allow(unsafe_code, reason = "reads frames of the transaction and of the version before")]

use std::collections::HashSet;

use crate::editor::Edits;
use crate::error::{Error, Result};
use crate::flush::Flusher;
use crate::frames::Frame;
use crate::log::{BLOCK, Record};
use crate::page::PAGE;
use crate::shared::Shared;

/// Pages by which the file grows at least.
const GROWTH: u32 = 256;

/// Where the next commit goes.
#[derive(Debug)]
pub(crate) struct Writer {
    /// Of the last commit.
    pub(crate) sequence: u64,
    /// The half of the log that is filled.
    pub(crate) epoch: u64,
    /// Bytes of that half that are used.
    pub(crate) position: usize,
    /// The pages that it contains.
    pub(crate) logged: HashSet<u32>,
    /// Pages of the file.
    pub(crate) end: u32,
    /// The group in which the search for an unused page begins.
    pub(crate) group: u32,
}

impl Writer {
    /// Makes changes durable, then visible.
    ///
    /// # Errors
    /// The changes are dropped; after a failed write, the store takes no more.
    pub(crate) fn commit(&mut self, shared: &Shared, flusher: &Flusher, edits: &mut Edits) -> Result<()> {
        edits.drop_marks(&shared.frames);
        let written = self.write(shared, flusher, edits);
        if written.is_err() {
            edits.drop_all(&shared.frames);
        }
        written
    }

    fn write(&mut self, shared: &Shared, flusher: &Flusher, edits: &mut Edits) -> Result<()> {
        shared.check_writable()?;
        if edits.frames.is_empty() {
            return Ok(());
        }
        if edits.end > self.end {
            let reserved = shared.storage.reserve(file_bytes(edits.end));
            reserved.map_err(|error| Error::io(&shared.path, "make the file larger", &error))?;
        }
        let mut pages: Vec<(u32, Frame)> = edits.frames.iter().map(|(&page, &frame)| (page, frame)).collect();
        pages.sort_unstable_by_key(|&(page, _)| page);
        let half = shared.header.half_bytes();
        // Large changes are elsewhere.
        let in_log = |record: &Record| if record.bytes() > half { BLOCK } else { record.bytes() };
        let mut record = self.record(shared, &pages);
        if self.position + in_log(&record) > half {
            self.turn(shared, flusher)?;
            // It has whole pages now.
            record = self.record(shared, &pages);
        }
        let (sequence, bytes, is_large) = (self.sequence + 1, in_log(&record), record.bytes() > half);
        let apart = if is_large { write_apart(shared, &record, edits.end)? } else { 0 };
        let record = aligned(&record.finish(shared.header.store, self.epoch, sequence, edits.end, apart));
        let offset = shared.header.half(self.epoch) + self.position as u64;
        let written = shared.storage.write_durably(record.bytes(), offset);
        written.map_err(|error| shared.fail("write to the log", &error))?;
        self.position += bytes;
        (self.sequence, self.end, self.group) = (sequence, edits.end, edits.group);
        for (page, frame) in pages {
            self.logged.insert(page);
            shared.frames.publish(page, frame, sequence);
        }
        edits.frames.clear();
        shared.publish(sequence, self.end);
        shared.frames.reclaim(sequence);
        if is_large {
            // It is durable: an error is one of the next commit.
            let _ = self.turn(shared, flusher).and_then(|()| flusher.wait(shared, self.epoch));
            let _ = shared.storage.cut(file_bytes(self.end));
        }
        Ok(())
    }

    /// The record of these pages.
    fn record(&self, shared: &Shared, pages: &[(u32, Frame)]) -> Record {
        let mut record = Record::new();
        for &(number, frame) in pages {
            let old = self.logged.contains(&number).then(|| shared.frames.find(number, self.sequence)).flatten();
            // SAFETY: the new frame belongs to the transaction; the old one is of its version, which is
            // registered.
            let (new, old) = unsafe { (shared.frames.contents(frame), old.map(|old| shared.frames.contents(old))) };
            record.add(number, new, old);
        }
        record
    }

    /// Goes on in the other half of the log, once its pages are in the file.
    pub(crate) fn turn(&mut self, shared: &Shared, flusher: &Flusher) -> Result<()> {
        flusher.wait(shared, self.epoch)?;
        let pages = std::mem::take(&mut self.logged);
        self.epoch += 1;
        self.position = 0;
        flusher.start(pages, self.epoch, self.sequence, self.end);
        Ok(())
    }
}

/// Bytes of a file with this many pages.
fn file_bytes(end: u32) -> u64 {
    u64::from(end.next_multiple_of(GROWTH)) * PAGE as u64
}

/// Makes the changes of a large transaction durable behind the end of the file; where they are.
fn write_apart(shared: &Shared, record: &Record, end: u32) -> Result<u64> {
    let (place, changes) = (file_bytes(end), record.changes());
    let reserved = shared.storage.reserve(place + changes.len() as u64);
    reserved.map_err(|error| Error::io(&shared.path, "make room for the changes", &error))?;
    let written = shared.storage.write(changes, place).and_then(|()| shared.storage.sync());
    written.map_err(|error| shared.fail("write the changes of a transaction", &error))?;
    Ok(place)
}

/// Bytes at an address that direct writes may have.
struct Aligned {
    buffer: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.start + self.length]
    }
}

fn aligned(bytes: &[u8]) -> Aligned {
    let mut buffer = vec![0; bytes.len() + BLOCK];
    let start = buffer.as_ptr().align_offset(BLOCK);
    buffer[start..start + bytes.len()].copy_from_slice(bytes);
    Aligned { buffer, start, length: bytes.len() }
}
