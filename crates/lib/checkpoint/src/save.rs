//! A save that runs, and its report.

use std::fmt;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::checkpointer::{Backoff, Region, State, add_present};
use crate::copy_before_write::CopyBeforeWrite;
use crate::error::{Error, Result};
use crate::format::Identity;
use crate::output::Output;
use crate::rounds::copy_rounds;
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Pages of 4 KiB that were written; a page that changed during the save counts each time.
    pub pages: u64,
    /// Bytes of the save.
    pub bytes: u64,
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
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_increment { "increment" } else { "complete" };
        let how = if self.fell_back { ", by copy before write" } else { "" };
        writeln!(f, "save      {kind}{how}, {} pages in {} bytes", self.pages, self.bytes)?;
        writeln!(f, "stop      {:.3} ms", self.stop.as_secs_f64() * 1e3)?;
        writeln!(f, "wait      {:.3} ms at most", self.longest_wait.as_secs_f64() * 1e3)?;
        writeln!(f, "buffers   {} bytes at most", self.peak_buffer_bytes)?;
        write!(f, "time      {:.3} s", self.total.as_secs_f64())
    }
}

impl State {
    /// Saves once.
    pub(crate) fn save<G>(&mut self, sink: &dyn Sink, safe_point: &impl Fn() -> (G, u64)) -> Result<Report> {
        let begun = Instant::now();
        self.track()?;
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
    if !is_increment {
        state.regions.iter_mut().for_each(Region::forget_saves);
    }
    let mut writer = sink.begin()?;
    let mut output = Output::begin(&mut *writer, state.compression)?;
    let largest_stop = state.memory_limit.saturating_sub(output.buffer_bytes()) / 2;
    let limit = copy_rounds(&mut state.regions, &mut output, state.stop_limit, largest_stop)?;
    // The program writes on until it waits.
    let mut buffer = StopBuffer::new(limit.saturating_mul(2).min(largest_stop));
    let peak_buffer_bytes = (buffer.bytes() + output.buffer_bytes()) as u64;
    let stop = buffer.take(&mut state.regions, safe_point)?;
    buffer.write(&mut output)?;
    let parent = if is_increment { state.base } else { Identity::default() };
    let (base, report) = output.finish(parent, stop.value, &state.memories)?;
    writer.finish()?;
    state.base = base;
    state.regions.iter_mut().for_each(|region| region.unsaved.clear());
    Ok(Report { stop: stop.duration, longest_wait: stop.duration, peak_buffer_bytes, is_increment, ..report })
}

/// Saves all pages by copy before write; `None` if that is not possible here.
fn by_copy_before_write<G>(
    state: &mut State,
    sink: &dyn Sink,
    safe_point: &impl Fn() -> (G, u64),
) -> Result<Option<Report>> {
    let mut used: Vec<_> = state.regions.drain(..).map(|region| region.used).collect();
    let Some(copies) = CopyBeforeWrite::new(&state.memories, state.memory_limit) else { return Ok(None) };
    let stop = copies.hold(safe_point)?;
    // Pages that were written while nothing was tracked.
    used.iter_mut().zip(&state.memories).try_for_each(|(used, memory)| add_present(used, memory))?;
    let mut writer = sink.begin()?;
    let mut output = Output::begin(&mut *writer, state.compression)?;
    copies.write(&used, &mut output)?;
    let own_bytes = output.buffer_bytes() as u64;
    let (_, report) = output.finish(Identity::default(), stop.value, &state.memories)?;
    let (longest_wait, peak_buffer_bytes) = (copies.longest_wait(), copies.buffer_bytes() + own_bytes);
    drop(copies);
    writer.finish()?;
    Ok(Some(Report { stop: stop.duration, longest_wait, peak_buffer_bytes, fell_back: true, ..report }))
}
