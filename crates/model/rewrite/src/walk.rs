//! A walk: one iteration of a loop with known registers, to find the addresses that it accesses.
//!
//! ```text
//!   rdi = 0x7f10, rcx = 3         ip → add [rdi + 8], 1       0x7f18: read and written
//!                                      mov rax, [rbp - 8]     known address: its value is read now
//!                                      add [rax], 1           at the address that it has now
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `step` | what one instruction does to the known values |
//! | `state` | the known values of registers and memory |
//! | `address` | the address of an operand, by the known values |
//!
//! A sample has a thread's instruction pointer and registers. The costly access is seldom the
//! interrupted instruction, but it is in the same loop.
//!
//! Algorithm: the code is interpreted for one iteration from the interrupted instruction, with
//! those values that are known. Both ways of a condition are followed, and no block twice. Then the
//! code is interpreted backwards from the interrupted instruction: a register that was not written
//! since an access had the same value then. This finds accesses before a call that loses the
//! registers.
//!
//! Limits: memory is read at the walk, later than the sample; what depends on it is marked
//! ([`LoopAccess::read_now`]). Instructions that are not interpreted lose the values they write.
//! The result is evidence and no proof, so no code is rewritten because of it alone.

mod address;
mod state;
mod step;

use std::collections::BTreeSet;
use std::iter::successors;

use iced_x86::{Instruction, InstructionInfo, InstructionInfoFactory};
use serde::{Deserialize, Serialize};

use crate::effect::reads_and_writes;
use crate::flow::{Flow, calls};
use crate::loops::Loop;
use crate::memory::ReadableMemory;
use crate::operand::{is_atomic, is_bitwise};
use crate::registers::Registers;
use address::address;
use state::WalkState;

/// Maximum number of instructions of a walk.
pub const MAX_STEPS: usize = 512;
/// Maximum number of instructions of a backward walk.
const MAX_STEPS_BACK: usize = 64;

/// An access of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LoopAccess {
    /// Address of the instruction.
    pub ip: u64,
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes.
    pub bytes: u32,
    /// Whether it reads them.
    pub read: bool,
    /// Whether it writes them.
    pub write: bool,
    /// Whether read and write are one atomic operation.
    pub is_atomic: bool,
    /// Whether it sets, clears or flips single bits: OR, AND, XOR, BTS, BTR or BTC.
    pub is_bitwise: bool,
    /// Whether the address may differ from that at the sample: it depends on memory read at the
    /// walk, or was observed in another iteration.
    pub read_now: bool,
}

/// The result of a walk.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Walk {
    /// Accesses with known addresses, in the order of the walk.
    pub accesses: Vec<LoopAccess>,
    /// Number of accesses with unknown addresses.
    pub unknown: usize,
    /// Number of interpreted instructions.
    pub steps: usize,
}

impl Walk {
    /// Walks from the sampled instruction, which is in the flow, with the sampled registers: around
    /// `within`, or as far as the flow is known.
    #[must_use]
    pub fn around(flow: &Flow, within: Option<&Loop>, registers: &Registers, memory: &dyn ReadableMemory) -> Self {
        Self::around_with(flow, within, registers, memory, &|_| None)
    }

    /// As [`Walk::around`], with `observed` addresses: the last address that the hardware sampled
    /// for an instruction. It is used for instructions with one memory operand whose address the
    /// registers do not give.
    #[must_use]
    pub fn around_with(
        flow: &Flow,
        within: Option<&Loop>,
        registers: &Registers,
        memory: &dyn ReadableMemory,
        observed: &dyn Fn(u64) -> Option<u64>,
    ) -> Self {
        let (ip, observed_accesses, found) = (registers.rip, Vec::new(), Self::default());
        let mut walker = LapWalker { flow, ip, within, memory, observed, observed_accesses, found };
        walker.walk(WalkState::new(registers));
        walker.walk_backwards(WalkState::new(registers));
        for access in walker.observed_accesses {
            if !walker.found.accesses.iter().any(|known| known.ip == access.ip) {
                walker.found.accesses.push(access);
            }
        }
        walker.found
    }
}

struct LapWalker<'a> {
    flow: &'a Flow,
    /// Start and end of the iteration.
    ip: u64,
    within: Option<&'a Loop>,
    memory: &'a dyn ReadableMemory,
    observed: &'a dyn Fn(u64) -> Option<u64>,
    /// Accesses whose addresses are observed only.
    observed_accesses: Vec<LoopAccess>,
    found: Walk,
}

impl LapWalker<'_> {
    fn walk(&mut self, start: WalkState) {
        let mut seen = BTreeSet::from([self.ip]);
        let mut open = vec![(self.ip, start)];
        let mut factory = InstructionInfoFactory::new();
        while let Some((entry, mut state)) = open.pop() {
            let Some(block) = self.flow.block_at(entry) else { continue };
            let is_end = entry < self.ip && self.ip < block.end;
            let end = if is_end { self.ip } else { block.end };
            for (_, instruction) in self.flow.instructions.range(entry..end) {
                if self.found.steps == MAX_STEPS {
                    return;
                }
                self.found.steps += 1;
                let information = factory.info(instruction);
                self.record_accesses(instruction, information, &state);
                state.step(instruction, information, self.memory);
            }
            if is_end {
                continue;
            }
            let inside = |next: &u64| self.within.is_none_or(|within| within.blocks.contains(next));
            for next in block.successors.iter().copied().filter(inside) {
                if seen.insert(next) {
                    open.push((next, state.clone()));
                }
            }
        }
    }

    /// Walks backwards from the interrupted instruction, as long as there is one predecessor, and
    /// to a call at most.
    fn walk_backwards(&mut self, mut state: WalkState) {
        let (flow, ip) = (self.flow, self.ip);
        let blocks = successors(flow.block_at(ip), |block| flow.sole_predecessor(block.start));
        let before = blocks.flat_map(|block| flow.instructions.range(block.start..block.end.min(ip)).rev());
        let (mut factory, unknown) = (InstructionInfoFactory::new(), self.found.unknown);
        // A repeated instruction was interrupted in the middle.
        if let Some(own) = flow.instructions.get(&ip).filter(|own| own.has_rep_prefix() || own.has_repne_prefix()) {
            state.forget_registers(factory.info(own));
        }
        for (at, instruction) in before.take_while(|(_, instruction)| !calls(instruction)).take(MAX_STEPS_BACK) {
            let information = factory.info(instruction);
            state.forget_registers(information);
            if !self.found.accesses.iter().any(|access| access.ip == *at) {
                self.record_accesses(instruction, information, &state);
            }
        }
        self.found.unknown = unknown;
    }

    /// Records the accesses of an instruction.
    fn record_accesses(&mut self, instruction: &Instruction, information: &InstructionInfo, state: &WalkState) {
        for memory in information.used_memory() {
            let (read, write) = reads_and_writes(memory.access());
            if !(read || write) {
                continue;
            }
            let bytes = memory.memory_size().size();
            let repeats =
                instruction.is_string_instruction() && (instruction.has_rep_prefix() || instruction.has_repne_prefix());
            let at = address(memory, state);
            let bytes = u32::try_from(bytes).ok().filter(|bytes| (1..=64).contains(bytes) && !repeats);
            let access = |bytes, address, read_now| LoopAccess {
                ip: instruction.ip(),
                address,
                bytes,
                read,
                write,
                is_atomic: is_atomic(instruction),
                is_bitwise: is_bitwise(instruction),
                read_now,
            };
            if let (Some(known), Some(bytes)) = (at.known, bytes) {
                self.found.accesses.push(access(bytes, known, at.now));
                continue;
            }
            self.found.unknown += 1;
            let observed = (self.observed)(instruction.ip()).filter(|_| information.used_memory().len() == 1);
            self.observed_accesses.extend(bytes.zip(observed).map(|(bytes, observed)| access(bytes, observed, true)));
        }
    }
}

#[cfg(test)]
mod tests;
