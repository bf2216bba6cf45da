//! The memory that is measured, a hundred resident units on the requested pages; a second thread
//! that spins; and the medians of rounds.

#![allow(unsafe_code, reason = "accesses protected memory")]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use fieldstone_pages::{Error, Mechanism, Memory};
use fieldstone_stats::median;
use fieldstone_sys::huge_pages::mode_path;
use fieldstone_sys::knob::{KnobSetting, Restorer};
use fieldstone_sys::pagemap;
use fieldstone_workloads::random::SplitMix64;
use rustix::mm::{Advice, madvise};

use super::{FOLIO, PAGE, ProtectedUnit};
use crate::experiment::{MeasuredValue, SampleOutcome};
use crate::provenance::thread_cpu_s;

/// The hundred pages of the paper.
pub(super) const UNITS: usize = 100;

/// The place of the units in a memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Units {
    /// Offset of the first unit.
    base: usize,
    pub(super) bytes: usize,
}

/// Memory of [`UNITS`] units. Their page size is enabled until this is dropped.
pub(super) struct TestMemory {
    pub(super) memory: Memory,
    pub(super) units: Units,
    _folios: Option<(KnobSetting, Restorer)>,
}

impl TestMemory {
    /// Resident private memory; the units are aligned to their size.
    pub(super) fn new(unit: ProtectedUnit) -> Result<Self> {
        let folios = if unit == FOLIO { folios_on() } else { None };
        let memory = Memory::anonymous((UNITS + 1) * unit.bytes)?;
        let base = memory.start().next_multiple_of(unit.bytes) - memory.start();
        let units = Units { base, bytes: unit.bytes };
        if unit == FOLIO {
            // Makes every second unit resident first. Then no huge page fits, and the kernel uses
            // folios.
            for at in (0..UNITS).step_by(2) {
                let start = memory.as_ptr().wrapping_add(units.of(at).start).cast();
                // SAFETY: the range is inside the memory, and the advice changes no contents. If it
                // is refused, the pages are small.
                let _ = unsafe { madvise(start, unit.bytes, Advice::LinuxHugepage) };
                units.write(&memory, at, 0);
            }
        }
        if unit != PAGE {
            memory.advise_huge();
        }
        memory.populate()?;
        Ok(Self { memory, units, _folios: folios })
    }

    /// The page sizes of the units, as shares.
    pub(super) fn pages(&self) -> String {
        let (start, bytes) = (self.memory.start() + self.units.base, UNITS * self.units.bytes);
        folios_under(start as u64..(start + bytes) as u64)
    }
}

/// Enables folios of 64 KiB for advised memory, if this user may. The results name the real page
/// sizes.
fn folios_on() -> Option<(KnobSetting, Restorer)> {
    let restorer = Restorer::start().ok()?;
    let knob = restorer.set(&mode_path(FOLIO.bytes as u64), "madvise").ok()?;
    Some((knob, restorer))
}

/// The folios of a range, as shares.
fn folios_under(range: Range<u64>) -> String {
    let placement = pagemap::read(std::process::id(), std::slice::from_ref(&range));
    let Some(frames) = placement.as_ref().ok().and_then(|placement| placement.exact()) else {
        return crate::pages::under(range);
    };
    let share = |bytes: u64| (bytes as f64 / (range.end - range.start) as f64 * 100.0).round();
    let kinds = frames.folios.iter().filter(|folio| share(folio.bytes) > 0.0);
    kinds
        .map(|folio| format!("{} KiB {} %", folio.folio_bytes >> 10, share(folio.bytes)))
        .collect::<Vec<_>>()
        .join(", ")
}

impl Units {
    /// The offsets of a unit in the memory.
    pub(super) fn of(self, unit: usize) -> Range<usize> {
        let start = self.base + unit * self.bytes;
        start..start + self.bytes
    }

    pub(super) fn all(self) -> Range<usize> {
        self.of(0).start..self.of(UNITS - 1).end
    }

    /// The unit that contains an offset.
    pub(super) fn at(self, offset: usize) -> usize {
        (offset - self.base) / self.bytes
    }

    /// Writes the first byte of a unit.
    pub(super) fn write(self, memory: &Memory, unit: usize, value: u8) {
        assert!(unit < UNITS && self.of(unit).end <= memory.bytes());
        // SAFETY: the assertion above keeps the byte inside the memory.
        unsafe { memory.as_ptr().add(self.of(unit).start).write_volatile(value) };
    }

    /// Reads the first byte of a unit.
    pub(super) fn read(self, memory: &Memory, unit: usize) -> u8 {
        assert!(unit < UNITS && self.of(unit).end <= memory.bytes());
        // SAFETY: the assertion above keeps the byte inside the memory.
        unsafe { memory.as_ptr().add(self.of(unit).start).read_volatile() }
    }
}

/// All units in random order.
pub(super) fn shuffled(random: &mut SplitMix64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..UNITS).collect();
    for last in (1..UNITS).rev() {
        let other = usize::try_from(random.draw() % (last as u64 + 1)).unwrap_or(0);
        order.swap(last, other);
    }
    order
}

/// A thread that spins until this is dropped.
pub(super) struct SpinningThread {
    stop: Arc<AtomicBool>,
    /// Number of its loop iterations.
    iterations: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl SpinningThread {
    /// The spinner if the measuring thread handles its own faults. With a handler thread it sleeps
    /// most of the time, and rounds are not compared with the spinner's progress.
    pub(super) fn with_own_faults(&self, mechanism: Mechanism) -> Option<&Self> {
        let waits = matches!(mechanism, Mechanism::UserfaultThread | Mechanism::ProtectThread);
        (!waits).then_some(self)
    }

    pub(super) fn start(threads: u32) -> Option<Self> {
        (threads > 1).then(|| {
            let stop = Arc::new(AtomicBool::new(false));
            let (stopped, iterations) = (Arc::clone(&stop), Arc::new(AtomicU64::new(0)));
            let count = Arc::clone(&iterations);
            let spin = move || {
                while !stopped.load(Ordering::Relaxed) {
                    count.fetch_add(1, Ordering::Relaxed);
                    std::hint::spin_loop();
                }
            };
            let thread = std::thread::spawn(spin);
            while iterations.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            Self { stop, iterations, thread: Some(thread) }
        })
    }
}

impl Drop for SpinningThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The thread cannot panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Time after which fewer rounds are enough.
const TIME_LIMIT: Duration = Duration::from_secs(4);
/// Number of rounds that are enough after [`TIME_LIMIT`].
const MIN_ROUNDS: usize = 4;

/// The medians of `rounds` rounds, each of which gives `N` numbers. Drops the first round.
///
/// On a busy machine both threads do not always run at the same time. With a spinner, a round
/// counts only if this thread had its processor for 90 % of the time, and the spinner ran at half
/// its best speed or more.
///
/// # Errors
/// The first error of `round`; [`TooBusy`] if too few rounds count.
pub(super) fn medians_of_rounds<const N: usize>(
    rounds: usize,
    spinner: Option<&SpinningThread>,
    mut round: impl FnMut() -> Result<[f64; N]>,
) -> Result<[f64; N]> {
    round()?;
    let iterations = || spinner.map_or(0, |spinner| spinner.iterations.load(Ordering::Relaxed));
    let began = Instant::now();
    let (mut best, mut done): (f64, Vec<(f64, [f64; N])>) = (0.0, Vec::new());
    let kept = loop {
        let (before, cpu_s, since) = (iterations(), thread_cpu_s(), Instant::now());
        let times = round()?;
        let (wall_s, count) = (since.elapsed().as_secs_f64(), iterations() - before);
        if spinner.is_none() || thread_cpu_s() - cpu_s >= 0.9 * wall_s {
            let rate = count as f64 / wall_s;
            best = best.max(rate);
            done.push((rate, times));
        }
        let kept: Vec<[f64; N]> = done.iter().filter(|(rate, _)| 2.0 * rate >= best).map(|(_, times)| *times).collect();
        let is_spinning = spinner.is_none() || best > 0.0;
        let is_late = began.elapsed() > TIME_LIMIT;
        if is_spinning && (kept.len() >= rounds || is_late && kept.len() >= MIN_ROUNDS) {
            break kept;
        }
        if is_late {
            return Err(TooBusy.into());
        }
    };
    Ok(std::array::from_fn(|at| {
        let times: Vec<f64> = kept.iter().map(|times| times[at]).collect();
        median(&times).unwrap_or(f64::NAN)
    }))
}

/// The error of rounds in which two threads did not run at the same time.
#[derive(Debug)]
struct TooBusy;

impl std::fmt::Display for TooBusy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("two threads did not run at the same time: the machine is busy, or has one processor")
    }
}

impl std::error::Error for TooBusy {}

/// The same for rounds of one number.
pub(super) fn median_of_rounds(
    rounds: usize,
    spinner: Option<&SpinningThread>,
    mut round: impl FnMut() -> Result<f64>,
) -> Result<f64> {
    medians_of_rounds(rounds, spinner, || round().map(|time| [time])).map(|[time]| time)
}

/// The outcome of a setting: its values, or a skip if the machine lacks the mechanism.
pub(super) fn outcome(measured: Result<Vec<MeasuredValue>>) -> Result<SampleOutcome> {
    match measured {
        Ok(figures) => Ok(SampleOutcome::measured(figures)),
        Err(error) if error.is::<TooBusy>() => Ok(SampleOutcome::Skipped { reason: error.to_string() }),
        Err(error) => match error.downcast::<Error>() {
            Ok(
                refused @ (Error::Unsupported { .. } | Error::System { call: "userfaultfd" | "UFFDIO_REGISTER", .. }),
            ) => Ok(SampleOutcome::Skipped { reason: refused.to_string() }),
            Ok(error) => Err(error.into()),
            Err(error) => Err(error),
        },
    }
}
