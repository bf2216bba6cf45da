//! Pages come back: a fault is served from a store, or by zeros at the first access.
//!
//! ```text
//! fault at page p:  stored?  load p, and the pages behind it after a sequential fault ─→ UFFDIO_COPY
//!                   else     zeros, likewise                                          ─→ UFFDIO_COPY
//! ```
//! The copy makes the whole page appear at one instant, so no thread sees a part of it.

use core::sync::atomic::Ordering::Acquire;

use crate::count::add;
use crate::kernel::{self, EAGAIN, EEXIST, PAGE};
use crate::pager::{AHEAD, Pager, Work};
use crate::store::Page;
use crate::table::{CHUNK_PAGES, LockedChunk, bits, index_of};

/// `PM_GUARD_REGION` of pagemap, Linux 6.15: the page is a guard.
const IS_GUARD: u64 = 1 << 58;

static ZEROS: [Page; AHEAD] = [[0; PAGE]; AHEAD];

impl Pager {
    /// Serves a fault. Returns false if messages must be read first; the thread then repeats its
    /// access.
    pub(crate) fn fill(&self, work: &mut Work, page: usize) -> bool {
        add(&self.counters.faults, 1);
        // A page of a window can come back after the thread has met it missing.
        let is_resident =
            self.table.lock_known(page).is_some_and(|locked| locked.chunk.resident & bits(index_of(page), 1) != 0);
        let window = if is_resident { 1 } else { work.scans.window_at(page, self.largest_window()) };
        let wanted = window.min(AHEAD);
        // Room for the pages, before the chunk is locked.
        let is_ready = self.make_room(wanted);
        let filled = if is_ready { self.fill_run(work, page, wanted) } else { None };
        if !is_resident {
            work.scans.brought(filled);
        }
        if filled.is_none() {
            let _ = self.fd.wake(page..page + PAGE);
        }
        filled.is_some()
    }

    /// Fills a page and those behind it, at most `wanted`. Returns how many are present now; `None` if
    /// messages must be read first.
    pub(crate) fn fill_run(&self, work: &mut Work, page: usize, wanted: usize) -> Option<usize> {
        let Some(mut chunk) = self.table.lock(page) else {
            // No memory for the record: the page becomes an ordinary one, outside the bound.
            return self.copy(page, &ZEROS[..1]).ok();
        };
        while self.holds_pages() {
            // The page may be among those that no store took.
            drop(chunk);
            if !self.return_all_held() {
                return None;
            }
            chunk = self.table.lock(page)?;
        }
        let first = index_of(page);
        let is_stored = chunk.chunk.stored[first].is_some();
        let count = self.run_length(&chunk, first, wanted, is_stored);
        let filled = if is_stored {
            self.fill_stored(work, &chunk, first, count)
        } else {
            add(&self.counters.first_accesses, 1);
            self.copy_or_less(page, &ZEROS[..count])
        };
        let filled = filled.ok()?;
        self.record_filled(&mut chunk, first, filled, is_stored);
        Some(filled)
    }

    /// Whether a lane may hold pages that no store took.
    pub(crate) fn holds_pages(&self) -> bool {
        self.has_held.load(Acquire)
    }

    /// Records pages that were filled.
    pub(crate) fn record_filled(&self, chunk: &mut LockedChunk<'_>, first: usize, count: usize, is_stored: bool) {
        if is_stored {
            self.keep_copies(chunk, bits(first, count));
        }
        self.count_resident(chunk.set_resident(bits(first, count)));
        self.wake_evictor();
    }

    /// How many pages from `first` on are alike and may be filled together.
    pub(crate) fn run_length(&self, chunk: &LockedChunk<'_>, first: usize, wanted: usize, is_stored: bool) -> usize {
        let is_alike =
            |&index: &usize| chunk.chunk.stored[index].is_some() == is_stored && chunk.chunk.resident >> index & 1 == 0;
        let count = 1 + (first + 1..CHUNK_PAGES).take(wanted - 1).take_while(is_alike).count();
        if count > 1 && self.has_guard(chunk.page(first), count) { 1 } else { count }
    }

    /// Whether a page of the run is a guard, or that cannot be known.
    fn has_guard(&self, page: usize, count: usize) -> bool {
        let mut entries = [0; AHEAD * 8];
        let entries = &mut entries[..count * 8];
        let read = self.pagemap.as_ref().map(|file| kernel::read_at(file, entries, page / PAGE * 8));
        read != Some(Ok(())) || entries.as_chunks().0.iter().any(|&entry| u64::from_le_bytes(entry) & IS_GUARD != 0)
    }

    /// Loads pages and fills them; the number of those that are present now.
    fn fill_stored(
        &self,
        work: &mut Work,
        chunk: &LockedChunk<'_>,
        first: usize,
        count: usize,
    ) -> Result<usize, kernel::Errno> {
        let (page, stored) = (chunk.page(first), &chunk.chunk.stored[first..first + count]);
        let Ok(loaded) = self.load_or_retry(page, stored, &mut work.buffer[..count]) else {
            add(&self.counters.lost, 1);
            return match self.fd.poison(page) {
                // It was lost before, and advice has asked for it again.
                Ok(()) | Err(EEXIST) => Ok(0),
                Err(errno) => Err(errno),
            };
        };
        self.copy_or_less(page, &work.buffer[..loaded])
    }

    /// Fills missing pages, or the first one alone if the run crosses the end of a mapping. Returns
    /// how many are present now.
    fn copy_or_less(&self, page: usize, contents: &[Page]) -> Result<usize, kernel::Errno> {
        match self.copy(page, contents) {
            Err(errno) if errno != EAGAIN && contents.len() > 1 => self.copy(page, &contents[..1]),
            result => result,
        }
    }

    /// Fills missing pages; how many are present now.
    ///
    /// # Errors
    /// [`EAGAIN`] while the address space changes, and `ENOENT` for pages that were unmapped.
    fn copy(&self, page: usize, contents: &[Page]) -> Result<usize, kernel::Errno> {
        let (bytes, result) = self.fd.copy(page, contents.as_flattened());
        match (bytes / PAGE, result) {
            (0, Err(EEXIST)) => {
                self.fd.wake(page..page + PAGE)?;
                Ok(1)
            }
            (0, Err(errno)) => Err(errno),
            (done, _) => Ok(done),
        }
    }
}
