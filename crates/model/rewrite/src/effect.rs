//! Registers and flags that an instruction reads and writes.
//!
//! The result is conservative: it may contain too many reads and too few overwrites, so a register
//! that is dead by it is dead. A register or flag that an instruction leaves undefined counts as
//! overwritten.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, RflagsBits};

use crate::registers::bit;

/// The flags that a comparison overwrites.
pub const ARITHMETIC_FLAGS: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::CF | RflagsBits::PF;

/// Effect of an instruction on general registers (bit n: register n) and arithmetic flags (iced's
/// bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct InstructionEffect {
    /// Registers that it reads, including those of addresses.
    pub reads: u16,
    /// Registers that it may change.
    pub writes: u16,
    /// Registers that it always overwrites as a whole.
    pub kills: u16,
    /// Flags that it reads.
    pub flags_read: u32,
    /// Flags that it always overwrites.
    pub flags_killed: u32,
}

impl InstructionEffect {
    /// The effect of `instruction`.
    #[must_use]
    pub fn of(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Self {
        if instruction.is_save_restore_instruction() {
            return Self { reads: u16::MAX, writes: u16::MAX, kills: 0, flags_read: ARITHMETIC_FLAGS, flags_killed: 0 };
        }
        let mut effect = Self {
            flags_read: instruction.rflags_read() & ARITHMETIC_FLAGS,
            flags_killed: if keeps_flags(instruction) { 0 } else { instruction.rflags_modified() & ARITHMETIC_FLAGS },
            ..Self::default()
        };
        for used in factory.info(instruction).used_registers() {
            let bit = bit(used.register());
            let (reads, writes) = reads_and_writes(used.access());
            effect.reads |= if reads { bit } else { 0 };
            effect.writes |= if writes { bit } else { 0 };
            // A write of the lower half clears the upper half.
            let whole = used.access() == OpAccess::Write && used.register().size() >= 4;
            effect.kills |= if whole { bit } else { 0 };
        }
        if instruction.has_rep_prefix() || instruction.has_repne_prefix() {
            (effect.kills, effect.flags_killed) = (0, 0);
        }
        effect
    }

    /// All registers that it reads or writes.
    #[must_use]
    pub const fn registers(&self) -> u16 {
        self.reads | self.writes
    }
}

/// Whether an access of this kind reads, and whether it writes.
pub(crate) const fn reads_and_writes(access: OpAccess) -> (bool, bool) {
    match access {
        OpAccess::Read | OpAccess::CondRead => (true, false),
        OpAccess::Write | OpAccess::CondWrite => (false, true),
        OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
        _ => (false, false),
    }
}

/// A shift by 0 changes no flag. A rotate through carry may shift by 0 modulo the size.
fn keeps_flags(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Rcl | Mnemonic::Rcr => true,
        Mnemonic::Shl
        | Mnemonic::Sal
        | Mnemonic::Shr
        | Mnemonic::Sar
        | Mnemonic::Rol
        | Mnemonic::Ror
        | Mnemonic::Shld
        | Mnemonic::Shrd => {
            let count = instruction.op_count().saturating_sub(1);
            !matches!(instruction.op_kind(count), OpKind::Immediate8) || instruction.immediate(count) & 0x1f == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{ARITHMETIC_FLAGS, InstructionEffect};
    use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, RflagsBits};

    fn effect(bytes: &[u8]) -> InstructionEffect {
        let instruction = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
        assert_eq!(instruction.len(), bytes.len(), "{bytes:x?}");
        InstructionEffect::of(&instruction, &mut InstructionInfoFactory::new())
    }

    const RAX: u16 = 1;
    const RCX: u16 = 2;
    const RDI: u16 = 1 << 7;

    #[test]
    fn a_load_overwrites_its_register_and_no_flag() {
        let load = effect(&[0x8b, 0x07]); // mov eax, [rdi]
        assert_eq!((load.reads, load.writes, load.kills, load.flags_killed), (RDI, RAX, RAX, 0));
    }

    #[test]
    fn a_partial_write_overwrites_no_register() {
        let byte = effect(&[0x8a, 0x07]); // mov al, [rdi]
        assert_eq!((byte.writes, byte.kills), (RAX, 0));
        let maybe = effect(&[0x48, 0x0f, 0x44, 0x07]); // cmove rax, [rdi]
        assert_eq!((maybe.writes, maybe.kills, maybe.flags_read), (RAX, 0, RflagsBits::ZF));
    }

    #[test]
    fn sums_overwrite_all_flags_and_increments_all_except_carry() {
        assert_eq!(effect(&[0x01, 0x07]).flags_killed, ARITHMETIC_FLAGS); // add [rdi], eax
        assert_eq!(effect(&[0xff, 0x07]).flags_killed, ARITHMETIC_FLAGS & !RflagsBits::CF); // inc [rdi]
        let clear = effect(&[0x31, 0xc0]); // xor eax, eax
        assert_eq!((clear.reads, clear.kills), (0, RAX));
    }

    #[test]
    fn a_shift_may_change_no_flag() {
        assert_eq!(effect(&[0xd3, 0xe0]).flags_killed, 0); // shl eax, cl
        assert_eq!(effect(&[0xd3, 0xe0]).reads, RAX | RCX);
        assert_eq!(effect(&[0xc1, 0xe0, 0x20]).flags_killed, 0); // shl eax, 32: by nothing
        assert_ne!(effect(&[0xc1, 0xe0, 0x03]).flags_killed, 0); // shl eax, 3
        assert_eq!(effect(&[0xd1, 0xd0]).flags_killed, 0); // rcl eax, 1
    }

    #[test]
    fn repeated_string_instructions_may_overwrite_nothing() {
        let scan = effect(&[0xf2, 0xae]); // repne scasb
        assert_eq!((scan.kills, scan.flags_killed), (0, 0));
        assert_ne!(scan.writes & RDI, 0);
    }
}
