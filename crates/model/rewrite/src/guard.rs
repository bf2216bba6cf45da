//! A guard: does an address lie in a range of bytes? (Taylor, *Cachekata*, section 5.3.2 and figure 5.2, with one comparison for
//! two, and without touching the registers that the address is made of.)
//!
//! ```text
//!   lea  rsp, [rsp - 128]      only where something is saved: over the red zone
//!   push t                     only where no register is dead
//!   pushfq                     only where flags are live
//!   mov  t, displacement - origin
//!   lea  t, [t + index * scale]
//!   lea  t, [t + base]         t = address - origin, modulo 2^64
//!   cmp  t, span               below the origin is far above the span
//!   ja   elsewhere
//!   popfq; pop t; lea rsp, [rsp + 128]      and again at `elsewhere`
//! ```
//! Before the first and behind the last line all is as the program has it, except for what is dead.
//!
//! Where a clone checks an address of one register again and again, two comparisons with words beside the code do without `t`: none
//! where they are the same word.

use iced_x86::{Code, Instruction, Register};

use crate::assembly::Assembly;
use crate::error::RefusalReason;
use crate::liveness::LiveSet;
use crate::operand::Operand;
use crate::registers::{SCRATCH, bit};

/// Bytes below the stack pointer that are the program's.
const RED_ZONE: i32 = 128;

/// The register that a guard calculates in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scratch {
    pub(crate) register: Register,
    saves_register: bool,
    saves_flags: bool,
}

impl Scratch {
    /// A register that is in none of `used`: a dead one, else one that is saved. Flags are saved where some are live.
    pub(crate) fn choose(live: LiveSet, used: u16) -> Result<Self, RefusalReason> {
        let free = |register: &&Register| used & bit(**register) == 0;
        let dead = |register: &&Register| !live.has(**register);
        let found = SCRATCH.iter().filter(free).find(dead);
        let saves_register = found.is_none();
        let register = *found.or_else(|| SCRATCH.iter().find(free)).ok_or(RefusalReason::NoScratch)?;
        Ok(Self { register, saves_register, saves_flags: live.flags != 0 })
    }

    /// One that leaves no flag to save, since nothing compares.
    pub(crate) fn choose_for_address(live: LiveSet, used: u16) -> Result<Self, RefusalReason> {
        Self::choose(LiveSet { flags: 0, ..live }, used)
    }

    /// None at all, for what compares registers as they are: flags alone may have to be saved.
    pub(crate) const fn without(live: LiveSet) -> Self {
        Self { register: Register::None, saves_register: false, saves_flags: live.flags != 0 }
    }

    /// Does it use the program's stack?
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

    /// The scratch register gets how far `displacement` behind the operand's registers is from `origin`.
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
