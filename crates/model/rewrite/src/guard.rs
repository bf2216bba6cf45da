//! A guard: code that checks whether an address is in a range of bytes.
//!
//! ```text
//!   lea  rsp, [rsp - 128]      only if something is saved: skips the red zone
//!   push t                     only if no register is dead
//!   pushfq                     only if flags are live
//!   mov  t, displacement - origin
//!   lea  t, [t + index * scale]
//!   lea  t, [t + base]         t = address - origin, modulo 2^64
//!   cmp  t, span               an address below the origin is above the span
//!   ja   elsewhere
//!   popfq; pop t; lea rsp, [rsp + 128]      and again at `elsewhere`
//! ```
//! Invariant: before the first and after the last line, the state is the program's, except for dead
//! registers and flags.
//!
//! A clone checks an address of one register by two comparisons with words beside the code. It
//! needs no `t` and, if both words are equal, only one comparison.
//!
//! Source: Taylor, *Cachekata*, section 5.3.2 and figure 5.2. There two comparisons are made, on
//! the registers of the address.

use iced_x86::{Code, Instruction, Register};

use crate::assembly::Assembly;
use crate::error::RefusalReason;
use crate::liveness::LiveSet;
use crate::operand::Operand;
use crate::registers::{SCRATCH, bit};

/// Bytes below the stack pointer that belong to the program.
const RED_ZONE: i32 = 128;

/// The register in which a guard calculates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scratch {
    pub(crate) register: Register,
    saves_register: bool,
    saves_flags: bool,
}

impl Scratch {
    /// A register that is none of `used`: a dead one, else one to be saved. Live flags are saved
    /// too.
    pub(crate) fn choose(live: LiveSet, used: u16) -> Result<Self, RefusalReason> {
        let free = |register: &&Register| used & bit(**register) == 0;
        let dead = |register: &&Register| !live.has(**register);
        let found = SCRATCH.iter().filter(free).find(dead);
        let saves_register = found.is_none();
        let register = *found.or_else(|| SCRATCH.iter().find(free)).ok_or(RefusalReason::NoScratch)?;
        Ok(Self { register, saves_register, saves_flags: live.flags != 0 })
    }

    /// A register for code without comparisons, which saves no flags.
    pub(crate) fn choose_for_address(live: LiveSet, used: u16) -> Result<Self, RefusalReason> {
        Self::choose(LiveSet { flags: 0, ..live }, used)
    }

    /// No register, for comparisons of unchanged registers. Live flags are saved.
    pub(crate) const fn without(live: LiveSet) -> Self {
        Self { register: Register::None, saves_register: false, saves_flags: live.flags != 0 }
    }

    /// Whether it uses the program's stack.
    pub(crate) const fn saves(self) -> bool {
        self.saves_register || self.saves_flags
    }

    pub(crate) fn save(self, code: &mut Assembly) {
        if self.saves() {
            code.lea(Register::RSP, Register::RSP, Register::None, 1, -RED_ZONE);
        }
        if self.saves_register {
            code.add(Instruction::with1(Code::Push_r64, self.register));
        }
        if self.saves_flags {
            code.push(Instruction::with(Code::Pushfq));
        }
    }

    pub(crate) fn restore(self, code: &mut Assembly) {
        if self.saves_flags {
            code.push(Instruction::with(Code::Popfq));
        }
        if self.saves_register {
            code.add(Instruction::with1(Code::Pop_r64, self.register));
        }
        if self.saves() {
            code.lea(Register::RSP, Register::RSP, Register::None, 1, RED_ZONE);
        }
    }

    /// Loads the scratch register with the distance of the operand's address, with this
    /// displacement, from `origin`.
    pub(crate) fn distance(self, code: &mut Assembly, operand: &Operand, displacement: i64, origin: u64) {
        let t = self.register;
        code.load(t, displacement.cast_unsigned().wrapping_sub(origin));
        if operand.index != Register::None {
            code.lea(t, t, operand.index, operand.scale, 0);
        }
        if operand.base != Register::None {
            code.lea(t, t, operand.base, 1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Scratch;
    use crate::effect::ARITHMETIC_FLAGS;
    use crate::error::RefusalReason;
    use crate::liveness::LiveSet;
    use iced_x86::Register;

    const RAX: u16 = 1;
    const RDX: u16 = 4;

    #[test]
    fn a_dead_register_comes_first() {
        let dead = LiveSet { registers: !RDX, flags: 0 };
        let found = Scratch::choose(dead, RAX).unwrap();
        assert_eq!((found.register, found.saves()), (Register::RDX, false));
        let used = Scratch::choose(dead, RAX | RDX).unwrap();
        assert_eq!((used.register, used.saves()), (Register::RCX, true), "what is used is not free, even if dead");
    }

    #[test]
    fn live_flags_are_saved_unless_nothing_compares() {
        let live = LiveSet { registers: !RDX, flags: ARITHMETIC_FLAGS };
        assert!(Scratch::choose(live, 0).unwrap().saves());
        assert!(!Scratch::choose_for_address(live, 0).unwrap().saves());
    }

    #[test]
    fn the_stack_pointer_is_no_scratch() {
        let all_but_rsp = !(1 << 4);
        assert_eq!(Scratch::choose(LiveSet::ALL, all_but_rsp), Err(RefusalReason::NoScratch));
    }
}
