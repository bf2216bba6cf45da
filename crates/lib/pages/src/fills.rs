//! Filling missing pages where there is no userfaultfd: the memory is closed by mprotect(2), and filled through a second view.
//!
//! A page is filled before it is opened, so that no thread sees a part of it; a bit a page tells who comes late that it is there.
//! Where writes are tracked, a page is opened for reading first, and its first write is noted (`log`).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::log::{Gate, Log};
use crate::memory::Alias;
use crate::region::{Region, mprotect};
use crate::signal::without_signals;
use crate::spin::{lock, unlock};

pub(crate) struct Fills {
    alias: Alias,
    locked: AtomicBool,
    present: Box<[AtomicU64]>,
    pub(crate) log: Option<Log>,
}

impl Fills {
    pub(crate) fn new(alias: Alias, page_bytes: usize, tracked: bool) -> Self {
        let pages = alias.bytes() / page_bytes;
        let present = (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { alias, locked: AtomicBool::new(false), present, log: tracked.then(|| Log::new(pages)) }
    }

    pub(crate) fn is_present(&self, page: usize) -> bool {
        self.present[page / 64].load(Ordering::Acquire) & (1 << (page % 64)) != 0
    }

    /// Fills a page, given by its address, with a copy or with zeros, unless it is there.
    #[allow(unsafe_code, reason = "writes through the second view")]
    pub(crate) fn fill(&self, address: usize, contents: Option<&[u8]>, region: &Region) -> Result<()> {
        let offset = address - region.range.start;
        let page = offset / region.page_bytes;
        self.locked(|| {
            if self.is_present(page) {
                return Ok(());
            }
            // SAFETY: the page lies in the view, nobody can see it before it is opened, and the contents are a page, as was checked.
            unsafe {
                let place = self.alias.as_ptr().add(offset);
                match contents {
                    Some(contents) => place.copy_from_nonoverlapping(contents.as_ptr(), contents.len()),
                    None => place.write_bytes(0, region.page_bytes),
                }
            }
            let open = if self.log.is_some() { libc::PROT_READ } else { libc::PROT_READ | libc::PROT_WRITE };
            mprotect(address..address + region.page_bytes, open)?;
            self.present[page / 64].fetch_or(1 << (page % 64), Ordering::Release);
            Ok(())
        })
    }

    /// Has a page that is there tried again, its write noted first where writes are; false for a page that is not there.
    pub(crate) fn settle(&self, page: usize, region: &Region) -> Result<bool> {
        self.locked(|| {
            if !self.is_present(page) {
                return Ok(false);
            }
            self.log.as_ref().map_or(Ok(()), |log| log.note(page, &Pages(region))).map(|()| true)
        })
    }

    /// Closes pages again, given by their addresses, and runs `empty`, which takes their memory away. The log's notes of them are
    /// taken.
    pub(crate) fn evict(&self, range: Range<usize>, region: &Region, empty: impl FnOnce() -> Result<()>) -> Result<()> {
        let first = (range.start - region.range.start) / region.page_bytes;
        let pages = first..first + range.len() / region.page_bytes;
        self.locked(|| {
            // First: a look that came on a note later would open the page for reading.
            if let Some(log) = &self.log {
                while log.take(pages.clone(), &Pages(region))?.is_some() {}
            }
            mprotect(range.clone(), libc::PROT_NONE)?;
            for page in pages {
                self.present[page / 64].fetch_and(!(1 << (page % 64)), Ordering::Release);
            }
            // Under the lock: a page that is filled again meanwhile would be emptied.
            empty()
        })
    }

    /// Alone, and without signals, whose handlers might touch a missing page and wait for this thread.
    fn locked<R>(&self, f: impl FnOnce() -> R) -> R {
        without_signals(|| {
            lock(&self.locked);
            let result = f();
            unlock(&self.locked);
            result
        })
    }
}

/// Pages of a region, by their numbers, opened and closed to writes.
pub(crate) struct Pages<'a>(pub(crate) &'a Region);

impl Pages<'_> {
    fn addresses(&self, pages: Range<usize>) -> Range<usize> {
        let at = |page| self.0.range.start + page * self.0.page_bytes;
        at(pages.start)..at(pages.end)
    }
}

impl Gate for Pages<'_> {
    type Error = Error;

    fn open(&self, page: usize) -> Result<()> {
        self.0.unprotect(self.addresses(page..page + 1))
    }

    fn close(&self, pages: Range<usize>) -> Result<()> {
        self.0.protect(self.addresses(pages))
    }
}
