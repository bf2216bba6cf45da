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
use fieldstone_sys::scheduling;
use fieldstone_sys::userfault::Userfaultfd;

use crate::births::Birth;
use crate::error::Result;
use crate::events::Done;
use crate::memory::Memory;
use crate::ours::Ours;
use crate::page::Moved;
use crate::process::{Process, range};
use crate::tasks::in_system_call;

/// A fork whose memory is copied is through so soon, or has failed.
pub(crate) const LONGEST: Duration = Duration::from_secs(1);
/// The same at the end, where nothing else holds a thread up that runs in the kernel.
const LONGEST_LAST: Duration = Duration::from_secs(5);
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
            awaited += self.hear_of_births(&mut begun);
            for thread in waiting {
                self.threads.still_waits(thread)?;
            }
            self.threads.stop_all()?;
            scheduling::sleep_briefly();
        }
        let done = self.restore_children()?;
        self.late.extend(done);
        // One that runs in the kernel may be copying memory, or access a page of ours: what it is is not known before it comes out.
        let may_fork = !self.forking().is_empty();
        self.before = may_fork.then(|| self.before.take().unwrap_or_else(|| self.ours.clone()));
        Ok(())
    }

    /// Has all stand still, and gives every child its pages that was being forked. No page is elsewhere any more, so that all threads come out
    /// of the kernel or sleep in it.
    pub(crate) fn await_last_births(&mut self) -> Result<()> {
        let mut begun = Instant::now();
        loop {
            self.threads.stop_all()?;
            self.hear_of_births(&mut begun);
            let done = self.restore_children()?;
            self.late.extend(done);
            let waiting = self.forking();
            if waiting.is_empty() || begun.elapsed() > LONGEST_LAST {
                self.before = None;
                return self.end_births(&|_| true);
            }
            for thread in waiting {
                self.threads.still_waits(thread)?;
            }
            scheduling::sleep_briefly();
        }
    }

    /// An address of memory of ours that a child on its way has, too.
    pub(crate) fn somewhere(&self) -> Option<u64> {
        let known = self.ours.moved.values().chain(self.before.iter().flat_map(|before| before.moved.values()));
        known.map(|moved| moved.room.start).next()
    }

    /// Threads that may be in the middle of a fork.
    pub(crate) fn forking(&self) -> Vec<u32> {
        self.threads.waiting().into_iter().filter(|&thread| may_fork(thread)).collect()
    }

    /// Lets forks go on whose memory is copied; how many. While it is being copied nobody reads it, and we wait: that is no part of the time
    /// since they were `begun` to be waited for.
    pub(crate) fn hear_of_births(&mut self, begun: &mut Instant) -> usize {
        let asked = Instant::now();
        let _ = self.somewhere().map(|at| self.memory.read_exact(at, &mut [0]));
        *begun += asked.elapsed();
        let before = self.births.len();
        while let Ok(message) = self.next_message() {
            self.heard.extend(message);
        }
        self.births.len() - before
    }

    /// Gives children that were forked their pages back, and lets them go. All threads stand still.
    fn restore_children(&mut self) -> Result<Vec<Done>> {
        let mut done = Vec::new();
        for child in self.threads.children() {
            let birth = self.birth_of(&child);
            // One that is killed before it has begun needs nothing.
            let restored = self.restore(&child, birth);
            if !has_ended(child.thread()) {
                restored?;
            }
            if let Some(number) = birth {
                let over = self.births.remove(number);
                self.end_birth(over)?;
            }
            done.push(Done::Child(child.thread()));
        }
        self.end_births_of_the_dead()?;
        Ok(done)
    }

    /// The same while threads run: they are stopped for it if there are such children.
    pub(crate) fn attend_children(&mut self) -> Result<Vec<Done>> {
        if self.threads.born() == 0 {
            return Ok(Vec::new());
        }
        self.threads.stop_all()?;
        let done = self.restore_children();
        self.resume_all()?;
        done
    }

    /// Which of the births is that of this child.
    fn birth_of(&self, child: &Tracee) -> Option<usize> {
        // A child exists only after its birth was heard of. So a single one is that of this child, or of one that is dead.
        let is_its =
            |birth: &Birth| self.births.len() == 1 || self.child_watched_by(&birth.watch) == Some(child.thread());
        self.births.iter().position(is_its)
    }

    /// A child has copies of everything: the views among them, which have the bytes as they were when it was born. Its userfaultfd stays open
    /// until its pages are back: without it, a page that was moved is one of zeros.
    fn restore(&self, child: &Tracee, birth: Option<usize>) -> Result<()> {
        let memory = Memory::open(child.thread())?;
        let watch = birth.map(|number| &self.births[number].watch);
        let known = [self.before.as_ref(), Some(&self.ours)];
        known.into_iter().flatten().try_for_each(|ours| restore_to(ours, child, &memory, watch))
    }
}

/// Takes all of ours out of a child.
fn restore_to(ours: &Ours, child: &Tracee, memory: &Memory, watch: Option<&Userfaultfd>) -> Result<()> {
    let mut registers = child.registers()?;
    let was = registers.rip;
    if ours.lead_out(memory, &mut registers) && registers.rip != was {
        child.set_registers(&registers)?;
    }
    for (at, original) in ours.heads.jumps(memory).into_iter().chain(ours.protections.jumps(memory)) {
        memory.write(at, &original)?;
    }
    for moved in ours.moved.values() {
        // What the program keeps from its children is not there.
        let Ok(contents) = Moved::composed(moved, memory) else { continue };
        let page = range(moved.page.start);
        match watch {
            // Refused where it is there already, or nothing is.
            Some(watch) => {
                let _ = watch.copy(page.start, &contents, false);
                let _ = watch.unregister(page);
            }
            None => drop(memory.write(moved.page.start, &contents)),
        }
    }
    Ok(())
}
