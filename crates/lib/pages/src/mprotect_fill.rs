//! Fills missing pages without userfaultfd: mprotect(2) makes the memory inaccessible, and an alias
//! fills it.
//!
//! A page is filled before it becomes accessible, so no thread reads a partly filled page. A bit
//! per page marks it as present. With tracking, a page first becomes readable only, and its first
//! write is recorded (`dirty_log`).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::dirty_log::{DirtyLog, Gate};
use crate::error::{Error, Result};
use crate::memory::Alias;
use crate::protect::mprotect;
use crate::signal_mask::without_signals;
use crate::spin::{lock, unlock};

/// The fill state of a region.
pub(crate) struct MprotectFill {
    /// Address of the memory, whose pages the alias shows at another address.
    start: usize,
    page_bytes: usize,
    alias: Alias,
    locked: AtomicBool,
    present: Box<[AtomicU64]>,
    pub(crate) log: Option<DirtyLog>,
}

impl MprotectFill {
    pub(crate) fn new(start: usize, alias: Alias, page_bytes: usize, tracked: bool) -> Self {
        let pages = alias.bytes() / page_bytes;
        let present = (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self {
            start,
            page_bytes,
            alias,
            locked: AtomicBool::new(false),
            present,
            log: tracked.then(|| DirtyLog::new(pages)),
        }
    }

    pub(crate) fn is_present(&self, page: usize) -> bool {
        self.present[page / 64].load(Ordering::Acquire) & (1 << (page % 64)) != 0
    }

    /// Fills a missing page, given by its address, with a copy or with zeros.
    #[allow(unsafe_code, reason = "writes through the alias")]
    pub(crate) fn fill(&self, address: usize, contents: Option<&[u8]>) -> Result<()> {
        let offset = address - self.start;
        let page = offset / self.page_bytes;
        self.locked(|| {
            if self.is_present(page) {
                return Ok(());
            }
            // SAFETY: the page is inside the alias, no thread can access it before `mprotect`, and
            // `ControlledRange::fill` has checked that the contents are one page.
            unsafe {
                let place = self.alias.as_ptr().add(offset);
                match contents {
                    Some(contents) => place.copy_from_nonoverlapping(contents.as_ptr(), contents.len()),
                    None => place.write_bytes(0, self.page_bytes),
                }
            }
            let open = if self.log.is_some() { libc::PROT_READ } else { libc::PROT_READ | libc::PROT_WRITE };
            mprotect(address..address + self.page_bytes, open)?;
            self.present[page / 64].fetch_or(1 << (page % 64), Ordering::Release);
            Ok(())
        })
    }

    /// Resolves an access to a present page, recording a first write if tracked; false for a
    /// missing page.
    pub(crate) fn resolve_present(&self, page: usize, gate: &impl Gate<Error = Error>) -> Result<bool> {
        self.locked(|| {
            if !self.is_present(page) {
                return Ok(false);
            }
            self.log.as_ref().map_or(Ok(()), |log| log.record(page, gate)).map(|()| true)
        })
    }

    /// Makes pages inaccessible, given by their addresses, and runs `empty`, which drops their
    /// memory. Takes their records out of the log.
    pub(crate) fn evict(
        &self,
        range: Range<usize>,
        gate: &impl Gate<Error = Error>,
        empty: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let first = (range.start - self.start) / self.page_bytes;
        let pages = first..first + range.len() / self.page_bytes;
        self.locked(|| {
            // First: a later look that found a record would make the page readable.
            if let Some(log) = &self.log {
                while log.take(pages.clone(), gate)?.is_some() {}
            }
            mprotect(range.clone(), libc::PROT_NONE)?;
            for page in pages {
                self.present[page / 64].fetch_and(!(1 << (page % 64)), Ordering::Release);
            }
            // Under the lock: otherwise a page filled meanwhile would be emptied.
            empty()
        })
    }

    /// Runs `f` under the lock and without signals, whose handlers could access a missing page and
    /// wait for this thread.
    fn locked<R>(&self, f: impl FnOnce() -> R) -> R {
        without_signals(|| {
            lock(&self.locked);
            let result = f();
            unlock(&self.locked);
            result
        })
    }
}
