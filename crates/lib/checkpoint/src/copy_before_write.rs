//! Copy before write: takes the instant of a save although threads go on writing.
//!
//! ```text
//! arming    all pages are protected, piece by piece; a write opens its chunk again
//! holding   safe point; each write waits; the opened chunks are protected again     ─→ the instant
//! copying   each chunk is copied by the save, or before its first write by the fault; then it is open
//! ```
//! A write that faults while the opened chunks are protected again waits until all are. Otherwise it could
//! be missing in the save while a later write is part of it.
//!
//! All buffers together have one limit. At the limit, a write waits until the sink has taken a buffer.
//!
//! Source: Appel and Li, "Concurrent checkpointing": the pages are made read-only at the instant, and a
//! fault copies its page before it opens it.

use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fieldstone_pages::{Fault, Loss, Mechanism, Memory, Outcome, Trapping, Watch};

use crate::error::Result;
use crate::format::{CHUNK_PAGES, PAGE};
use crate::memory_words::copy;
use crate::output::Output;
use crate::page_set::PageSet;
use crate::stop::Stop;

const CHUNK: usize = CHUNK_PAGES * PAGE;
/// Bytes that are protected by one call while threads write: each call holds up page faults.
const PIECE: usize = 16 << 20;
/// How often the opened chunks are protected again before all writes wait.
const ARMING_ROUNDS: usize = 3;

/// How long faults may pass between two pieces.
const LET_PASS: Duration = Duration::from_millis(1);

/// A chunk that threads may write to.
const OPEN: u8 = 0;
/// A protected chunk, which is not copied yet.
const CLOSED: u8 = 1;
/// A protected chunk that a thread copies.
const COPYING: u8 = 2;
/// A chunk that is copied, or need not be.
const DONE: u8 = 3;

/// What a fault does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Arming,
    Holding,
    Copying,
    /// The save has failed: chunks are opened.
    Over,
}

/// Buffers of the chunks that faults have copied.
#[derive(Debug)]
struct Copies {
    phase: Phase,
    /// Region, chunk and contents, for the sink.
    ready: Vec<(usize, usize, Vec<u8>)>,
    free: Vec<Vec<u8>>,
    /// Buffers that may still be made.
    left: usize,
}

/// What the save and the faults of all regions share.
#[derive(Debug)]
struct Shared {
    copies: Mutex<Copies>,
    /// A phase has ended, a chunk is copied, or a buffer is free.
    changed: Condvar,
    longest_wait_ns: AtomicU64,
    /// Faults that wait for the lock.
    waiting: AtomicUsize,
}

/// A region whose chunks are protected.
struct ProtectedRegion {
    trapping: Trapping,
    chunks: Arc<[AtomicU8]>,
}

/// Memories with traps on writes.
pub(crate) struct CopyBeforeWrite {
    shared: Arc<Shared>,
    regions: Vec<ProtectedRegion>,
    buffers: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, copies: MutexGuard<'a, Copies>) -> MutexGuard<'a, Copies> {
        self.changed.wait(copies).unwrap_or_else(PoisonError::into_inner)
    }

    fn set_phase(&self, phase: Phase) {
        self.lock().phase = phase;
        self.changed.notify_all();
    }

    /// Serves a write to a protected page.
    fn serve(&self, region: usize, memory: &Memory, chunks: &[AtomicU8], fault: &Fault<'_>) -> Outcome {
        let begun = Instant::now();
        let chunk = fault.offset() / CHUNK;
        self.waiting.fetch_add(1, Relaxed);
        let mut copies = self.lock();
        self.waiting.fetch_sub(1, Relaxed);
        loop {
            match copies.phase {
                Phase::Holding => {}
                // The lock is held: the save does not protect the chunk between the two.
                Phase::Arming | Phase::Over => {
                    chunks[chunk].store(OPEN, Release);
                    let outcome = open(fault, memory, chunk);
                    drop(copies);
                    self.count_wait(begun);
                    return outcome;
                }
                Phase::Copying if chunks[chunk].load(Acquire) == DONE => break,
                Phase::Copying if chunks[chunk].load(Acquire) == CLOSED => {
                    let buffer = copies.free.pop().or_else(|| {
                        copies.left = copies.left.checked_sub(1)?;
                        Some(Vec::with_capacity(CHUNK))
                    });
                    match buffer {
                        Some(mut buffer) if take(&chunks[chunk]) => {
                            drop(copies);
                            let range = range_of(memory, chunk);
                            buffer.resize(range.len(), 0);
                            copy(memory, range, &mut buffer);
                            copies = self.lock();
                            copies.ready.push((region, chunk, buffer));
                            chunks[chunk].store(DONE, Release);
                            self.changed.notify_all();
                            break;
                        }
                        Some(buffer) => {
                            copies.free.push(buffer);
                            continue;
                        }
                        None => {}
                    }
                }
                Phase::Copying => {}
            }
            copies = self.wait(copies);
        }
        drop(copies);
        self.count_wait(begun);
        open(fault, memory, chunk)
    }

    fn count_wait(&self, begun: Instant) {
        self.longest_wait_ns.fetch_max(begun.elapsed().as_nanos() as u64, Relaxed);
    }
}

/// Takes a closed chunk, to copy it.
fn take(chunk: &AtomicU8) -> bool {
    chunk.compare_exchange(CLOSED, COPYING, AcqRel, Acquire).is_ok()
}

/// The bytes of a chunk.
fn range_of(memory: &Memory, chunk: usize) -> Range<usize> {
    chunk * CHUNK..((chunk + 1) * CHUNK).min(memory.bytes())
}

fn open(fault: &Fault<'_>, memory: &Memory, chunk: usize) -> Outcome {
    if fault.unprotect_others(range_of(memory, chunk)).is_ok() { Outcome::Resolved } else { Outcome::Chain }
}

impl CopyBeforeWrite {
    /// Memories that no region controls. `buffer_bytes` is the limit of all buffers. `None` for pages
    /// larger than 4 KiB, and if this machine has no traps that system calls of the program wait for.
    pub(crate) fn new(memories: &[Memory], buffer_bytes: usize) -> Option<Self> {
        if memories.iter().any(|memory| memory.page_bytes() != PAGE) {
            return None;
        }
        let buffers = (buffer_bytes / CHUNK).max(2);
        let copies = Copies { phase: Phase::Arming, ready: Vec::new(), free: Vec::new(), left: buffers };
        let shared = Arc::new(Shared {
            copies: Mutex::new(copies),
            changed: Condvar::new(),
            longest_wait_ns: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
        });
        let regions = memories.iter().enumerate().map(|(index, memory)| {
            let chunks: Arc<[AtomicU8]> = (0..memory.bytes().div_ceil(CHUNK)).map(|_| AtomicU8::new(OPEN)).collect();
            let (shared, states, pages) = (Arc::clone(&shared), Arc::clone(&chunks), memory.share());
            let serve = move |fault: &Fault<'_>| shared.serve(index, &pages, &states, fault);
            let trapping = Trapping::new(memory.share(), Watch::Writes, serve).ok()?;
            let is_complete = trapping.mechanism() == Mechanism::UserfaultThread
                && !trapping.losses().contains(&Loss::KernelAccesses);
            is_complete.then_some(ProtectedRegion { trapping, chunks })
        });
        Some(Self { regions: regions.collect::<Option<_>>()?, shared, buffers })
    }

    /// The largest size of all buffers together.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        let left = self.shared.lock().left;
        ((self.buffers - left) * CHUNK) as u64
    }

    pub(crate) fn longest_wait(&self) -> Duration {
        Duration::from_nanos(self.shared.longest_wait_ns.load(Relaxed))
    }

    /// Takes the instant: protects all pages, runs the safe point, and protects what was written
    /// meanwhile, while all writes wait.
    ///
    /// # Errors
    /// If pages cannot be protected.
    pub(crate) fn hold<G>(&self, safe_point: &impl Fn() -> (G, u64)) -> Result<Stop> {
        for region in &self.regions {
            let bytes = region.trapping.memory().bytes();
            for start in (0..bytes).step_by(PIECE) {
                self.close(region, start / CHUNK..bytes.min(start + PIECE).div_ceil(CHUNK))?;
            }
        }
        for _ in 0..ARMING_ROUNDS {
            self.close_opened()?;
        }
        // Before the writes wait: a thread that holds what the safe point takes may be about to write.
        let (guard, value) = safe_point();
        let begun = Instant::now();
        self.shared.set_phase(Phase::Holding);
        self.close_opened()?;
        self.shared.set_phase(Phase::Copying);
        let duration = begun.elapsed();
        drop(guard);
        Ok(Stop { value, duration, missed: 0 })
    }

    fn close_opened(&self) -> Result<()> {
        for region in &self.regions {
            let mut at = 0;
            while let Some(first) = region.chunks[at..].iter().position(|chunk| chunk.load(Acquire) == OPEN) {
                let first = at + first;
                let opened = region.chunks[first..].iter().take_while(|chunk| chunk.load(Acquire) == OPEN).count();
                at = first + opened.min(PIECE / CHUNK);
                self.close(region, first..at)?;
            }
        }
        Ok(())
    }

    /// Protects chunks. No fault opens one of them meanwhile.
    fn close(&self, region: &ProtectedRegion, chunks: Range<usize>) -> Result<()> {
        // The lock is not fair: faults come before the next piece.
        let begun = Instant::now();
        while self.shared.waiting.load(Relaxed) > 0 && begun.elapsed() < LET_PASS {
            std::thread::yield_now();
        }
        let _faults_wait = self.shared.lock();
        region.chunks[chunks.clone()].iter().for_each(|chunk| chunk.store(CLOSED, Release));
        let memory = region.trapping.memory();
        Ok(region.trapping.protect(chunks.start * CHUNK..range_of(memory, chunks.end - 1).end)?)
    }

    /// Copies and writes all chunks with pages of `used`, as of the instant.
    ///
    /// # Errors
    /// Those of the sink.
    pub(crate) fn write(&self, used: &[PageSet], output: &mut Output<'_>) -> Result<()> {
        for (index, (region, used)) in self.regions.iter().zip(used).enumerate() {
            let memory = region.trapping.memory();
            for chunk in 0..region.chunks.len() {
                self.write_ready(output)?;
                if !take(&region.chunks[chunk]) {
                    continue;
                }
                let range = range_of(memory, chunk);
                let is_used = used.has_any(chunk * CHUNK_PAGES..range.end / PAGE);
                if is_used {
                    copy(memory, range.clone(), output.buffer(range.len()));
                }
                region.chunks[chunk].store(DONE, Release);
                // A thread that waits has seen the state before, or is woken.
                drop(self.shared.lock());
                self.shared.changed.notify_all();
                if is_used {
                    region.trapping.unprotect(range)?;
                    output.add(index, chunk * CHUNK_PAGES)?;
                }
            }
        }
        // Faults may still copy chunks that this loop has passed.
        for chunk in self.regions.iter().flat_map(|region| region.chunks.iter()) {
            let mut copies = self.shared.lock();
            while chunk.load(Acquire) != DONE {
                copies = self.shared.wait(copies);
            }
        }
        self.write_ready(output)
    }

    /// Writes what faults have copied.
    fn write_ready(&self, output: &mut Output<'_>) -> Result<()> {
        loop {
            let Some((region, chunk, mut buffer)) = self.shared.lock().ready.pop() else { return Ok(()) };
            let written = output.exchange(region, chunk * CHUNK_PAGES, &mut buffer);
            self.shared.lock().free.push(buffer);
            self.shared.changed.notify_all();
            written?;
        }
    }
}

impl Drop for CopyBeforeWrite {
    fn drop(&mut self) {
        // Writes that wait go on; the traps end with their regions.
        self.shared.set_phase(Phase::Over);
    }
}
