//! Why a traced thread stops.

/// Why a thread has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It was interrupted, or it is new and has not started yet.
    Interrupted,
    /// A signal is about to be delivered: resume with or without it.
    Signal(i32),
    /// It enters or leaves a system call.
    Call,
    /// SIGSTOP or the like stops the whole process: resume by [`super::Tracee::listen`] to keep it
    /// stopped.
    Group,
    /// It has created this thread, or this child by vfork, which shares its memory.
    Cloned(u32),
    /// It has created this child, which has a copy of its memory.
    Forked(u32),
    /// It is about to execute another program.
    Exec,
    /// It is about to exit: its memory exists, but it can make no system call.
    Ending,
    /// It has exited.
    Gone,
}
