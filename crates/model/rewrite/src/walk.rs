//! Once around a loop with known registers: which addresses it touches.
//!
//! A sample says where a thread was and what its registers held. The access that hurts is seldom the very instruction
//! that was interrupted; it is somewhere in the loop. So the code is followed from there with values where they are known, for one lap:
//! what lies before the interrupted instruction is seen with the values of the next lap. Both ways are followed where there
//! is a condition, no block twice. What the next lap does not know, since a call has lost it, is taken from this one: registers that
//! were not written since the access hold what they held then. The instruction that waited is most often there.
//!
//! ```text
//!   rdi = 0x7f10, rcx = 3         ip → add [rdi + 8], 1       0x7f18: read and written
//!                                      mov rax, [rbp - 8]     known address: its value is read now
//!                                      add [rax], 1           at what it points to now
//! ```
//! Memory is read *now*, later than the sample: what is made of it is marked, [`LoopAccess::read_now`]. What a lap writes it reads
//! back. Values are lost in what is not understood; nothing is guessed. The result is evidence, not proof: nothing is rewritten on
//! its word alone.

mod address;
mod state;
mod step;

use std::collections::BTreeSet;
use std::iter::successors;

use iced_x86::{Instruction, InstructionInfo, InstructionInfoFactory, OpAccess, Register, UsedMemory};
use serde::{Deserialize, Serialize};

use crate::effect::reads_and_writes;
use crate::flow::{Flow, calls};
use crate::loops::Loop;
use crate::memory::Memory;
use crate::operand::{is_atomic, is_bitwise};
use crate::registers::Registers;
use address::address;
use state::WalkState;

/// Instructions of a walk at most.
pub const MAX_STEPS: usize = 512;
/// Instructions that it looks back at most.
const MAX_STEPS_BACK: usize = 64;

/// One access of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LoopAccess {
    /// The instruction.
    pub ip: u64,
    /// Where it touches memory.
    pub address: u64,
    /// How many bytes.
    pub bytes: u32,
    /// It reads them.
    pub read: bool,
    /// It writes them.
    pub write: bool,
    /// Nobody comes between its read and its write.
    pub is_atomic: bool,
    /// It sets, clears or flips single bits of what it reads: OR, AND, XOR, BTS, BTR or BTC.
    pub is_bitwise: bool,
    /// The address is not of the sample's own moment: made of memory as it was at the walk, or told of another lap.
    pub read_now: bool,
}

/// What a walk found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Walk {
    /// Accesses whose addresses are known, in the order of the walk.
    pub accesses: Vec<LoopAccess>,
    /// Accesses that the lap came by without knowing their addresses.
    pub unknown: usize,
    /// Instructions that were followed.
    pub steps: usize,
}

impl Walk {
    /// Follows the code with the registers that it was sampled with from where that was, which is in the flow: around `within`, or as far
    /// as the flow is known.
    #[must_use]
    pub fn around(flow: &Flow, within: Option<&Loop>, registers: &Registers, memory: &dyn Memory) -> Self {
        Self::around_with(flow, within, registers, memory, &|_| None)
    }

    /// As [`Walk::around`], where `observed` has the address that an instruction touched when somebody saw it last (a processor that samples
    /// accesses): that is taken where the registers do not show one, of instructions that touch one place.
    #[must_use]
    pub fn around_with(
        flow: &Flow,
        within: Option<&Loop>,
        registers: &Registers,
        memory: &dyn Memory,
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
    /// Where the lap begins and ends.
    ip: u64,
    within: Option<&'a Loop>,
    memory: &'a dyn Memory,
    observed: &'a dyn Fn(u64) -> Option<u64>,
    /// Accesses whose addresses are not known, but told.
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

    /// From the interrupted instruction back, as long as one way leads there, and to a call at most.
    fn walk_backwards(&mut self, mut state: WalkState) {
        let (flow, ip) = (self.flow, self.ip);
        let blocks = successors(flow.block_at(ip), |block| flow.sole_predecessor(block.start));
        let before = blocks.flat_map(|block| flow.instructions.range(block.start..block.end.min(ip)).rev());
        let (mut factory, unknown) = (InstructionInfoFactory::new(), self.found.unknown);
        // One that repeats was interrupted half-way.
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

    /// Notes what the instruction is about to touch, or has touched.
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
