//! The memory operand of an instruction, and the same instruction with another operand.
//!
//! ```text
//!   [base + index * scale + displacement]      displacement + delta
//!   [rip + distance], [absolute]               the same form, or relative to rip if an absolute one does not fit
//! ```
//! Instructions without such an operand, or with several, are refused. A conditional move needs no
//! special case: it always loads.
//!
//! Source: Taylor, *Cachekata*, sections 5.4.2 to 5.4.4.

use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};

use crate::effect::reads_and_writes;
use crate::error::{Error, RefusalReason, Result};
use crate::registers::{Registers, number};

/// A memory operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operand {
    /// A 64-bit register, or none.
    pub base: Register,
    /// A 64-bit register, or none.
    pub index: Register,
    /// 1, 2, 4 or 8.
    pub scale: u32,
    /// The constant part of the address; the whole address if there are no registers.
    pub displacement: i64,
    /// Size of the access in bytes.
    pub bytes: u32,
    /// Whether it reads.
    pub read: bool,
    /// Whether it writes.
    pub write: bool,
    /// Whether read and write are one atomic operation.
    pub atomic: bool,
}

impl Operand {
    /// The operand of `instruction`.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is none that can be redirected.
    pub fn of(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Result<Self> {
        find(instruction, factory).map_err(|reason| Error::refused(instruction.ip(), reason))
    }

    /// The operand from which an indirect jump reads its target. `None` for other instructions.
    /// [`Self::of`] refuses such a jump, since it cannot be rewritten.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is at an address that cannot be redirected.
    pub fn of_jump(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Option<Result<Self>> {
        let is_jump = instruction.code() == Code::Jmp_rm64 && instruction.op0_kind() == OpKind::Memory;
        is_jump.then(|| {
            let mut load = *instruction;
            load.set_code(Code::Mov_r64_rm64);
            load.set_op0_kind(OpKind::Register);
            load.set_op0_register(Register::RAX);
            load.set_op1_kind(OpKind::Memory);
            Self::of(&load, factory)
        })
    }

    /// Whether its address is known without registers.
    #[must_use]
    pub fn is_absolute(&self) -> bool {
        self.base == Register::None && self.index == Register::None
    }

    /// Its address with these registers.
    #[must_use]
    pub fn address(&self, registers: &Registers) -> u64 {
        let value = |register| number(register).map_or(0, |number| registers.gpr[number]);
        value(self.base)
            .wrapping_add(value(self.index).wrapping_mul(u64::from(self.scale)))
            .wrapping_add_signed(self.displacement)
    }

    /// `instruction`, whose operand this is, with an operand `delta` bytes above.
    ///
    /// # Errors
    /// [`RefusalReason::OutOfReach`] if no displacement fits.
    pub fn redirected(&self, instruction: &Instruction, delta: i64) -> Result<Instruction> {
        let mut redirected = *instruction;
        let target = self.displacement.wrapping_add(delta);
        let fits = i32::try_from(target).is_ok();
        if instruction.memory_base() == Register::RIP || self.is_absolute() && !fits {
            redirected.set_memory_base(Register::RIP);
            redirected.set_memory_index_scale(1);
            redirected.set_memory_displ_size(8);
        } else if !fits {
            return Err(Error::refused(instruction.ip(), RefusalReason::OutOfReach));
        } else if !self.is_absolute() {
            // iced encodes one byte if that is enough, else four.
            redirected.set_memory_displ_size(1);
        }
        redirected.set_memory_displacement64(target.cast_unsigned());
        Ok(redirected)
    }

    /// `instruction`, whose operand this is, with the operand `[register]`.
    pub(crate) fn through(instruction: &Instruction, register: Register) -> Instruction {
        let mut through = *instruction;
        through.set_memory_base(register);
        through.set_memory_index(Register::None);
        through.set_memory_index_scale(1);
        through.set_memory_displacement64(0);
        through.set_memory_displ_size(0);
        through
    }
}

fn find(
    instruction: &Instruction,
    factory: &mut InstructionInfoFactory,
) -> std::result::Result<Operand, RefusalReason> {
    if instruction.is_invalid() {
        return Err(RefusalReason::Undecodable);
    }
    let place = place(instruction, factory.info(instruction).used_memory())?;
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    let relative = base == Register::RIP;
    let usable = |register: Register| register == Register::None || register.is_gpr64();
    if !(relative || usable(base)) || !usable(index) || is_offset_form(instruction.code()) {
        return Err(RefusalReason::AddressForm);
    }
    if base == Register::RSP {
        return Err(RefusalReason::Stack);
    }
    let (read, write) = reads_and_writes(place.access());
    Ok(Operand {
        base: if relative { Register::None } else { base },
        index,
        scale: instruction.memory_index_scale(),
        displacement: instruction.memory_displacement64().cast_signed(),
        bytes: u32::try_from(place.memory_size().size()).unwrap_or(u32::MAX),
        read,
        write,
        atomic: is_atomic(instruction),
    })
}

/// The memory operand, if it is the only one beside the stack.
fn place(instruction: &Instruction, used: &[UsedMemory]) -> std::result::Result<UsedMemory, RefusalReason> {
    let touched = |memory: &&UsedMemory| !matches!(memory.access(), OpAccess::None | OpAccess::NoMemAccess);
    let mut touched = used.iter().filter(touched).peekable();
    if touched.peek().is_none() {
        return Err(RefusalReason::NoMemory);
    }
    refuse_kind(instruction)?;
    if instruction.op_kinds().all(|kind| kind != OpKind::Memory) {
        return Err(if instruction.is_stack_instruction() {
            RefusalReason::Stack
        } else {
            RefusalReason::SeveralOperands
        });
    }
    let explicit = |memory: &&UsedMemory| {
        let base = instruction.memory_base();
        let base = if base == Register::RIP { Register::None } else { base };
        !instruction.is_stack_instruction() || memory.base() == base && memory.base() != Register::RSP
    };
    let mut explicit = touched.filter(explicit);
    match (explicit.next(), explicit.next()) {
        (Some(place), None) if place.vsib_size() != 0 => Err(RefusalReason::Gather),
        (Some(place), None) if matches!(place.segment(), Register::FS | Register::GS) => Err(RefusalReason::Segment),
        (Some(place), None) if !(1..=64).contains(&place.memory_size().size()) => Err(RefusalReason::StateArea),
        (Some(place), None) => Ok(*place),
        (None, _) => Err(RefusalReason::Stack),
        _ => Err(RefusalReason::SeveralOperands),
    }
}

/// Refuses instructions whose operand does not describe all their accesses.
fn refuse_kind(instruction: &Instruction) -> std::result::Result<(), RefusalReason> {
    if instruction.is_string_instruction() {
        return Err(RefusalReason::String);
    }
    if instruction.is_save_restore_instruction() {
        return Err(RefusalReason::StateArea);
    }
    if instruction.is_vsib() {
        return Err(RefusalReason::Gather);
    }
    if instruction.flow_control() != FlowControl::Next {
        return Err(RefusalReason::Branch);
    }
    let bits = matches!(instruction.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc);
    if bits && instruction.op1_kind() == OpKind::Register { Err(RefusalReason::BitString) } else { Ok(()) }
}

/// Whether the instruction has a 64-bit offset instead of a memory operand.
const fn is_offset_form(code: Code) -> bool {
    matches!(
        code,
        Code::Mov_AL_moffs8
            | Code::Mov_AX_moffs16
            | Code::Mov_EAX_moffs32
            | Code::Mov_RAX_moffs64
            | Code::Mov_moffs8_AL
            | Code::Mov_moffs16_AX
            | Code::Mov_moffs32_EAX
            | Code::Mov_moffs64_RAX
    )
}

/// Whether it has a lock prefix, or is an exchange with memory, which is always atomic.
pub(crate) fn is_atomic(instruction: &Instruction) -> bool {
    let in_memory = instruction.op_kinds().any(|kind| kind == OpKind::Memory);
    in_memory && (instruction.has_lock_prefix() || instruction.mnemonic() == Mnemonic::Xchg)
}

/// Whether it changes single bits of its first operand only.
pub(crate) fn is_bitwise(instruction: &Instruction) -> bool {
    use Mnemonic::{And, Btc, Btr, Bts, Or, Xor};
    matches!(instruction.mnemonic(), And | Btc | Btr | Bts | Or | Xor)
}

#[cfg(test)]
mod tests;
