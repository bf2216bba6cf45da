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

use crate::error::Result;
use crate::lock::lock;
use crate::log::BLOCK;
use crate::shared::Shared;

/// Records that are not durable yet.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    written: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Adjacent in the log.
    records: Vec<u8>,
    /// Where in the file they go.
    offset: u64,
    /// The last commit among them, and the pages of the file then.
    last: (u64, u32),
    is_writing: bool,
}

impl Queue {
    /// Adds the record of a commit, after which the file has `end` pages.
    pub(crate) fn push(&self, record: &[u8], offset: u64, sequence: u64, end: u32) {
        let mut waiting = lock(&self.waiting);
        if waiting.records.is_empty() {
            waiting.offset = offset;
        }
        waiting.records.extend_from_slice(record);
        waiting.last = (sequence, end);
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
            let (records, offset, last) = (std::mem::take(&mut waiting.records), waiting.offset, waiting.last);
            waiting.is_writing = true;
            drop(waiting);
            let written = shared.write_log(&records, offset);
            if written.is_ok() {
                shared.publish(last.0, last.1);
            }
            waiting = lock(&self.waiting);
            waiting.is_writing = false;
            self.written.notify_all();
            written?;
        }
    }
}

impl Shared {
    fn write_log(&self, records: &[u8], offset: u64) -> Result<()> {
        let written = self.storage.write_durably(aligned(records).bytes(), offset);
        written.map_err(|error| self.fail("write to the log", &error))
    }

    /// Makes a commit visible, and frees the frames that no reader can need any more.
    fn publish(&self, version: u64, end: u32) {
        self.set_published(version, end);
        self.frames.reclaim(version);
    }
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
