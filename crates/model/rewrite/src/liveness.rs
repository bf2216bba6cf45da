//! Liveness: the registers and flags that are still needed. A guard may use the others without
//! saving them.
//!
//! Algorithm: backward data flow until nothing changes. A register is live before an instruction
//! that reads it, or if it is live after an instruction that does not overwrite it. All are live
//! where the flow ends, at calls and at system calls. Limit: a signal handler, a debugger or a core
//! dump may see a wrong value in a dead register.

use std::collections::BTreeMap;

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Register};

use crate::effect::{ARITHMETIC_FLAGS, InstructionEffect};
use crate::flow::Flow;
use crate::registers::bit;

/// Live general registers (bit n: register n) and live arithmetic flags (iced's bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LiveSet {
    /// Registers.
    pub registers: u16,
    /// Flags.
    pub flags: u32,
}

impl LiveSet {
    /// All registers and flags, for unknown code.
    pub const ALL: Self = Self { registers: u16::MAX, flags: ARITHMETIC_FLAGS };
    const NONE: Self = Self { registers: 0, flags: 0 };

    /// Whether a register, or the full register that contains it, is live.
    #[must_use]
    pub fn has(self, register: Register) -> bool {
        self.registers & bit(register) != 0
    }

    const fn or(self, other: Self) -> Self {
        Self { registers: self.registers | other.registers, flags: self.flags | other.flags }
    }

    /// The live set before an instruction, from that after it.
    const fn before(self, effect: &InstructionEffect) -> Self {
        Self {
            registers: self.registers & !effect.kills | effect.reads,
            flags: self.flags & !effect.flags_killed | effect.flags_read,
        }
    }
}

/// The liveness of a flow.
#[derive(Debug, Clone)]
pub struct Liveness {
    /// The live sets before and after each instruction.
    at: BTreeMap<u64, (LiveSet, LiveSet)>,
}

impl Liveness {
    /// Liveness of all instructions of a flow.
    #[must_use]
    pub fn of(flow: &Flow) -> Self {
        let mut factory = InstructionInfoFactory::new();
        let effects = flow.instructions.iter().map(|(ip, instruction)| (*ip, effect(instruction, &mut factory)));
        let effects: BTreeMap<u64, Option<InstructionEffect>> = effects.collect();
        let mut starts: BTreeMap<u64, LiveSet> = flow.blocks.keys().map(|start| (*start, LiveSet::NONE)).collect();
        let mut at = BTreeMap::new();
        let mut changed = true;
        while changed {
            changed = false;
            for block in flow.blocks.values().rev() {
                let leaves = if block.leaves.is_empty() { LiveSet::NONE } else { LiveSet::ALL };
                let mut live = block.successors.iter().fold(leaves, |live, next| live.or(starts[next]));
                for instruction in flow.instructions_of(block).rev() {
                    let after = live;
                    live = effects[&instruction.ip()].as_ref().map_or(LiveSet::ALL, |effect| after.before(effect));
                    at.insert(instruction.ip(), (live, after));
                }
                changed |= starts.insert(block.start, live) != Some(live);
            }
        }
        Self { at }
    }

    /// The live set before the instruction at `ip`; [`LiveSet::ALL`] if it is not in the flow.
    #[must_use]
    pub fn before(&self, ip: u64) -> LiveSet {
        self.at.get(&ip).map_or(LiveSet::ALL, |(before, _)| *before)
    }

    /// The live set after the instruction at `ip`; [`LiveSet::ALL`] if it is not in the flow.
    #[must_use]
    pub fn after(&self, ip: u64) -> LiveSet {
        self.at.get(&ip).map_or(LiveSet::ALL, |(_, after)| *after)
    }
}

/// The effect of an instruction. `None` for one after which other code may read any register.
fn effect(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Option<InstructionEffect> {
    let ordinary = matches!(
        instruction.flow_control(),
        FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
    );
    ordinary.then(|| InstructionEffect::of(instruction, factory))
}

#[cfg(test)]
mod tests {
    use iced_x86::Register;
    use iced_x86::code_asm::{CodeAssembler, eax, ecx, edx, qword_ptr, rax, rcx, rdi, rdx};

    use super::{LiveSet, Liveness};
    use crate::effect::ARITHMETIC_FLAGS;
    use crate::flow::Flow;
    use crate::memory::MemoryImage;

    fn liveness(code: &mut CodeAssembler) -> Liveness {
        let image = MemoryImage { start: 0x1000, bytes: code.assemble(0x1000).unwrap() };
        Liveness::of(&Flow::discover(&image, 0x1000).unwrap())
    }

    #[test]
    fn a_register_overwritten_before_it_is_read_is_dead() {
        let mut code = CodeAssembler::new(64).unwrap();
        let mut head = code.create_label();
        code.set_label(&mut head).unwrap();
        code.mov(rdx, qword_ptr(rdi)).unwrap(); // 1000
        code.add(rdx, 1).unwrap(); // 1003
        code.mov(qword_ptr(rdi), rdx).unwrap(); // 1007
        code.dec(rcx).unwrap(); // 100a
        code.jne(head).unwrap(); // 100d
        code.xor(edx, edx).unwrap(); // 100f
        code.ret().unwrap(); // 1011
        let found = liveness(&mut code);
        let live = [0x1000, 0x100a, 0x100d].map(|ip| found.before(ip).has(Register::RDX));
        assert_eq!(live, [false; 3], "reloaded on both paths");
        assert!(found.before(0x1003).has(Register::RDX) && found.before(0x1007).has(Register::EDX));
        assert!(!found.after(0x1007).has(Register::RDX));
        for always in [Register::RDI, Register::RCX, Register::RSI, Register::RSP, Register::R15] {
            assert!(found.before(0x1000).has(always), "{always:?} is read, or may be behind the return");
        }
        assert_eq!(found.before(0x1000).flags, 0, "the sum overwrites them");
        assert_ne!(found.after(0x100a).flags, 0, "the jump reads one");
        assert_eq!((found.before(0x1011), found.before(0x9999)), (LiveSet::ALL, LiveSet::ALL));
    }

    #[test]
    fn both_ways_of_a_branch_are_followed() {
        let mut code = CodeAssembler::new(64).unwrap();
        let mut other = code.create_label();
        code.test(ecx, ecx).unwrap(); // 1000
        code.jz(other).unwrap(); // 1002
        code.mov(eax, 1).unwrap();
        code.mov(edx, 1).unwrap();
        code.ret().unwrap();
        code.set_label(&mut other).unwrap();
        code.mov(edx, 2).unwrap();
        code.ret().unwrap();
        let found = liveness(&mut code);
        assert!(found.before(0x1000).has(Register::RAX), "one way does not overwrite it");
        assert!(!found.before(0x1000).has(Register::RDX), "both do");
        assert_eq!(found.after(0x1000).flags, ARITHMETIC_FLAGS, "the jump reads one, the return may show all");
    }

    #[test]
    fn everything_is_live_where_the_flow_ends() {
        let mut code = CodeAssembler::new(64).unwrap();
        code.nop().unwrap();
        code.jmp(0x9_0000).unwrap();
        assert_eq!(liveness(&mut code).before(0x1000), LiveSet::ALL, "what is far away was not read");
    }

    #[test]
    fn everything_is_live_before_a_call() {
        let mut code = CodeAssembler::new(64).unwrap();
        code.nop().unwrap(); // 1000
        code.call(rax).unwrap(); // 1001
        code.mov(edx, 2).unwrap(); // 1003
        code.ret().unwrap();
        let found = liveness(&mut code);
        assert_eq!(found.before(0x1000), LiveSet::ALL);
        assert!(!found.before(0x1003).has(Register::RDX));
    }
}
