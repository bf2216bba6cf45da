//! Moves and restores pages, and releases the process.
//!
//! ```text
//!   move      record mapped ── call sites found ── threads stopped ── copies written ── page in the table
//!             ── probes written ── recorded ── page emptied ── threads resumed
//!   restore   threads stopped, children restored ── code removed ── bytes restored ── page out of the table
//!             ── probes written ── recorded ── copies unmapped ── threads resumed
//! ```

use std::time::{Duration, Instant};

use fieldstone_sys::process::has_ended;
use fieldstone_sys::scheduling;

use crate::code_cache::MAX_PAGES;
use crate::error::{Error, Result};
use crate::event::{RemapEvent, RestoreReason};
use crate::page_table::checks::{check_threads, movable_mapping};
use crate::page_table::moved::{MovedPage, PAGE, PAGE_BYTES, PageRequest, page_error, plan};
use crate::process::Process;
use crate::space::free_near;

/// Checks for threads in the kernel before a move, and the interval between them.
const MAX_TRIES: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(1);
/// Maximum number of rounds at release that wait for threads to report our traps, and their length.
const MAX_TRAP_ROUNDS: u32 = 4;
const TRAP_ROUND: Duration = Duration::from_millis(1);

/// Moves.
impl Process {
    /// Moves a page to copies. All threads are stopped meanwhile, for about 0.1 ms per thread.
    ///
    /// # Errors
    /// [`Error::Page`] if it cannot be moved; nothing has changed then.
    pub fn move_page(&mut self, request: &PageRequest) -> Result<MovedPage> {
        let page = request.page;
        if self.pages.pages().contains(page) {
            return Err(page_error(page, "it is moved already: restore it first"));
        }
        if self.pages.pages().len() >= MAX_PAGES {
            return Err(page_error(page, &format!("{MAX_PAGES} pages are moved already")));
        }
        self.code.clear_failures();
        let not_now = |error| not_now(page, error);
        self.map_record().map_err(not_now)?;
        self.code.find_call_sites(&mut self.tracer).map_err(not_now)?;
        let table = self.tracer.mappings()?;
        let mapping = movable_mapping(self.pid(), &table, page)?;
        let bytes = (request.owners.len() as u64 + 1) * PAGE_BYTES;
        let near = page..page + PAGE_BYTES;
        let start = free_near(&table, &near, bytes).ok_or_else(|| page_error(page, "no free memory is near enough"))?;
        let rules = plan(request, start)?;
        let moved = MovedPage { page: rules, memory: start..start + bytes, watched: request.watched.clone() };
        for _ in 1..MAX_TRIES {
            if !self.has_thread_in_kernel()? {
                break;
            }
            self.tracer.resume_all(&self.code)?;
            self.finish_exits()?;
            std::thread::sleep(BETWEEN_TRIES);
        }
        self.tracer.stop_all()?;
        let result = self.move_now(&moved, mapping.is_file());
        let answered = self.answer_deferred();
        self.tracer.resume_all(&self.code)?;
        result.and(answered).map(|()| moved)
    }

    /// Stops all threads; returns whether one is still in the kernel and may be writing to any
    /// memory there.
    fn has_thread_in_kernel(&mut self) -> Result<bool> {
        self.tracer.stop_all()?;
        for thread in self.tracer.threads() {
            let is_stopped = self.tracer.thread(thread).is_none_or(|traced| traced.is_stopped());
            if !is_stopped && !has_ended(thread) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn move_now(&mut self, moved: &MovedPage, is_file: bool) -> Result<()> {
        let start = moved.page.start;
        if self.has_thread_in_kernel()? {
            return Err(page_error(start, "a thread is in the kernel and may be using it there: try again"));
        }
        self.restore_earlier_children()?;
        let copies = moved.memory.clone();
        let mut contents = [0; PAGE];
        self.tracer.memory().read_exact(start, &mut contents)?;
        let refused =
            |error: Error| page_error(start, &format!("the program gets no memory to spread it over ({error})"));
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        self.tracer.map(&self.code, copies.start, copies.end - copies.start, protection).map_err(refused)?;
        let checked = check_threads(&mut self.tracer, self.pages.pages(), start, copies.start);
        let result = checked.and_then(|()| self.empty_into(moved, &contents, is_file));
        if result.is_err() {
            // Whether the page was emptied or not, these are its bytes.
            self.pages.untrap(start);
            self.tracer.memory().write(start, &contents)?;
            self.forget(moved)?;
        }
        result
    }

    /// Writes the copies and empties the page. The record has what is needed to restore it before
    /// that.
    fn empty_into(&mut self, moved: &MovedPage, contents: &[u8; PAGE], is_file: bool) -> Result<()> {
        let start = moved.page.start;
        moved.write_copies(self.tracer.memory(), contents)?;
        self.pages.pages_mut().insert(moved.clone());
        self.code.update_probes(&mut self.tracer, self.pages.pages())?;
        self.update_record()?;
        let refused =
            |error: Error| page_error(start, &format!("it cannot be emptied, as where it is locked or huge ({error})"));
        self.pages.empty(&mut self.tracer, &self.code, moved, is_file).map_err(refused)
    }
}

/// Restores: each page gets its present bytes at its original place.
impl Process {
    /// Restores a page. All threads are stopped meanwhile.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn restore_page(&mut self, page: u64, why: RestoreReason) -> Result<RemapEvent> {
        self.restore_pages(&[page], 0).map(|()| RemapEvent::Restored { page, why })
    }

    /// Restores all pages.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn restore_all(&mut self, why: &RestoreReason) -> Result<Vec<RemapEvent>> {
        let pages: Vec<u64> = self.pages.pages().addresses().collect();
        pages.into_iter().map(|page| self.restore_page(page, why.clone())).collect()
    }

    /// Restores pages at `distance` bytes above their former addresses.
    pub(super) fn restore_pages(&mut self, pages: &[u64], distance: u64) -> Result<()> {
        self.stop_all_and_restore_children()?;
        let result = pages.iter().try_for_each(|&page| self.restore_one(page, page.wrapping_add(distance)));
        let answered = self.answer_deferred();
        self.tracer.resume_all(&self.code)?;
        result.and(answered)
    }

    fn restore_one(&mut self, page: u64, at: u64) -> Result<()> {
        self.code.remove_page(&mut self.tracer, self.pages.pages(), page)?;
        let Some(moved) = self.pages.pages().get(page).cloned() else { return Ok(()) };
        self.restore_contents(&moved, at)?;
        self.forget(&moved)
    }

    /// Writes the bytes of a page at `at`. A thread that is still in the kernel may begin to fork
    /// meanwhile: a thread of the program reads the message about the child, which outlives this
    /// process then.
    fn restore_contents(&mut self, moved: &MovedPage, at: u64) -> Result<()> {
        while !self.pages.try_restore(self.tracer.memory(), self.tracer.pid(), moved, at)? {
            self.read_child_messages(&mut Instant::now());
            scheduling::sleep_briefly();
        }
        Ok(())
    }

    /// Forgets a page that is restored or gone, and unmaps its copies.
    fn forget(&mut self, moved: &MovedPage) -> Result<()> {
        self.pages.pages_mut().remove(moved.page.start);
        self.code.update_probes(&mut self.tracer, self.pages.pages())?;
        // The record must not claim memory that the program maps there next.
        self.update_record()?;
        self.tracer.unmap(&self.code, moved.memory.start, moved.memory.end - moved.memory.start)
    }

    /// Forgets a page that the program itself has unmapped, moved or emptied.
    pub(super) fn discard_page(&mut self, page: u64) -> Result<()> {
        self.stop_all_and_restore_children()?;
        let removed = self.code.remove_page(&mut self.tracer, self.pages.pages(), page);
        let result = removed.and_then(|()| match self.pages.pages().get(page).cloned() {
            Some(moved) => {
                // It may not be mapped any more.
                self.pages.untrap(page);
                self.forget(&moved)
            }
            None => Ok(()),
        });
        self.tracer.resume_all(&self.code)?;
        result
    }
}

/// Release.
impl Process {
    /// Restores all pages, removes everything inserted, and detaches.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn release(mut self) -> Result<Vec<RemapEvent>> {
        let mut events = self.restore_all(&RestoreReason::Requested)?;
        self.restore_last_children()?;
        for _ in 0..MAX_TRAP_ROUNDS {
            if !self.code.has_thread_behind_trap(&mut self.tracer) {
                break;
            }
            // Either a trap that is not reported yet, which only the repairer can handle, or the
            // start of a program instruction.
            self.tracer.resume_all(&self.code)?;
            std::thread::sleep(TRAP_ROUND);
            events.extend(self.handle_stops()?);
            self.tracer.stop_all()?;
        }
        // Threads are detached while they are stopped: a resumed thread would be stopped again
        // for that.
        self.remove_insertions().map(|()| events)
    }

    /// Removes the code cache, the record, the descriptor and the call stub. If no thread can make
    /// a call, because all sleep in the kernel, unused memory and a descriptor remain.
    fn remove_insertions(&mut self) -> Result<()> {
        self.code.leave_all(&mut self.tracer)?;
        if !self.tracer.can_call() {
            return Ok(());
        }
        for range in self.code.ranges() {
            self.tracer.unmap(&self.code, range.start, range.end - range.start)?;
        }
        if let Some(record) = self.record.take() {
            record.unmap(&mut self.tracer, &self.code)?;
        }
        self.pages.userfault().close_in_program(&mut self.tracer, &self.code)?;
        self.tracer.remove_stub_page(&self.code)
    }
}

/// An operation that no thread can perform now makes the move fail, and not the repair.
fn not_now(page: u64, error: Error) -> Error {
    match error {
        Error::Refused { why, .. } => Error::Page { page, why },
        other => other,
    }
}
