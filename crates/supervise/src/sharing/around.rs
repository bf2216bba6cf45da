//! The accesses that a sample stands for: those of one lap around the loop that it was taken in.
//!
//! A thread is seldom stopped at the very instruction that waits. The code around it is decoded once for each loop and kept; each sample walks it with
//! its own registers. Where there is no loop, only the instructions up to the next jump count: what comes behind it may never run. Nor may what a
//! lap can leave out; that counts as long as a loop has few samples, and then where one was taken in it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use fieldstone_remap::Process;
use fieldstone_rewrite::walk::Access;
use fieldstone_rewrite::{Counter, Flow, Loop, Memory, Pages, Registers, WINDOW_BYTES, Walk};
use fieldstone_sys::sampling;

/// Places, by sampled instruction, that are kept decoded. A program has few places where it spends its time.
const MOST_PLACES: usize = 4096;
/// Addresses that user code can have; what lies outside was made of a register that is not known.
const USER: std::ops::Range<u64> = 0x1_0000..0x0000_8000_0000_0000;

/// Samples in a loop after which one has been taken in each of its blocks that is run now and then.
const ENOUGH: u32 = 16;

/// Code that was sampled.
#[derive(Debug, Default)]
pub(super) struct Around {
    /// By instruction: an instruction that is here was sampled. Those of a loop have one in common.
    places: BTreeMap<u64, Option<Arc<Place>>>,
    /// Samples in each loop, by its head.
    samples: HashMap<u64, u32>,
}

#[derive(Debug)]
struct Place {
    flow: Flow,
    within: Option<Loop>,
    /// The blocks of it that are in no smaller one.
    own: BTreeSet<u64>,
    /// The code in it that a lap may leave out.
    optional: Vec<Range<u64>>,
    /// Those of all loops around it, the innermost first.
    counters: Vec<Counter>,
}

/// Reads memory of a process: as the process sees it where pages of it are elsewhere, and `own` where it is not held.
pub(super) fn with_memory<R>(process: Option<&Process>, own: &dyn Memory, read: impl FnOnce(&dyn Memory) -> R) -> R {
    match process.map(Process::as_seen) {
        Some(seen) => read(&seen),
        None => read(own),
    }
}

impl Around {
    /// The accesses of a lap around the sampled instruction. Costs a system call for each page that is read from the program's memory,
    /// and the first time at an instruction the decoding of its surroundings.
    pub(super) fn accesses(&mut self, memory: &dyn Memory, registers: &sampling::Registers) -> Vec<Access> {
        let Some(place) = self.place(memory, registers.rip) else { return Vec::new() };
        let walk = Walk::around(&place.flow, place.within.as_ref(), &of_sample(registers), &Pages::of(memory));
        let samples = place.within.as_ref().map(|within| self.samples.entry(within.head).or_default());
        let is_young = samples.is_some_and(|samples| {
            *samples = samples.saturating_add(1);
            *samples <= ENOUGH
        });
        let first = place.flow.block_at(registers.rip);
        let runs = |ip: u64| match &place.within {
            Some(_) => {
                let optional = place.optional.iter().find(|block| block.contains(&ip));
                is_young || optional.is_none_or(|block| self.places.range(block.clone()).next().is_some())
            }
            None => first.is_some_and(|block| (block.start..block.end).contains(&ip)),
        };
        let counts = |access: &Access| USER.contains(&access.address) && runs(access.ip);
        walk.accesses.into_iter().filter(counts).collect()
    }

    /// The counters of the loops around the sampled instruction, with their values.
    pub(super) fn counters(&mut self, memory: &dyn Memory, registers: &sampling::Registers) -> Vec<(Counter, u64)> {
        let Some(place) = self.place(memory, registers.rip) else { return Vec::new() };
        let registers = of_sample(registers);
        let value = |counter: &Counter| Some((*counter, counter.value(&registers, memory)?));
        place.counters.iter().filter_map(value).collect()
    }

    /// Code changed: a library came or went, a loop was led elsewhere, another program runs.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    fn place(&mut self, memory: &dyn Memory, ip: u64) -> Option<Arc<Place>> {
        if let Some(known) = self.places.get(&ip) {
            return known.clone();
        }
        if self.places.len() >= MOST_PLACES {
            self.forget();
        }
        let place = self.around(ip).or_else(|| Place::read(memory, ip).map(Arc::new));
        self.places.insert(ip, place.clone());
        place
    }

    /// What is known of the loop that this instruction is in.
    fn around(&self, ip: u64) -> Option<Arc<Place>> {
        let near = ip.saturating_sub(WINDOW_BYTES)..ip.saturating_add(WINDOW_BYTES);
        self.places.range(near).find_map(|(_, place)| place.as_ref().filter(|place| place.is_innermost_at(ip))).cloned()
    }
}

impl Place {
    fn read(memory: &dyn Memory, ip: u64) -> Option<Self> {
        let flow = Flow::discover(memory, ip).ok()?;
        let loops = flow.loops();
        let counters = loops.iter().filter_map(|within| Counter::of(&flow, within)).collect();
        let within = loops.into_iter().next();
        let own = within.as_ref().map(|within| flow.own_blocks(within)).unwrap_or_default();
        let optional = within.iter().flat_map(|within| flow.optional_blocks(within));
        let optional = optional.map(|block| block.start..block.end).collect();
        Some(Self { within, own, optional, counters, flow })
    }

    /// Whether its loop is the smallest one around this instruction.
    fn is_innermost_at(&self, ip: u64) -> bool {
        self.flow.block_at(ip).is_some_and(|block| self.own.contains(&block.start))
    }
}

/// The registers of a sample, as a walk takes them.
pub(super) const fn of_sample(sampled: &sampling::Registers) -> Registers {
    let sampling::Registers { gpr, rip, rflags, fs_base, gs_base } = *sampled;
    Registers { gpr, rip, rflags, fs_base, gs_base }
}
