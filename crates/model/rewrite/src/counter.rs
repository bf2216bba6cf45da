//! The counter of a loop: a register or a stack word that one instruction changes by a constant in
//! each iteration.
//!
//! ```text
//!   head:  add [rdi], 1                      head:  …
//!          add rdx, 16    <- 16 each time           add [rax], 1
//!          cmp rdx, rcx                             add dword [rbp - 20], 1    <- 1 each time, unoptimised code
//!          jne head                                 jmp head
//! ```
//! Its values in two samples of a thread give the number of iterations between them, and so the
//! program's speed without a hardware counter. Limits: this is evidence and no proof. The
//! instruction may run more or less than once per iteration, and other code may write the word.

use std::collections::BTreeMap;

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

use crate::effect::{InstructionEffect, reads_and_writes};
use crate::flow::Flow;
use crate::loops::Loop;
use crate::memory::ReadableMemory;
use crate::registers::{RBP, RSP, Registers, number};

/// Registers that a call preserves: rbx and r12 to r15. The frame pointer is never a counter.
const KEPT_BY_CALLS: u16 = 0xf008;

/// The counter of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopCounter {
    /// Address of the instruction that changes it.
    pub ip: u64,
    /// The change in each iteration.
    pub step: i64,
    /// Its size in bytes, 4 or 8. It wraps around at that size.
    pub bytes: u32,
    place: CounterPlace,
}

/// The location of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CounterPlace {
    /// A general register.
    Register(usize),
    /// A word at a distance from the frame or stack pointer.
    Frame { base: usize, distance: i64 },
}

impl LoopCounter {
    /// The counter of a loop, preferably a register. `None` if there is none.
    #[must_use]
    pub fn of(flow: &Flow, within: &Loop) -> Option<Self> {
        let mut factory = InstructionInfoFactory::new();
        let mut writers: BTreeMap<CounterPlace, u32> = BTreeMap::new();
        let mut found = Vec::new();
        for instruction in flow.instructions_in(within) {
            for place in written(instruction, &mut factory) {
                *writers.entry(place).or_default() += 1;
            }
            found.extend(counting(instruction));
        }
        let lasts = |place: &CounterPlace| match place {
            CounterPlace::Register(number) => !within.has_call || KEPT_BY_CALLS & (1 << number) != 0,
            CounterPlace::Frame { .. } => true,
        };
        let counts = |one: &Self| writers.get(&one.place) == Some(&1) && lasts(&one.place);
        found.into_iter().filter(counts).min_by_key(|one| (one.place, one.ip))
    }

    /// Its value with these registers. `None` if its memory is not mapped.
    #[must_use]
    pub fn value(&self, registers: &Registers, memory: &dyn ReadableMemory) -> Option<u64> {
        let bytes = self.bytes as usize;
        let mut value = match self.place {
            CounterPlace::Register(number) => registers.gpr[number].to_le_bytes(),
            CounterPlace::Frame { base, distance } => {
                let mut word = [0; 8];
                let at = registers.gpr[base].wrapping_add_signed(distance);
                (memory.read(at, &mut word[..bytes]) == bytes).then_some(word)?
            }
        };
        value[bytes..].fill(0);
        Some(u64::from_le_bytes(value))
    }

    /// Whether code with this flow, called from the loop, preserves it at each instruction. Such
    /// code may save and use registers of its caller.
    #[must_use]
    pub fn is_kept_by(&self, flow: &Flow) -> bool {
        let CounterPlace::Register(number) = self.place else { return true };
        let mut factory = InstructionInfoFactory::new();
        let is_written = |instruction| InstructionEffect::of(instruction, &mut factory).writes & (1 << number) != 0;
        KEPT_BY_CALLS & (1 << number) != 0 && !flow.instructions.values().any(is_written)
    }

    /// Whether its value is in memory, which may be read later than the registers.
    #[must_use]
    pub const fn is_in_memory(&self) -> bool {
        matches!(self.place, CounterPlace::Frame { .. })
    }
}

/// Locations of possible counters that an instruction writes.
fn written(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Vec<CounterPlace> {
    let registers = InstructionEffect::of(instruction, factory).writes;
    let mut places: Vec<CounterPlace> =
        (0..16).filter(|number| registers & (1 << number) != 0).map(CounterPlace::Register).collect();
    let writes_memory = factory.info(instruction).used_memory().iter().any(|used| reads_and_writes(used.access()).1);
    places.extend(frame(instruction).filter(|_| writes_memory));
    places
}

/// The stack word that is an instruction's operand.
fn frame(instruction: &Instruction) -> Option<CounterPlace> {
    let base = number(instruction.memory_base()).filter(|&base| base == RBP || base == RSP)?;
    let is_plain = instruction.memory_index() == Register::None && instruction.segment_prefix() == Register::None;
    is_plain.then(|| CounterPlace::Frame { base, distance: instruction.memory_displacement64().cast_signed() })
}

/// The counter that an instruction changes, if it is a counting instruction.
fn counting(instruction: &Instruction) -> Option<LoopCounter> {
    if instruction.has_lock_prefix() {
        return None;
    }
    let (place, bytes) = match instruction.op0_kind() {
        OpKind::Register => (register(instruction.op0_register())?, instruction.op0_register().size()),
        OpKind::Memory => (frame(instruction)?, instruction.memory_size().size()),
        _ => return None,
    };
    let step = match instruction.mnemonic() {
        Mnemonic::Inc => 1,
        Mnemonic::Dec => -1,
        Mnemonic::Add => constant(instruction, bytes)?,
        Mnemonic::Sub => constant(instruction, bytes)?.checked_neg()?,
        Mnemonic::Lea => moved(instruction)?,
        _ => return None,
    };
    let bytes = u32::try_from(bytes).ok().filter(|bytes| matches!(bytes, 4 | 8))?;
    (step != 0).then_some(LoopCounter { ip: instruction.ip(), step, bytes, place })
}

/// A register that may be a counter.
fn register(register: Register) -> Option<CounterPlace> {
    let number = number(register).filter(|&number| number != RSP && number != RBP)?;
    Some(CounterPlace::Register(number))
}

fn constant(instruction: &Instruction, bytes: usize) -> Option<i64> {
    let value = instruction.try_immediate(1).ok()?;
    // iced returns a four-byte immediate without its sign.
    if bytes == 4 {
        u32::try_from(value & 0xffff_ffff).ok().map(|low| low.cast_signed().into())
    } else {
        Some(value.cast_signed())
    }
}

/// `lea rdx, [rdx + 16]`.
fn moved(instruction: &Instruction) -> Option<i64> {
    let same = number(instruction.op0_register()) == number(instruction.memory_base());
    let alone = instruction.memory_index() == Register::None;
    (same && alone).then(|| instruction.memory_displacement64().cast_signed())
}

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::{
        CodeAssembler, CodeLabel, dword_ptr, eax, ecx, edx, qword_ptr, r12, rax, rbp, rbx, rdi, rdx, rsp,
    };

    use super::LoopCounter;
    use crate::flow::Flow;
    use crate::memory::MemoryImage;
    use crate::registers::{RBP, Registers};

    /// The counter of the innermost loop around the code of `body`, which begins at the loop's
    /// head.
    fn counter(body: impl FnOnce(&mut CodeAssembler)) -> Option<LoopCounter> {
        let mut code = CodeAssembler::new(64).unwrap();
        let mut head: CodeLabel = code.create_label();
        code.set_label(&mut head).unwrap();
        body(&mut code);
        code.jne(head).unwrap();
        code.ret().unwrap();
        let image = MemoryImage { start: 0x1000, bytes: code.assemble(0x1000).unwrap() };
        let flow = Flow::discover(&image, 0x1000).unwrap();
        let within = flow.loops().into_iter().next().unwrap();
        LoopCounter::of(&flow, &within)
    }

    fn summary(found: Option<LoopCounter>) -> Option<(u64, i64, u32, bool)> {
        found.map(|found| (found.ip, found.step, found.bytes, found.is_in_memory()))
    }

    #[test]
    fn each_form_of_a_register_counter_is_found() {
        let add = |code: &mut CodeAssembler| {
            code.add(qword_ptr(rdi), 1).unwrap();
            code.add(rdx, 16).unwrap();
        };
        assert_eq!(summary(counter(add)), Some((0x1004, 16, 8, false)));
        assert_eq!(summary(counter(|code| code.dec(ecx).unwrap())), Some((0x1000, -1, 4, false)));
        assert_eq!(summary(counter(|code| code.sub(edx, 0x1000).unwrap())), Some((0x1000, -0x1000, 4, false)));
        assert_eq!(summary(counter(|code| code.lea(rdx, qword_ptr(rdx - 8)).unwrap())), Some((0x1000, -8, 8, false)));
    }

    #[test]
    fn a_register_written_twice_or_lost_is_no_counter() {
        let twice = |code: &mut CodeAssembler| {
            code.add(rdx, 16).unwrap();
            code.mov(edx, eax).unwrap();
        };
        assert_eq!(counter(twice), None);
        let over_a_call = |code: &mut CodeAssembler| {
            code.add(rdx, 16).unwrap();
            code.call(rax).unwrap();
        };
        assert_eq!(counter(over_a_call), None);
        let kept = |code: &mut CodeAssembler| {
            code.add(rbx, 1).unwrap();
            code.add(r12, 1).unwrap();
            code.call(rax).unwrap();
        };
        assert_eq!(summary(counter(kept)), Some((0x1000, 1, 8, false)));
        assert_eq!(counter(|code| code.add(rsp, 16).unwrap()), None, "the stack");
        assert_eq!(counter(|code| code.lea(rdx, qword_ptr(rdi + 8)).unwrap()), None, "another register");
        assert_eq!(counter(|code| code.add(edx, eax).unwrap()), None, "by an unknown amount");
    }

    #[test]
    fn a_stack_word_counter_is_found_and_read() {
        let body = |code: &mut CodeAssembler| {
            code.mov(rax, qword_ptr(rbp - 8)).unwrap();
            code.add(qword_ptr(rax), 1).unwrap();
            code.add(dword_ptr(rbp - 20), 1).unwrap();
        };
        let found = counter(body).unwrap();
        assert_eq!(summary(Some(found)), Some((0x1008, 1, 4, true)));
        let mut registers = Registers::default();
        registers.gpr[RBP] = 0x2000;
        let there = MemoryImage { start: 0x2000 - 20, bytes: vec![7, 1, 0, 0, 0xff] };
        assert_eq!(found.value(&registers, &there), Some(0x107));
        assert_eq!(found.value(&registers, &MemoryImage::default()), None);
        let stored = |code: &mut CodeAssembler| {
            body(code);
            code.mov(dword_ptr(rbp - 20), eax).unwrap();
        };
        assert_eq!(counter(stored), None, "written twice");
    }

    #[test]
    fn a_four_byte_counter_has_the_lower_half_of_its_register() {
        let found = counter(|code| code.dec(ecx).unwrap()).unwrap();
        let mut registers = Registers::default();
        registers.gpr[1] = 0x1_0000_0005;
        assert_eq!(found.value(&registers, &MemoryImage::default()), Some(5));
    }
}
