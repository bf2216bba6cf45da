//! The cost of a fault with ten thousand regions, relative to one region.
//!
//! Each sample writes 10,000 pages in the same random order, and each fault unprotects its page.
//! The pages belong to 10,000 regions of one page, or to one region of 10,000 pages. In the kernel,
//! both are one mapping. Each sample creates and drops all regions, because all faults search the
//! registered regions. Only the faults are timed.

use std::time::{Duration, Instant};

use anyhow::Context;
use fieldstone_pages::{Fault, Mechanism, Memory, Outcome, Trapping, Watch};

use super::{PAGE, UNEXPECTED, shuffled};
use crate::cell::GoalCell;
use crate::goals::Goal;
use crate::kernel_comparison::{compare, cpu_seconds};

const FAULTS: usize = 10_000;

fn open(fault: &Fault<'_>) -> Outcome {
    if fault.unprotect().is_ok() { Outcome::Resolved } else { Outcome::Chain }
}

/// Creates `count` resident, protected regions. Maps all, touches all, then registers all, so that
/// the kernel keeps one mapping.
fn regions(count: usize, mechanism: Mechanism) -> anyhow::Result<Vec<Trapping>> {
    let memories = (0..count).map(|_| Memory::anonymous(FAULTS / count * PAGE)).collect::<Result<Vec<_>, _>>()?;
    memories.iter().try_for_each(Memory::populate)?;
    let regions = memories.into_iter().map(|memory| {
        // SAFETY: the handler is async-signal-safe: it does one system call.
        unsafe { Trapping::with(memory, Watch::Writes, mechanism, open) }
    });
    let regions = regions.collect::<Result<Vec<_>, _>>()?;
    regions.iter().try_for_each(|region| region.protect(0..region.memory().bytes()))?;
    Ok(regions)
}

/// Seconds for one fault on each page, in random order.
fn faults(count: usize, mechanism: Mechanism, order: &[usize]) -> f64 {
    let regions = regions(count, mechanism).expect(UNEXPECTED);
    let each = FAULTS / count;
    let places: Vec<*mut u8> =
        order.iter().map(|page| regions[page / each].memory().as_ptr().wrapping_add(page % each * PAGE)).collect();
    let write = || {
        for place in &places {
            // SAFETY: `place` is inside a region, and `regions` keeps all regions mapped.
            unsafe { place.write_volatile(1) };
        }
    };
    if mechanism == Mechanism::UserfaultThread {
        let since = Instant::now();
        write();
        return since.elapsed().as_secs_f64();
    }
    cpu_seconds(write)
}

/// Compares ten thousand regions with one.
pub(super) fn many_against_one(goal: Goal, limit: Duration, mechanism: Mechanism) -> anyhow::Result<GoalCell> {
    drop(regions(1, mechanism).with_context(|| mechanism.name())?);
    let order = shuffled(FAULTS);
    let (many, one) = (|| faults(FAULTS, mechanism, &order), || faults(1, mechanism, &order));
    Ok(compare(goal, mechanism.name(), "", limit, many, one))
}
