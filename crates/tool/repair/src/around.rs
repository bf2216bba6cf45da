//! The accesses that a sample stands for: those of one lap around the loop that it was taken in.
//!
//! A thread is seldom stopped at the very instruction that waits. The code around it is decoded once for each loop and kept; each sample walks it with
//! its own registers. Where there is no loop, only the instructions up to the next jump count: what comes behind it may never run. Nor may what a
//! lap can leave out; that counts as long as a loop has few samples, and then where one was taken in it. What the registers do not show the processor may have
//! told: addresses, and where jumps led.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use fieldstone_remap::Process;
use fieldstone_rewrite::walk::Access;
use fieldstone_rewrite::{Block, Counter, Flow, Loop, Memory, Pages, Registers, Taken, WINDOW_BYTES, Walk};
use fieldstone_sys::sampling;

use super::callers::callers;

/// Places, by sampled instruction, that are kept decoded. A program has few places where it spends its time.
const MOST_PLACES: usize = 4096;
/// Calls around a sample that are looked at.
const MOST_CALLS: usize = 8;
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
    /// Where jumps were seen to lead.
    taken: Taken,
    /// By return address: the code around the call.
    callers: BTreeMap<u64, Option<Arc<Place>>>,
}

#[derive(Debug)]
struct Place {
    flow: Flow,
    within: Option<Loop>,
    /// The blocks of it that are in no smaller one.
    own: BTreeSet<u64>,
    /// The code in it that a lap may leave out.
    optional: Vec<Range<u64>>,
    /// That which is only known since a jump was seen to lead there: others may lead elsewhere.
    seen: Vec<Range<u64>>,
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
    /// and the first time at an instruction the decoding of its surroundings. `told` has the addresses that instructions touched lately.
    pub(super) fn accesses(
        &mut self,
        memory: &dyn Memory,
        registers: &sampling::Registers,
        told: &dyn Fn(u64) -> Option<u64>,
    ) -> Vec<Access> {
        let Some(place) = self.place(memory, registers.rip) else { return Vec::new() };
        let within = place.within.as_ref();
        let walk = Walk::around_told(&place.flow, within, &of_sample(registers), &Pages::of(memory), told);
        let samples = place.within.as_ref().map(|within| self.samples.entry(within.head).or_default());
        let is_young = samples.is_some_and(|samples| {
            *samples = samples.saturating_add(1);
            *samples <= ENOUGH
        });
        let first = place.flow.block_at(registers.rip);
        let was_sampled = |block: &Range<u64>| self.places.range(block.clone()).next().is_some();
        let may_run =
            |blocks: &[Range<u64>], ip| blocks.iter().find(|block| block.contains(&ip)).is_none_or(was_sampled);
        let runs = |ip: u64| match &place.within {
            Some(_) => (is_young || may_run(&place.optional, ip)) && may_run(&place.seen, ip),
            None => first.is_some_and(|block| (block.start..block.end).contains(&ip)),
        };
        let counts = |access: &Access| USER.contains(&access.address) && runs(access.ip);
        walk.accesses.into_iter().filter(counts).collect()
    }

    /// The counters of the loops around the sampled instruction, and of those around the innermost call in a loop that it was taken in, with
    /// their values.
    pub(super) fn counters(&mut self, memory: &dyn Memory, registers: &sampling::Registers) -> Vec<(Counter, u64)> {
        let Some(place) = self.place(memory, registers.rip) else { return Vec::new() };
        let registers = of_sample(registers);
        let value = |registers: &Registers, counter: &Counter| Some((*counter, counter.value(registers, memory)?));
        let mut found: Vec<_> = place.counters.iter().filter_map(|counter| value(&registers, counter)).collect();
        let mut called = vec![place];
        for caller in callers(memory, &registers).into_iter().take(MOST_CALLS) {
            let Some(place) = self.caller(memory, caller.rip) else { continue };
            let is_kept = |counter: &&Counter| called.iter().all(|callee| counter.is_kept_by(&callee.flow));
            found.extend(place.counters.iter().filter(is_kept).filter_map(|counter| value(&caller, counter)));
            if !place.counters.is_empty() {
                break;
            }
            called.push(place);
        }
        found
    }

    /// A jump was taken whose target only the run tells: code that has it is read anew when it leads there for the first time. One that leads
    /// out of all code around it, as a PLT's does, is of no use.
    pub(super) fn saw_jump(&mut self, from: u64, to: u64) {
        let is_near = from.abs_diff(to) <= 2 * WINDOW_BYTES;
        if is_near && self.taken.len() < MOST_PLACES && self.taken.insert((from, to)) {
            let has_it = |place: &Arc<Place>| place.flow.instructions.contains_key(&from);
            self.places.retain(|_, place| !place.as_ref().is_some_and(has_it));
        }
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
        let place = self.around(ip).or_else(|| Place::read(memory, ip, &self.taken).map(Arc::new));
        self.places.insert(ip, place.clone());
        place
    }

    fn caller(&mut self, memory: &dyn Memory, ip: u64) -> Option<Arc<Place>> {
        if self.callers.len() >= MOST_PLACES {
            self.callers.clear();
        }
        let read = || Place::read(memory, ip, &Taken::default()).map(Arc::new);
        self.callers.entry(ip).or_insert_with(read).clone()
    }

    /// What is known of the loop that this instruction is in.
    fn around(&self, ip: u64) -> Option<Arc<Place>> {
        let near = ip.saturating_sub(WINDOW_BYTES)..ip.saturating_add(WINDOW_BYTES);
        self.places.range(near).find_map(|(_, place)| place.as_ref().filter(|place| place.is_innermost_at(ip))).cloned()
    }
}

impl Place {
    fn read(memory: &dyn Memory, ip: u64, taken: &Taken) -> Option<Self> {
        let plain = Flow::discover(memory, ip).ok()?;
        let loops = plain.loops();
        // What may be left out for another way that nobody saw counts no laps.
        let counters = loops.iter().filter_map(|within| Counter::of(&plain, within)).collect();
        let (flow, within, seen) = match Self::wider(memory, ip, taken) {
            Some(flow) => {
                let within = flow.loops().into_iter().next();
                let blocks = within.iter().flat_map(|within| &within.blocks).map(|start| &flow.blocks[start]);
                let is_seen = |block: &&Block| !plain.instructions.contains_key(&block.start);
                let seen = blocks.filter(is_seen).map(|block| block.start..block.end).collect();
                (flow, within, seen)
            }
            None => (plain, loops.into_iter().next(), Vec::new()),
        };
        let own = within.as_ref().map(|within| flow.own_blocks(within)).unwrap_or_default();
        let optional = within.iter().flat_map(|within| flow.optional_blocks(within));
        let optional = optional.map(|block| block.start..block.end).collect();
        Some(Self { within, own, optional, seen, counters, flow })
    }

    /// The flow with the jumps that were taken; none where none were, or they are of code that was there before.
    fn wider(memory: &dyn Memory, ip: u64, taken: &Taken) -> Option<Flow> {
        if taken.is_empty() { None } else { Flow::discover_with(memory, ip, taken).ok() }
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

#[cfg(test)]
mod tests {
    use fieldstone_rewrite::Image;

    use super::*;

    /// head: dec ecx (2); jmp [rdi + rcx * 8] (3); one: add [rsi], 1 (4); jmp head (2)
    const SWITCH: [u8; 11] = [0xff, 0xc9, 0xff, 0x24, 0xcf, 0x48, 0x83, 0x06, 0x01, 0xeb, 0xf5];

    #[test]
    fn a_jump_that_was_seen_makes_a_loop_of_a_switch() {
        let image = Image { start: 0x40_0000, bytes: SWITCH.to_vec() };
        let mut registers = sampling::Registers { rip: 0x40_0000, ..Default::default() };
        (registers.gpr[6], registers.gpr[7]) = (0x50_0000, 0x60_0000);
        let mut around = Around::default();
        let seen = |around: &mut Around| {
            let accesses = around.accesses(&image, &registers, &|_| None);
            accesses.iter().map(|access| access.address).collect::<Vec<_>>()
        };
        let jump = [0x5f_fff8 + (u64::from(u32::MAX) + 1) * 8];
        assert_eq!(seen(&mut around), jump, "nobody knows where it leads");
        around.saw_jump(0x40_0002, 0x40_0005);
        assert_eq!(seen(&mut around), jump, "it may lead elsewhere");
        let there = sampling::Registers { rip: 0x40_0009, ..registers };
        assert!(!around.accesses(&image, &there, &|_| None).is_empty());
        assert_eq!(seen(&mut around), [jump[0], 0x50_0000], "a thread was seen there, too");
        around.saw_jump(0x40_0002, 0x80_0000);
        assert_eq!(around.taken.len(), 1, "far away");
        // What was read of other code that was there does not hinder.
        around.saw_jump(0x40_0002, 0x40_0006);
        assert_eq!(seen(&mut around), jump);
    }

    #[test]
    fn an_address_that_only_the_processor_knows_is_an_access_of_the_lap() {
        // head: call rax (2); add [rcx], 1 (4); jmp head (2)
        let image = Image { start: 0x40_0000, bytes: vec![0xff, 0xd0, 0x48, 0x83, 0x01, 0x01, 0xeb, 0xf8] };
        let mut registers = sampling::Registers { rip: 0x40_0000, ..Default::default() };
        (registers.gpr[1], registers.gpr[4]) = (0x50_0000, 0x70_0000);
        let mut around = Around::default();
        let told = |ip| (ip == 0x40_0002).then_some(0x50_0040);
        let accesses = around.accesses(&image, &registers, &told);
        let found: Vec<_> =
            accesses.iter().map(|access| (access.address, access.bytes, access.read, access.write)).collect();
        assert_eq!(found, [(0x6f_fff8, 8, false, true), (0x50_0040, 8, true, true)]);
        assert_eq!(around.accesses(&image, &registers, &|_| None).len(), 1, "the call has lost rcx");
    }
}
