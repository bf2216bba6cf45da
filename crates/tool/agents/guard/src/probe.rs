//! Reads words whose address may be wrong, as the unwinder finds them on a stack.
//!
//! A fault at the one load of [`read`] is recognised by its address: the fault handler continues at
//! the failure path. So a read costs one call and no system call.

#![allow(unsafe_code, reason = "reads memory that may not be mapped")]

use core::arch::global_asm;

global_asm!(
    ".pushsection .text.fieldstone_guard_probe,\"ax\",@progbits",
    ".globl fieldstone_guard_probe",
    ".hidden fieldstone_guard_probe",
    ".hidden fieldstone_guard_probe_load",
    ".hidden fieldstone_guard_probe_failed",
    ".globl fieldstone_guard_probe_load",
    ".globl fieldstone_guard_probe_failed",
    ".type fieldstone_guard_probe, @function",
    "fieldstone_guard_probe:",
    "fieldstone_guard_probe_load:",
    "mov rax, qword ptr [rdi]",
    "mov qword ptr [rsi], rax",
    "mov eax, 1",
    "ret",
    "fieldstone_guard_probe_failed:",
    "xor eax, eax",
    "ret",
    ".size fieldstone_guard_probe, . - fieldstone_guard_probe",
    ".popsection",
);

unsafe extern "C" {
    fn fieldstone_guard_probe(address: usize, into: *mut u64) -> u32;
    static fieldstone_guard_probe_load: u8;
    static fieldstone_guard_probe_failed: u8;
}

/// The word at an address; `None` if it is not readable. Before the fault handler is installed, the
/// address has to be readable.
pub(crate) fn read(address: u64) -> Option<u64> {
    if !address.is_multiple_of(8) || address >= 1 << 47 {
        return None;
    }
    let mut word = 0;
    // SAFETY: a fault at the load continues at the failure path; `word` is writable.
    let is_read = unsafe { fieldstone_guard_probe(address as usize, &raw mut word) } != 0;
    is_read.then_some(word)
}

/// Where to continue after a fault at `instruction`; `None` if it is not the load of [`read`].
pub(crate) fn resume_address(instruction: usize) -> Option<usize> {
    // Only the addresses of the symbols are used.
    (instruction == &raw const fieldstone_guard_probe_load as usize)
        .then_some(&raw const fieldstone_guard_probe_failed as usize)
}
