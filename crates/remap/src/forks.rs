//! Children that are forked while pages are elsewhere: each gets its own back, before it has done anything.
//!
//! ```text
//!   fork(2)  memory is copied ── waits until the userfaultfd is read ── the child is there, held, and is given its pages
//!   undo     ... all stand still ── is somebody forking? let it come to its end ── pages go back
//! ```
//! A child's memory is as its parent's was when it was copied: with pages missing and heads led away. So nothing of that is forgotten as
//! long as a child may be on its way that has it.

use std::time::{Duration, Instant};

use fieldstone_sys::process::has_ended;
use fieldstone_sys::ptrace::Tracee;
use fieldstone_sys::turns;
use fieldstone_sys::userfault::{Message, Userfaultfd};

use crate::error::Result;
use crate::events::Done;
use crate::memory::Memory;
use crate::page::Moved;
use crate::process::Process;
use crate::tasks::in_system_call;

/// A fork whose memory is copied is through so soon, or has failed.
pub(crate) const LONGEST: Duration = Duration::from_secs(1);
/// Between the copy and the word of it.
const SHORTLY: Duration = Duration::from_millis(2);
const FORKS: [libc::c_long; 4] = [libc::SYS_fork, libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3];

/// Whether a thread that is in the kernel may be forking: what one is in that runs there is not told.
fn may_fork(thread: u32) -> bool {
    in_system_call(thread).is_none_or(|number| FORKS.contains(&number.into()))
}

impl Process {
    /// Has all threads stand still, and gives children that are being forked their pages back. Something is about to be forgotten that these need.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(crate) fn stop_all_and_births(&mut self) -> Result<()> {
        self.threads.stop_all()?;
        let (mut begun, mut awaited) = (Instant::now(), 0);
        loop {
            let waiting = self.forking();
            let limit = if awaited > self.threads.born() { LONGEST } else { SHORTLY };
            if waiting.is_empty() || begun.elapsed() > limit {
                break;
            }
            // Nobody watches these children's memory from here on: it is written soon.
            awaited += self.hear_of_births(&mut begun).len();
            for thread in waiting {
                self.threads.still_waits(thread)?;
            }
            self.threads.stop_all()?;
            turns::nap();
        }
        let done = self.restore_children()?;
        self.late.extend(done);
        Ok(())
    }

    /// Threads that may be in the middle of a fork.
    pub(crate) fn forking(&self) -> Vec<u32> {
        self.threads.waiting().into_iter().filter(|&thread| may_fork(thread)).collect()
    }

    /// Lets forks go on whose memory is copied: the userfaultfds of the children. While it is being copied nobody reads it, and we wait:
    /// that is no part of the time since they were `begun` to be waited for.
    pub(crate) fn hear_of_births(&mut self, begun: &mut Instant) -> Vec<Userfaultfd> {
        let asked = Instant::now();
        let somewhere = self.ours.moved.values().next().map(|moved| moved.room.start);
        let _ = somewhere.map(|at| self.memory.read_exact(at, &mut [0]));
        *begun += asked.elapsed();
        let mut births = Vec::new();
        while let Ok(message) = self.userfault.message() {
            match message {
                Message::Fork(watch) => births.push(Userfaultfd::inherited(watch, self.userfault.reach())),
                other => self.heard.push(other),
            }
        }
        births
    }

    /// Gives children that were forked their pages back, and lets them go.
    pub(crate) fn restore_children(&mut self) -> Result<Vec<Done>> {
        let mut done = Vec::new();
        for child in self.threads.children() {
            // One that is killed before it has begun needs nothing.
            let restored = self.restore(&child);
            if !has_ended(child.thread()) {
                restored?;
            }
            done.push(Done::Child(child.thread()));
        }
        Ok(done)
    }

    /// A child has copies of everything: the views among them, which have the bytes as they were when it was born. Nothing watches its memory
    /// any more, so that a page that was moved is one of zeros until it is written here.
    fn restore(&self, child: &Tracee) -> Result<()> {
        let memory = Memory::open(child.thread())?;
        let mut registers = child.registers()?;
        let was = registers.rip;
        if self.ours.lead_out(&memory, &mut registers) && registers.rip != was {
            child.set_registers(&registers)?;
        }
        for (at, original) in self.ours.heads.jumps(&memory).into_iter().chain(self.ours.protections.jumps(&memory)) {
            memory.write(at, &original)?;
        }
        for moved in self.ours.moved.values() {
            // What the program keeps from its children is not there.
            if let Ok(contents) = Moved::composed(moved, &memory) {
                let _ = memory.write(moved.page.start, &contents);
            }
        }
        Ok(())
    }
}
