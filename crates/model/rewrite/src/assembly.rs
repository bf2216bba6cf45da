//! Code with labels, placed at an address.
//!
//! Instructions that are made here and copies of the program's are told apart by no address of theirs: each gets one that no program
//! can have (bit 63 set, bit 62 clear), and labels are such addresses until the end. So a jump of a copy to where the original lies is
//! just that, and never mistaken for a jump to the copy.

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, IcedError, Instruction, InstructionBlock, MemoryOperand, OpKind, Register,
};

use crate::error::{Error, RefusalReason, Result};

const INSTRUCTIONS: u64 = 0x8000_0000_0000_0000;
const LABELS: u64 = 0x9000_0000_0000_0000;
/// Between two instructions' addresses; more than an instruction is long.
const STEP: u64 = 16;

/// A place in the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label(usize);

impl Label {
    /// What stands for it in a jump.
    pub(crate) const fn target(self) -> u64 {
        LABELS + self.0 as u64
    }
}

/// Code in the making.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    instructions: Vec<Instruction>,
    /// For each label, the index of the instruction that it stands before.
    labels: Vec<Option<usize>>,
}

/// Code that lies at an address.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) bytes: Vec<u8>,
    /// For each label, its address.
    labels: Vec<Option<u64>>,
}

impl Encoded {
    /// Where a label is. None for one that was never placed.
    pub(crate) fn address(&self, label: Label) -> Option<u64> {
        self.labels.get(label.0).copied().flatten()
    }
}

impl Assembly {
    /// A label that is placed later.
    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places a label before what is added next.
    pub(crate) fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.instructions.len());
    }

    /// A label before what is added next.
    pub(crate) fn here(&mut self) -> Label {
        let label = self.label();
        self.place(label);
        label
    }

    /// Adds an instruction: a copy, or one that was made.
    pub(crate) fn push(&mut self, instruction: Instruction) {
        self.instructions.push(instruction);
    }

    pub(crate) fn add(&mut self, made: std::result::Result<Instruction, IcedError>) {
        // One that cannot be made stays an invalid one, which does not encode.
        self.push(made.unwrap_or_default());
    }

    /// A jump with or without a condition, to a label's target or an address.
    pub(crate) fn jump(&mut self, code: Code, target: u64) {
        self.add(Instruction::with_branch(code, target));
    }

    /// `lea register, [base + index * scale + displacement]`.
    pub(crate) fn lea(&mut self, register: Register, base: Register, index: Register, scale: u32, displacement: i32) {
        let operand = MemoryOperand::new(base, index, scale, i64::from(displacement), 1, false, Register::None);
        self.add(Instruction::with2(Code::Lea_r64_m, register, operand));
    }

    /// `mov register, value`.
    pub(crate) fn load(&mut self, register: Register, value: u64) {
        self.add(Instruction::with2(Code::Mov_r64_imm64, register, value));
    }

    /// `cmp register, [label]`: eight bytes that lie in the code.
    pub(crate) fn compare_with(&mut self, register: Register, label: Label) {
        self.add(Instruction::with2(Code::Cmp_r64_rm64, register, at(label)));
    }

    /// Eight bytes that are no code.
    pub(crate) fn word(&mut self, value: u64) {
        self.push(Instruction::with_declare_qword_1(value));
    }

    /// `cmp register, value`.
    pub(crate) fn compare(&mut self, register: Register, value: i32) {
        self.add(Instruction::with2(Code::Cmp_rm64_imm32, register, value));
    }

    /// The code as it is at `at`; `ip` is what an error names.
    ///
    /// # Errors
    /// [`RefusalReason::OutOfReach`] when an operand or a jump does not reach its target from there.
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
        // A jump that had to become several instructions: its target is too far away.
        if encoded.new_instruction_offsets.contains(&u32::MAX) {
            return Err(refused());
        }
        let offset = |place: usize| encoded.new_instruction_offsets.get(place).map(|offset| at + u64::from(*offset));
        let labels = self.labels.iter().map(|place| place.and_then(offset)).collect();
        Ok(Encoded { bytes: encoded.code_buffer, labels })
    }
}

/// Eight bytes in the code.
fn at(label: Label) -> MemoryOperand {
    let place = label.target().cast_signed();
    MemoryOperand::new(Register::RIP, Register::None, 1, place, 8, false, Register::None)
}

/// Where it jumps to, or the address behind which its operand lies however far the code is moved.
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
    fn labels_are_places_and_addresses_stay_addresses() {
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
    fn words_lie_in_the_code_and_are_compared_there() {
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
    fn what_is_out_of_reach_is_refused() {
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
