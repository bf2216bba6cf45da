//! Threads of the program's process that libc does not know: the pager, and its evictor.
//!
//! The pager has a descriptor table of its own, which the evictor shares: the program cannot close
//! the pager's files, and never sees them. All their signals are blocked. They end with the process,
//! by every kind of end. They share the thread-local storage of their creator, so they must not use
//! any: no libc function, no errno.

#![allow(unsafe_code, reason = "creates a thread")]

use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use crate::raw::{self, PAGE};

/// Bytes of a thread's stack. The lowest page is inaccessible: a thread that needs more ends the process
/// instead of overwriting other memory.
const STACK: usize = 512 << 10;

/// Memory, signal handlers and semaphore undo of the process, but not its descriptors.
const FLAGS: i32 = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_SYSVSEM;

/// A thread of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thread {
    /// It serves faults.
    Pager,
    /// It evicts pages. The pager starts it.
    Evictor,
}

/// The start of the stack of each thread; 0 before there is one.
static STACK_STARTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// The addresses of the threads' stacks.
pub(crate) fn stacks() -> [Range<usize>; 2] {
    STACK_STARTS.each_ref().map(|start| match start.load(Relaxed) {
        0 => 0..0,
        start => start..start + STACK,
    })
}

/// Unmaps the stacks of the threads that the parent of this forked process has.
pub(crate) fn forget_in_child() {
    for (range, start) in stacks().into_iter().zip(&STACK_STARTS) {
        // SAFETY: the thread is not in this process.
        unsafe { raw::unmap(range) };
        start.store(0, Relaxed);
    }
}

/// Starts a thread. Returns false if there is no memory for it.
pub(crate) fn spawn(thread: Thread, work: extern "C" fn() -> !) -> bool {
    let Some(stack) = raw::map(STACK) else { return false };
    let start = stack.addr().get();
    // SAFETY: the memory was just mapped.
    unsafe { raw::forbid(start..start + PAGE) };
    STACK_STARTS[thread as usize].store(start, Relaxed);
    let flags = if thread == Thread::Evictor { FLAGS | libc::CLONE_FILES } else { FLAGS };
    // Room for the address of the work. The stack is aligned to 16 bytes when it was taken off.
    let top = start + STACK - 16;
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
            in("rdi") flags, in("rsi") top, in("rdx") 0, in("r10") 0, in("r8") 0,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    raw::set_mask(mask);
    result > 0
}
