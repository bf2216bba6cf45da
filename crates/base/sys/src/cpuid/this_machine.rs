//! x86-64: the CPU of this machine, by the instruction `cpuid`.

use super::{Cpu, Leaf, read};

/// The CPU that this thread runs on.
pub(super) fn cpu() -> Cpu {
    read(|leaf, sub_leaf| {
        let registers = std::arch::x86_64::__cpuid_count(leaf, sub_leaf);
        Leaf::new(registers.eax, registers.ebx, registers.ecx, registers.edx)
    })
}
