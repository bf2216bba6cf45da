//! The section `[pages]`: the primitives of `fieldstone-pages` against hand-written system calls.
//!
//! ```text
//! bare.c         the hand-written side, compiled by the C compiler
//! bare           its Rust interface
//! regions        a fault with 10,000 regions against one
//! one_processor  pins all threads to one processor
//! ```
//! Both sides of a pair have separate resident memory of the same kind, access the same pages in
//! the same order, and use the same number of threads. Times are CPU time of this thread, or wall
//! time if another thread handles the faults.
//!
//! Invariant: the bare signal handlers are installed before a bare run and removed after it,
//! outside the timed section, so they never see the faults of the other side.

#![allow(unsafe_code, reason = "handlers in signals; writes through a second view")]

mod bare;
mod one_processor;
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

use crate::cell::GoalCell;
use crate::goals::Goal;
use crate::kernel_comparison::{compare, cpu_seconds};
use crate::request::Request;
use bare::{Bare, FaultDelivery, write_each};
use one_processor::OneProcessor;

const SECTION: &str = "pages";
const PAGE: usize = 4096;
/// Pages per memory.
const PAGES: usize = 2000;
/// Faults of one access that the handler does not resolve.
const FUTILE: u32 = 2000;
const GIB: usize = 1 << 30;

/// Mechanisms with a name and the bare counterpart.
const MECHANISMS: [(&str, Mechanism, FaultDelivery); 2] = [
    ("userfaultfd", Mechanism::UserfaultSignal, FaultDelivery::Signal),
    ("mprotect", Mechanism::ProtectSignal, FaultDelivery::Protect),
];

/// Measures the cells of the section.
pub(crate) fn measure(request: &Request<'_>, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let Request { goals, limit, only, .. } = *request;
    println!("# bare system calls: {}", if bare::is_available() { "C" } else { "none, no C compiler was found" });
    let mut measure_goal =
        |name: &str, cells: &dyn Fn(&PagesBench) -> Vec<anyhow::Result<GoalCell>>| -> anyhow::Result<()> {
            if !name.contains(only) {
                return Ok(());
            }
            let bench = PagesBench { limit, goal: goals.get(SECTION, name)? };
            if !bare::is_available() && name.contains("_vs_") && !name.contains("regions") {
                show(GoalCell::skipped(bench.goal, "not built: install a C compiler, then `make build`"));
                return Ok(());
            }
            for cell in cells(&bench) {
                // A failed setup means a mechanism that the machine or the user lacks.
                // crates/lib/pages/tests verify the mechanisms otherwise.
                show(cell.unwrap_or_else(|error| GoalCell::skipped(bench.goal.clone(), &format!("{error:#}"))));
            }
            Ok(())
        };
    measure_goal("each_primitive_vs_bare", &|bench| {
        let each = MECHANISMS.iter().flat_map(|&mechanism| {
            [bench.trap(mechanism), bench.prot1(mechanism), bench.protn(mechanism), bench.unprot(mechanism)]
        });
        let thread =
            bench.trap(("userfaultfd, a thread, one processor", Mechanism::UserfaultThread, FaultDelivery::Thread));
        each.chain([thread, bench.dirty(), bench.map2(), bench.guard()]).collect()
    })?;
    measure_goal("sparse_dirty_vs_mprotect", &|bench| vec![bench.sparse_dirty()])?;
    measure_goal("guards_in_one_process", &|bench| vec![bench.guards()])?;
    measure_goal("fault_10000_regions_vs_1", &|bench| {
        [Mechanism::UserfaultSignal, Mechanism::ProtectSignal, Mechanism::UserfaultThread]
            .map(|mechanism| regions::many_against_one(bench.goal.clone(), bench.limit, mechanism))
            .into()
    })
}

struct PagesBench {
    limit: Duration,
    goal: Goal,
}

type MechanismCase = (&'static str, Mechanism, FaultDelivery);

/// Resident memory of `pages` small pages.
fn memory(pages: usize) -> anyhow::Result<Memory> {
    let memory = Memory::anonymous(pages * PAGE)?;
    memory.populate()?;
    Ok(memory)
}

/// Memory of our side: its handler unprotects the page of each fault, after `futile` unresolved
/// faults.
struct TrappedMemory {
    trapping: Trapping,
    futile: Arc<AtomicU32>,
}

impl TrappedMemory {
    fn new(mechanism: Mechanism) -> anyhow::Result<Self> {
        let futile = Arc::new(AtomicU32::new(0));
        let left = Arc::clone(&futile);
        let handler = move |fault: &Fault<'_>| {
            let remaining = left.load(Ordering::Relaxed);
            if remaining > 0 {
                left.store(remaining - 1, Ordering::Relaxed);
                return Outcome::Resolved;
            }
            if fault.unprotect().is_ok() { Outcome::Resolved } else { Outcome::Chain }
        };
        // SAFETY: the handler is async-signal-safe: it uses an atomic and at most one system call.
        let trapping = unsafe { Trapping::with(memory(PAGES)?, Watch::Writes, mechanism, handler) }?;
        Ok(Self { trapping, futile })
    }

    fn all() -> std::ops::Range<usize> {
        0..PAGES * PAGE
    }
}

/// The pages in random order.
fn shuffled(pages: usize) -> Vec<usize> {
    let (mut order, mut random) = ((0..pages).collect::<Vec<_>>(), SplitMix64::new(1));
    for last in (1..pages).rev() {
        let other = usize::try_from(random.draw() % (last as u64 + 1)).expect("below a usize");
        order.swap(last, other);
    }
    order
}

/// Every third page in random order, so that the neighbours of each page have another protection.
fn thirds() -> Vec<usize> {
    shuffled(PAGES / 3).into_iter().map(|page| 3 * page).collect()
}

const fn page(at: usize) -> std::ops::Range<usize> {
    at * PAGE..(at + 1) * PAGE
}

/// Seconds of one access: wall time with a handler thread, else CPU time.
fn access_seconds(delivery: FaultDelivery, access: impl FnOnce()) -> f64 {
    if delivery != FaultDelivery::Thread {
        return cpu_seconds(access);
    }
    let since = Instant::now();
    access();
    since.elapsed().as_secs_f64()
}

/// For calls that fail only if the machine runs out of a resource during a run.
const UNEXPECTED: &str = "a call that succeeded during setup";

impl PagesBench {
    fn compare(&self, case: &str, own: impl FnMut() -> f64, other: impl FnMut() -> f64) -> GoalCell {
        compare(self.goal.clone(), case, "", self.limit, own, other)
    }

    /// A faulting access whose handler does not resolve the fault.
    fn trap(&self, (name, mechanism, delivery): MechanismCase) -> anyhow::Result<GoalCell> {
        let (own, mut other) = (TrappedMemory::new(mechanism)?, Bare::new(memory(PAGES)?, delivery, false)?);
        let _pinned = if delivery == FaultDelivery::Thread { Some(OneProcessor::pin()?) } else { None };
        Ok(self.compare(
            &format!("TRAP, {name}"),
            || {
                own.trapping.protect(page(0)).expect(UNEXPECTED);
                own.futile.store(FUTILE, Ordering::Relaxed);
                access_seconds(delivery, || write_each(own.trapping.memory(), &[0]))
            },
            || {
                other.with_handler(|bare| {
                    bare.protect_each(&[0]);
                    access_seconds(delivery, || bare.trap(FUTILE))
                })
            },
        ))
    }

    /// Protects single pages in random order.
    fn prot1(&self, (name, mechanism, delivery): MechanismCase) -> anyhow::Result<GoalCell> {
        let (own, other, order) =
            (TrappedMemory::new(mechanism)?, Bare::new(memory(PAGES)?, delivery, false)?, thirds());
        Ok(self.compare(
            &format!("PROT1, {name}"),
            || {
                own.trapping.unprotect(TrappedMemory::all()).expect(UNEXPECTED);
                write_each(own.trapping.memory(), &order);
                cpu_seconds(|| order.iter().for_each(|&at| own.trapping.protect(page(at)).expect(UNEXPECTED)))
            },
            || {
                other.unprotect_all();
                write_each(other.memory(), &order);
                cpu_seconds(|| other.protect_each(&order))
            },
        ))
    }

    /// Protects all pages by one call.
    fn protn(&self, (name, mechanism, delivery): MechanismCase) -> anyhow::Result<GoalCell> {
        let (own, other) = (TrappedMemory::new(mechanism)?, Bare::new(memory(PAGES)?, delivery, false)?);
        let all: Vec<usize> = (0..PAGES).collect();
        let open = |memory: &Memory| write_each(memory, &all);
        Ok(self.compare(
            &format!("PROTN, {name}"),
            || {
                own.trapping.unprotect(TrappedMemory::all()).expect(UNEXPECTED);
                open(own.trapping.memory());
                cpu_seconds(|| own.trapping.protect(TrappedMemory::all()).expect(UNEXPECTED))
            },
            || {
                other.unprotect_all();
                open(other.memory());
                cpu_seconds(|| other.protect_all())
            },
        ))
    }

    /// Unprotects single pages in random order.
    fn unprot(&self, (name, mechanism, delivery): MechanismCase) -> anyhow::Result<GoalCell> {
        let (own, other, order) =
            (TrappedMemory::new(mechanism)?, Bare::new(memory(PAGES)?, delivery, false)?, thirds());
        Ok(self.compare(
            &format!("UNPROT, {name}"),
            || {
                own.trapping.protect(TrappedMemory::all()).expect(UNEXPECTED);
                cpu_seconds(|| order.iter().for_each(|&at| own.trapping.unprotect(page(at)).expect(UNEXPECTED)))
            },
            || {
                other.protect_all();
                cpu_seconds(|| other.unprotect_each(&order))
            },
        ))
    }

    /// Finds the written pages, every third one, and makes them clean.
    fn dirty(&self) -> anyhow::Result<GoalCell> {
        let own = Tracking::with(memory(PAGES)?, Mechanism::Scan)?;
        let other = Bare::new(memory(PAGES)?, FaultDelivery::None, false)?;
        other.protect_all();
        let (pagemap, order) = (File::open("/proc/self/pagemap").context("/proc/self/pagemap")?, thirds());
        let expected = i64::try_from(order.len())?;
        let mut found = 0;
        let cell = self.compare(
            "DIRTY, pagemap-scan",
            || {
                write_each(own.memory(), &order);
                let seconds = cpu_seconds(|| found = pages_found(&own));
                assert_eq!(found, expected, "each written page is found");
                seconds
            },
            || {
                write_each(other.memory(), &order);
                let mut found = 0;
                let seconds = cpu_seconds(|| found = other.dirty(&pagemap));
                assert_eq!(found, expected, "each written page is found");
                seconds
            },
        );
        Ok(cell)
    }

    /// Makes a second view, writes to each of its pages, and removes it.
    fn map2(&self) -> anyhow::Result<GoalCell> {
        // Both sides use the same pages, because their cache sets change the time by more than 10
        // %.
        let file = File::from(rustix::fs::memfd_create("fieldstone-map2", rustix::fs::MemfdFlags::CLOEXEC)?);
        file.set_len((PAGES * PAGE) as u64)?;
        let own = Memory::file(&file, 0, PAGES * PAGE)?;
        own.populate()?;
        let order: Vec<usize> = (0..PAGES).collect();
        Ok(self.compare(
            "MAP2",
            || {
                cpu_seconds(|| {
                    let view = own.alias().expect(UNEXPECTED);
                    bare::write_each_of(&view, &order);
                })
            },
            || cpu_seconds(|| bare::map2(&file, PAGES * PAGE, &order).expect(UNEXPECTED)),
        ))
    }

    /// Makes single untouched pages guards, in random order.
    fn guard(&self) -> anyhow::Result<GoalCell> {
        let (own, other, order) = (Memory::anonymous(PAGES * PAGE)?, Memory::anonymous(PAGES * PAGE)?, thirds());
        own.guard_with(0..PAGE, GuardMechanism::Marker).context("guards without a mapping take Linux 6.13")?;
        Ok(self.compare(
            "guard",
            || {
                own.unguard(TrappedMemory::all()).expect(UNEXPECTED);
                cpu_seconds(|| {
                    for &at in &order {
                        own.guard(page(at)).expect(UNEXPECTED);
                    }
                })
            },
            || {
                other.unguard(TrappedMemory::all()).expect(UNEXPECTED);
                cpu_seconds(|| bare::guard_each(&other, &order))
            },
        ))
    }

    /// A round of incremental checkpointing: 1 GiB is clean and tracked, 1 % of it is written, and
    /// the written pages are collected. Our scan also makes them clean; mprotect(2) has to protect
    /// all pages again.
    fn sparse_dirty(&self) -> anyhow::Result<GoalCell> {
        let pages = GIB / PAGE;
        let own = Tracking::with(memory(pages)?, Mechanism::Scan)?;
        let mut other = Bare::new(memory(pages)?, FaultDelivery::Protect, true)?;
        let mut order = shuffled(pages);
        order.truncate(pages / 100);
        let expected = i64::try_from(order.len())?;
        assert_eq!(pages_found(&own), 0, "all is clean at first");
        Ok(self.compare(
            "1 % of 1 GiB",
            || {
                cpu_seconds(|| {
                    write_each(own.memory(), &order);
                    assert_eq!(pages_found(&own), expected);
                })
            },
            || {
                cpu_seconds(|| {
                    other.with_handler(|bare| {
                        bare.protect_all();
                        write_each(bare.memory(), &order);
                    });
                    assert_eq!(other.logged(), expected);
                })
            },
        ))
    }

    /// Counts guards with a page between each two. A guard counts if the kernel refuses to read it.
    fn guards(&self) -> anyhow::Result<GoalCell> {
        let wanted = 210_000;
        let memory = Memory::anonymous(2 * wanted * PAGE)?;
        let made = (0..wanted).take_while(|at| memory.guard(page(2 * at)).is_ok()).count();
        let kernel = File::open("/proc/self/mem").context("/proc/self/mem")?;
        let reads = |at: usize| kernel.read_exact_at(&mut [0], (memory.start() + at * PAGE) as u64).is_ok();
        let count = (0..made).take_while(|at| !reads(2 * at) && reads(2 * at + 1)).count() as f64;
        // A count without sampling error.
        let estimate = Estimate { n: 1, median: count, low: count, high: count, confidence: Some(1.0) };
        Ok(GoalCell::measured(
            self.goal.clone(),
            "",
            Some(estimate),
            "the kernel cannot read each guard, and can read the page after it",
        ))
    }
}

fn pages_found(tracking: &Tracking) -> i64 {
    let found = tracking.dirty().expect(UNEXPECTED).map(|range| range.expect(UNEXPECTED).len() / PAGE).sum::<usize>();
    i64::try_from(found).expect("pages of a memory")
}
