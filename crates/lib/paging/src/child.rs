//! A forked child gets all pages that are stored, so that it needs no pager of its parent.
//!
//! ```text
//! parent: fork(2) ─→ message with the child's userfaultfd ─→ copy every stored page ─→ close it
//! child:             runs, waits at missing pages ··········································→ continues
//! ```
//! The child's memory stays registered until the descriptor is closed, so it never reads a page
//! before it has it. The child may drop, unmap or move memory meanwhile: [`Changes`] follows that.
//! The child of libc's fork waits for the end ([`is_served_by_parent`]), and starts a pager of its
//! own.

#![allow(unsafe_code, reason = "reads staged pages, and parses messages of the kernel")]

use core::ops::Range;

use linux_raw_sys::general::uffd_msg;

use crate::kernel::{EAGAIN, EBUSY, ESRCH, Errno, PAGE};
use crate::pager::{Pager, Work};
use crate::store::Page;
use crate::table::{CHUNK_PAGES, bits};
use crate::userfaultfd::{Message, Userfaultfd, parse};

/// Changes of the child's memory that are followed. After more, pages that are left raise `SIGBUS`.
const CHANGES: usize = 32;

/// What the child did to its memory while it got its pages.
#[derive(Debug)]
struct Changes {
    count: usize,
    /// A range, and its new address; `None` if its contents are gone.
    list: [(Range<usize>, Option<usize>); CHANGES],
    is_full: bool,
}

impl Changes {
    const fn new() -> Self {
        Self { count: 0, list: [const { (0..0, None) }; CHANGES], is_full: false }
    }

    /// Reads what the child has changed. The descriptors of its own children are closed: their
    /// memory is not complete, so they must not run on.
    fn read(&mut self, child: &Userfaultfd) -> Result<(), Errno> {
        // SAFETY: a message consists of integers, for which zeros are valid.
        let mut messages: [uffd_msg; 16] = unsafe { core::mem::zeroed() };
        let count = child.read(&mut messages)?;
        for message in &messages[..count] {
            // SAFETY: the kernel has just written it, and it is parsed once.
            match unsafe { parse(message) } {
                Some(Message::Dropped(range) | Message::Unmapped(range)) => self.add(range, None),
                Some(Message::Moved { from, to }) => self.add(from, Some(to)),
                Some(Message::Fault { .. } | Message::Fork(_)) | None => {}
            }
        }
        Ok(())
    }

    fn add(&mut self, range: Range<usize>, to: Option<usize>) {
        match self.list.get_mut(self.count) {
            Some(entry) => *entry = (range, to),
            None => self.is_full = true,
        }
        self.count = (self.count + 1).min(CHANGES);
    }

    /// Where a page of the parent is in the child; `None` if its contents are gone there.
    fn place(&self, page: usize) -> Option<usize> {
        self.list[..self.count].iter().try_fold(page, |page, (range, to)| {
            if range.contains(&page) { to.map(|to| to + (page - range.start)) } else { Some(page) }
        })
    }
}

impl Pager {
    /// Gives a forked child all pages that are stored or held.
    pub(crate) fn complete_child(&self, work: &mut Work, child: &Userfaultfd) {
        let mut changes = Changes::new();
        (self.callbacks.wiped)(&mut |range| changes.add(range, None));
        let buffer = &mut work.buffer[0];
        let mut has_ended = false;
        self.table.for_each_in(0..usize::MAX >> 17, |chunk, _| {
            for index in 0..CHUNK_PAGES {
                let stored = chunk.chunk.stored[index];
                let is_missing = chunk.chunk.resident & bits(index, 1) == 0;
                if stored.is_some() && is_missing && !has_ended {
                    let result = self.load(&[stored], core::slice::from_mut(buffer));
                    let contents = result.is_ok().then_some(&*buffer);
                    has_ended = give(child, &mut changes, chunk.page(index), contents) == Err(ESRCH);
                }
            }
        });
        // A page that was in staging when the process forked is stored or held by now.
        for lane in &self.lanes {
            let lane = lane.acquire();
            for (page, staged) in lane.held() {
                // SAFETY: a held page is in staging, which only the owner of the lane changes.
                let contents = unsafe { &*core::ptr::with_exposed_provenance::<Page>(staged) };
                let _ = give(child, &mut changes, page, Some(contents));
            }
        }
    }
}

/// Gives a page to a child; without contents its accesses raise `SIGBUS`.
fn give(child: &Userfaultfd, changes: &mut Changes, page: usize, contents: Option<&Page>) -> Result<(), Errno> {
    loop {
        let Some(place) = changes.place(page) else { return Ok(()) };
        let contents = contents.filter(|_| !changes.is_full);
        let result = contents.map_or_else(|| child.poison(place), |contents| child.copy(place, contents).1);
        // The child waits until its message is read, and changes nothing before.
        if result != Err(EAGAIN) {
            return result;
        }
        changes.read(child)?;
    }
}

/// In a forked child: whether the parent's pager still serves its memory. `page` is
/// [`Pager::registered_page`] of the parent's pager. `None` if that cannot be known.
#[must_use]
pub fn is_served_by_parent(page: usize) -> Option<bool> {
    let own = Userfaultfd::open_for_user_code().ok()?;
    match own.register(page..page + PAGE) {
        Err(EBUSY) => Some(true),
        Ok(()) => Some(false),
        Err(_) => None,
    }
}
