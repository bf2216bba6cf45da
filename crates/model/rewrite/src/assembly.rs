//! Code with labels, encoded at an address.
//!
//! Generated instructions and copies of program instructions get temporary addresses that no
//! program can have: bit 63 is set, bit 62 is clear. Labels are such addresses too, until the code
//! is encoded. So a copied jump to an original address is not taken for a jump to the copy.

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, IcedError, Instruction, InstructionBlock, MemoryOperand, OpKind, Register,
};

use crate::error::{Error, RefusalReason, Result};

const INSTRUCTIONS: u64 = 0x8000_0000_0000_0000;
const LABELS: u64 = 0x9000_0000_0000_0000;
/// Distance between the temporary addresses of two instructions; more than the longest instruction.
const STEP: u64 = 16;

/// A position in the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label(usize);

impl Label {
    /// The temporary address of the label, for jumps.
    pub(crate) const fn target(self) -> u64 {
        LABELS + self.0 as u64
    }
}

/// Code that is being assembled.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    instructions: Vec<Instruction>,
    /// For each label, the index of the next instruction.
    labels: Vec<Option<usize>>,
}

/// Encoded code.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) bytes: Vec<u8>,
    /// For each label, its address.
    labels: Vec<Option<u64>>,
}

impl Encoded {
    /// Address of a label. `None` if it was never placed.
    pub(crate) fn address(&self, label: Label) -> Option<u64> {
        self.labels.get(label.0).copied().flatten()
    }
}

impl Assembly {
    /// Creates a label, to be placed later.
    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places a label before the next instruction.
    pub(crate) fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.instructions.len());
    }

    /// Creates a label before the next instruction.
    pub(crate) fn here(&mut self) -> Label {
        let label = self.label();
        self.place(label);
        label
    }

    /// Adds a copied or generated instruction.
    pub(crate) fn push(&mut self, instruction: Instruction) {
        self.instructions.push(instruction);
    }

    pub(crate) fn add(&mut self, made: std::result::Result<Instruction, IcedError>) {
        // A failed construction becomes an invalid instruction, which does not encode.
        self.push(made.unwrap_or_default());
    }

    /// Adds a jump with or without a condition, to a label or an address.
    pub(crate) fn jump(&mut self, code: Code, target: u64) {
        self.add(Instruction::with_branch(code, target));
    }

    /// Adds `lea register, [base + index * scale + displacement]`.
    pub(crate) fn lea(&mut self, register: Register, base: Register, index: Register, scale: u32, displacement: i32) {
        let operand = MemoryOperand::new(base, index, scale, i64::from(displacement), 1, false, Register::None);
        self.add(Instruction::with2(Code::Lea_r64_m, register, operand));
    }

    /// Adds `mov register, value`.
    pub(crate) fn load(&mut self, register: Register, value: u64) {
        self.add(Instruction::with2(Code::Mov_r64_imm64, register, value));
    }

    /// Adds `cmp register, [label]`, with eight bytes beside the code.
    pub(crate) fn compare_with(&mut self, register: Register, label: Label) {
        self.add(Instruction::with2(Code::Cmp_r64_rm64, register, at(label)));
    }

    /// Adds eight bytes of data.
    pub(crate) fn word(&mut self, value: u64) {
        self.push(Instruction::with_declare_qword_1(value));
    }

    /// Adds `cmp register, value`.
    pub(crate) fn compare(&mut self, register: Register, value: i32) {
        self.add(Instruction::with2(Code::Cmp_rm64_imm32, register, value));
    }

    /// Encodes the code at address `at`. Errors name the instruction at `ip`.
    ///
    /// # Errors
    /// [`RefusalReason::OutOfReach`] if an operand or a jump does not reach its target from there.
    pub(crate) fn encode(mut self, at: u64, ip: u64) -> Result<Encoded> {
        let refused = || Error::refused(ip, RefusalReason::OutOfReach);
        let address = |index: usize| INSTRUCTIONS + index as u64 * STEP;
        for (index, instruction) in self.instructions.iter_mut().enumerate() {
            instruction.set_ip(address(index));
            let Some(target) = target(instruction) else { continue };
            let label = target.checked_sub(LABELS).and_then(|label| usize::try_from(label).ok());
            let Some(place) = label.and_then(|label| self.labels.get(label)) else { continue };
            let place = address(place.ok_or_else(refused)?);
            if instruction.op0_kind() == OpKind::NearBranch64 {
                instruction.set_near_branch64(place);
            } else {
                instruction.set_memory_displacement64(place);
            }
        }
        let block = InstructionBlock::new(&self.instructions, at);
        let encoded = BlockEncoder::encode(64, block, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)
            .map_err(|_| refused())?;
        // A jump that needs several instructions has a target out of reach.
        if encoded.new_instruction_offsets.contains(&u32::MAX) {
            return Err(refused());
        }
        let offset = |place: usize| encoded.new_instruction_offsets.get(place).map(|offset| at + u64::from(*offset));
        let labels = self.labels.iter().map(|place| place.and_then(offset)).collect();
        Ok(Encoded { bytes: encoded.code_buffer, labels })
    }
}

/// An operand of eight bytes at a label.
fn at(label: Label) -> MemoryOperand {
    let place = label.target().cast_signed();
    MemoryOperand::new(Register::RIP, Register::None, 1, place, 8, false, Register::None)
}

/// The target of a jump, or the address of an operand relative to rip.
fn target(instruction: &Instruction) -> Option<u64> {
    if instruction.code() == Code::DeclareQword {
        return None;
    }
    if instruction.op0_kind() == OpKind::NearBranch64 {
        return Some(instruction.near_branch_target());
    }
    instruction.is_ip_rel_memory_operand().then(|| instruction.ip_rel_memory_address())
}

#[cfg(test)]
mod tests {
    use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Register};

    use super::Assembly;
    use crate::error::RefusalReason;

    fn decoded(bytes: &[u8], at: u64) -> Vec<Instruction> {
        Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).into_iter().collect()
    }

    #[test]
    fn labels_and_addresses_are_distinct() {
        let mut code = Assembly::default();
        let end = code.label();
        let head = code.here();
        code.compare(Register::RAX, 4000);
        code.jump(Code::Ja_rel32_64, end.target());
        code.jump(Code::Jmp_rel32_64, head.target());
        code.place(end);
        code.jump(Code::Jmp_rel32_64, 0x40_0000);
        let encoded = code.encode(0x41_0000, 0x40_0000).unwrap();
        let found = decoded(&encoded.bytes, 0x41_0000);
        assert_eq!(found[1].near_branch_target(), encoded.address(end).unwrap());
        assert_eq!(found[2].near_branch_target(), 0x41_0000);
        assert_eq!(found[3].near_branch_target(), 0x40_0000);
        assert_eq!(encoded.address(end).unwrap(), found[3].ip());
    }

    #[test]
    fn copies_keep_their_absolute_targets() {
        let original = Decoder::with_ip(64, &[0x8b, 0x05, 0, 1, 0, 0], 0x40_0000, DecoderOptions::NONE).decode();
        let mut code = Assembly::default();
        code.push(original);
        let encoded = code.encode(0x7000_0000, 0x40_0000).unwrap();
        assert_eq!(decoded(&encoded.bytes, 0x7000_0000)[0].memory_displacement64(), 0x40_0106);
    }

    #[test]
    fn words_are_placed_in_the_code() {
        let mut code = Assembly::default();
        let word = code.label();
        code.compare_with(Register::RBX, word);
        code.place(word);
        code.word(0x1122_3344_5566_7788);
        let encoded = code.encode(0x41_0000, 0x40_0000).unwrap();
        let at = encoded.address(word).unwrap();
        let compare = decoded(&encoded.bytes, 0x41_0000)[0];
        assert_eq!((compare.code(), compare.op0_register()), (Code::Cmp_r64_rm64, Register::RBX));
        assert_eq!((compare.ip_rel_memory_address(), compare.next_ip()), (at, at));
        assert_eq!(encoded.bytes[compare.len()..], 0x1122_3344_5566_7788_u64.to_le_bytes());
    }

    #[test]
    fn targets_out_of_reach_are_refused() {
        let refused = |code: Assembly| code.encode(0x7fff_0000_0000, 0x40_0000).unwrap_err().reason();
        let mut jump = Assembly::default();
        jump.jump(Code::Jmp_rel32_64, 0x1_0040_0000);
        assert_eq!(refused(jump), Some(RefusalReason::OutOfReach));
        let mut load = Assembly::default();
        load.push(Decoder::with_ip(64, &[0x8b, 0x05, 0, 1, 0, 0], 0x1_0040_0000, DecoderOptions::NONE).decode());
        assert_eq!(refused(load), Some(RefusalReason::OutOfReach));
        let mut nowhere = Assembly::default();
        let label = nowhere.label();
        nowhere.jump(Code::Jmp_rel32_64, label.target());
        assert_eq!(refused(nowhere), Some(RefusalReason::OutOfReach), "a label that was not placed");
    }
}
