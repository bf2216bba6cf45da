//! Makes records of the log durable: all that wait at one time by one write.
//!
//! ```text
//! commit 7 ─┐
//! commit 8 ─┼─→ queue ─→ one write by the first that waits ─→ visible
//! commit 9 ─┘            commits that come meanwhile are the next one
//! ```
//! Source: DeWitt et al., *Implementation Techniques for Main Memory Database Systems*, SIGMOD 1984 ("group
//! commit"), without its delay.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::aligned::AlignedBuffer;
use crate::error::Result;
use crate::lock::lock;
use crate::shared::Shared;

/// Buffers that are kept for later records: one of them is written while the next one is filled.
const MOST_SPARE: usize = 2;
/// Buffers of more bytes are not kept.
const MOST_SPARE_BYTES: usize = 1 << 20;
/// Bytes of a new buffer.
const BUFFER: usize = 16 << 10;

/// Records that are not durable yet.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    written: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Adjacent in the log.
    records: Option<AlignedBuffer>,
    /// Where in the file they go.
    offset: u64,
    /// The last commit among them, and the pages of the file then.
    last: (u64, u32),
    is_writing: bool,
    spare: Vec<AlignedBuffer>,
}

impl Waiting {
    /// Keeps a buffer that is no longer needed.
    fn keep(&mut self, buffer: AlignedBuffer) {
        if self.spare.len() < MOST_SPARE && buffer.capacity() <= MOST_SPARE_BYTES {
            self.spare.push(buffer);
        }
    }
}

impl Queue {
    /// A buffer for a record, with any contents.
    pub(crate) fn buffer(&self) -> AlignedBuffer {
        lock(&self.waiting).spare.pop().unwrap_or_else(|| AlignedBuffer::with_capacity(BUFFER))
    }

    /// Adds the record of a commit, after which the file has `end` pages.
    pub(crate) fn push(&self, record: AlignedBuffer, offset: u64, sequence: u64, end: u32) {
        let mut waiting = lock(&self.waiting);
        waiting.last = (sequence, end);
        if let Some(records) = &mut waiting.records {
            records.extend_from_slice(&record);
            waiting.keep(record);
        } else {
            waiting.records = Some(record);
            waiting.offset = offset;
        }
    }

    /// Waits until a commit is durable and visible. Writes the queue, unless another thread does.
    ///
    /// # Errors
    /// If a write has failed: the store takes no more.
    pub(crate) fn wait(&self, shared: &Shared, sequence: u64) -> Result<()> {
        let mut waiting = lock(&self.waiting);
        loop {
            if shared.published().0 >= sequence {
                return Ok(());
            }
            shared.check_writable()?;
            if waiting.is_writing {
                waiting = self.written.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (records, offset, last) = (waiting.records.take(), waiting.offset, waiting.last);
            waiting.is_writing = true;
            drop(waiting);
            let written = records.as_deref().map_or(Ok(()), |records| shared.write_log(records, offset));
            if written.is_ok() {
                shared.publish(last.0, last.1);
            }
            waiting = lock(&self.waiting);
            waiting.is_writing = false;
            records.into_iter().for_each(|buffer| waiting.keep(buffer));
            self.written.notify_all();
            written?;
        }
    }
}

impl Shared {
    fn write_log(&self, records: &[u8], offset: u64) -> Result<()> {
        let written = self.storage.write_durably(records, offset);
        written.map_err(|error| self.fail("write to the log", &error))
    }

    /// Makes a commit visible, and frees the frames that no reader can need any more.
    fn publish(&self, version: u64, end: u32) {
        self.set_published(version, end);
        self.frames.reclaim(version);
    }
}
