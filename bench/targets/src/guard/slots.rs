//! The cells `guarded_alloc_vs_mprotect` and `guards_in_one_process`: `Slots` of
//! `fieldstone-guard`.
//!
//! ```text
//! 8,000 live   free a random object, allocate one, write to it
//! 1 live       allocate an object, write to it, free it                    shown without a goal
//! ```
//! Both sides keep the same number of freed objects inaccessible, and neither records stacks.

#![allow(unsafe_code, reason = "writes to objects by their addresses, and frees them")]

use std::alloc::Layout;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::Context;
use fieldstone_guard::{Side, Slots};
use fieldstone_stats::Estimate;
use fieldstone_workloads::random::SplitMix64;

use super::protected_slots::ProtectedSlots;
use crate::cell::GoalCell;
use crate::goals::Goal;
use crate::kernel_comparison::{compare, cpu_seconds, print_ratio};

const LIVE: usize = 8000;
/// Bytes of an object.
const BYTES: usize = 64;
/// Freed objects that stay inaccessible. `Slots` keeps a batch of 64 more.
const QUARANTINE: usize = 4096;
const BATCH: usize = 64;
/// Objects that one run allocates and frees.
const PAIRS: usize = 4000;
const NO_SLOT: &str = "both sides have more slots than live and freed objects";

/// Guarded objects, by their addresses.
trait GuardedHeap: Sync {
    fn alloc(&self) -> usize;

    /// # Safety
    /// `object` is live, and no code uses it any more.
    unsafe fn free(&self, object: usize);
}

impl GuardedHeap for Slots {
    fn alloc(&self) -> usize {
        Self::alloc(self, Layout::new::<[u64; BYTES / 8]>()).expect(NO_SLOT).as_ptr().expose_provenance()
    }

    unsafe fn free(&self, object: usize) {
        let object = NonNull::new(with_exposed_provenance_mut(object)).expect("objects are not null");
        // SAFETY: the caller's guarantee is the same.
        unsafe { Self::free(self, object) }.expect("no byte beside the object was written");
    }
}

impl GuardedHeap for ProtectedSlots {
    fn alloc(&self) -> usize {
        Self::alloc(self, BYTES).expect(NO_SLOT)
    }

    unsafe fn free(&self, object: usize) {
        // SAFETY: the caller's guarantee is the same.
        unsafe { Self::free(self, object) }
    }
}

/// Measures one and two threads with 8,000 live objects, and one live object without a goal.
pub(super) fn measure(goal: &Goal, limit: Duration, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    for threads in [1, 2] {
        let (mut own, mut other) =
            (LiveObjects::new(slots()?, LIVE, threads), LiveObjects::new(protected()?, LIVE, threads));
        let (case, note) = match threads {
            1 => ("8,000 live, 1 thread", "processor time"),
            _ => ("8,000 live, 2 threads", "wall time"),
        };
        let cell = compare(goal.clone(), case, note, limit, || own.replace_each(), || other.replace_each());
        print_times(goal, case, &cell);
        show(cell);
    }
    let (own, other) = (slots()?, protected()?);
    print_ratio(&format!("{} 1 live", goal.name), || one_at_a_time(&own), || one_at_a_time(&other));
    Ok(())
}

fn slots() -> anyhow::Result<Slots> {
    Ok(Slots::builder().side(Side::Right).quarantine(QUARANTINE).build()?)
}

fn protected() -> anyhow::Result<ProtectedSlots> {
    ProtectedSlots::new(LIVE + QUARANTINE + BATCH).context("cannot map memory for slots")
}

fn print_times(goal: &Goal, case: &str, cell: &GoalCell) {
    let us = |side: usize| {
        let seconds = cell.samples.get(side).map_or(&[][..], |(_, seconds)| seconds);
        fieldstone_stats::median(seconds).unwrap_or(f64::NAN) * 1e6
    };
    println!("# {} {case}: {:.2} µs a pair; mprotect(2) {:.2} µs", goal.name, us(0), us(1));
}

/// Live objects in random order, the same number for each thread.
struct LiveObjects<H> {
    heap: H,
    objects: Vec<Vec<usize>>,
    random: SplitMix64,
}

impl<H: GuardedHeap> LiveObjects<H> {
    fn new(heap: H, count: usize, threads: usize) -> Self {
        let objects = (0..threads).map(|_| (0..count / threads).map(|_| heap.alloc()).collect()).collect();
        let mut live = Self { heap, objects, random: SplitMix64::new(1) };
        // Random order, and a full quarantine.
        for _ in 0..2 * count / PAIRS {
            live.replace_each();
        }
        live
    }

    /// Replaces random objects by all threads; returns seconds per object of a thread.
    fn replace_each(&mut self) -> f64 {
        let Self { heap, objects, random } = self;
        let seconds = match &mut objects[..] {
            [objects] => cpu_seconds(|| replace(heap, objects, random.draw())),
            all => {
                let started = Barrier::new(all.len() + 1);
                let since = std::thread::scope(|scope| {
                    for objects in all {
                        let (heap, started, seed) = (&*heap, &started, random.draw());
                        scope.spawn(move || {
                            started.wait();
                            replace(heap, objects, seed);
                        });
                    }
                    started.wait();
                    Instant::now()
                });
                // The scope has joined all threads.
                since.elapsed().as_secs_f64()
            }
        };
        seconds / PAIRS as f64
    }
}

fn replace(heap: &impl GuardedHeap, objects: &mut [usize], seed: u64) {
    let mut random = SplitMix64::new(seed);
    for _ in 0..PAIRS {
        let object = &mut objects[random.below(objects.len())];
        // SAFETY: the object is live, and this slice alone has its address.
        unsafe { heap.free(*object) };
        *object = heap.alloc();
        touch(*object);
    }
}

/// Seconds per object, one live at a time.
fn one_at_a_time(heap: &impl GuardedHeap) -> f64 {
    let seconds = cpu_seconds(|| {
        for _ in 0..PAIRS {
            let object = heap.alloc();
            touch(object);
            // SAFETY: the object is live, and its address is not used any more.
            unsafe { heap.free(object) };
        }
    });
    seconds / PAIRS as f64
}

fn touch(object: usize) {
    // SAFETY: the callers pass live objects.
    unsafe { with_exposed_provenance_mut::<u8>(object).write_volatile(1) };
}

/// Counts live objects with a guard behind each. A guard counts if the kernel refuses to read it,
/// and can read the last byte of the object before it.
pub(super) fn count_guards(goal: Goal) -> anyhow::Result<GoalCell> {
    let layout = Layout::from_size_align(4096, 16)?;
    let wanted = 210_000;
    // Room for the objects, and as much for records and page tables.
    let slots = Slots::builder().memory(2 * wanted * layout.size()).build()?;
    let before = mappings()?;
    let ends: Vec<usize> =
        (0..wanted).map_while(|_| slots.alloc(layout)).map(|object| object.addr().get() + layout.size()).collect();
    let added = mappings()?.saturating_sub(before);
    if !slots.stats().has_markers {
        return Ok(GoalCell::skipped(goal, "guards without a mapping take Linux 6.13"));
    }
    let kernel = File::open("/proc/self/mem").context("/proc/self/mem")?;
    let reads = |address: usize| kernel.read_exact_at(&mut [0], address as u64).is_ok();
    let count = ends.iter().take_while(|&&end| !reads(end) && reads(end - 1)).count() as f64;
    // A count without sampling error.
    let estimate = Estimate { n: 1, median: count, low: count, high: count, confidence: Some(1.0) };
    let note = format!("live objects of 4 KiB, each before a guard, in {added} more mappings");
    Ok(GoalCell::measured(goal, "", Some(estimate), &note))
}

/// The number of mappings of this process.
fn mappings() -> anyhow::Result<usize> {
    Ok(std::fs::read_to_string("/proc/self/maps").context("/proc/self/maps")?.lines().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether an address is in a readable mapping, at a page that the kernel can read. It reads
    /// pages of mappings that mprotect(2) made inaccessible, but no markers.
    fn is_accessible(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let is_readable = |line: &str| {
            let (range, access) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let hexadecimal = |text| usize::from_str_radix(text, 16).ok();
            Some((hexadecimal(start)?..hexadecimal(end)?).contains(&address) && access.starts_with('r'))
        };
        let kernel = File::open("/proc/self/mem").unwrap();
        maps.lines().any(|line| is_readable(line) == Some(true))
            && kernel.read_exact_at(&mut [0], address as u64).is_ok()
    }

    fn check(heap: &impl GuardedHeap) {
        let object = heap.alloc();
        touch(object);
        assert!(is_accessible(object) && is_accessible(object + BYTES - 1) && !is_accessible(object + BYTES));
        // SAFETY: the object is live, and only the kernel accesses its address from here on.
        unsafe { heap.free(object) };
        assert!(!is_accessible(object));
    }

    #[test]
    fn freed_slots_of_both_kinds_are_inaccessible() {
        check(&slots().unwrap());
        check(&protected().unwrap());
    }
}
