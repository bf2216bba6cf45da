//! Children of forks that began while nobody held their parent.
//!
//! ```text
//!   fork(2)  memory is copied ── waits until the userfaultfd is read ── whoever comes next reads it, and gets a userfaultfd of the child
//!            ── in whose memory does that watch? ── held, and everything is put back there, as in its parent
//! ```
//! ptrace tells nothing of such a child, since its parent was not traced when it began. Until it is held it waits as its parent would, at
//! a page that is missing, and goes on in clones, in views of its own.

use std::os::fd::AsFd;
use std::time::Instant;

use fieldstone_sys::process::{children, has_ended};
use fieldstone_sys::scheduling;
use fieldstone_sys::smaps;
use fieldstone_sys::userfault::{Modes, Userfaultfd};

use crate::error::{Error, Result};
use crate::events::Done;
use crate::forks::LONGEST;
use crate::home::Way;
use crate::memory::Memory;
use crate::process::{Process, range};
use crate::threads::Threads;

impl Process {
    /// Puts everything back in children that were born unheld, before it is put back here. `home` is where calls were made then.
    ///
    /// # Errors
    /// Where the process, or such a child, refuses.
    pub(crate) fn take_in_orphans(&mut self, home: Option<u64>) -> Result<Vec<Done>> {
        let mut done = Vec::new();
        if self.ours.moved.is_empty() {
            self.threads.stop_all()?;
            self.end_births(&|_| true)?;
            return Ok(done);
        }
        self.await_unheld_births()?;
        for number in 0..self.births.len() {
            let Some(child) = self.child_watched_by(&self.births[number].watch) else { continue };
            let restored = self.restore_orphan(child, number, home);
            // One that is killed meanwhile needs nothing.
            if !has_ended(child) {
                restored?;
            }
            done.push(Done::Child(child));
        }
        self.end_births(&|_| true)?;
        Ok(done)
    }

    /// Lets forks go on that have begun, and has all stand still.
    fn await_unheld_births(&mut self) -> Result<()> {
        self.threads.stop_all()?;
        let mut begun = Instant::now();
        loop {
            let waiting = self.forking();
            if waiting.is_empty() || begun.elapsed() > LONGEST {
                return Ok(());
            }
            self.hear_of_births(&mut begun);
            for thread in waiting {
                self.threads.still_waits(thread)?;
            }
            scheduling::sleep_briefly();
        }
    }

    /// The child in whose memory a page of ours is watched as soon as this one watches it. It is there, so that nobody waits for it.
    pub(crate) fn child_watched_by(&self, watch: &Userfaultfd) -> Option<u32> {
        let page = self.somewhere()?;
        watch.register(range(page), Modes { missing: true, write_protect: false }).ok()?;
        let is_watched = |child: &u32| {
            let mappings = smaps::read(*child).unwrap_or_default();
            mappings.iter().any(|mapping| mapping.range().contains(&page) && mapping.has_flag("um"))
        };
        let child = children(self.pid()).ok()?.into_iter().find(is_watched);
        let _ = watch.unregister(range(page));
        child
    }

    /// A child has copies of everything of ours, as it was when its memory was copied; its own children may be born unheld, too.
    fn restore_orphan(&self, child: u32, birth: usize, home: Option<u64>) -> Result<()> {
        let failed = |source| Error::Process { pid: child, operation: "share the userfaultfd of", source };
        let watch = self.births[birth].watch.as_fd().try_clone_to_owned().map_err(failed)?;
        let watch = Userfaultfd::inherited(watch, self.userfault.reach());
        let (memory, threads) = (Memory::open(child)?, Threads::seize(child)?);
        let mut orphan = Self::holding(child, memory, threads, (watch, self.theirs), Way { home, ..self.way });
        orphan.ours = self.ours.clone();
        orphan.end_left_calls()?;
        orphan.take_in_orphans(home)?;
        orphan.release().map(drop)
    }
}
