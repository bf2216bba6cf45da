//! The general registers of a thread, as each of the two means hands them out.

use serde::Serialize;

/// General registers, the instruction pointer and the flags of a thread in user mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Registers {
    /// In the processor's numbering: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    pub gpr: [u64; 16],
    /// The instruction that comes next.
    pub rip: u64,
    /// The flags.
    pub rflags: u64,
    /// What `fs:` adds; 0 where it is not known: perf events do not tell it.
    pub fs_base: u64,
    /// What `gs:` adds; 0 where it is not known: perf events do not tell it.
    pub gs_base: u64,
}

/// The registers that perf is asked for, by the numbers of `asm/perf_regs.h`: ax to flags (0 to 9) and r8 to r15 (16 to 23).
/// The segment registers between them are refused on x86-64.
#[cfg(target_arch = "x86_64")]
pub(super) const PERF_MASK: u64 = 0x00ff_03ff;

#[cfg(target_arch = "x86_64")]
impl Registers {
    /// From the words that [`PERF_MASK`] brings; `None` for another number of words.
    pub(super) const fn from_perf(words: &[u64]) -> Option<Self> {
        let [a, b, c, d, si, di, bp, sp, rip, rflags, r8, r9, r10, r11, r12, r13, r14, r15] = *words else {
            return None;
        };
        let gpr = [a, c, d, b, sp, bp, si, di, r8, r9, r10, r11, r12, r13, r14, r15];
        Some(Self { gpr, rip, rflags, fs_base: 0, gs_base: 0 })
    }

    /// From what `PTRACE_GETREGSET` brings.
    pub(super) const fn from_ptrace(user: &libc::user_regs_struct) -> Self {
        let gpr = [
            user.rax, user.rcx, user.rdx, user.rbx, user.rsp, user.rbp, user.rsi, user.rdi, //
            user.r8, user.r9, user.r10, user.r11, user.r12, user.r13, user.r14, user.r15,
        ];
        Self { gpr, rip: user.rip, rflags: user.eflags, fs_base: user.fs_base, gs_base: user.gs_base }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn perf_words_find_their_registers() {
        // Each word is the number that asm/perf_regs.h gives its register.
        let words: Vec<u64> = (0..64).filter(|bit| PERF_MASK >> bit & 1 == 1).collect();
        let registers = Registers::from_perf(&words).unwrap();
        // rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi in those numbers.
        assert_eq!(registers.gpr[..8], [0, 2, 3, 1, 7, 6, 4, 5]);
        assert_eq!(registers.gpr[8..], [16, 17, 18, 19, 20, 21, 22, 23]);
        assert_eq!((registers.rip, registers.rflags), (8, 9));
        assert_eq!(Registers::from_perf(&words[1..]), None);
    }
}
