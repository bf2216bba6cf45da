//! Futexes whose words the kernel writes itself: priority-inheriting mutexes and `FUTEX_WAKE_OP`.
//!
//! The kernel does not wait for a missing page here. The call fails with EFAULT, glibc aborts the
//! program, and the userfaultfd reports nothing. So a page does not move while a thread is in such
//! a call on it. A moved page is restored before an atomic instruction accesses such a mutex,
//! because glibc tries the atomic instruction first and calls the kernel second.
//!
//! Limits: mutexes with another layout than glibc's are not recognized. Neither is `FUTEX_WAKE_OP`
//! by an instruction, since no thread waits in that call.

use fieldstone_rewrite::ReadableMemory;
use fieldstone_sys::ptrace::TraceeRegisters;
use iced_x86::Instruction;

const WAKE_OP: u64 = 5;
const LOCK_PI: u64 = 6;
const UNLOCK_PI: u64 = 7;
const TRYLOCK_PI: u64 = 8;
const WAIT_REQUEUE_PI: u64 = 11;
const CMP_REQUEUE_PI: u64 = 12;
const LOCK_PI2: u64 = 13;
/// Mask of the operation's number, without its flags (private, real time).
const OPERATION_MASK: u64 = 127;

/// Of `pthread_mutex_t`: offset of the kind from the word, the flag of priority inheritance, and
/// the bits that no kind has.
const KIND_OFFSET: u64 = 16;
const INHERITS_PRIORITY: u32 = 0x20;
const NO_KIND: u32 = !0x3ff;
const WORD_BYTES: u32 = 4;

/// Words that the kernel writes in the system call of a thread with these registers.
pub(crate) fn written_words(registers: &TraceeRegisters) -> Vec<u64> {
    if registers.orig_rax != libc::SYS_futex.cast_unsigned() {
        return Vec::new();
    }
    match registers.rsi & OPERATION_MASK {
        LOCK_PI | UNLOCK_PI | TRYLOCK_PI | LOCK_PI2 => vec![registers.rdi],
        WAKE_OP | WAIT_REQUEUE_PI | CMP_REQUEUE_PI => vec![registers.rdi, registers.r8],
        _ => Vec::new(),
    }
}

/// Whether an instruction that accesses `bytes` bytes at `address` looks like a lock or unlock of a
/// priority-inheriting mutex.
pub(crate) fn locks_inheriting_mutex(
    instruction: &Instruction,
    memory: &dyn ReadableMemory,
    address: u64,
    bytes: u32,
) -> bool {
    let mut kind = [0; 4];
    let mut is_read = || memory.read(address.wrapping_add(KIND_OFFSET), &mut kind) == kind.len();
    if !instruction.has_lock_prefix() || bytes != WORD_BYTES || !is_read() {
        return false;
    }
    let kind = u32::from_le_bytes(kind);
    kind & INHERITS_PRIORITY != 0 && kind & NO_KIND == 0
}
