//! The section `[pages]`: the primitives of `fieldstone-pages` against the system calls that a program would write by hand.
//!
//! ```text
//! bare.c   the bare sides, compiled by the C compiler
//! bare     the door to them
//! ```
//! Both sides of a pair have memory of their own, made the same way and resident, and touch the same pages in the same order; the
//! number of threads is the same. Times are this thread's on the processor; wall time where another thread answers the faults.
//! A call that another side's handler could see is made while that side listens: the bare handlers are installed before a
//! bare run and taken out after it, neither of which is timed.

#![allow(unsafe_code, reason = "handlers in signals; writes through a second view")]

mod bare;
mod placed;
mod regions;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use fieldstone_pages::{Fault, GuardMechanism, Mechanism, Memory, Outcome, Tracking, Trapping, Watch};
use fieldstone_stats::Estimate;
use fieldstone_workloads::random::SplitMix64;

use crate::cell::Cell;
use crate::duel::{cpu_seconds, duel};
use crate::goals::{Goal, Goals};
use bare::{Bare, Told, write_each};
use placed::OneProcessor;

const SECTION: &str = "pages";
const PAGE: usize = 4096;
/// Pages of a primitive's memory.
const PAGES: usize = 2000;
/// Faults in vain of one access.
const FUTILE: u32 = 2000;
const GIB: usize = 1 << 30;

/// A userfaultfd or mprotect(2), each with the name and the bare side of it.
const WAYS: [(&str, Mechanism, Told); 2] =
    [("userfaultfd", Mechanism::UserfaultSignal, Told::Signal), ("mprotect", Mechanism::ProtectSignal, Told::Protect)];

/// Measures the section's cells.
pub(crate) fn measure(goals: &Goals, limit: Duration, only: &str, show: &mut dyn FnMut(Cell)) -> anyhow::Result<()> {
    println!("# bare sides: {}", if bare::is_there() { "C" } else { "none, there was no C compiler" });
    let mut take = |name: &str, cells: &dyn Fn(&Stage) -> Vec<anyhow::Result<Cell>>| -> anyhow::Result<()> {
        if !name.contains(only) {
            return Ok(());
        }
        let stage = Stage { limit, goal: goals.get(SECTION, name)? };
        if !bare::is_there() && name.contains("_vs_") && !name.contains("regions") {
            show(Cell::skipped(stage.goal, "not built: install a C compiler, then `make build`"));
            return Ok(());
        }
        for cell in cells(&stage) {
            // What cannot be set up here is a mechanism that the machine or the user lacks; crates/lib/pages/tests hold that none is
            // lost otherwise.
            show(cell.unwrap_or_else(|error| Cell::skipped(stage.goal.clone(), &format!("{error:#}"))));
        }
        Ok(())
    };
    take("each_primitive_vs_bare", &|stage| {
        let each =
            WAYS.iter().flat_map(|&way| [stage.trap(way), stage.prot1(way), stage.protn(way), stage.unprot(way)]);
        let thread = stage.trap(("userfaultfd, a thread, one processor", Mechanism::UserfaultThread, Told::Thread));
        each.chain([thread, stage.dirty(), stage.map2(), stage.guard()]).collect()
    })?;
    take("sparse_dirty_vs_mprotect", &|stage| vec![stage.sparse_dirty()])?;
    take("guards_in_one_process", &|stage| vec![stage.guards()])?;
    take("fault_10000_regions_vs_1", &|stage| {
        [Mechanism::UserfaultSignal, Mechanism::ProtectSignal, Mechanism::UserfaultThread]
            .map(|mechanism| regions::many_against_one(stage.goal.clone(), stage.limit, mechanism))
            .into()
    })
}

struct Stage {
    limit: Duration,
    goal: Goal,
}

type Way = (&'static str, Mechanism, Told);

/// Memory of so many small pages, resident.
fn memory(pages: usize) -> anyhow::Result<Memory> {
    let memory = Memory::anonymous(pages * PAGE)?;
    memory.populate()?;
    Ok(memory)
}

/// Our side: every fault opens its page, but for so many in vain.
struct Own {
    trapping: Trapping,
    futile: Arc<AtomicU32>,
}

impl Own {
    fn new(mechanism: Mechanism) -> anyhow::Result<Self> {
        let futile = Arc::new(AtomicU32::new(0));
        let left = Arc::clone(&futile);
        let handler = move |fault: &Fault<'_>| {
            let vain = left.load(Ordering::Relaxed);
            if vain > 0 {
                left.store(vain - 1, Ordering::Relaxed);
                return Outcome::Resolved;
            }
            if fault.unprotect().is_ok() { Outcome::Resolved } else { Outcome::Chain }
        };
        // SAFETY: the handler makes a system call.
        let trapping = unsafe { Trapping::with(memory(PAGES)?, Watch::Writes, mechanism, handler) }?;
        Ok(Self { trapping, futile })
    }

    fn all() -> std::ops::Range<usize> {
        0..PAGES * PAGE
    }
}

/// Pages in random order.
fn shuffled(pages: usize) -> Vec<usize> {
    let (mut order, mut random) = ((0..pages).collect::<Vec<_>>(), SplitMix64::new(1));
    for last in (1..pages).rev() {
        let other = usize::try_from(random.draw() % (last as u64 + 1)).expect("below a usize");
        order.swap(last, other);
    }
    order
}

/// Every third page, in random order, so that neighbours of a page are of the other kind.
fn thirds() -> Vec<usize> {
    shuffled(PAGES / 3).into_iter().map(|page| 3 * page).collect()
}

const fn page(at: usize) -> std::ops::Range<usize> {
    at * PAGE..(at + 1) * PAGE
}

/// The seconds of one access.
fn timed(told: Told, access: impl FnOnce()) -> f64 {
    if told != Told::Thread {
        return cpu_seconds(access);
    }
    let since = Instant::now();
    access();
    since.elapsed().as_secs_f64()
}

/// Our calls fail only where the machine runs out of something in the middle of a run.
const SET_UP: &str = "what worked when it was set up";

impl Stage {
    fn duel(&self, part: &str, own: impl FnMut() -> f64, other: impl FnMut() -> f64) -> Cell {
        duel(self.goal.clone(), part, "", self.limit, own, other)
    }

    /// An access that faults, and whose handler changes nothing.
    fn trap(&self, (name, mechanism, told): Way) -> anyhow::Result<Cell> {
        let (own, mut other) = (Own::new(mechanism)?, Bare::new(memory(PAGES)?, told, false)?);
        let _placed = if told == Told::Thread { Some(OneProcessor::take()?) } else { None };
        Ok(self.duel(
            &format!("TRAP, {name}"),
            || {
                own.trapping.protect(page(0)).expect(SET_UP);
                own.futile.store(FUTILE, Ordering::Relaxed);
                timed(told, || write_each(own.trapping.memory(), &[0]))
            },
            || {
                other.listening(|bare| {
                    bare.protect_each(&[0]);
                    timed(told, || bare.trap(FUTILE))
                })
            },
        ))
    }

    /// One page is protected, and another one, in random order.
    fn prot1(&self, (name, mechanism, told): Way) -> anyhow::Result<Cell> {
        let (own, other, order) = (Own::new(mechanism)?, Bare::new(memory(PAGES)?, told, false)?, thirds());
        Ok(self.duel(
            &format!("PROT1, {name}"),
            || {
                own.trapping.unprotect(Own::all()).expect(SET_UP);
                write_each(own.trapping.memory(), &order);
                cpu_seconds(|| order.iter().for_each(|&at| own.trapping.protect(page(at)).expect(SET_UP)))
            },
            || {
                other.unprotect_all();
                write_each(other.memory(), &order);
                cpu_seconds(|| other.protect_each(&order))
            },
        ))
    }

    /// All pages are protected by one call.
    fn protn(&self, (name, mechanism, told): Way) -> anyhow::Result<Cell> {
        let (own, other) = (Own::new(mechanism)?, Bare::new(memory(PAGES)?, told, false)?);
        let all: Vec<usize> = (0..PAGES).collect();
        let open = |memory: &Memory| write_each(memory, &all);
        Ok(self.duel(
            &format!("PROTN, {name}"),
            || {
                own.trapping.unprotect(Own::all()).expect(SET_UP);
                open(own.trapping.memory());
                cpu_seconds(|| own.trapping.protect(Own::all()).expect(SET_UP))
            },
            || {
                other.unprotect_all();
                open(other.memory());
                cpu_seconds(|| other.protect_all())
            },
        ))
    }

    /// One page is opened, and another one, in random order.
    fn unprot(&self, (name, mechanism, told): Way) -> anyhow::Result<Cell> {
        let (own, other, order) = (Own::new(mechanism)?, Bare::new(memory(PAGES)?, told, false)?, thirds());
        Ok(self.duel(
            &format!("UNPROT, {name}"),
            || {
                own.trapping.protect(Own::all()).expect(SET_UP);
                cpu_seconds(|| order.iter().for_each(|&at| own.trapping.unprotect(page(at)).expect(SET_UP)))
            },
            || {
                other.protect_all();
                cpu_seconds(|| other.unprotect_each(&order))
            },
        ))
    }

    /// Every third page was written; the written ones are found and made clean.
    fn dirty(&self) -> anyhow::Result<Cell> {
        let own = Tracking::with(memory(PAGES)?, Mechanism::Scan)?;
        let other = Bare::new(memory(PAGES)?, Told::Nobody, false)?;
        other.protect_all();
        let (pagemap, order) = (File::open("/proc/self/pagemap").context("/proc/self/pagemap")?, thirds());
        let expected = i64::try_from(order.len())?;
        let mut found = 0;
        let cell = self.duel(
            "DIRTY, pagemap-scan",
            || {
                write_each(own.memory(), &order);
                let took = cpu_seconds(|| found = pages_found(&own));
                assert_eq!(found, expected, "each written page is found");
                took
            },
            || {
                write_each(other.memory(), &order);
                let mut found = 0;
                let took = cpu_seconds(|| found = other.dirty(&pagemap));
                assert_eq!(found, expected, "each written page is found");
                took
            },
        );
        Ok(cell)
    }

    /// A second view is made, written on each page, and taken away.
    fn map2(&self) -> anyhow::Result<Cell> {
        // The same pages on both sides: where they lie in the caches tells more than ten percent.
        let file = File::from(rustix::fs::memfd_create("fieldstone-map2", rustix::fs::MemfdFlags::CLOEXEC)?);
        file.set_len((PAGES * PAGE) as u64)?;
        let own = Memory::file(&file, 0, PAGES * PAGE)?;
        own.populate()?;
        let order: Vec<usize> = (0..PAGES).collect();
        Ok(self.duel(
            "MAP2",
            || {
                cpu_seconds(|| {
                    let view = own.alias().expect(SET_UP);
                    bare::write_each_of(&view, &order);
                })
            },
            || cpu_seconds(|| bare::map2(&file, PAGES * PAGE, &order).expect(SET_UP)),
        ))
    }

    /// One page is made a guard, and another one, in random order; they were never touched.
    fn guard(&self) -> anyhow::Result<Cell> {
        let (own, other, order) = (Memory::anonymous(PAGES * PAGE)?, Memory::anonymous(PAGES * PAGE)?, thirds());
        own.guard_with(0..PAGE, GuardMechanism::Marker).context("guards without a mapping take Linux 6.13")?;
        Ok(self.duel(
            "guard",
            || {
                own.unguard(Own::all()).expect(SET_UP);
                cpu_seconds(|| {
                    for &at in &order {
                        own.guard(page(at)).expect(SET_UP);
                    }
                })
            },
            || {
                other.unguard(Own::all()).expect(SET_UP);
                cpu_seconds(|| bare::guard_each(&other, &order))
            },
        ))
    }

    /// A round of incremental saving: all of 1 GiB is clean and watched, 1 % of it is written, the written pages are looked for.
    /// Our look makes what it finds clean again in the same step; mprotect(2) has to protect everything anew.
    fn sparse_dirty(&self) -> anyhow::Result<Cell> {
        let pages = GIB / PAGE;
        let own = Tracking::with(memory(pages)?, Mechanism::Scan)?;
        let mut other = Bare::new(memory(pages)?, Told::Protect, true)?;
        let mut order = shuffled(pages);
        order.truncate(pages / 100);
        let expected = i64::try_from(order.len())?;
        assert_eq!(pages_found(&own), 0, "all is clean at first");
        Ok(self.duel(
            "1 % of 1 GiB",
            || {
                cpu_seconds(|| {
                    write_each(own.memory(), &order);
                    assert_eq!(pages_found(&own), expected);
                })
            },
            || {
                cpu_seconds(|| {
                    other.listening(|bare| {
                        bare.protect_all();
                        write_each(bare.memory(), &order);
                    });
                    assert_eq!(other.logged(), expected);
                })
            },
        ))
    }

    /// Guards with a page between each two, counted by whether the kernel refuses to read them.
    fn guards(&self) -> anyhow::Result<Cell> {
        let wanted = 210_000;
        let memory = Memory::anonymous(2 * wanted * PAGE)?;
        let made = (0..wanted).take_while(|at| memory.guard(page(2 * at)).is_ok()).count();
        let kernel = File::open("/proc/self/mem").context("/proc/self/mem")?;
        let reads = |at: usize| kernel.read_exact_at(&mut [0], (memory.start() + at * PAGE) as u64).is_ok();
        let count = (0..made).take_while(|at| !reads(2 * at) && reads(2 * at + 1)).count() as f64;
        // Counted, not estimated.
        let estimate = Estimate { n: 1, median: count, low: count, high: count, confidence: Some(1.0) };
        Ok(Cell::measured(
            self.goal.clone(),
            "",
            Some(estimate),
            "each refused the kernel a read, and the page after it did not",
        ))
    }
}

fn pages_found(tracking: &Tracking) -> i64 {
    let found = tracking.dirty().expect(SET_UP).map(|range| range.expect(SET_UP).len() / PAGE).sum::<usize>();
    i64::try_from(found).expect("pages of a memory")
}
