//! Futexes whose words the kernel writes itself: those of mutexes that inherit priority, and FUTEX_WAKE_OP.
//!
//! It does not wait for a page then: where that is moved, the call fails with EFAULT, which glibc ends the program for, and nobody is told. So a page
//! is not moved while a thread is in such a call on it, and goes back before an atomic instruction of the program touches such a mutex: glibc
//! looks whether it is free first, and calls the kernel only then.
//!
//! Not seen are mutexes that are laid out otherwise than glibc's, and FUTEX_WAKE_OP, which no thread waits in.

use fieldstone_rewrite::Memory;
use fieldstone_sys::ptrace::Registers;
use iced_x86::Instruction;

const WAKE_OP: u64 = 5;
const LOCK_PI: u64 = 6;
const UNLOCK_PI: u64 = 7;
const TRYLOCK_PI: u64 = 8;
const WAIT_REQUEUE_PI: u64 = 11;
const CMP_REQUEUE_PI: u64 = 12;
const LOCK_PI2: u64 = 13;
/// Of the number of an operation, what is none of its flags (private, real time).
const OPERATION: u64 = 127;

/// Of `pthread_mutex_t`: how far behind the word its kind is, the flag of those that inherit priority, and what no kind has.
const KIND_AT: u64 = 16;
const INHERITS: u32 = 0x20;
const NO_KIND: u32 = !0x3ff;
const WORD_BYTES: u32 = 4;

/// The words that the system call writes which a thread is in, with these registers.
pub(crate) fn written(registers: &Registers) -> Vec<u64> {
    if registers.orig_rax != libc::SYS_futex.cast_unsigned() {
        return Vec::new();
    }
    match registers.rsi & OPERATION {
        LOCK_PI | UNLOCK_PI | TRYLOCK_PI | LOCK_PI2 => vec![registers.rdi],
        WAKE_OP | WAIT_REQUEUE_PI | CMP_REQUEUE_PI => vec![registers.rdi, registers.r8],
        _ => Vec::new(),
    }
}

/// Whether an instruction that touches so many bytes there locks or unlocks a mutex that inherits priority, by all appearance.
pub(crate) fn locks_inheriting(instruction: &Instruction, memory: &dyn Memory, address: u64, bytes: u32) -> bool {
    let mut kind = [0; 4];
    let mut is_read = || memory.read(address.wrapping_add(KIND_AT), &mut kind) == kind.len();
    if !instruction.has_lock_prefix() || bytes != WORD_BYTES || !is_read() {
        return false;
    }
    let kind = u32::from_le_bytes(kind);
    kind & INHERITS != 0 && kind & NO_KIND == 0
}
