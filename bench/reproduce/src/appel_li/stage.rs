//! What is measured on: a hundred units of memory on the pages that were asked for, resident; and a second thread that spins.

#![allow(unsafe_code, reason = "touches memory under control")]

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

use super::{FOLIO, PAGE, Unit};
use crate::experiment::{Figure, Outcome};
use crate::provenance::thread_cpu_s;

/// The paper's hundred pages.
pub(super) const UNITS: usize = 100;

/// Where the units lie in a memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Units {
    /// Of the first, from the memory's start.
    base: usize,
    pub(super) bytes: usize,
}

/// Memory of [`UNITS`] units, with a page size that is switched on as long as this is held.
pub(super) struct Ground {
    pub(super) memory: Memory,
    pub(super) units: Units,
    _folios: Option<(KnobSetting, Restorer)>,
}

impl Ground {
    /// Private memory; the units are aligned to their size.
    pub(super) fn new(unit: Unit) -> Result<Self> {
        let folios = if unit == FOLIO { folios_on() } else { None };
        let memory = Memory::anonymous((UNITS + 1) * unit.bytes)?;
        let base = memory.start().next_multiple_of(unit.bytes) - memory.start();
        let units = Units { base, bytes: unit.bytes };
        if unit == FOLIO {
            // Where some of a huge page's place is taken, no huge page comes: every other unit first, while it stands alone.
            for at in (0..UNITS).step_by(2) {
                let start = memory.as_ptr().wrapping_add(units.of(at).start).cast();
                // SAFETY: a part of the memory; the advice changes no contents. Where it is refused, pages are small.
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

    /// What the units got, and why no more.
    pub(super) fn pages(&self) -> String {
        let (start, bytes) = (self.memory.start() + self.units.base, UNITS * self.units.bytes);
        folios_under(start as u64..(start + bytes) as u64)
    }
}

/// Turns folios of 64 KiB on for memory that asks for them, where this user may. The numbers name the pages that were obtained.
fn folios_on() -> Option<(KnobSetting, Restorer)> {
    let restorer = Restorer::start().ok()?;
    let knob = restorer.set(&mode_path(FOLIO.bytes as u64), "madvise").ok()?;
    Some((knob, restorer))
}

/// The folios under a range, as shares.
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
    /// The bytes of a unit, from the memory's start.
    pub(super) fn of(self, unit: usize) -> Range<usize> {
        let start = self.base + unit * self.bytes;
        start..start + self.bytes
    }

    pub(super) fn all(self) -> Range<usize> {
        self.of(0).start..self.of(UNITS - 1).end
    }

    /// The unit that a byte lies in.
    pub(super) fn at(self, offset: usize) -> usize {
        (offset - self.base) / self.bytes
    }

    /// Writes a byte of a unit.
    pub(super) fn write(self, memory: &Memory, unit: usize, value: u8) {
        assert!(unit < UNITS && self.of(unit).end <= memory.bytes());
        // SAFETY: the assertion above keeps the byte inside the memory.
        unsafe { memory.as_ptr().add(self.of(unit).start).write_volatile(value) };
    }

    /// Reads what `write` wrote.
    pub(super) fn read(self, memory: &Memory, unit: usize) -> u8 {
        assert!(unit < UNITS && self.of(unit).end <= memory.bytes());
        // SAFETY: the assertion above keeps the byte inside the memory.
        unsafe { memory.as_ptr().add(self.of(unit).start).read_volatile() }
    }
}

/// All units, in an order of its own for each seed.
pub(super) fn shuffled(random: &mut SplitMix64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..UNITS).collect();
    for last in (1..UNITS).rev() {
        let other = usize::try_from(random.draw() % (last as u64 + 1)).unwrap_or(0);
        order.swap(last, other);
    }
    order
}

/// Another thread that runs as long as this is held.
pub(super) struct Spinner {
    stop: Arc<AtomicBool>,
    turning: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Spinner {
    /// Itself, where the other thread serves its own faults: else that one mostly waits.
    pub(super) fn beside(&self, mechanism: Mechanism) -> Option<&Self> {
        let waits = matches!(mechanism, Mechanism::UserfaultThread | Mechanism::ProtectThread);
        (!waits).then_some(self)
    }

    pub(super) fn start(threads: u32) -> Option<Self> {
        (threads > 1).then(|| {
            let stop = Arc::new(AtomicBool::new(false));
            let (seen, turning) = (Arc::clone(&stop), Arc::new(AtomicU64::new(0)));
            let turns = Arc::clone(&turning);
            let spin = move || {
                while !seen.load(Ordering::Relaxed) {
                    turns.fetch_add(1, Ordering::Relaxed);
                    std::hint::spin_loop();
                }
            };
            let thread = std::thread::spawn(spin);
            while turning.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            Self { stop, turning, thread: Some(thread) }
        })
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It cannot panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// How long rounds in vain are put up with.
const PATIENCE: Duration = Duration::from_secs(4);
/// Rounds that are enough when it is over.
const FEWEST: usize = 4;

/// The medians of some rounds, each of which gives `N` numbers; the one before them is not counted.
///
/// On a busy machine the spinning thread does not always run beside the other one: only rounds count in which this thread was on its
/// processor for nine tenths of the time, and the other one turned at least half as fast as at best. Where handlers have a thread
/// of their own this one sleeps most of the time, and `spinner` is none.
pub(super) fn medians<const N: usize>(
    rounds: usize,
    spinner: Option<&Spinner>,
    mut round: impl FnMut() -> Result<[f64; N]>,
) -> Result<[f64; N]> {
    round()?;
    let turns = || spinner.map_or(0, |spinner| spinner.turning.load(Ordering::Relaxed));
    let began = Instant::now();
    let (mut best, mut done): (f64, Vec<(f64, [f64; N])>) = (0.0, Vec::new());
    let kept = loop {
        let (before, cpu_s, since) = (turns(), thread_cpu_s(), Instant::now());
        let times = round()?;
        let (wall_s, turned) = (since.elapsed().as_secs_f64(), turns() - before);
        if spinner.is_none() || thread_cpu_s() - cpu_s >= 0.9 * wall_s {
            let rate = turned as f64 / wall_s;
            best = best.max(rate);
            done.push((rate, times));
        }
        let kept: Vec<[f64; N]> = done.iter().filter(|(rate, _)| 2.0 * rate >= best).map(|(_, times)| *times).collect();
        let turning = spinner.is_none() || best > 0.0;
        let is_late = began.elapsed() > PATIENCE;
        if turning && (kept.len() >= rounds || is_late && kept.len() >= FEWEST) {
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

/// Two threads did not run at the same time.
#[derive(Debug)]
struct TooBusy;

impl std::fmt::Display for TooBusy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("two threads did not run at the same time: the machine is busy, or has one processor")
    }
}

impl std::error::Error for TooBusy {}

/// The same of one number.
pub(super) fn middle(rounds: usize, spinner: Option<&Spinner>, mut round: impl FnMut() -> Result<f64>) -> Result<f64> {
    medians(rounds, spinner, || round().map(|time| [time])).map(|[time]| time)
}

/// What came of a setting: its figures, or the mechanism that this machine has not.
pub(super) fn outcome(measured: Result<Vec<Figure>>) -> Result<Outcome> {
    match measured {
        Ok(figures) => Ok(Outcome::Measured { figures, alternately: true }),
        Err(error) if error.is::<TooBusy>() => Ok(Outcome::Skipped { reason: error.to_string() }),
        Err(error) => match error.downcast::<Error>() {
            Ok(
                refused @ (Error::Unsupported { .. } | Error::System { call: "userfaultfd" | "UFFDIO_REGISTER", .. }),
            ) => Ok(Outcome::Skipped { reason: refused.to_string() }),
            Ok(error) => Err(error.into()),
            Err(error) => Err(error),
        },
    }
}
