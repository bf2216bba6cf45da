//! A save that runs, and its report.

use std::fmt;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::checkpointer::State;
use crate::error::{Error, Result};
use crate::format::{Identity, Manifest, header, trailer};
use crate::rounds::{Output, copy_rounds};
use crate::sink::Sink;
use crate::stop::StopBuffer;

/// A save that runs in a thread of its own. Dropped, it goes on to its end.
#[derive(Debug)]
#[must_use = "`wait` returns whether the save is whole"]
pub struct Save {
    thread: JoinHandle<Result<Report>>,
}

impl Save {
    pub(crate) fn spawn(run: impl FnOnce() -> Result<Report> + Send + 'static) -> Result<Self> {
        let thread = Builder::new().name("fs-checkpoint".to_owned()).spawn(run).map_err(Error::Thread)?;
        Ok(Self { thread })
    }

    /// Waits until the save is durable.
    ///
    /// # Errors
    /// Why it is not. The last save is as it was before, and the next one contains what this one would.
    ///
    /// # Panics
    /// With the panic of the safe point.
    pub fn wait(self) -> Result<Report> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

/// What a save did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Pages of 4 KiB that were written; a page that changed during the save counts each time.
    pub pages: u64,
    /// Bytes of the save.
    pub bytes: u64,
    /// How long writers waited at the instant.
    pub stop: Duration,
    /// The largest size of all buffers together, in bytes.
    pub peak_buffer_bytes: u64,
    /// From the begin to the end.
    pub total: Duration,
    /// Whether the save contains only what changed since the last one.
    pub is_increment: bool,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_increment { "increment" } else { "complete" };
        writeln!(f, "save      {kind}, {} pages in {} bytes", self.pages, self.bytes)?;
        writeln!(f, "stop      {:.3} ms", self.stop.as_secs_f64() * 1e3)?;
        writeln!(f, "buffers   {} bytes at most", self.peak_buffer_bytes)?;
        write!(f, "time      {:.3} s", self.total.as_secs_f64())
    }
}

/// One save.
pub(crate) struct Task<'a> {
    pub(crate) state: &'a mut State,
}

impl Task<'_> {
    pub(crate) fn run<G>(self, sink: &dyn Sink, safe_point: impl FnOnce() -> (G, u64)) -> Result<Report> {
        let begun = Instant::now();
        let state = self.state;
        let continued = sink.continued()?.map(|(id, digest)| Identity { id, digest });
        let is_increment = continued.is_some_and(|last| last == state.base);
        if !is_increment {
            state.regions.iter_mut().for_each(crate::checkpointer::Region::forget_saves);
        }
        let id = new_id();
        let mut writer = sink.begin()?;
        writer.write(&header(id))?;
        let mut output = Output::new(&mut *writer, state.compression, id);
        let largest_stop = state.memory_limit.saturating_sub(output.buffer_bytes()) / 2;
        let limit = copy_rounds(&mut state.regions, &mut output, state.stop_limit, largest_stop)?;
        // The program writes on until it waits.
        let mut buffer = StopBuffer::new(limit.saturating_mul(2).min(largest_stop));
        let peak_buffer_bytes = (buffer.bytes() + output.buffer_bytes()) as u64;
        let stop = buffer.take(&mut state.regions, safe_point)?;
        buffer.write(&mut output)?;
        let Output { chunks, offset, pages, .. } = output;
        let parent = if is_increment { state.base } else { Identity::default() };
        let regions = state.regions.iter().map(|region| region.tracking.memory().bytes() as u64).collect();
        let (manifest, digest) = Manifest { id, parent, value: stop.value, regions, chunks }.encode();
        writer.write(&manifest)?;
        let end = trailer(offset, manifest.len() as u64, id);
        writer.write(&end)?;
        writer.finish()?;
        state.base = Identity { id, digest };
        state.regions.iter_mut().for_each(|region| region.unsaved.clear());
        let bytes = offset + (manifest.len() + end.len()) as u64;
        let total = begun.elapsed();
        Ok(Report { pages, bytes, stop: stop.duration, peak_buffer_bytes, total, is_increment })
    }
}

/// A random number, never 0.
fn new_id() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) | 1
}
