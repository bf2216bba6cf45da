//! The measurements of traps (PROT1, PROTN, TRAP alone) and of MAP2.
//!
//! A round is 100 repetitions, timed together. The result is the median of the rounds after the
//! first. The handler counts its calls, and a round with another count than expected is an error.

#![allow(unsafe_code, reason = "handlers in signals; writes through a second view")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use fieldstone_pages::{Fault, Memory, Outcome, Trapping, Watch};
use fieldstone_workloads::random::SplitMix64;

use super::add::add_ns;
use super::test_memory::{SpinningThread, TestMemory, UNITS, Units, median_of_rounds, shuffled};
use super::{
    ADD, BLACK, FIGURE_2, MAP2, MAP2_PAGE, PAGE, PAGE_BYTES, PROT1, PROTN, Setting, TABLE, TRAP, WHITE, rounds,
    size_row, trap_rows,
};
use crate::experiment::MeasuredValue;
use crate::trial::Trial;

/// The number of no unit.
const NONE: usize = usize::MAX;

/// The state that a handler reads and writes.
struct HandlerState {
    units: Units,
    /// Number of faults to return from without a change.
    futile: AtomicU64,
    /// The unprotected unit, which the next fault protects.
    open: AtomicUsize,
    /// Number of calls.
    calls: AtomicU64,
}

impl HandlerState {
    /// Handles a fault. Async-signal-safe: atomics and system calls only.
    fn answer(&self, fault: &Fault<'_>) -> Outcome {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let futile = self.futile.load(Ordering::Relaxed);
        if futile > 0 {
            self.futile.store(futile - 1, Ordering::Relaxed);
            return Outcome::Resolved;
        }
        let unit = self.units.at(fault.offset());
        // Protects the other unit first. Once the faulting page is open, its thread continues and
        // could access the other unit before it is protected.
        let protected = match self.open.load(Ordering::Relaxed) {
            NONE => Ok(()),
            open => {
                self.open.store(unit, Ordering::Relaxed);
                fault.protect_others(self.units.of(open))
            }
        };
        let opened = if fault.page().len() == self.units.bytes {
            fault.unprotect()
        } else {
            fault.unprotect_others(self.units.of(unit))
        };
        if protected.and(opened).is_ok() { Outcome::Resolved } else { Outcome::Chain }
    }
}

/// Memory with the mechanism of a setting.
struct TrapBench {
    trapping: Trapping,
    units: Units,
    state: Arc<HandlerState>,
}

impl TrapBench {
    fn new(memory: Memory, units: Units, setting: Setting) -> Result<Self> {
        let state = Arc::new(HandlerState {
            units,
            futile: AtomicU64::new(0),
            open: AtomicUsize::new(NONE),
            calls: AtomicU64::new(0),
        });
        let own = Arc::clone(&state);
        // SAFETY: the handler is async-signal-safe: it uses atomics and system calls only.
        let trapping =
            unsafe { Trapping::with(memory, Watch::Writes, setting.mechanism, move |fault| own.answer(fault)) }?;
        Ok(Self { trapping, units, state })
    }

    fn write(&self, unit: usize) {
        self.units.write(self.trapping.memory(), unit, 1);
    }

    /// Nanoseconds per operation of `work`, which must cause `faults` faults.
    fn timed(&self, operations: usize, faults: usize, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        let before = self.state.calls.load(Ordering::Relaxed);
        let since = Instant::now();
        work()?;
        let took_ns = since.elapsed().as_secs_f64() * 1e9;
        let calls = self.state.calls.load(Ordering::Relaxed) - before;
        ensure!(calls == faults as u64, "the handler was called {calls} times for {faults} faults");
        Ok(took_ns / operations as f64)
    }

    /// Writes to random protected units. The handler unprotects each and protects the one before.
    fn prot1(&self, random: &mut SplitMix64) -> Result<f64> {
        self.trapping.protect(self.units.all())?;
        let mut open = 0;
        self.trapping.unprotect(self.units.of(open))?;
        self.state.open.store(open, Ordering::Relaxed);
        let order: Vec<usize> = (0..UNITS)
            .map(|_| {
                // Any unit except the open one.
                let step = 1 + usize::try_from(random.draw() % (UNITS as u64 - 1)).unwrap_or(0);
                open = (open + step) % UNITS;
                open
            })
            .collect();
        let took = self.timed(UNITS, UNITS, || {
            order.iter().for_each(|&unit| self.write(unit));
            Ok(())
        });
        self.state.open.store(NONE, Ordering::Relaxed);
        took
    }

    /// Protects all units by one call, and writes to each in random order.
    fn protn(&self, random: &mut SplitMix64) -> Result<f64> {
        let order = shuffled(random);
        self.trapping.unprotect(self.units.all())?;
        order.iter().for_each(|&unit| self.write(unit));
        self.timed(UNITS, UNITS, || {
            self.trapping.protect(self.units.all())?;
            order.iter().for_each(|&unit| self.write(unit));
            Ok(())
        })
    }

    /// Writes to a protected unit. The handler changes nothing for a hundred calls, and unprotects
    /// the unit at the last.
    fn trap(&self) -> Result<f64> {
        self.trapping.protect(self.units.of(0))?;
        self.state.futile.store(UNITS as u64, Ordering::Relaxed);
        self.timed(UNITS + 1, UNITS + 1, || {
            self.write(0);
            Ok(())
        })
    }
}

pub(super) fn measure(trial: &Trial, setting: Setting) -> Result<Vec<MeasuredValue>> {
    let rounds = rounds(trial);
    let test_memory = TestMemory::new(setting.unit)?;
    let pages = (setting.unit != PAGE).then(|| test_memory.pages());
    let units = test_memory.units;
    let bench = TrapBench::new(test_memory.memory, units, setting)?;
    let spinner = SpinningThread::start(setting.threads);
    let mut random = SplitMix64::new(trial.layout.seed);
    let spinner = spinner.as_ref().and_then(|spinner| spinner.with_own_faults(setting.mechanism));
    let prot1 = median_of_rounds(rounds, spinner, || bench.prot1(&mut random))?;
    let protn = median_of_rounds(rounds, spinner, || bench.protn(&mut random))?;
    let mut figures: Vec<MeasuredValue> = [(PROT1, prot1), (PROTN, protn)]
        .map(|(what, ns)| MeasuredValue { pages: pages.clone(), ..MeasuredValue::of(size_row(what, setting), ns) })
        .into();
    if setting.unit == PAGE {
        let trap = median_of_rounds(rounds, spinner, || bench.trap())?;
        let (add, map2) = (add_ns(rounds), median_of_rounds(rounds, spinner, || map2(setting))?);
        let rows = trap_rows(setting);
        let mut put = |table, column, figure: fn(String, f64) -> MeasuredValue, value| {
            let row = rows.iter().find(|row| row.table == table && row.column == Some(column));
            figures.extend(row.map(|row| figure(row.value_name(), value)));
        };
        let of = |row: String, value| MeasuredValue::of(row, value);
        put(TABLE, TRAP, of, trap);
        put(TABLE, PROT1, of, prot1);
        put(TABLE, PROTN, of, protn);
        put(TABLE, MAP2, |row, _| MeasuredValue::word(row, "yes"), 0.0);
        put(TABLE, PAGE_BYTES, |row, bytes| MeasuredValue::word(row, bytes.to_string()), PAGE.bytes as f64);
        put(TABLE, MAP2_PAGE, of, map2);
        if let Some(add) = add {
            put(TABLE, ADD, of, add);
            put(FIGURE_2, BLACK, of, protn / add);
            put(FIGURE_2, WHITE, of, (prot1 - protn) / add);
        }
    }
    Ok(figures)
}

/// Makes a second view, writes to each of its pages while the first view is protected, and removes
/// it. Returns nanoseconds per page.
fn map2(setting: Setting) -> Result<f64> {
    let memory = Memory::shared(UNITS * PAGE.bytes)?;
    memory.populate()?;
    let never = |_: &Fault<'_>| Outcome::Chain;
    // SAFETY: the handler accesses no memory and takes no lock.
    let trapping = unsafe { Trapping::with(memory, Watch::Writes, setting.mechanism, never) }?;
    trapping.protect(0..UNITS * PAGE.bytes)?;
    let since = Instant::now();
    let view = trapping.memory().alias()?;
    for unit in 0..UNITS {
        // SAFETY: `unit` is below UNITS, so the byte is inside the view, which has the memory's
        // size.
        unsafe { view.as_ptr().add(unit * PAGE.bytes).write_volatile(7) };
    }
    drop(view);
    let took_ns = since.elapsed().as_secs_f64() * 1e9;
    // SAFETY: `unit` is below UNITS, so the byte is inside the memory, which can be read.
    let seen = (0..UNITS).all(|unit| unsafe { trapping.memory().as_ptr().add(unit * PAGE.bytes).read_volatile() } == 7);
    ensure!(seen, "a write through the second view is lost");
    Ok(took_ns / UNITS as f64)
}
