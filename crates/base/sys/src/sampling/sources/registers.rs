//! Registers of a thread as perf events and ptrace report them, converted to [`SampledRegisters`].

use crate::sampling::SampledRegisters;

/// The registers requested from perf, by the numbers of `asm/perf_regs.h`: ax to flags (0 to 9) and
/// r8 to r15 (16 to 23). The kernel refuses the segment registers between them on x86-64.
pub(super) const PERF_MASK: u64 = 0x00ff_03ff;

impl SampledRegisters {
    /// Converts the words of [`PERF_MASK`]; `None` for another number of words.
    pub(super) const fn from_perf(words: &[u64]) -> Option<Self> {
        let [a, b, c, d, si, di, bp, sp, rip, rflags, r8, r9, r10, r11, r12, r13, r14, r15] = *words else {
            return None;
        };
        let gpr = [a, c, d, b, sp, bp, si, di, r8, r9, r10, r11, r12, r13, r14, r15];
        Some(Self { gpr, rip, rflags, fs_base: 0, gs_base: 0 })
    }

    /// Converts the result of `PTRACE_GETREGSET`.
    pub(super) const fn from_ptrace(user: &libc::user_regs_struct) -> Self {
        let gpr = [
            user.rax, user.rcx, user.rdx, user.rbx, user.rsp, user.rbp, user.rsi, user.rdi, //
            user.r8, user.r9, user.r10, user.r11, user.r12, user.r13, user.r14, user.r15,
        ];
        Self { gpr, rip: user.rip, rflags: user.eflags, fs_base: user.fs_base, gs_base: user.gs_base }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perf_words_become_their_registers() {
        // Each word is its register's number in asm/perf_regs.h.
        let words: Vec<u64> = (0..64).filter(|bit| PERF_MASK >> bit & 1 == 1).collect();
        let registers = SampledRegisters::from_perf(&words).unwrap();
        // Numbers of rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi.
        assert_eq!(registers.gpr[..8], [0, 2, 3, 1, 7, 6, 4, 5]);
        assert_eq!(registers.gpr[8..], [16, 17, 18, 19, 20, 21, 22, 23]);
        assert_eq!((registers.rip, registers.rflags), (8, 9));
        assert_eq!(SampledRegisters::from_perf(&words[1..]), None);
    }
}
