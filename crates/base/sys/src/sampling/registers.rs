//! General-purpose registers of a thread.

use serde::Serialize;

/// General-purpose registers, instruction pointer and flags of a thread in user mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SampledRegisters {
    /// In the processor's order: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    pub gpr: [u64; 16],
    /// The instruction pointer.
    pub rip: u64,
    /// The flags.
    pub rflags: u64,
    /// Base address of `fs:`; 0 if unknown, as for perf events.
    pub fs_base: u64,
    /// Base address of `gs:`; 0 if unknown, as for perf events.
    pub gs_base: u64,
}
