//! What one instruction does to memory, as far as its call-back has to know it.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register, UsedMemory,
};

use crate::qemu::{BOTH, ONCE};

/// A memory operand, by the registers of its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuestOperand {
    segment: Register,
    base: Register,
    index: Register,
    scale: u32,
    displacement: u64,
    bytes: usize,
}

impl GuestOperand {
    fn of(memory: &UsedMemory) -> Self {
        Self {
            segment: memory.segment(),
            base: memory.base(),
            index: memory.index(),
            scale: memory.scale(),
            displacement: memory.displacement(),
            bytes: memory.memory_size().size(),
        }
    }

    /// Whether this operand is within the bytes of an access to `other`.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.bytes <= other.bytes && Self { bytes: 0, ..*self } == Self { bytes: 0, ..*other }
    }
}

/// The kind of an access, as needed by `dependence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessKind {
    /// None of the other kinds.
    Plain,
    /// A load into a register of its own address; the register as a bit.
    Chase(u16),
    /// An access relative to the stack pointer.
    Stack,
}

/// The memory accesses of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryEffect {
    /// None.
    None,
    /// One operand at each run, recorded by one call-back of these kinds.
    One(GuestOperand, i32, AccessKind),
    /// Several accesses, or a varying number: each has its own call-back.
    Several,
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecodedInstruction {
    pub(crate) effect: MemoryEffect,
    /// Whether it changes a register of the given operand, or of its own.
    pub(crate) changes_address: bool,
    /// The general registers that it changes, one bit each.
    pub(crate) changed_registers: u16,
}

impl DecodedInstruction {
    const UNKNOWN: Self = Self { effect: MemoryEffect::Several, changes_address: true, changed_registers: u16::MAX };
}

/// Decodes instructions.
pub(crate) struct InstructionDecoder {
    factory: InstructionInfoFactory,
}

impl InstructionDecoder {
    pub(crate) fn new() -> Self {
        Self { factory: InstructionInfoFactory::new() }
    }

    /// Decodes the instruction at `address`, and whether it changes the address of the operand
    /// `operand`.
    pub(crate) fn decode(&mut self, bytes: &[u8], address: u64, operand: Option<&GuestOperand>) -> DecodedInstruction {
        let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            return DecodedInstruction::UNKNOWN;
        }
        let information = self.factory.info(&instruction);
        let effect = effect(&instruction, information.used_memory());
        let operand = match &effect {
            MemoryEffect::One(operand, ..) => Some(operand),
            _ => operand,
        };
        let mut decoded = DecodedInstruction { effect, changes_address: false, changed_registers: 0 };
        for used in information.used_registers().iter().filter(|used| writes(used.access())) {
            let register = used.register().full_register();
            decoded.changes_address |=
                operand.is_some_and(|operand| register == operand.base || register == operand.index);
            decoded.changed_registers |= bit(register);
        }
        decoded
    }
}

/// The bit of a general register; 0 for others.
fn bit(register: Register) -> u16 {
    if register.is_gpr64() { 1 << register.number() } else { 0 }
}

/// The target of the last instruction of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockEnd {
    /// Backwards, or to an address that is known at run time only. No program runs for long without
    /// a block that ends so.
    pub(crate) is_backward: bool,
    /// To the start of the block, if a condition holds.
    pub(crate) is_loop: bool,
}

/// The target of the instruction at `address`, the last one of a block that begins at `start`.
pub(crate) fn block_end(bytes: &[u8], address: u64, start: u64) -> BlockEnd {
    let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
    let is_backward = match instruction.flow_control() {
        FlowControl::IndirectBranch | FlowControl::IndirectCall | FlowControl::Return => true,
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch | FlowControl::Call => {
            // A system call is a call too, without a target.
            (1..=start).contains(&instruction.near_branch_target())
        }
        // QEMU translates such an instruction as a jump to itself.
        FlowControl::Next => instruction.has_rep_prefix() || instruction.has_repne_prefix(),
        _ => false,
    };
    BlockEnd { is_backward, is_loop: instruction.is_jcc_short_or_near() && instruction.near_branch_target() == start }
}

fn effect(instruction: &Instruction, memory: &[UsedMemory]) -> MemoryEffect {
    let accessed = |memory: &&UsedMemory| memory.access() != OpAccess::NoMemAccess && memory.access() != OpAccess::None;
    let mut accessed = memory.iter().filter(accessed);
    let Some(first) = accessed.next() else { return MemoryEffect::None };
    let is_simple = first.vsib_size() == 0 && (1..=64).contains(&first.memory_size().size());
    let is_variable =
        instruction.has_rep_prefix() || instruction.has_repne_prefix() || may_differ_from_operand(instruction);
    if accessed.next().is_some() || !is_simple || is_variable {
        return MemoryEffect::Several;
    }
    match first.access() {
        // A read and the write back count as one access.
        OpAccess::ReadWrite => MemoryEffect::One(GuestOperand::of(first), ONCE, access_kind(instruction, first)),
        OpAccess::Read | OpAccess::Write => {
            MemoryEffect::One(GuestOperand::of(first), BOTH, access_kind(instruction, first))
        }
        _ => MemoryEffect::Several,
    }
}

fn access_kind(instruction: &Instruction, memory: &UsedMemory) -> AccessKind {
    let is_move =
        matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd);
    let loaded = instruction.op0_register().full_register();
    if memory.base() == Register::RSP || memory.base() == Register::RBP {
        AccessKind::Stack
    } else if is_move && loaded != Register::None && (loaded == memory.base() || loaded == memory.index()) {
        AccessKind::Chase(bit(loaded))
    } else {
        AccessKind::Plain
    }
}

/// Whether the accessed memory may differ from the operand: cache control accesses none in QEMU,
/// and a bit number may select a bit outside of the operand.
fn may_differ_from_operand(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Clflush | Mnemonic::Clflushopt | Mnemonic::Clwb | Mnemonic::Cldemote | Mnemonic::Invlpg => true,
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc => instruction.op1_register() != Register::None,
        _ => false,
    }
}

fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect_of(bytes: &[u8]) -> (MemoryEffect, bool) {
        let decoded = InstructionDecoder::new().decode(bytes, 0x1000, None);
        (decoded.effect, decoded.changes_address)
    }

    #[test]
    fn one_operand_has_one_call_back() {
        let (xor, changed) = effect_of(&[0x48, 0x31, 0x0c, 0xc7]); // xor [rdi+rax*8], rcx
        assert!(matches!(xor, MemoryEffect::One(_, ONCE, AccessKind::Plain)) && !changed);
        let (store, _) = effect_of(&[0x48, 0x89, 0x0c, 0xc7]); // mov [rdi+rax*8], rcx
        assert!(matches!(store, MemoryEffect::One(_, BOTH, AccessKind::Plain)));
        let (MemoryEffect::One(read, ..), MemoryEffect::One(written, ..)) = (xor, store) else {
            unreachable!("checked above")
        };
        assert!(read.is_within(&written));
        let (chase, changed) = effect_of(&[0x48, 0x8b, 0x00]); // mov rax, [rax]
        assert!(
            matches!(chase, MemoryEffect::One(_, BOTH, AccessKind::Chase(1))) && changed,
            "the address is overwritten"
        );
    }

    #[test]
    fn variable_accesses_are_recorded_one_by_one() {
        for bytes in [
            &[0xf3, 0xa4][..],                     // rep movsb
            &[0x48, 0xa5],                         // movsq
            &[0xff, 0x30],                         // push [rax]
            &[0x0f, 0xae, 0x38],                   // clflush [rax]
            &[0xc4, 0xe2, 0xed, 0x90, 0x04, 0x88], // vpgatherdd
            &[0x48, 0x0f, 0xab, 0x07],             // bts [rdi], rax
            &[0x06],                               // no instruction in 64-bit mode
        ] {
            assert_eq!(effect_of(bytes).0, MemoryEffect::Several, "{bytes:02x?}");
        }
    }

    #[test]
    fn instructions_without_accesses_have_no_effect() {
        for bytes in [&[0x48, 0x01, 0xc8][..], &[0x48, 0x8d, 0x04, 0x08], &[0x0f, 0x18, 0x08], &[0x0f, 0x1f, 0x00]] {
            assert_eq!(effect_of(bytes).0, MemoryEffect::None, "{bytes:02x?}"); // add, lea, prefetch, nop
        }
    }

    #[test]
    fn a_wider_access_is_not_within_a_narrow_one() {
        let (MemoryEffect::One(byte, ..), _) = effect_of(&[0x8a, 0x07]) else { panic!("mov al, [rdi]") };
        let (MemoryEffect::One(word, ..), _) = effect_of(&[0x48, 0x8b, 0x0f]) else { panic!("mov rcx, [rdi]") };
        assert!(byte.is_within(&word) && !word.is_within(&byte));
    }
}
