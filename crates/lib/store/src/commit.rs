//! Commits: the changed lines of a transaction are appended to the log.

#![allow(unsafe_code, reason = "completes frames of the transaction, and reads those of the version before")]

use std::sync::Arc;

use crate::editor::{ChangedPage, Editor, Edits};
use crate::error::{Error, Result};
use crate::extent::{Extent, Held};
use crate::flush::Flusher;
use crate::log::{BLOCK, Record};
use crate::page::{OBJECT, PAGE, kind, offset_of, seal};
use crate::page_set::PageSet;
use crate::shared::Shared;

/// Pages by which the file grows at least.
const GROWTH: u32 = 256;

/// Where the next commit goes.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// Of the last commit.
    pub(crate) sequence: u64,
    /// The half of the log that is filled.
    pub(crate) epoch: u64,
    /// Bytes of that half that are used.
    pub(crate) position: usize,
    /// The pages that it contains.
    pub(crate) logged: PageSet,
    /// The pages that the other half contains.
    pub(crate) logged_before: Arc<PageSet>,
    /// Removed pages that snapshots may still read.
    pub(crate) held: Held,
    /// Pages of the file.
    pub(crate) end: u32,
    /// The group in which the search for an unused page begins.
    pub(crate) group: u32,
}

impl Writer {
    /// The writer of a file with an empty log.
    pub(crate) fn new(sequence: u64, epoch: u64, end: u32) -> Self {
        Self { sequence, epoch, end, ..Self::default() }
    }

    /// Whether recovery may write a page.
    pub(crate) fn is_in_log(&self, page: u32) -> bool {
        self.logged.contains(page) || self.logged_before.contains(page)
    }

    /// Releases the removed pages that no snapshot can read.
    pub(crate) fn release_pages(&mut self, shared: &Shared) {
        if self.held.release(shared.frames.oldest(shared.published().0), |start| shared.remove_extent(start)) {
            self.group = 0;
        }
    }

    /// Appends changes to the log. The next transaction sees them; others, once they are durable, which
    /// [`Queue::wait`](crate::durable::Queue::wait) makes them. `version` is that of the transaction.
    ///
    /// # Errors
    /// The changes are dropped; after a failed write, the store takes no more.
    pub(crate) fn append(&mut self, shared: &Shared, flusher: &Flusher, edits: &mut Edits, version: u64) -> Result<()> {
        edits.drop_marks(shared);
        let freed = Editor { shared, edits: &mut *edits, writer: &*self, version }.free_extents();
        let written = freed.and_then(|()| self.write(shared, flusher, edits));
        match written {
            Ok(()) => {
                let extents = edits.removed.drain(..).map(Extent::pages);
                let nodes = edits.freed.drain().map(|page| page..page + 1);
                extents.chain(nodes).for_each(|pages| self.held.add(pages, self.sequence));
            }
            Err(_) => edits.drop_all(shared),
        }
        written
    }

    fn write(&mut self, shared: &Shared, flusher: &Flusher, edits: &mut Edits) -> Result<()> {
        shared.check_writable()?;
        if edits.pages.is_empty() {
            return Ok(());
        }
        if edits.end > self.end {
            edits.reserve(shared, "make the file larger")?;
        }
        if !edits.written.is_empty() {
            shared.storage.sync().map_err(|error| shared.fail("make large values durable", &error))?;
        }
        let mut pages: Vec<(u32, ChangedPage)> = edits.pages.iter().map(|(&page, &changed)| (page, changed)).collect();
        pages.sort_unstable_by_key(|&(page, _)| page);
        let half = shared.header.half_bytes();
        let record = self.record(shared, &pages);
        let (sequence, is_large) = (self.sequence + 1, record.bytes() > half);
        // Large changes are elsewhere.
        let bytes = if is_large { BLOCK } else { record.bytes() };
        if self.position + bytes > half {
            self.turn(shared, flusher)?;
        }
        let apart = if is_large {
            // It may still write pages that are behind the end by now.
            flusher.wait(shared, self.epoch)?;
            write_apart(shared, &record, edits, self.held.end())?
        } else {
            0
        };
        let durable = shared.published().0;
        let record = record.finish(shared.header.store, self.epoch, sequence, edits.end, apart, durable);
        let offset = shared.header.half(self.epoch) + self.position as u64;
        self.position += bytes;
        (self.sequence, self.end, self.group) = (sequence, edits.end, edits.group);
        shared.object_changes.add(sequence, object_pages(shared, &pages));
        pages.iter().for_each(|&(page, _)| self.logged.insert(page));
        shared.frames.publish_all(pages.iter().map(|&(page, changed)| (page, changed.frame)), sequence, self.epoch);
        edits.pages.clear();
        edits.written.clear();
        edits.bytes_before = None;
        // After the pages in memory: another thread may write the queue at once, and make it visible.
        shared.queue.push(record, offset, sequence, self.end);
        if is_large {
            shared.queue.wait(shared, sequence)?;
            // It is durable: an error is one of the next commit.
            let _ = self.turn(shared, flusher).and_then(|()| flusher.wait(shared, self.epoch));
            let _ = self.cut(shared);
        }
        Ok(())
    }

    /// Cuts the file behind the pages that somebody may read.
    pub(crate) fn cut(&self, shared: &Shared) -> Result<()> {
        let cut = shared.storage.cut(offset_of(self.end.max(self.held.end())));
        cut.map_err(|error| Error::io(&shared.path, "make the file smaller", &error))
    }

    /// The record of these pages, which get their checks.
    fn record(&self, shared: &Shared, pages: &[(u32, ChangedPage)]) -> Record {
        let mut record = Record::new(shared.queue.buffer());
        for &(number, ChangedPage { frame, is_new }) in pages {
            // SAFETY: the frame belongs to the transaction, whose pages are not lent during its commit.
            let new = unsafe { shared.frames.contents_mut(frame) };
            seal(new, number, shared.header.store);
            let old = if is_new { None } else { shared.frames.find(number, self.sequence) };
            // SAFETY: the old frame is of the version of the transaction, which is registered.
            record.add(number, new, old.map(|old| unsafe { shared.frames.contents(old) }));
        }
        record
    }

    /// Goes on in the other half of the log, once its pages are in the file.
    pub(crate) fn turn(&mut self, shared: &Shared, flusher: &Flusher) -> Result<()> {
        shared.queue.wait(shared, self.sequence)?;
        flusher.wait(shared, self.epoch)?;
        self.logged_before = Arc::new(std::mem::take(&mut self.logged));
        self.epoch += 1;
        self.position = 0;
        flusher.start(Arc::clone(&self.logged_before), self.epoch, self.sequence, self.end);
        Ok(())
    }
}

/// The pages with objects.
fn object_pages(shared: &Shared, pages: &[(u32, ChangedPage)]) -> Vec<u32> {
    // SAFETY: the frames belong to the transaction, which does not change them any more.
    let has_objects = |frame| kind(unsafe { shared.frames.contents(frame) }) == OBJECT;
    pages.iter().filter(|page| has_objects(page.1.frame)).map(|page| page.0).collect()
}

/// Bytes of a file with this many pages.
pub(crate) fn file_bytes(end: u32) -> u64 {
    u64::from(end.next_multiple_of(GROWTH)) * PAGE as u64
}

/// Makes the changes of a large transaction durable behind its pages and those that are held; where they are.
fn write_apart(shared: &Shared, record: &Record, edits: &mut Edits, held_end: u32) -> Result<u64> {
    let (place, changes) = (file_bytes(edits.end.max(held_end)), record.changes());
    edits.reserve_bytes(shared, place + changes.len() as u64, "make room for the changes")?;
    let written = shared.storage.write(changes, place).and_then(|()| shared.storage.sync());
    written.map_err(|error| shared.fail("write the changes of a transaction", &error))?;
    Ok(place)
}
