//! Stack slots: pointers that unoptimised code keeps in its frame and reads again for each access.
//!
//! ```text
//!   mov rax, [rbp - 24]        a slot: its value is checked here, for one address
//!   mov rax, [rax]             redirected
//!   mov rax, [rbp - 24]        the same value, since nothing between has written the slot
//!   add [rax + 8], 1           redirected without a check
//! ```
//! So an iteration has one check per slot instead of one per access. A second read of the slot
//! becomes a load of the known value. A write to the slot by another thread in between takes effect
//! one iteration later, and may appear after that thread's later writes. A jump, a call, an atomic
//! instruction, a fence, or a possible write to the slot ends the reuse.
//!
//! Limit: only frames by rbp, as in unoptimised code. Optimised code reads a stack word twice only
//! if another thread may write it.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Code, Instruction, InstructionInfoFactory, Mnemonic, Register, UsedMemory};

use crate::effect::{InstructionEffect, reads_and_writes};
use crate::flow::Flow;
use crate::loops::Loop;
use crate::operand::{Operand, is_atomic};
use crate::registers::bit;

const SLOT_BYTES: i64 = 8;

/// Eight bytes of the stack frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameSlot {
    base: Register,
    displacement: i64,
}

/// Known values of slots, and of registers that were read from slots, at a place in a block.
#[derive(Debug, Default)]
pub(crate) struct FrameState {
    /// Slots with their checked values.
    checked: Vec<(FrameSlot, u64)>,
    /// Registers with the slot they were read from, and the value if it was checked.
    read: Vec<(Register, Option<FrameSlot>, Option<u64>)>,
}

impl FrameSlot {
    /// The slot that an instruction reads into a register.
    fn read_by(instruction: &Instruction) -> Option<(Register, Self)> {
        let base = instruction.memory_base();
        let is_read = instruction.code() == Code::Mov_r64_rm64
            && is_of_frame(base)
            && instruction.memory_index() == Register::None
            && !instruction.has_segment_prefix();
        let displacement = instruction.memory_displacement64().cast_signed();
        is_read.then(|| (instruction.op0_register(), Self { base, displacement }))
    }

    /// Whether a memory write may change it.
    fn may_be_written_by(self, memory: &UsedMemory) -> bool {
        let is_apart =
            memory.base() == self.base && memory.index() == Register::None && memory.memory_size().size() > 0 && {
                let start = memory.displacement().cast_signed();
                let bytes = i64::try_from(memory.memory_size().size()).unwrap_or(i64::MAX);
                start.saturating_add(bytes) <= self.displacement || self.displacement + SLOT_BYTES <= start
            };
        !is_apart
    }
}

impl FrameState {
    /// The known value of the slot that `instruction` reads.
    pub(crate) fn known(&self, instruction: &Instruction) -> Option<u64> {
        let (_, slot) = FrameSlot::read_by(instruction)?;
        self.checked.iter().find(|(checked, _)| *checked == slot).map(|&(_, value)| value)
    }

    /// Whether a register was read from a slot here, with its value if it was checked.
    pub(crate) fn holds(&self, register: Register) -> Option<Option<u64>> {
        self.read.iter().find(|(read, ..)| *read == register).map(|&(.., value)| value)
    }

    /// Records that a register was checked to have this value.
    pub(crate) fn check(&mut self, register: Register, value: u64) {
        let Some((_, slot, held)) = self.read.iter_mut().find(|(read, ..)| *read == register) else { return };
        *held = Some(value);
        // Optimised code reads a stack word twice only if another thread may write it.
        self.checked.extend(slot.filter(|slot| slot.base == Register::RBP).map(|slot| (slot, value)));
    }

    /// Records the effect of an instruction. With `redirected`, its memory operand is moved bytes,
    /// which are no stack; a push still writes the stack.
    pub(crate) fn pass(
        &mut self,
        instruction: &Instruction,
        effect: &InstructionEffect,
        redirected: bool,
        factory: &mut InstructionInfoFactory,
    ) {
        let known = self.known(instruction);
        self.read.retain(|(register, ..)| effect.writes & bit(*register) == 0);
        self.forget_if(|slot| effect.writes & bit(slot.base) != 0);
        if orders_memory(instruction) {
            self.forget_if(|_| true);
        }
        for memory in factory.info(instruction).used_memory() {
            if reads_and_writes(memory.access()).1 && (!redirected || is_of_frame(memory.base())) {
                self.forget_if(|slot| slot.may_be_written_by(memory));
            }
        }
        // Moved bytes are no stack slot, whatever register addresses them: writes to moved bytes
        // may change them.
        let read =
            FrameSlot::read_by(instruction).filter(|(_, slot)| !redirected && effect.writes & bit(slot.base) == 0);
        if let Some((register, slot)) = read {
            self.read.push((register, Some(slot), known));
        }
    }

    /// Forgets slots. Values of registers stay known.
    fn forget_if(&mut self, is_gone: impl Fn(FrameSlot) -> bool) {
        self.checked.retain(|&(slot, _)| !is_gone(slot));
        for (_, slot, _) in &mut self.read {
            *slot = slot.filter(|&slot| !is_gone(slot));
        }
    }
}

impl Flow {
    /// Accesses of a loop at a fixed distance from a slot that the loop does not write. They likely
    /// have the same address in each iteration. Empty for a loop of one iteration.
    #[must_use]
    pub fn slot_accesses(&self, within: &Loop) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        if !within.blocks.iter().any(|start| self.blocks[start].successors.contains(&within.head)) {
            return found;
        }
        let mut factory = InstructionInfoFactory::new();
        let mut written: Vec<UsedMemory> = Vec::new();
        for instruction in self.copied_instructions(within) {
            let used = factory.info(instruction).used_memory();
            let writes = |memory: &&UsedMemory| is_of_frame(memory.base()) && reads_and_writes(memory.access()).1;
            written.extend(used.iter().filter(writes));
        }
        for start in &within.blocks {
            let mut slots: BTreeMap<u16, FrameSlot> = BTreeMap::new();
            for instruction in self.instructions_until_call(&self.blocks[start]) {
                let operand = Operand::of(instruction, &mut factory).ok();
                let of_slot = operand.filter(|operand| operand.index == Register::None);
                if of_slot.is_some_and(|operand| slots.contains_key(&bit(operand.base))) {
                    found.insert(instruction.ip());
                }
                let writes = InstructionEffect::of(instruction, &mut factory).writes;
                slots.retain(|register, _| writes & register == 0);
                let read = FrameSlot::read_by(instruction);
                let lasts = |slot: FrameSlot| !written.iter().any(|memory| slot.may_be_written_by(memory));
                slots.extend(read.filter(|&(_, slot)| lasts(slot)).map(|(register, slot)| (bit(register), slot)));
            }
        }
        found
    }
}

const fn is_of_frame(register: Register) -> bool {
    matches!(register, Register::RBP | Register::RSP)
}

/// Whether reads before and after it must not be merged.
fn orders_memory(instruction: &Instruction) -> bool {
    let fences =
        [Mnemonic::Mfence, Mnemonic::Lfence, Mnemonic::Sfence, Mnemonic::Cpuid, Mnemonic::Serialize, Mnemonic::Pause];
    is_atomic(instruction) || fences.contains(&instruction.mnemonic())
}

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::{AsmMemoryOperand, CodeAssembler, dword_ptr, eax, qword_ptr, rax, rbp, rcx, rdx, rsp};
    use iced_x86::{InstructionInfoFactory, Register};

    use super::FrameState;
    use crate::effect::InstructionEffect;
    use crate::flow::Flow;
    use crate::memory::MemoryImage;

    /// Known value of a slot's second read, after the first was checked to be 7 and `between` ran.
    fn known_after(redirected: bool, between: impl FnOnce(&mut CodeAssembler)) -> Option<u64> {
        known_of(qword_ptr(rbp - 24), redirected, between)
    }

    fn known_of(slot: AsmMemoryOperand, redirected: bool, between: impl FnOnce(&mut CodeAssembler)) -> Option<u64> {
        let mut code = CodeAssembler::new(64).unwrap();
        code.mov(rax, slot).unwrap();
        between(&mut code);
        code.mov(rdx, slot).unwrap();
        let (mut frame, mut factory) = (FrameState::default(), InstructionInfoFactory::new());
        let instructions = code.instructions();
        let (last, rest) = instructions.split_last().unwrap();
        for (index, instruction) in rest.iter().enumerate() {
            let effect = InstructionEffect::of(instruction, &mut factory);
            frame.pass(instruction, &effect, redirected && index > 0, &mut factory);
            if index == 0 {
                assert_eq!(frame.holds(Register::RAX), Some(None));
                frame.check(Register::RAX, 7);
                assert_eq!((frame.holds(Register::RAX), frame.holds(Register::RDX)), (Some(Some(7)), None));
            }
        }
        frame.known(last)
    }

    #[test]
    fn a_slot_by_rsp_is_read_again() {
        assert_eq!(known_of(qword_ptr(rsp + 24), false, |_| ()), None);
    }

    #[test]
    fn a_slot_is_known_until_a_possible_write() {
        assert_eq!(known_after(false, |_| ()), Some(7));
        assert_eq!(known_after(false, |code| code.mov(rax, qword_ptr(rax)).unwrap()), Some(7), "reads are none");
        assert_eq!(known_after(false, |code| code.add(dword_ptr(rbp - 28), 1).unwrap()), Some(7), "beside it");
        assert_eq!(known_after(false, |code| code.add(dword_ptr(rbp - 16), 1).unwrap()), Some(7), "beside it");
        assert_eq!(
            known_after(true, |code| code.mov(qword_ptr(rcx), rax).unwrap()),
            Some(7),
            "moved bytes are no stack"
        );
        for write in [
            |code: &mut CodeAssembler| code.mov(qword_ptr(rcx), rax),
            |code: &mut CodeAssembler| code.mov(dword_ptr(rbp - 27), eax),
            |code: &mut CodeAssembler| code.mov(dword_ptr(rbp - 20), eax),
            |code: &mut CodeAssembler| code.mov(qword_ptr(rbp + rcx - 64), rax),
            |code: &mut CodeAssembler| code.mov(qword_ptr(rsp + 8), rax),
            |code: &mut CodeAssembler| code.push(rcx),
            |code: &mut CodeAssembler| code.add(rbp, 8),
            |code: &mut CodeAssembler| code.mfence(),
        ] {
            assert_eq!(known_after(false, |code| write(code).unwrap()), None);
        }
        assert_eq!(known_after(true, |code| code.push(qword_ptr(rcx)).unwrap()), None, "it pushes what it has read");
        assert_eq!(known_after(true, |code| code.lock().add(qword_ptr(rcx), 1).unwrap()), None, "an order of memory");
    }

    #[test]
    fn a_read_of_moved_bytes_is_no_slot() {
        let mut code = CodeAssembler::new(64).unwrap();
        code.mov(rax, qword_ptr(rbp - 24)).unwrap();
        let (mut factory, read) = (InstructionInfoFactory::new(), code.instructions()[0]);
        for redirected in [false, true] {
            let mut frame = FrameState::default();
            let effect = InstructionEffect::of(&read, &mut factory);
            frame.pass(&read, &effect, redirected, &mut factory);
            frame.check(Register::RAX, 7);
            assert_eq!(frame.known(&read), (!redirected).then_some(7));
        }
    }

    #[test]
    fn slot_accesses_exclude_slots_that_the_loop_writes() {
        // 0: mov rax, [rbp - 24] (4); 4: add [rax], 1 (4); 8: add [rbp - 24], 8 (5) or [rbp - 8],
        // 1; d: jne 0; ret
        for (written, found) in [(-24, vec![]), (-8, vec![0x1004])] {
            let mut code = CodeAssembler::new(64).unwrap();
            let mut head = code.create_label();
            code.set_label(&mut head).unwrap();
            code.mov(rax, qword_ptr(rbp - 24)).unwrap();
            code.add(qword_ptr(rax), 1).unwrap();
            code.add(qword_ptr(rbp + written), 1).unwrap();
            code.jne(head).unwrap();
            code.ret().unwrap();
            let image = MemoryImage { start: 0x1000, bytes: code.assemble(0x1000).unwrap() };
            let flow = Flow::discover(&image, 0x1000).unwrap();
            assert_eq!(flow.slot_accesses(&flow.loops()[0]).into_iter().collect::<Vec<_>>(), found);
        }
    }
}
