//! Stacks of the agent, for work that needs more than a program's stack may have left: that of a
//! coroutine, of a thread with `PTHREAD_STACK_MIN`, or of a signal handler.
//!
//! ```text
//! run(work) ─→ signals blocked ─→ a free stack? ─ yes ─→ work on it      16 stacks of 256 KiB
//!                                              └─ no ──→ work on the stack of the caller
//! ```
//! Signals are blocked because handlers of garbage collectors look at the stack pointer, because a
//! handler on an alternate stack would be overwritten by the next one, and because a thread that is
//! cancelled inside the agent would keep its locks.
//!
//! Cost: two system calls.

#![allow(unsafe_code, reason = "changes the stack pointer")]

use core::arch::naked_asm;
use core::ffi::c_void;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use crate::{raw, thread};

/// Stacks: more than processors that work inside the agent at one time.
const STACKS: usize = 16;
/// Bytes of a stack. Only what is used takes memory.
const BYTES: usize = 256 << 10;

struct Stack {
    is_used: AtomicBool,
    /// First address; 0 until its first use.
    start: AtomicUsize,
}

static POOL: [Stack; STACKS] =
    [const { Stack { is_used: AtomicBool::new(false), start: AtomicUsize::new(0) } }; STACKS];

/// The current thread is on a stack of the agent.
pub(crate) struct OnPrivateStack(());

/// Runs `work` with all signals blocked but those of faults: on a stack of the agent, or on the
/// caller's if all are in use.
pub(crate) fn run<R>(work: impl FnOnce(Option<&OnPrivateStack>) -> R) -> R {
    let mask = raw::block_signals();
    let result = match take() {
        Some((stack, top)) => {
            let mut result = None;
            {
                let mut run_work = Some(|| result = Some(work(Some(&OnPrivateStack(())))));
                // SAFETY: the stack is mapped, and this thread took it; the function is that of the
                // type of the closure.
                unsafe { switch((&raw mut run_work).cast(), function_of(&run_work), top) };
            }
            stack.is_used.store(false, Release);
            result
        }
        None => Some(work(None)),
    };
    raw::restore_signals(mask);
    // The closure ran, or the program ended in it.
    result.unwrap_or_else(|| raw::exit(128 + libc::SIGABRT))
}

/// A stack that no other thread uses, and its end.
fn take() -> Option<(&'static Stack, usize)> {
    let first = thread::number() as usize;
    let is_free = |stack: &&Stack| stack.is_used.compare_exchange(false, true, Acquire, Relaxed).is_ok();
    let stack = (0..STACKS).map(|step| &POOL[(first + step) % STACKS]).find(is_free)?;
    let mut start = stack.start.load(Relaxed);
    if start == 0 {
        let Some(memory) = raw::map(BYTES) else {
            stack.is_used.store(false, Release);
            return None;
        };
        start = memory.as_ptr() as usize;
        stack.start.store(start, Relaxed);
    }
    Some((stack, start + BYTES))
}

type Function = unsafe extern "C" fn(*mut c_void);

/// The function that calls a closure of this type by its address.
fn function_of<F: FnOnce()>(_: &Option<F>) -> Function {
    unsafe extern "C" fn call<F: FnOnce()>(argument: *mut c_void) {
        // SAFETY: `run` passes the address of its closure, which outlives the call.
        if let Some(work) = unsafe { &mut *argument.cast::<Option<F>>() }.take() {
            work();
        }
    }
    call::<F>
}

/// Calls `function` with `argument` on the stack that ends at `top`, a multiple of 16.
///
/// # Safety
/// The stack has to be mapped and unused, and `argument` valid for `function`.
#[unsafe(naked)]
unsafe extern "C" fn switch(argument: *mut c_void, function: Function, top: usize) {
    naked_asm!("push rbp", "mov rbp, rsp", "mov rsp, rdx", "call rsi", "mov rsp, rbp", "pop rbp", "ret")
}

/// In the child of a fork: the threads that used stacks do not exist.
pub(crate) fn after_fork() {
    POOL.iter().for_each(|stack| stack.is_used.store(false, Release));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The address of a local variable.
    fn here() -> usize {
        let local = 0_u8;
        core::hint::black_box(&raw const local) as usize
    }

    #[test]
    fn work_runs_on_a_stack_of_the_agent_while_one_is_free() {
        let outside = here();
        let (inside, nested) = run(|own| (own.map(|_| here()), run(|own| own.map(|_| here()))));
        let (inside, nested) = (inside.unwrap(), nested.unwrap());
        assert!(inside.abs_diff(outside) > BYTES && nested.abs_diff(inside) > BYTES / 2);
        assert!(POOL.iter().all(|stack| !stack.is_used.swap(true, Acquire)), "all were free");
        assert!(run(|own| own.is_none()));
        after_fork();
        assert!(run(|own| own.is_some()));
    }
}
