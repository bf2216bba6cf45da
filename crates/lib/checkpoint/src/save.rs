//! A save that runs, and its report.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use fieldstone_pages::Memory;

use crate::checkpointer::{Backoff, Options, Region, State, add_present};
use crate::copy_before_write::CopyBeforeWrite;
use crate::error::{Error, Result};
use crate::format::Identity;
use crate::output::{Output, new_id};
use crate::page_hashes::PageHashes;
use crate::rounds::copy_rounds;
use crate::sink::Sink;
use crate::stop::StopBuffer;

/// A save that runs in a thread of its own. Dropped, it goes on to its end.
#[derive(Debug)]
#[must_use = "`wait` returns whether the save is whole"]
pub struct Save {
    thread: JoinHandle<Result<Report>>,
    is_cancelled: Arc<AtomicBool>,
}

impl Save {
    pub(crate) fn spawn(
        is_cancelled: Arc<AtomicBool>,
        run: impl FnOnce() -> Result<Report> + Send + 'static,
    ) -> Result<Self> {
        let thread = Builder::new().name("fs-checkpoint".to_owned()).spawn(run).map_err(Error::Thread)?;
        Ok(Self { thread, is_cancelled })
    }

    /// Ends the save early, unless it is almost durable: [`Save::wait`] returns [`Error::Cancelled`] soon. The
    /// last save stays as it is, and the next one contains what this one would.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Relaxed);
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Pages of 4 KiB that were written; a page that changed during the save counts each time.
    pub pages: u64,
    /// Bytes of the save.
    pub bytes: u64,
    /// The number that the safe point returned.
    pub value: u64,
    /// How long writers waited at the instant.
    pub stop: Duration,
    /// The longest wait of one write.
    pub longest_wait: Duration,
    /// The largest size of all buffers together, in bytes.
    pub peak_buffer_bytes: u64,
    /// From the begin to the end.
    pub total: Duration,
    /// Whether the save contains only what changed since the last one.
    pub is_increment: bool,
    /// Whether pages were copied before they were written, because a thread wrote during the stop or
    /// faster than pages were copied.
    pub fell_back: bool,
    /// Pages that had changed without being recorded as written, and were saved nevertheless. They are
    /// looked for with [`crate::CheckpointerBuilder::compare_pages`] only.
    pub missed_pages: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_increment { "increment" } else { "complete" };
        let how = if self.fell_back { ", by copy before write" } else { "" };
        writeln!(f, "save      {kind}{how}, {} pages in {} bytes", self.pages, self.bytes)?;
        writeln!(f, "stop      {:.3} ms", self.stop.as_secs_f64() * 1e3)?;
        writeln!(f, "wait      {:.3} ms at most", self.longest_wait.as_secs_f64() * 1e3)?;
        writeln!(f, "buffers   {} bytes at most", self.peak_buffer_bytes)?;
        if self.missed_pages > 0 {
            writeln!(f, "missed    {} pages had changed without a recorded write; they are saved", self.missed_pages)?;
        }
        write!(f, "time      {:.3} s", self.total.as_secs_f64())
    }
}

impl State {
    /// Saves once.
    pub(crate) fn save<G>(&mut self, sink: &dyn Sink, safe_point: &impl Fn() -> (G, u64)) -> Result<Report> {
        let begun = Instant::now();
        self.track()?;
        self.refuse_pinned()?;
        let continued = sink.continued()?.map(|(id, digest)| Identity { id, digest });
        let is_increment = continued.is_some_and(|last| last == self.base);
        let mut why = None;
        if self.backoff.tries() {
            match by_rounds(self, sink, is_increment, safe_point) {
                Ok(report) => {
                    self.backoff = Backoff::default();
                    return Ok(Report { total: begun.elapsed(), ..report });
                }
                Err(error @ (Error::Outrun { .. } | Error::WriterRan)) => why = Some(error),
                Err(error) => return Err(error),
            }
        }
        match (by_copy_before_write(self, sink, safe_point)?, why) {
            (Some(report), why) => {
                if why.is_some() {
                    self.backoff.grow();
                }
                Ok(Report { total: begun.elapsed(), ..report })
            }
            (None, Some(why)) => Err(why),
            // It was possible before.
            (None, None) => {
                self.backoff = Backoff::default();
                self.save(sink, safe_point)
            }
        }
    }
}

/// Saves by rounds of copies and a stop.
fn by_rounds<G>(
    state: &mut State,
    sink: &dyn Sink,
    is_increment: bool,
    safe_point: &impl Fn() -> (G, u64),
) -> Result<Report> {
    let State { regions, options, hashes, is_cancelled, .. } = state;
    if !is_increment {
        regions.iter_mut().for_each(Region::forget_saves);
    }
    let mut output = begin(sink, options, hashes, is_cancelled)?;
    let largest_stop = options.memory_limit.saturating_sub(output.buffer_bytes()) / 2;
    let limit = copy_rounds(regions, &mut output, options.stop_limit, largest_stop)?;
    // The program writes on until it waits.
    let all = regions.iter().map(|region| region.tracking.memory().bytes()).sum();
    let mut buffer = StopBuffer::new(limit.saturating_mul(2).min(largest_stop).min(all));
    let peak_buffer_bytes = (buffer.bytes() + output.buffer_bytes()) as u64;
    if output.hashes().is_some() {
        regions.iter_mut().try_for_each(|region| add_present(&mut region.used, region.tracking.memory()))?;
    }
    let stop = buffer.take(regions, safe_point, output.hashes())?;
    buffer.write(&mut output)?;
    let parent = if is_increment { state.base } else { Identity::default() };
    let (base, report) = output.finish(parent, Identity::default(), stop.value, sizes(&state.memories))?;
    state.base = base;
    regions.iter_mut().for_each(|region| region.unsaved.clear());
    let (stop, missed_pages) = (stop.duration, stop.missed);
    Ok(Report { stop, longest_wait: stop, peak_buffer_bytes, is_increment, missed_pages, ..report })
}

/// Saves all pages by copy before write; `None` if that is not possible here.
fn by_copy_before_write<G>(
    state: &mut State,
    sink: &dyn Sink,
    safe_point: &impl Fn() -> (G, u64),
) -> Result<Option<Report>> {
    let mut used: Vec<_> = state.regions.drain(..).map(|region| region.used).collect();
    let State { memories, options, hashes, is_cancelled, .. } = state;
    let mut output = begin(sink, options, hashes, is_cancelled)?;
    let own_bytes = output.buffer_bytes();
    let Some(copies) = CopyBeforeWrite::new(memories, options.memory_limit - own_bytes) else { return Ok(None) };
    let stop = copies.hold(safe_point)?;
    // Pages that were written while nothing was tracked.
    used.iter_mut().zip(&*memories).try_for_each(|(used, memory)| add_present(used, memory))?;
    copies.write(&used, &mut output)?;
    let (longest_wait, peak_buffer_bytes) = (copies.longest_wait(), copies.buffer_bytes() + own_bytes as u64);
    drop(copies);
    let (_, report) = output.finish(Identity::default(), Identity::default(), stop.value, sizes(memories))?;
    Ok(Some(Report { stop: stop.duration, longest_wait, peak_buffer_bytes, fell_back: true, ..report }))
}

/// Begins the save in the sink.
fn begin<'a>(
    sink: &dyn Sink,
    options: &Options,
    hashes: &'a mut Option<PageHashes>,
    is_cancelled: &'a AtomicBool,
) -> Result<Output<'a>> {
    let id = new_id();
    let output = Output::begin(sink.begin(id)?, id, options.compression)?;
    Ok(output.with_threads(options.memory_limit / 4).with_hashes(hashes.as_mut()).cancelled_by(is_cancelled))
}

fn sizes(memories: &[Memory]) -> Vec<u64> {
    memories.iter().map(|memory| memory.bytes() as u64).collect()
}
