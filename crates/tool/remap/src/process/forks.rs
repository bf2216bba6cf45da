//! Children forked while pages are moved: each gets its pages restored before it runs.
//!
//! ```text
//!   fork(2)   memory is copied ── the fork waits until the userfaultfd is read ── the child is there, traced and
//!             stopped, and its pages are restored
//!   restore   all threads stopped ── wait for threads that are forking ── restore the parent's pages
//! ```
//! A child's memory is its parent's at the time of the copy: pages are missing and heads are
//! patched. So no state is forgotten while a child with a copy of it may appear. The record has
//! that state too.

use std::time::{Duration, Instant};

use fieldstone_sys::process::ProcessMemory;
use fieldstone_sys::process::has_ended;
use fieldstone_sys::ptrace::Tracee;
use fieldstone_sys::scheduling;

use crate::children::{ChildWatch, ProcessSnapshot, restore_child};
use crate::error::Result;
use crate::event::RemapEvent;
use crate::page_table::moved::MovedPage;
use crate::process::Process;
use crate::tracer::status::current_system_call;

/// Maximum time from the copy of the memory to the end of a fork.
pub(super) const LONGEST_FORK: Duration = Duration::from_secs(1);
/// The same at release, where no missing page delays a thread in the kernel.
const LONGEST_LAST_FORK: Duration = Duration::from_secs(5);
/// Maximum time from the copy of the memory to the message about the child.
const MESSAGE_DELAY: Duration = Duration::from_millis(2);
const FORKS: [libc::c_long; 4] = [libc::SYS_fork, libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3];

/// Whether a thread in the kernel may be forking. The system call of a thread that runs there is
/// unknown.
fn may_fork(thread: u32) -> bool {
    current_system_call(thread).is_none_or(|number| FORKS.contains(&number.into()))
}

impl Process {
    /// Stops all threads and restores the children that are being forked, before state is forgotten
    /// that they need.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(super) fn stop_all_and_restore_children(&mut self) -> Result<()> {
        self.tracer.stop_all()?;
        let (mut begun, mut expected) = (Instant::now(), 0);
        loop {
            let forking = self.forking();
            let limit = if expected > self.tracer.new_children() { LONGEST_FORK } else { MESSAGE_DELAY };
            if forking.is_empty() || begun.elapsed() > limit {
                break;
            }
            expected += self.read_child_messages(&mut begun);
            for thread in forking {
                self.tracer.poll_stop(thread)?;
            }
            self.tracer.stop_all()?;
            scheduling::sleep_briefly();
        }
        let events = self.restore_children()?;
        self.unreported.extend(events);
        // A thread that runs in the kernel may be copying memory or accessing a missing page; which
        // one is unknown until it stops.
        let may_fork = !self.forking().is_empty();
        let (pages, code) = (self.pages.pages(), &self.code);
        let now = || ProcessSnapshot { pages: pages.clone(), code: code.clone() };
        self.before = may_fork.then(|| self.before.take().unwrap_or_else(now));
        Ok(())
    }

    /// Stops all threads and restores every child that is being forked. No page is moved any more,
    /// so all threads leave the kernel or sleep in it.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(super) fn restore_last_children(&mut self) -> Result<()> {
        let mut begun = Instant::now();
        loop {
            self.tracer.stop_all()?;
            self.read_child_messages(&mut begun);
            let events = self.restore_children()?;
            self.unreported.extend(events);
            let forking = self.forking();
            if forking.is_empty() || begun.elapsed() > LONGEST_LAST_FORK {
                self.before = None;
                self.update_record()?;
                return self.children.close_all(&mut self.tracer, &self.code);
            }
            for thread in forking {
                self.tracer.poll_stop(thread)?;
            }
            scheduling::sleep_briefly();
        }
    }

    /// Restores the children forked since the last call. Stops all threads if there are any.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(super) fn restore_new_children(&mut self) -> Result<Vec<RemapEvent>> {
        if self.tracer.new_children() == 0 {
            return Ok(Vec::new());
        }
        self.tracer.stop_all()?;
        let events = self.restore_children();
        self.tracer.resume_all(&self.code)?;
        events
    }

    /// Restores the children forked so far, and forgets the state before the last restore. All
    /// threads are stopped outside of the kernel, so none is forking.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(super) fn restore_earlier_children(&mut self) -> Result<()> {
        let events = self.restore_children()?;
        self.unreported.extend(events);
        self.before = None;
        Ok(())
    }

    /// An address in the copies of a moved page. A child that is being forked has it too.
    pub(super) fn copied_address(&self) -> Option<u64> {
        let before = self.before.iter().flat_map(|before| before.pages.iter());
        self.pages.pages().iter().chain(before).map(|moved: &MovedPage| moved.memory.start).next()
    }

    /// Threads that may be forking.
    pub(super) fn forking(&self) -> Vec<u32> {
        self.tracer.pending_stops().into_iter().filter(|&thread| may_fork(thread)).collect()
    }

    /// Reads the messages about children, so that their forks continue; returns the number of
    /// children. A read of the program's memory waits while the kernel copies it. The time of that
    /// read is added to `begun`.
    pub(super) fn read_child_messages(&mut self, begun: &mut Instant) -> usize {
        let reading = Instant::now();
        let _ = self.copied_address().map(|at| self.tracer.memory().read_exact(at, &mut [0]));
        *begun += reading.elapsed();
        let before = self.children.as_slice().len();
        while let Ok(message) = self.children.next_message(&mut self.tracer, &self.code, &self.pages) {
            self.pages.defer(message);
        }
        self.children.as_slice().len() - before
    }

    /// Restores the stopped children and detaches them. All threads are stopped.
    fn restore_children(&mut self) -> Result<Vec<RemapEvent>> {
        let mut events = Vec::new();
        for child in self.tracer.take_children() {
            let watch = self.watch_of(&child);
            let restored = self.restore_stopped_child(&child, watch);
            // A killed child needs nothing.
            if !has_ended(child.thread()) {
                restored?;
            }
            if let Some(index) = watch {
                self.children.close(&mut self.tracer, &self.code, index)?;
            }
            events.push(RemapEvent::ChildRestored(child.thread()));
        }
        if let Some(address) = self.copied_address() {
            self.children.close_gone(&mut self.tracer, &self.code, address)?;
        }
        Ok(events)
    }

    /// Index of the userfaultfd that watches a child.
    fn watch_of(&self, child: &Tracee) -> Option<usize> {
        // A child appears only after its message is read. So a single watch is this child's, or
        // that of a dead one.
        let watches = self.children.as_slice();
        let is_its =
            |watch: &ChildWatch| watches.len() == 1 || self.child_watched_by(watch.fd()) == Some(child.thread());
        watches.iter().position(is_its)
    }

    fn restore_stopped_child(&self, child: &Tracee, watch: Option<usize>) -> Result<()> {
        let memory = ProcessMemory::open(child.thread())?;
        let watch = watch.and_then(|index| self.children.as_slice().get(index)).map(ChildWatch::fd);
        let before = self.before.as_ref().map(|before| (&before.pages, &before.code));
        let states = [before, Some((self.pages.pages(), &self.code))];
        states.into_iter().flatten().try_for_each(|state| restore_child(state, child, &memory, watch))
    }
}
