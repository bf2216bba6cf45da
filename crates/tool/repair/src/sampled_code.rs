//! The accesses that a sample represents: those of one lap of the loop in which it was taken.
//!
//! A sample is rarely taken at the instruction that waits for memory. So the code around the
//! sampled instruction is decoded once per loop and kept. Each sample walks it with its own
//! registers. Addresses and jump targets that the registers do not show come from hardware samples
//! where the processor has them.
//!
//! Invariants:
//! - Without a loop only the instructions up to the next jump count, because the code after it may
//!   not run.
//! - A block that a lap can skip counts while its loop has few samples; later it counts if a sample
//!   was taken in it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use fieldstone_remap::Process;
use fieldstone_rewrite::walk::LoopAccess;
use fieldstone_rewrite::{
    BasicBlock, CachedMemory, Flow, Loop, LoopCounter, ReadableMemory, Registers, TakenJumps, WINDOW_BYTES, Walk,
};
use fieldstone_sys::process::ProcessMemory;
use fieldstone_sys::sampling::SampledRegisters;

use crate::callers::callers;
use crate::tuning::{MAX_CALLERS, MAX_CODE_REGIONS, SAMPLES_TO_SEE_ALL_BLOCKS};

/// Addresses of user code on x86-64. An address outside comes from a register with an unknown
/// value.
const USER_ADDRESSES: std::ops::Range<u64> = 0x1_0000..0x0000_8000_0000_0000;

/// The decoded code of a program around its sampled instructions.
#[derive(Debug, Default)]
pub(crate) struct SampledCode {
    /// By sampled instruction; `None` where the code cannot be decoded. Instructions of one loop
    /// share a region.
    regions: BTreeMap<u64, Option<Arc<SampledFlow>>>,
    /// Number of samples per loop, by the address of its head.
    samples: HashMap<u64, u32>,
    /// Targets of indirect jumps from branch records.
    taken: TakenJumps,
    /// The code around calls, by return address.
    callers: BTreeMap<u64, Option<Arc<SampledFlow>>>,
}

/// Control flow around one instruction.
#[derive(Debug)]
struct SampledFlow {
    flow: Flow,
    /// The innermost loop around the instruction.
    inner_loop: Option<Loop>,
    /// Starts of the blocks that are in this loop and in no smaller one.
    own_blocks: BTreeSet<u64>,
    /// Blocks that a lap can skip.
    optional: Vec<Range<u64>>,
    /// Blocks that are known only from branch records; the jump may have other targets.
    recorded: Vec<Range<u64>>,
    /// Counters of all loops around the instruction, the innermost loop first.
    counters: Vec<LoopCounter>,
}

/// Calls `read` with the memory of a process as the program sees it: through `process` while pages
/// are moved, else `plain`.
pub(crate) fn with_memory<R>(
    process: Option<&Process>,
    plain: &ProcessMemory,
    read: impl FnOnce(&dyn ReadableMemory) -> R,
) -> R {
    match process.map(Process::as_seen) {
        Some(seen) => read(&seen),
        None => read(&|address: u64, into: &mut [u8]| plain.read(address, into)),
    }
}

impl SampledCode {
    /// The accesses of one lap around the sampled instruction. `recorded_address` returns the
    /// address that an instruction accessed in a recent hardware sample. Cost: one system call for
    /// each page that is read, and one decoding per new region.
    pub(crate) fn accesses(
        &mut self,
        memory: &dyn ReadableMemory,
        registers: &SampledRegisters,
        recorded_address: &dyn Fn(u64) -> Option<u64>,
    ) -> Vec<LoopAccess> {
        let Some(region) = self.region(memory, registers.rip) else { return Vec::new() };
        let inner_loop = region.inner_loop.as_ref();
        let pages = CachedMemory::of(memory);
        let walk = Walk::around_with(&region.flow, inner_loop, &walk_registers(registers), &pages, recorded_address);
        let samples = region.inner_loop.as_ref().map(|inner| self.samples.entry(inner.head).or_default());
        let has_few_samples = samples.is_some_and(|samples| {
            *samples = samples.saturating_add(1);
            *samples <= SAMPLES_TO_SEE_ALL_BLOCKS
        });
        let first = region.flow.block_at(registers.rip);
        let was_sampled = |block: &Range<u64>| self.regions.range(block.clone()).next().is_some();
        let can_run =
            |blocks: &[Range<u64>], ip| blocks.iter().find(|block| block.contains(&ip)).is_none_or(was_sampled);
        let runs = |ip: u64| match &region.inner_loop {
            Some(_) => (has_few_samples || can_run(&region.optional, ip)) && can_run(&region.recorded, ip),
            None => first.is_some_and(|block| (block.start..block.end).contains(&ip)),
        };
        let counts = |access: &LoopAccess| USER_ADDRESSES.contains(&access.address) && runs(access.ip);
        walk.accesses.into_iter().filter(counts).collect()
    }

    /// The counters of the loops around the sampled instruction and around its innermost caller
    /// that is in a loop, with their values.
    pub(crate) fn counters(
        &mut self,
        memory: &dyn ReadableMemory,
        registers: &SampledRegisters,
    ) -> Vec<(LoopCounter, u64)> {
        let Some(region) = self.region(memory, registers.rip) else { return Vec::new() };
        let registers = walk_registers(registers);
        let value = |registers: &Registers, counter: &LoopCounter| Some((*counter, counter.value(registers, memory)?));
        let mut found: Vec<_> = region.counters.iter().filter_map(|counter| value(&registers, counter)).collect();
        let mut called = vec![region];
        for caller in callers(memory, &registers).into_iter().take(MAX_CALLERS) {
            let Some(region) = self.caller(memory, caller.rip) else { continue };
            let is_kept = |counter: &&LoopCounter| called.iter().all(|callee| counter.is_kept_by(&callee.flow));
            found.extend(region.counters.iter().filter(is_kept).filter_map(|counter| value(&caller, counter)));
            if !region.counters.is_empty() {
                break;
            }
            called.push(region);
        }
        found
    }

    /// Adds a taken indirect jump from a branch record. Regions that contain the jump are decoded
    /// again. A jump to distant code, such as that of a PLT, is ignored.
    pub(crate) fn record_jump(&mut self, from: u64, to: u64) {
        let is_near = from.abs_diff(to) <= 2 * WINDOW_BYTES;
        if is_near && self.taken.len() < MAX_CODE_REGIONS && self.taken.insert((from, to)) {
            let has_jump = |region: &Arc<SampledFlow>| region.flow.instructions.contains_key(&from);
            self.regions.retain(|_, region| !region.as_ref().is_some_and(has_jump));
        }
    }

    /// Removes all regions. To be called when the code has changed: a library, a redirected loop,
    /// another program.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn region(&mut self, memory: &dyn ReadableMemory, ip: u64) -> Option<Arc<SampledFlow>> {
        if let Some(known) = self.regions.get(&ip) {
            return known.clone();
        }
        if self.regions.len() >= MAX_CODE_REGIONS {
            self.clear();
        }
        let region = self.region_around(ip).or_else(|| SampledFlow::decode(memory, ip, &self.taken).map(Arc::new));
        self.regions.insert(ip, region.clone());
        region
    }

    fn caller(&mut self, memory: &dyn ReadableMemory, ip: u64) -> Option<Arc<SampledFlow>> {
        if self.callers.len() >= MAX_CODE_REGIONS {
            self.callers.clear();
        }
        let decode = || SampledFlow::decode(memory, ip, &TakenJumps::default()).map(Arc::new);
        self.callers.entry(ip).or_insert_with(decode).clone()
    }

    /// The known region whose loop is the innermost one around this instruction.
    fn region_around(&self, ip: u64) -> Option<Arc<SampledFlow>> {
        let near = ip.saturating_sub(WINDOW_BYTES)..ip.saturating_add(WINDOW_BYTES);
        let mut near = self.regions.range(near).filter_map(|(_, region)| region.as_ref());
        near.find(|region| region.is_innermost_at(ip)).cloned()
    }
}

impl SampledFlow {
    fn decode(memory: &dyn ReadableMemory, ip: u64, taken: &TakenJumps) -> Option<Self> {
        let plain = Flow::discover(memory, ip).ok()?;
        let loops = plain.loops();
        // Counters come from the plain flow: a jump may have targets that were not recorded.
        let counters = loops.iter().filter_map(|inner| LoopCounter::of(&plain, inner)).collect();
        let (flow, inner_loop, recorded) = match Self::flow_with_jumps(memory, ip, taken) {
            Some(flow) => {
                let inner_loop = flow.loops().into_iter().next();
                let blocks = inner_loop.iter().flat_map(|inner| &inner.blocks).map(|start| &flow.blocks[start]);
                let is_recorded = |block: &&BasicBlock| !plain.instructions.contains_key(&block.start);
                let recorded = blocks.filter(is_recorded).map(|block| block.start..block.end).collect();
                (flow, inner_loop, recorded)
            }
            None => (plain, loops.into_iter().next(), Vec::new()),
        };
        let own_blocks = inner_loop.as_ref().map(|inner| flow.own_blocks(inner)).unwrap_or_default();
        let optional = inner_loop.iter().flat_map(|inner| flow.optional_blocks(inner));
        let optional = optional.map(|block| block.start..block.end).collect();
        Some(Self { inner_loop, own_blocks, optional, recorded, counters, flow })
    }

    /// The flow with recorded jumps. `None` if there are no records, or if they belong to code that
    /// was replaced.
    fn flow_with_jumps(memory: &dyn ReadableMemory, ip: u64, taken: &TakenJumps) -> Option<Flow> {
        if taken.is_empty() { None } else { Flow::discover_with(memory, ip, taken).ok() }
    }

    /// Whether the region's loop is the innermost one around this instruction.
    fn is_innermost_at(&self, ip: u64) -> bool {
        self.flow.block_at(ip).is_some_and(|block| self.own_blocks.contains(&block.start))
    }
}

/// The registers of a sample in the type that [`Walk`] takes.
pub(crate) const fn walk_registers(sampled: &SampledRegisters) -> Registers {
    let SampledRegisters { gpr, rip, rflags, fs_base, gs_base } = *sampled;
    Registers { gpr, rip, rflags, fs_base, gs_base }
}

#[cfg(test)]
mod tests {
    use fieldstone_rewrite::MemoryImage;

    use super::*;

    /// head: dec ecx (2); jmp [rdi + rcx * 8] (3); one: add [rsi], 1 (4); jmp head (2)
    const SWITCH: [u8; 11] = [0xff, 0xc9, 0xff, 0x24, 0xcf, 0x48, 0x83, 0x06, 0x01, 0xeb, 0xf5];

    #[test]
    fn a_recorded_jump_makes_a_loop_of_a_switch() {
        let image = MemoryImage { start: 0x40_0000, bytes: SWITCH.to_vec() };
        let mut registers = SampledRegisters { rip: 0x40_0000, ..Default::default() };
        (registers.gpr[6], registers.gpr[7]) = (0x50_0000, 0x60_0000);
        let mut code = SampledCode::default();
        let addresses = |code: &mut SampledCode| {
            let accesses = code.accesses(&image, &registers, &|_| None);
            accesses.iter().map(|access| access.address).collect::<Vec<_>>()
        };
        let jump = [0x5f_fff8 + (u64::from(u32::MAX) + 1) * 8];
        assert_eq!(addresses(&mut code), jump, "the target is unknown");
        code.record_jump(0x40_0002, 0x40_0005);
        assert_eq!(addresses(&mut code), jump, "the jump may have other targets");
        let target = SampledRegisters { rip: 0x40_0009, ..registers };
        assert!(!code.accesses(&image, &target, &|_| None).is_empty());
        assert_eq!(addresses(&mut code), [jump[0], 0x50_0000], "a sample was taken at the target");
        code.record_jump(0x40_0002, 0x80_0000);
        assert_eq!(code.taken.len(), 1, "a distant target is ignored");
        // A target in the middle of an instruction: a record of code that was replaced.
        code.record_jump(0x40_0002, 0x40_0006);
        assert_eq!(addresses(&mut code), jump);
    }

    #[test]
    fn an_address_from_a_hardware_sample_is_an_access_of_the_lap() {
        // head: call rax (2); add [rcx], 1 (4); jmp head (2)
        let image = MemoryImage { start: 0x40_0000, bytes: vec![0xff, 0xd0, 0x48, 0x83, 0x01, 0x01, 0xeb, 0xf8] };
        let mut registers = SampledRegisters { rip: 0x40_0000, ..Default::default() };
        (registers.gpr[1], registers.gpr[4]) = (0x50_0000, 0x70_0000);
        let mut code = SampledCode::default();
        let recorded_address = |ip| (ip == 0x40_0002).then_some(0x50_0040);
        let accesses = code.accesses(&image, &registers, &recorded_address);
        let found: Vec<_> =
            accesses.iter().map(|access| (access.address, access.bytes, access.read, access.write)).collect();
        assert_eq!(found, [(0x6f_fff8, 8, false, true), (0x50_0040, 8, true, true)]);
        assert_eq!(code.accesses(&image, &registers, &|_| None).len(), 1, "rcx is unknown after the call");
    }
}
