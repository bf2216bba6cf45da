//! Registers of a sample or a signal frame.

use iced_x86::Register;
use serde::{Deserialize, Serialize};

/// Number of the stack pointer.
pub const RSP: usize = 4;
/// Number of the frame pointer.
pub const RBP: usize = 5;

/// General registers at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct Registers {
    /// In the processor's numbering: rax rcx rdx rbx rsp rbp rsi rdi r8 to r15.
    pub gpr: [u64; 16],
    /// Address of the next instruction.
    pub rip: u64,
    /// Flags.
    pub rflags: u64,
    /// Base address of `fs`.
    pub fs_base: u64,
    /// Base address of `gs`.
    pub gs_base: u64,
}

/// Number of a general register, or of the one that contains it. `None` for others.
pub(crate) fn number(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number())
}

/// Bit of a general register in a set; 0 for others.
pub(crate) fn bit(register: Register) -> u16 {
    number(register).map_or(0, |number| 1 << number)
}

/// General registers in the order of their use as scratch: first those without a prefix. The stack
/// pointer is excluded.
pub(crate) const SCRATCH: [Register; 15] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RSI,
    Register::RDI,
    Register::RBX,
    Register::RBP,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

#[cfg(test)]
mod tests {
    use super::{RBP, RSP, bit, number};
    use iced_x86::Register;

    #[test]
    fn numbers_are_those_of_the_processor() {
        let some = [Register::RAX, Register::ECX, Register::DX, Register::BH, Register::SIL, Register::R15D];
        assert_eq!(some.map(|register| number(register).unwrap()), [0, 1, 2, 3, 6, 15]);
        assert_eq!((number(Register::RSP), number(Register::EBP)), (Some(RSP), Some(RBP)));
        for other in [Register::None, Register::RIP, Register::XMM1, Register::FS] {
            assert_eq!((number(other), bit(other)), (None, 0));
        }
        assert_eq!(bit(Register::AH), 1);
    }
}
