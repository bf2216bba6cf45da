//! The measurements of traps: PROT1, PROTN, TRAP alone; and MAP2.
//!
//! A round is 100 repetitions, timed together; the number is the median of the rounds after the first. The handler counts its
//! calls, and a round whose count is not what it has to be is an error, not a number.

#![allow(unsafe_code, reason = "handlers in signals; writes through a second view")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use fieldstone_pages::{Fault, Memory, Outcome as Answer, Trapping, Watch};
use fieldstone_workloads::random::SplitMix64;

use super::add::add_ns;
use super::stage::{Ground, Spinner, UNITS, Units, middle, outcome, shuffled};
use super::{
    ADD, BLACK, FIGURE_2, MAP2, MAP2_PAGE, PAGE, PAGE_BYTES, PROT1, PROTN, Setting, TABLE, TRAP, WHITE, size_row,
    trap_rows,
};
use crate::experiment::{Figure, Outcome};
use crate::trial::Trial;

/// No unit.
const NONE: usize = usize::MAX;

/// What a handler is to do, and what it did.
struct Orders {
    units: Units,
    /// Faults that are answered without a change.
    futile: AtomicU64,
    /// The unit that is protected when another one is opened; it is the one that was opened last.
    open: AtomicUsize,
    calls: AtomicU64,
}

impl Orders {
    /// Async-signal-safe.
    fn answer(&self, fault: &Fault<'_>) -> Answer {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let futile = self.futile.load(Ordering::Relaxed);
        if futile > 0 {
            self.futile.store(futile - 1, Ordering::Relaxed);
            return Answer::Resolved;
        }
        let unit = self.units.at(fault.offset());
        // Protected first: once its page is open, who faulted goes on, and may come upon the other one before it is protected.
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
        if protected.and(opened).is_ok() { Answer::Resolved } else { Answer::Chain }
    }
}

/// Memory under a setting's mechanism.
struct Bench {
    trapping: Trapping,
    units: Units,
    orders: Arc<Orders>,
}

impl Bench {
    fn new(memory: Memory, units: Units, setting: Setting) -> Result<Self> {
        let orders = Arc::new(Orders {
            units,
            futile: AtomicU64::new(0),
            open: AtomicUsize::new(NONE),
            calls: AtomicU64::new(0),
        });
        let own = Arc::clone(&orders);
        // SAFETY: the handler makes system calls and touches atomic numbers.
        let trapping =
            unsafe { Trapping::with(memory, Watch::Writes, setting.mechanism, move |fault| own.answer(fault)) }?;
        Ok(Self { trapping, units, orders })
    }

    fn write(&self, unit: usize) {
        self.units.write(self.trapping.memory(), unit, 1);
    }

    /// Nanoseconds of `work` by `operations`. It has to fault so often.
    fn timed(&self, operations: usize, faults: usize, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        let before = self.orders.calls.load(Ordering::Relaxed);
        let since = Instant::now();
        work()?;
        let took_ns = since.elapsed().as_secs_f64() * 1e9;
        let calls = self.orders.calls.load(Ordering::Relaxed) - before;
        ensure!(calls == faults as u64, "{faults} faults were to come, and {calls} came");
        Ok(took_ns / operations as f64)
    }

    /// A random protected page is accessed; its handler opens it and protects the one that was open.
    fn prot1(&self, random: &mut SplitMix64) -> Result<f64> {
        self.trapping.protect(self.units.all())?;
        let mut open = 0;
        self.trapping.unprotect(self.units.of(open))?;
        self.orders.open.store(open, Ordering::Relaxed);
        let order: Vec<usize> = (0..UNITS)
            .map(|_| {
                // Any but the one that is open.
                let step = 1 + usize::try_from(random.draw() % (UNITS as u64 - 1)).unwrap_or(0);
                open = (open + step) % UNITS;
                open
            })
            .collect();
        let took = self.timed(UNITS, UNITS, || {
            order.iter().for_each(|&unit| self.write(unit));
            Ok(())
        });
        self.orders.open.store(NONE, Ordering::Relaxed);
        took
    }

    /// All pages are protected in one go, and each is accessed in random order.
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

    /// A protected page is accessed, and the handler changes nothing a hundred times over. The last call opens it.
    fn trap(&self) -> Result<f64> {
        self.trapping.protect(self.units.of(0))?;
        self.orders.futile.store(UNITS as u64, Ordering::Relaxed);
        self.timed(UNITS + 1, UNITS + 1, || {
            self.write(0);
            Ok(())
        })
    }
}

pub(super) fn measure(trial: &Trial, setting: Setting) -> Result<Outcome> {
    outcome(figures(trial, setting))
}

fn figures(trial: &Trial, setting: Setting) -> Result<Vec<Figure>> {
    let rounds = if trial.quick { 10 } else { 30 };
    let ground = Ground::new(setting.unit)?;
    let pages = (setting.unit != PAGE).then(|| ground.pages());
    let units = ground.units;
    let bench = Bench::new(ground.memory, units, setting)?;
    let spinner = Spinner::start(setting.threads);
    let mut random = SplitMix64::new(trial.layout.seed);
    let spinner = spinner.as_ref().and_then(|spinner| spinner.beside(setting.mechanism));
    let prot1 = middle(rounds, spinner, || bench.prot1(&mut random))?;
    let protn = middle(rounds, spinner, || bench.protn(&mut random))?;
    let mut figures: Vec<Figure> = [(PROT1, prot1), (PROTN, protn)]
        .map(|(what, ns)| Figure { pages: pages.clone(), ..Figure::of(size_row(what, setting), ns) })
        .into();
    if setting.unit == PAGE {
        let trap = middle(rounds, spinner, || bench.trap())?;
        let (add, map2) = (add_ns(rounds), middle(rounds, spinner, || map2(setting))?);
        let rows = trap_rows(setting);
        let mut put = |table, column, figure: fn(String, f64) -> Figure, value| {
            let row = rows.iter().find(|row| row.table == table && row.column == Some(column));
            figures.extend(row.map(|row| figure(row.figure(), value)));
        };
        let of = |row: String, value| Figure::of(row, value);
        put(TABLE, TRAP, of, trap);
        put(TABLE, PROT1, of, prot1);
        put(TABLE, PROTN, of, protn);
        put(TABLE, MAP2, |row, _| Figure::word(row, "yes"), 0.0);
        put(TABLE, PAGE_BYTES, |row, bytes| Figure::word(row, bytes.to_string()), PAGE.bytes as f64);
        put(TABLE, MAP2_PAGE, of, map2);
        if let Some(add) = add {
            put(TABLE, ADD, of, add);
            put(FIGURE_2, BLACK, of, protn / add);
            put(FIGURE_2, WHITE, of, (prot1 - protn) / add);
        }
    }
    Ok(figures)
}

/// A second view is made, written through on each page while the first one is protected, and taken away: nanoseconds a page.
fn map2(setting: Setting) -> Result<f64> {
    let memory = Memory::shared(UNITS * PAGE.bytes)?;
    memory.populate()?;
    let never = |_: &Fault<'_>| Answer::Chain;
    // SAFETY: the handler accesses no memory and takes no lock.
    let trapping = unsafe { Trapping::with(memory, Watch::Writes, setting.mechanism, never) }?;
    trapping.protect(0..UNITS * PAGE.bytes)?;
    let since = Instant::now();
    let view = trapping.memory().alias()?;
    for unit in 0..UNITS {
        // SAFETY: inside the view, which has the memory's size.
        unsafe { view.as_ptr().add(unit * PAGE.bytes).write_volatile(7) };
    }
    drop(view);
    let took_ns = since.elapsed().as_secs_f64() * 1e9;
    // SAFETY: inside the memory, whose pages may be read.
    let seen = (0..UNITS).all(|unit| unsafe { trapping.memory().as_ptr().add(unit * PAGE.bytes).read_volatile() } == 7);
    ensure!(seen, "what was written through the second view is not in the first");
    Ok(took_ns / UNITS as f64)
}
