//! Forks: a child has all objects, guards and records of its parent.

use crate::kernel::thread_id;
use crate::slots::Slots;

impl Slots {
    /// To be called before fork(2), for example by pthread_atfork(3). Until one of the two calls
    /// after the fork, `alloc` returns `None`; `free` works.
    ///
    /// Without it, a child forked while another thread allocates cannot allocate: its `alloc`
    /// returns `None`, after a bounded wait.
    pub fn before_fork(&self) {
        let _ = self.classes.hold(thread_id());
    }

    /// To be called after a fork, in the parent.
    pub fn after_fork_parent(&self) {
        self.classes.release_from(thread_id());
    }

    /// To be called after a fork, in the child. Objects that other threads of the parent were
    /// freeing just then stay in their slots; the program finds no difference.
    pub fn after_fork_child(&self) {
        self.classes.release();
    }
}
