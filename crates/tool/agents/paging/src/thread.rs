//! A thread of the program's process that libc does not know.
//!
//! It has a descriptor table of its own: the program cannot close the pager's files, and never sees
//! them. All its signals are blocked. It ends with the process, by every kind of end. It shares the
//! thread-local storage of its creator, so it must not use any: no libc function, no errno.

#![allow(unsafe_code, reason = "creates a thread")]

use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use crate::raw;

const STACK: usize = 256 << 10;

/// Memory, signal handlers and semaphore undo of the process, but not its descriptors.
const FLAGS: i32 = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_SYSVSEM;

/// The start of the thread's stack; 0 before there is one.
static STACK_START: AtomicUsize = AtomicUsize::new(0);

/// The addresses of the thread's stack.
pub(crate) fn stack() -> Range<usize> {
    match STACK_START.load(Relaxed) {
        0 => 0..0,
        start => start..start + STACK,
    }
}

/// Unmaps the stack of the thread that the parent of this forked process has.
pub(crate) fn forget_in_child() {
    // SAFETY: the thread is not in this process.
    unsafe { raw::unmap(stack()) };
    STACK_START.store(0, Relaxed);
}

/// Starts a thread. Returns false if there is no memory for it.
pub(crate) fn spawn(work: extern "C" fn() -> !) -> bool {
    let Some(stack) = raw::map(STACK) else { return false };
    STACK_START.store(stack.addr().get(), Relaxed);
    // Room for the address of the work. The stack is aligned to 16 bytes when it was taken off.
    let top = stack.addr().get() + STACK - 16;
    // SAFETY: the address is inside the new mapping and aligned.
    unsafe { core::ptr::with_exposed_provenance_mut::<usize>(top).write(work as usize) };
    let mask = raw::set_mask(u64::MAX);
    let result: isize;
    // SAFETY: the new thread starts behind the instruction with its own stack, and calls `work`,
    // which never returns. The creating thread continues at the end of the block.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "pop rax",
            "add rsp, 8",
            "call rax",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") FLAGS, in("rsi") top, in("rdx") 0, in("r10") 0, in("r8") 0,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    raw::set_mask(mask);
    result > 0
}
