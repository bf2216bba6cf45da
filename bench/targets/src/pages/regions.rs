//! What a fault costs where there are ten thousand regions, against one.
//!
//! Each sample has 10,000 pages, written in the same random order, each fault opening its page: pages of 10,000 regions of one page, or of
//! one region of 10,000. All of it is made, protected and dropped anew for each sample, since what is registered is seen by all
//! faults; only the faults are timed. Many and one lie in the kernel alike: as one mapping.

use std::time::{Duration, Instant};

use anyhow::Context;
use fieldstone_pages::{Fault, Mechanism, Memory, Outcome, Trapping, Watch};

use super::{PAGE, SET_UP, shuffled};
use crate::cell::Cell;
use crate::duel::{cpu_seconds, duel};
use crate::goals::Goal;

const FAULTS: usize = 10_000;

fn open(fault: &Fault<'_>) -> Outcome {
    if fault.unprotect().is_ok() { Outcome::Resolved } else { Outcome::Chain }
}

/// So many regions with so many pages each, resident and protected. All are mapped, then all touched, then all put under control: so
/// neighbours stay one mapping of the kernel's.
fn regions(count: usize, mechanism: Mechanism) -> anyhow::Result<Vec<Trapping>> {
    let memories = (0..count).map(|_| Memory::anonymous(FAULTS / count * PAGE)).collect::<Result<Vec<_>, _>>()?;
    memories.iter().try_for_each(Memory::populate)?;
    let regions = memories.into_iter().map(|memory| {
        // SAFETY: the handler makes a system call.
        unsafe { Trapping::with(memory, Watch::Writes, mechanism, open) }
    });
    let regions = regions.collect::<Result<Vec<_>, _>>()?;
    regions.iter().try_for_each(|region| region.protect(0..region.memory().bytes()))?;
    Ok(regions)
}

/// Seconds of one fault on each page, in random order.
fn faults(count: usize, mechanism: Mechanism, order: &[usize]) -> f64 {
    let regions = regions(count, mechanism).expect(SET_UP);
    let each = FAULTS / count;
    let places: Vec<*mut u8> =
        order.iter().map(|page| regions[page / each].memory().as_ptr().wrapping_add(page % each * PAGE)).collect();
    let write = || {
        for place in &places {
            // SAFETY: inside one of the regions.
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

/// Ten thousand regions against one.
pub(super) fn many_against_one(goal: Goal, limit: Duration, mechanism: Mechanism) -> anyhow::Result<Cell> {
    drop(regions(1, mechanism).with_context(|| mechanism.name())?);
    let order = shuffled(FAULTS);
    let (many, one) = (|| faults(FAULTS, mechanism, &order), || faults(1, mechanism, &order));
    Ok(duel(goal, mechanism.name(), "", limit, many, one))
}
