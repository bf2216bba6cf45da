//! Children of forks that began while no repairer traced their parent.
//!
//! ```text
//!   fork(2)  memory is copied ── the fork waits until the next repairer reads the userfaultfd, which brings a
//!            userfaultfd of the child
//!            ── the child is found by the memory that this one watches ── it is traced and restored as its parent is
//! ```
//! ptrace does not report such a child, since its parent was not traced at the fork. Until it is
//! traced, it waits at missing pages as its parent does, and runs in clones of its own.

use std::os::fd::AsFd;
use std::time::Instant;

use fieldstone_sys::process::{children, has_ended};
use fieldstone_sys::scheduling;
use fieldstone_sys::smaps::{self, Mapping};
use fieldstone_sys::userfault::{Modes, Userfaultfd};

use crate::error::{Error, Result};
use crate::event::RemapEvent;
use crate::page_table::PageTable;
use crate::page_table::moved::page_range;
use crate::page_table::userfault::SharedUserfault;
use crate::process::Process;
use crate::process::forks::LONGEST_FORK;

impl Process {
    /// Restores the children of untraced forks, before the parent is restored. `stub_page` is that
    /// of the killed repairer. All threads are stopped on return.
    ///
    /// # Errors
    /// If the process or such a child cannot be traced.
    pub(super) fn restore_orphans(&mut self, stub_page: Option<u64>) -> Result<Vec<RemapEvent>> {
        let mut events = Vec::new();
        if self.copied_address().is_none() {
            self.tracer.stop_all()?;
            self.children.close_all(&mut self.tracer, &self.code)?;
            return Ok(events);
        }
        self.await_untraced_forks()?;
        for index in 0..self.children.as_slice().len() {
            let Some(child) = self.child_watched_by(self.children.as_slice()[index].fd()) else { continue };
            let restored = self.restore_orphan(child, index, stub_page);
            // A killed child needs nothing.
            if !has_ended(child) {
                restored?;
            }
            events.push(RemapEvent::ChildRestored(child));
        }
        if self.forking().is_empty() {
            self.before = None;
        }
        self.children.close_all(&mut self.tracer, &self.code)?;
        Ok(events)
    }

    /// Lets forks that have begun finish, and stops all threads.
    fn await_untraced_forks(&mut self) -> Result<()> {
        self.tracer.stop_all()?;
        let mut begun = Instant::now();
        loop {
            let forking = self.forking();
            if forking.is_empty() || begun.elapsed() > LONGEST_FORK {
                return Ok(());
            }
            self.read_child_messages(&mut begun);
            for thread in forking {
                self.tracer.poll_stop(thread)?;
            }
            scheduling::sleep_briefly();
        }
    }

    /// The child whose memory `watch` watches. The page used for this test is present, so that no
    /// thread waits for it.
    pub(super) fn child_watched_by(&self, watch: &Userfaultfd) -> Option<u32> {
        let page = self.copied_address()?;
        watch.register(page_range(page), Modes { missing: true, write_protect: false }).ok()?;
        let has_watch = |child: &u32| is_watched(&smaps::read(*child).unwrap_or_default(), page);
        let child = children(self.pid()).ok()?.into_iter().find(has_watch);
        let _ = watch.unregister(page_range(page));
        child
    }

    /// Restores one child, whose memory has a copy of the pages and of the code: of the present
    /// ones, or of those before the last restore. Pages that were restored before the copy are not
    /// watched in the child. It may have such children itself.
    fn restore_orphan(&self, child: u32, index: usize, stub_page: Option<u64>) -> Result<()> {
        let failed = |source| Error::Process { pid: child, operation: "share the userfaultfd of", source };
        let watch = self.children.as_slice()[index].fd().as_fd().try_clone_to_owned().map_err(failed)?;
        let watch = Userfaultfd::inherited(watch, self.pages.reach());
        let tracer = self.tracer.seize_child(child, stub_page)?;
        let userfault = SharedUserfault::new(watch, self.pages.userfault().number());
        let now = (self.pages.pages(), &self.code);
        let (pages, code) = self.before.as_ref().map_or(now, |before| (&before.pages, &before.code));
        let (mut pages, mappings) = (pages.clone(), smaps::read(child)?);
        pages.retain(|page| is_watched(&mappings, page));
        let mut orphan = Self::new(tracer, PageTable::new(pages, userfault), code.clone());
        orphan.end_abandoned_calls()?;
        orphan.restore_orphans(stub_page)?;
        orphan.release().map(drop)
    }
}

/// Whether a userfaultfd watches the page at this address for missing pages.
fn is_watched(mappings: &[Mapping], page: u64) -> bool {
    mappings.iter().any(|mapping| mapping.range().contains(&page) && mapping.has_flag("um"))
}
