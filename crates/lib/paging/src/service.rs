//! The loop of the thread that serves an address space: it reads messages and acts on them.

#![allow(unsafe_code, reason = "parses messages of the kernel")]

use core::ops::Range;
use core::sync::atomic::Ordering::SeqCst;

use linux_raw_sys::general::uffd_msg;

use crate::kernel::{self, Errno, PAGE};
use crate::pager::{Pager, Work};
use crate::table::{CHUNK_PAGES, Stored, bits, index_of};
use crate::userfaultfd::{Message, Userfaultfd, parse};

/// How long pages of a drop are left alone, at least, in nanoseconds: the thread that drops them does so
/// after its message was read, and no message says when it is done.
const RECOUNT_DELAY: u64 = 200_000_000;
/// Messages that are read at one time.
const BATCH: usize = 16;

impl Pager {
    /// Waits for messages, at most some milliseconds, and acts on them. Returns whether the program
    /// has unmapped or dropped memory, so that new memory may have taken its place.
    ///
    /// # Errors
    /// Why the userfaultfd cannot be read: the process could not go on.
    pub fn serve(&self, milliseconds: u32) -> Result<bool, Errno> {
        let mut has_gone = false;
        let has_ahead = self.has_ahead();
        if self.fd.wait(if has_ahead { 0 } else { milliseconds })? {
            // SAFETY: a message consists of integers, for which zeros are valid.
            let mut messages: [uffd_msg; BATCH] = unsafe { core::mem::zeroed() };
            // The lock comes first: a thread whose change was read runs on, and a page that another
            // one moves before the change is followed would be mistaken for one of the old state.
            let mut work = self.work.acquire();
            // Nor does the evictor move pages until the changes are followed: a thread that has freed a
            // page lazily (MADV_FREE) may have written to it again.
            let moving = self.moving.acquire();
            let count = self.fd.read(&mut messages)?;
            let (mut faults, mut fault_count) = ([0; BATCH], 0);
            for message in &messages[..count] {
                // SAFETY: the kernel has just written it, and it is parsed once.
                match unsafe { parse(message) } {
                    Some(Message::Fault { page, thread }) => {
                        (self.callbacks.on_fault)(thread);
                        faults[fault_count] = page;
                        fault_count += 1;
                    }
                    Some(change) => has_gone |= self.follow(&mut work, change),
                    None => {}
                }
            }
            drop(moving);
            // The kernel lists faults before changes. A thread whose change was read runs on: a
            // fault that is served first could bring back contents that it has dropped.
            for &page in &faults[..fault_count] {
                self.fill(&mut work, page);
            }
        } else if has_ahead {
            self.fill_ahead(&mut self.work.acquire());
        } else {
            let _work = self.work.acquire();
            self.evict_to(self.spare());
            self.count_bytes();
        }
        Ok(has_gone)
    }

    /// Follows a change of the address space; whether memory was unmapped, dropped or moved.
    fn follow(&self, work: &mut Work, change: Message) -> bool {
        match change {
            Message::Fault { .. } => return false,
            Message::Fork(descriptor) => {
                let child = Userfaultfd::of_child(descriptor);
                self.complete_child(work, &child);
                // Counted before the descriptor is closed, which lets the child continue.
                self.counters.children.fetch_add(1, SeqCst);
                return false;
            }
            Message::Moved { from, to } => self.moved(work, from, to),
            Message::Dropped(range) => {
                self.gone(range.clone());
                work.dropped.insert(range);
            }
            Message::Unmapped(range) => {
                work.adopted.remove(range.clone());
                self.gone(range.clone());
                self.table.for_each_in(range, |mut chunk, pages| chunk.chunk.kept &= !pages);
            }
        }
        true
    }

    /// Forgets pages that the program has unmapped or dropped.
    fn gone(&self, range: Range<usize>) {
        self.table.for_each_in(range.clone(), |mut chunk, pages| {
            self.drop_stored(&mut chunk, pages);
            self.count_missing(chunk.set_missing(pages));
        });
        self.forget_held(&range);
    }

    /// Follows pages that mremap(2) has moved.
    fn moved(&self, work: &mut Work, from: Range<usize>, to: usize) {
        self.gone(to..to + from.len());
        work.adopted.remove(from.clone());
        work.adopted.insert(to..to + from.len());
        for offset in (0..from.len()).step_by(PAGE) {
            let Some(mut old) = self.table.lock_known(from.start + offset) else { continue };
            let index = index_of(from.start + offset);
            let was_resident = old.set_missing(bits(index, 1));
            let stored = core::mem::replace(&mut old.chunk.stored[index], Stored::NONE);
            drop(old);
            if !stored.is_some() && was_resident == 0 {
                continue;
            }
            if let Some(mut new) = self.table.lock(to + offset) {
                let index = index_of(to + offset);
                new.set_resident(if was_resident > 0 { bits(index, 1) } else { 0 });
                new.chunk.stored[index] = stored;
            }
        }
        // After the locks of all chunks: a page that was staged is held by now.
        self.move_held(&from, to);
    }

    /// Pages memory that the program has mapped: private, anonymous, not of the pager. What is paged
    /// already stays as it is. With `has_pages`, pages that are resident count from now on.
    ///
    /// # Errors
    /// `EINVAL` or `EBUSY` for memory that the kernel does not let this pager page.
    pub fn adopt(&self, range: Range<usize>, has_pages: bool) -> Result<(), Errno> {
        let mut work = self.work.acquire();
        let mut rest = range;
        while let Some(gap) = work.adopted.first_gap(rest.clone()) {
            self.fd.register(gap.clone())?;
            work.adopted.insert(gap.clone());
            rest.start = gap.end;
            if has_pages {
                self.count_present(gap);
            }
        }
        Ok(())
    }

    /// Keeps pages resident until they are unmapped. A page that is stored comes back at its next
    /// fault.
    pub fn keep(&self, range: Range<usize>) {
        let mut page = range.start & !(PAGE - 1);
        while page < range.end {
            if let Some(mut chunk) = self.table.lock(page) {
                chunk.chunk.kept |= bits(index_of(page), 1);
            }
            page += PAGE;
        }
    }

    /// Counts the bytes in the stores, and the pages that are resident although the program has given
    /// them up.
    pub fn recount(&self) {
        self.count_bytes();
        let mut work = self.work.acquire();
        let now = kernel::now_ns();
        if now < work.recount_at {
            return;
        }
        work.recount_at = now + RECOUNT_DELAY;
        while let Some(range) = work.recount.pop() {
            self.count_present(range);
        }
        let Work { dropped, recount, .. } = &mut *work;
        core::mem::swap(dropped, recount);
    }

    /// Counts the resident pages of a range.
    fn count_present(&self, range: Range<usize>) {
        let mut present = [0; CHUNK_PAGES];
        let mut at = range.start;
        while at < range.end {
            let Some(mut chunk) = self.table.lock(at) else { return };
            let end = range.end.min(chunk.start + CHUNK_PAGES * PAGE);
            let count = (end - at) / PAGE;
            if kernel::mincore(at..end, &mut present[..count]).is_ok() {
                let first = index_of(at);
                let found = (0..count).filter(|&index| present[index] & 1 == 1);
                let pages = found.fold(0, |pages, index| pages | bits(first + index, 1));
                self.count_resident(chunk.set_resident(pages));
            }
            at = end;
        }
    }
}
