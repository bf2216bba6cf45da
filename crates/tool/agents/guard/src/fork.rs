//! fork(2): the child keeps the guarded objects and reports its own findings.
//!
//! libc calls the handlers of `pthread_atfork` around a fork: those before it in the reverse order
//! of their registration, those after it in that order. The agent registers first, so it locks the
//! objects last and unlocks them first. Handlers of the program may free meanwhile.
//!
//! A child of `vfork` or of a raw `clone` shares the memory of its parent, or starts without these
//! handlers: nothing that the agent does waits without a bound.

#![allow(unsafe_code, reason = "registers handlers in libc")]

use crate::{HEAP, budget, dispositions, ending, private_stack, range, start, thread, unwind};

/// Registers the handlers.
pub(crate) fn prepare() {
    // SAFETY: the handlers stay valid: the loader never unloads a preloaded library.
    unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
}

unsafe extern "C" fn before() {
    if let Some(slots) = range::slots() {
        slots.before_fork();
    }
}

unsafe extern "C" fn after_in_parent() {
    if let Some(slots) = range::slots() {
        slots.after_fork_parent();
    }
}

unsafe extern "C" fn after_in_child() {
    if let Some(slots) = range::slots() {
        slots.after_fork_child();
        dispositions::after_fork();
        ending::prepare();
        HEAP.after_fork();
        unwind::after_fork();
        private_stack::after_fork();
        start::after_fork();
        thread::after_fork();
        budget::after_fork();
    }
}
