//! Interpretation of one instruction on a walk.
//!
//! The instructions that compute addresses are interpreted. Of the others, only the written
//! registers and memory are known, and they become unknown.

use iced_x86::{Instruction, InstructionInfo, Mnemonic, OpKind, Register};

use super::address::{address, calculated, writes_memory};
use super::state::{WalkState, WalkValue, mask};
use crate::effect::reads_and_writes;
use crate::flow::calls;
use crate::memory::ReadableMemory;

/// Registers that a call may change (System V ABI).
const LOST_BY_CALLS: [Register; 9] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
];

impl WalkState {
    /// Interprets an instruction. A call is one step, up to its return.
    pub(super) fn step(
        &mut self,
        instruction: &Instruction,
        information: &InstructionInfo,
        memory: &dyn ReadableMemory,
    ) {
        if calls(instruction) {
            for register in LOST_BY_CALLS {
                self.set_register(register, WalkValue::UNKNOWN);
            }
            return;
        }
        if self.stack(instruction, memory) {
            return;
        }
        let operand = information.used_memory().first().map_or(WalkValue::UNKNOWN, |place| address(place, self));
        match self.result(instruction, memory, operand) {
            Some(value) => self.set(instruction, operand, value),
            None => self.forget(information),
        }
    }

    /// Interprets push, pop and leave; returns whether it was one.
    fn stack(&mut self, instruction: &Instruction, memory: &dyn ReadableMemory) -> bool {
        let rsp = self.register(Register::RSP);
        match instruction.mnemonic() {
            Mnemonic::Push if instruction.stack_pointer_increment() == -8 => {
                let value = match instruction.op0_kind() {
                    OpKind::Memory => WalkValue::UNKNOWN,
                    _ => self.source(instruction, 0, memory, WalkValue::UNKNOWN),
                };
                let rsp = rsp.map(|rsp| rsp.wrapping_sub(8));
                self.store(rsp, 8, value);
                self.set_register(Register::RSP, rsp);
            }
            Mnemonic::Pop
                if instruction.stack_pointer_increment() == 8 && instruction.op0_kind() == OpKind::Register =>
            {
                let value = self.load(memory, rsp, 8);
                self.set_register(Register::RSP, rsp.map(|rsp| rsp.wrapping_add(8)));
                self.set_register(instruction.op0_register(), value);
            }
            Mnemonic::Leave => {
                let rbp = self.register(Register::RBP);
                let value = self.load(memory, rbp, 8);
                self.set_register(Register::RSP, rbp.map(|rbp| rbp.wrapping_add(8)));
                self.set_register(Register::RBP, value);
            }
            _ => return false,
        }
        true
    }

    /// The new value of the first operand, for interpreted instructions.
    fn result(&self, instruction: &Instruction, memory: &dyn ReadableMemory, operand: WalkValue) -> Option<WalkValue> {
        let bytes = width(instruction, 0);
        let source = |index| self.source(instruction, index, memory, operand);
        let binary = |combine: fn(u64, u64) -> u64| Some(source(0).with(source(1), combine).low(bytes));
        let unary = |change: fn(u64) -> u64| Some(source(0).map(change).low(bytes));
        match instruction.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movzx => Some(source(1).low(bytes)),
            Mnemonic::Movsx | Mnemonic::Movsxd => {
                let from = width(instruction, 1);
                Some(source(1).map(|value| sign_extended(value, from)).low(bytes))
            }
            Mnemonic::Lea => Some(calculated(instruction, self).low(bytes)),
            Mnemonic::Xor | Mnemonic::Sub if same_registers(instruction) => Some(WalkValue::of(0)),
            Mnemonic::Add => binary(u64::wrapping_add),
            Mnemonic::Sub => binary(u64::wrapping_sub),
            Mnemonic::And => binary(|one, two| one & two),
            Mnemonic::Or => binary(|one, two| one | two),
            Mnemonic::Xor => binary(|one, two| one ^ two),
            Mnemonic::Inc => unary(|value| value.wrapping_add(1)),
            Mnemonic::Dec => unary(|value| value.wrapping_sub(1)),
            Mnemonic::Neg => unary(u64::wrapping_neg),
            Mnemonic::Not => unary(|value| !value),
            Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar => {
                let count = source(1).map(|count| count & if bytes == 8 { 0x3f } else { 0x1f });
                let mnemonic = instruction.mnemonic();
                Some(source(0).with(count, |value, count| shifted(mnemonic, value, count, bytes)).low(bytes))
            }
            Mnemonic::Imul if instruction.op_count() == 2 => binary(u64::wrapping_mul),
            Mnemonic::Imul if instruction.op_count() == 3 => {
                Some(source(1).with(source(2), u64::wrapping_mul).low(bytes))
            }
            _ => None,
        }
    }

    /// The value of an operand. `operand` is the address of the memory operand.
    fn source(
        &self,
        instruction: &Instruction,
        index: u32,
        memory: &dyn ReadableMemory,
        operand: WalkValue,
    ) -> WalkValue {
        match instruction.op_kind(index) {
            OpKind::Register => self.register(instruction.op_register(index)),
            OpKind::Memory => self.load(memory, operand, width(instruction, index)),
            _ => instruction.try_immediate(index).map_or(WalkValue::UNKNOWN, WalkValue::of),
        }
    }

    /// Writes the first operand.
    fn set(&mut self, instruction: &Instruction, operand: WalkValue, value: WalkValue) {
        match instruction.op0_kind() {
            OpKind::Register => self.set_register(instruction.op0_register(), value),
            _ => self.store(operand, width(instruction, 0), value),
        }
    }

    /// Makes unknown what the instruction writes.
    fn forget(&mut self, information: &InstructionInfo) {
        let written = information.used_memory().iter().filter(|place| writes_memory(place));
        let places: Vec<_> = written.map(|place| (address(place, self), place.memory_size().size())).collect();
        for (at, bytes) in places {
            self.store(at, bytes, WalkValue::UNKNOWN);
        }
        self.forget_registers(information);
    }

    /// Makes unknown the registers that the instruction writes.
    pub(super) fn forget_registers(&mut self, information: &InstructionInfo) {
        for used in information.used_registers().iter().filter(|used| reads_and_writes(used.access()).1) {
            self.set_register(used.register(), WalkValue::UNKNOWN);
        }
    }
}

/// Size of an operand in bytes.
fn width(instruction: &Instruction, index: u32) -> usize {
    match instruction.op_kind(index) {
        OpKind::Register => instruction.op_register(index).size(),
        OpKind::Memory => instruction.memory_size().size(),
        _ => 8,
    }
}

fn same_registers(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register
        && instruction.op0_register() == instruction.op1_register()
}

const fn sign_extended(value: u64, bytes: usize) -> u64 {
    let above = if bytes == 0 || bytes >= 8 { 0 } else { 64 - 8 * bytes };
    ((value << above).cast_signed() >> above).cast_unsigned()
}

const fn shifted(mnemonic: Mnemonic, value: u64, count: u64, bytes: usize) -> u64 {
    match mnemonic {
        Mnemonic::Shr => (value & mask(bytes)) >> count,
        Mnemonic::Sar => (sign_extended(value, bytes).cast_signed() >> count).cast_unsigned(),
        _ => value << count,
    }
}
