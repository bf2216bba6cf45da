//! What one instruction does to memory, as far as a call-back has to know it.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register, UsedMemory,
};

use crate::qemu::{BOTH, ONCE};

/// An operand in memory: where it is, told by the registers that the address is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    segment: Register,
    base: Register,
    index: Register,
    scale: u32,
    displacement: u64,
    bytes: usize,
}

impl Place {
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

    /// Whether this lies within what an access to `other` has touched.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.bytes <= other.bytes && Self { bytes: 0, ..*self } == Self { bytes: 0, ..*other }
    }
}

/// What kind of access it is, as far as `chain` has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nature {
    /// None of the others.
    Plain,
    /// It loads into a register, given by its bit, which its own address is made of.
    Chase(u16),
    /// It is relative to the stack pointer.
    Stack,
}

/// What an instruction does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing.
    None,
    /// One operand, at each run: one call-back of this kind tells it.
    One(Place, i32, Nature),
    /// Several, or one that depends: each access is told by itself.
    Several,
}

/// What is known of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) effect: Effect,
    /// Whether it changes a register that the place asked for, or its own place, is made of.
    pub(crate) moves: bool,
    /// The general registers that it changes, a bit each.
    pub(crate) changes: u16,
}

impl Seen {
    const UNKNOWN: Self = Self { effect: Effect::Several, moves: true, changes: u16::MAX };
}

/// Decodes instructions, one after the other.
pub(crate) struct Reader {
    factory: InstructionInfoFactory,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self { factory: InstructionInfoFactory::new() }
    }

    /// What the instruction at `address` does, and whether it changes where `place` is.
    pub(crate) fn read(&mut self, bytes: &[u8], address: u64, place: Option<&Place>) -> Seen {
        let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            return Seen::UNKNOWN;
        }
        let information = self.factory.info(&instruction);
        let effect = effect(&instruction, information.used_memory());
        let place = match &effect {
            Effect::One(place, ..) => Some(place),
            _ => place,
        };
        let mut seen = Seen { effect, moves: false, changes: 0 };
        for used in information.used_registers().iter().filter(|used| writes(used.access())) {
            let register = used.register().full_register();
            seen.moves |= place.is_some_and(|place| register == place.base || register == place.index);
            seen.changes |= bit(register);
        }
        seen
    }
}

/// The bit of a general register; none for others.
fn bit(register: Register) -> u16 {
    if register.is_gpr64() { 1 << register.number() } else { 0 }
}

/// Where the last instruction of a block leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct End {
    /// Back, or to where only the run tells. No program runs for long without a block that ends so.
    pub(crate) goes_back: bool,
    /// To the block's own start, if a condition holds.
    pub(crate) loops: bool,
}

/// Where the instruction at `address` leads, the last one of a block that begins at `start`.
pub(crate) fn end(bytes: &[u8], address: u64, start: u64) -> End {
    let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
    let goes_back = match instruction.flow_control() {
        FlowControl::IndirectBranch | FlowControl::IndirectCall | FlowControl::Return => true,
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch | FlowControl::Call => {
            // A system call is a call too, with no target.
            (1..=start).contains(&instruction.near_branch_target())
        }
        // QEMU has such an instruction jump to itself.
        FlowControl::Next => instruction.has_rep_prefix() || instruction.has_repne_prefix(),
        _ => false,
    };
    End { goes_back, loops: instruction.is_jcc_short_or_near() && instruction.near_branch_target() == start }
}

fn effect(instruction: &Instruction, memory: &[UsedMemory]) -> Effect {
    let touched = |memory: &&UsedMemory| memory.access() != OpAccess::NoMemAccess && memory.access() != OpAccess::None;
    let mut touched = memory.iter().filter(touched);
    let Some(first) = touched.next() else { return Effect::None };
    let plain = first.vsib_size() == 0 && (1..=64).contains(&first.memory_size().size());
    let depends = instruction.has_rep_prefix() || instruction.has_repne_prefix() || is_elsewhere(instruction);
    if touched.next().is_some() || !plain || depends {
        return Effect::Several;
    }
    match first.access() {
        // What is read and written back is one access.
        OpAccess::ReadWrite => Effect::One(Place::of(first), ONCE, nature(instruction, first)),
        OpAccess::Read | OpAccess::Write => Effect::One(Place::of(first), BOTH, nature(instruction, first)),
        _ => Effect::Several,
    }
}

fn nature(instruction: &Instruction, memory: &UsedMemory) -> Nature {
    let moves = matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd);
    let loaded = instruction.op0_register().full_register();
    if memory.base() == Register::RSP || memory.base() == Register::RBP {
        Nature::Stack
    } else if moves && loaded != Register::None && (loaded == memory.base() || loaded == memory.index()) {
        Nature::Chase(bit(loaded))
    } else {
        Nature::Plain
    }
}

/// Whether the memory touched may not be what is named: cache control touches none in QEMU, and a bit's number may lead
/// beyond the operand.
fn is_elsewhere(instruction: &Instruction) -> bool {
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

    fn effect_of(bytes: &[u8]) -> (Effect, bool) {
        let seen = Reader::new().read(bytes, 0x1000, None);
        (seen.effect, seen.moves)
    }

    #[test]
    fn one_operand_is_told_once() {
        let (xor, changed) = effect_of(&[0x48, 0x31, 0x0c, 0xc7]); // xor [rdi+rax*8], rcx
        assert!(matches!(xor, Effect::One(_, ONCE, Nature::Plain)) && !changed);
        let (store, _) = effect_of(&[0x48, 0x89, 0x0c, 0xc7]); // mov [rdi+rax*8], rcx
        assert!(matches!(store, Effect::One(_, BOTH, Nature::Plain)));
        let (Effect::One(read, ..), Effect::One(written, ..)) = (xor, store) else { unreachable!("checked above") };
        assert!(read.is_within(&written));
        let (chase, changed) = effect_of(&[0x48, 0x8b, 0x00]); // mov rax, [rax]
        assert!(matches!(chase, Effect::One(_, BOTH, Nature::Chase(1))) && changed, "the address is gone");
    }

    #[test]
    fn what_depends_is_told_access_by_access() {
        for bytes in [
            &[0xf3, 0xa4][..],                     // rep movsb
            &[0x48, 0xa5],                         // movsq
            &[0xff, 0x30],                         // push [rax]
            &[0x0f, 0xae, 0x38],                   // clflush [rax]
            &[0xc4, 0xe2, 0xed, 0x90, 0x04, 0x88], // vpgatherdd
            &[0x48, 0x0f, 0xab, 0x07],             // bts [rdi], rax
            &[0x06],                               // no instruction in 64-bit mode
        ] {
            assert_eq!(effect_of(bytes).0, Effect::Several, "{bytes:02x?}");
        }
    }

    #[test]
    fn what_touches_nothing_is_left_alone() {
        for bytes in [&[0x48, 0x01, 0xc8][..], &[0x48, 0x8d, 0x04, 0x08], &[0x0f, 0x18, 0x08], &[0x0f, 0x1f, 0x00]] {
            assert_eq!(effect_of(bytes).0, Effect::None, "{bytes:02x?}"); // add, lea, prefetch, nop
        }
    }

    #[test]
    fn a_wider_access_is_not_within_a_narrow_one() {
        let (Effect::One(byte, ..), _) = effect_of(&[0x8a, 0x07]) else { panic!("mov al, [rdi]") };
        let (Effect::One(word, ..), _) = effect_of(&[0x48, 0x8b, 0x0f]) else { panic!("mov rcx, [rdi]") };
        assert!(byte.is_within(&word) && !word.is_within(&byte));
    }
}
