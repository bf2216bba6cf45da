//! Writes the pages of a half of the log to their places, so that the half is free again.
//!
//! ```text
//! the writer fills half 1
//! this thread: pages of half 0 ─→ sync ─→ header: recovery begins with half 1
//! ```

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::error::{Error, ErrorKind, Result};
use crate::header::Header;
use crate::lock::lock;
use crate::page::offset_of;
use crate::page_set::PageSet;
use crate::shared::Shared;

/// Adjacent pages that are written by one call: 1 MiB.
const RUN: usize = 256;

/// What the thread does next.
#[derive(Debug)]
enum Job {
    /// Writes the pages of an epoch, then the header.
    Pages(Arc<PageSet>, Header),
    /// Makes a commit durable, if it is not yet.
    Log(u64),
}

/// The thread.
#[derive(Debug)]
pub(crate) struct Flusher {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    progress: Arc<Progress>,
    header: Header,
}

/// How far the thread is.
#[derive(Debug)]
struct Progress {
    /// The epoch that recovery begins with.
    epoch: Mutex<std::result::Result<u64, String>>,
    changed: Condvar,
}

impl Flusher {
    /// Starts the thread. All epochs before that of the header are in the file.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start_thread(shared: &Arc<Shared>, header: Header) -> Result<Self> {
        let (jobs, received) = channel();
        let progress = Arc::new(Progress { epoch: Mutex::new(Ok(header.epoch)), changed: Condvar::new() });
        let run = {
            let (shared, progress) = (Arc::clone(shared), Arc::clone(&progress));
            move || progress.run(&shared, &received)
        };
        let thread = std::thread::Builder::new().name("fs-store".to_owned()).spawn(run);
        let thread = thread.map_err(|error| Error::io(&shared.path, "start a thread", &error))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), progress, header })
    }

    /// Starts to write these pages, after which recovery begins with `epoch`.
    pub(crate) fn start(&self, pages: Arc<PageSet>, epoch: u64, sequence: u64, end: u32) {
        let header = Header { epoch, sequence, end, ..self.header };
        self.send(Job::Pages(pages, header));
    }

    /// Makes a commit durable, unless a later one has done that before.
    pub(crate) fn write_log_soon(&self, sequence: u64) {
        self.send(Job::Log(sequence));
    }

    fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // The thread ends after this.
            let _ = jobs.send(job);
        }
    }

    /// Forgets the thread, which a forked child does not have.
    pub(crate) fn forget(&mut self) {
        std::mem::forget(self.thread.take());
    }

    /// Waits until recovery begins with `epoch`.
    ///
    /// # Errors
    /// If pages could not be written.
    pub(crate) fn wait(&self, shared: &Shared, epoch: u64) -> Result<()> {
        let mut now = lock(&self.progress.epoch);
        loop {
            match &*now {
                Ok(begun) if *begun >= epoch => return Ok(()),
                Ok(_) => now = self.progress.changed.wait(now).unwrap_or_else(PoisonError::into_inner),
                Err(cause) => return Err(Error::new(ErrorKind::Poisoned, &shared.path, cause)),
            }
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Progress {
    fn run(&self, shared: &Shared, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            let (pages, header) = match job {
                Job::Pages(pages, header) => (pages, header),
                Job::Log(sequence) => {
                    // The next transaction reports an error.
                    let _ = shared.queue.wait(shared, sequence);
                    continue;
                }
            };
            let pages: Vec<u32> = pages.iter().take_while(|&page| page < header.end).collect();
            let written = write_pages(shared, &pages, drop).and_then(|()| write_header(shared, &header));
            *lock(&self.epoch) = written.map(|()| header.epoch).map_err(|error| error.to_string());
            self.changed.notify_all();
        }
    }
}

/// Writes pages to their places, and makes them durable. They are in memory, and in the order of their
/// numbers. Each has its check since its commit. `report` is called with the number of pages of each write.
pub(crate) fn write_pages(shared: &Shared, pages: &[u32], mut report: impl FnMut(usize)) -> Result<()> {
    // The pages are not evicted before they are in the file.
    let (reader, _) = shared.frames.begin_published_pinned();
    let mut runs = pages.chunk_by(|one, next| one + 1 == *next).flat_map(|run| run.chunks(RUN));
    let written = runs.try_for_each(|run| {
        let contents: Vec<&[u8]> = run
            .iter()
            .map(|&number| shared.page(number, reader.version).map(|page| &page[..]))
            .collect::<Result<_>>()?;
        let written = shared.storage.write_parts(&contents, offset_of(run[0]));
        report(run.len());
        written.map_err(|error| shared.fail("write pages", &error))
    });
    shared.frames.end(reader);
    written?;
    shared.storage.sync().map_err(|error| shared.fail("make pages durable", &error))
}

/// Replaces the older copy of the header.
pub(crate) fn write_header(shared: &Shared, header: &Header) -> Result<()> {
    let written = shared.storage.write_durably(&header.bytes(), header.offset());
    written.map_err(|error| shared.fail("write the header", &error))?;
    shared.frames.set_flushed(header.epoch);
    Ok(())
}
