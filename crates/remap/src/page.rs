//! A page moved away: its bytes at home, those of a rule at its view, and nothing where the program looks for them.
//!
//! ```text
//!   P              missing: whoever touches it waits, and is redirected
//!   P + home       all bytes, those of no rule in use                     one run of free pages within reach of a displacement
//!   P + home + 1   bytes of the first owner's rules in use, at their offset in the page
//!   P + home + 2   of the second owner's
//! ```
//! Source: the thesis, figure 5.1 (underlay and isolated data). Where it differs: a view has a page to itself at the same offset, so
//! that a redirect is another displacement in the same instruction. While the page moves, and while it moves back, all threads
//! stand still; between, none does.

use std::ops::Range;

use fieldstone_rewrite::{Page, Rule};

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::process::{Process, range, word};
use crate::space::{Mapping, free_near, mappings};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = 4096;
const PAGE: usize = 4096;

/// Bytes of a page that shall lie on a line of their own, for each owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The page's address.
    pub page: u64,
    /// Ranges of addresses in it, each owner's.
    pub owners: Vec<Vec<Range<u64>>>,
}

/// A page that was moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Where its bytes are.
    pub page: Page,
    /// The memory that they lie in.
    pub room: Range<u64>,
}

impl Process {
    /// Moves a page. All threads stand still meanwhile: about a tenth of a millisecond for each.
    ///
    /// # Errors
    /// [`Error::Page`] where it cannot be: then nothing has changed.
    pub fn move_page(&mut self, wanted: &Wanted) -> Result<Moved> {
        if self.moved.contains_key(&wanted.page) {
            return Err(no(wanted.page, "it was moved already: put it back first"));
        }
        let table = mappings(self.pid())?;
        let mapping = self.movable(&table, wanted.page)?;
        let bytes = (wanted.owners.len() as u64 + 1) * PAGE_BYTES;
        let near = wanted.page..wanted.page + PAGE_BYTES;
        let room = free_near(&table, &near, bytes).ok_or_else(|| no(wanted.page, "no free memory is near enough"))?;
        let moved = Moved { page: plan(wanted, room)?, room: room..room + bytes };
        self.threads.stop_all()?;
        let result = self.move_now(&moved, mapping.is_file);
        if result.is_ok() {
            self.moved.insert(wanted.page, moved.clone());
        }
        self.threads.resume_all()?;
        result.map(|()| moved)
    }

    fn movable<'a>(&mut self, table: &'a [Mapping], page: u64) -> Result<&'a Mapping> {
        let mapping = table.iter().find(|mapping| mapping.range.contains(&page));
        let mapping = mapping.ok_or_else(|| no(page, "it is not mapped"))?;
        if !mapping.is_private_data() {
            return Err(no(
                page,
                "it is no private memory that can be written: other processes, or code, may be in it",
            ));
        }
        if mapping.name.starts_with("[stack") {
            return Err(no(page, "it is on a stack"));
        }
        Ok(mapping)
    }

    fn move_now(&mut self, moved: &Moved, is_file: bool) -> Result<()> {
        let start = moved.page.start;
        self.check_threads(start)?;
        let room_bytes = moved.room.end - moved.room.start;
        let mut contents = [0; PAGE];
        self.memory.read_exact(start, &mut contents)?;
        self.map(moved.room.start, room_bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        for at in moved.room.clone().step_by(PAGE) {
            self.memory.write(at, &contents)?;
        }
        let emptied = self.empty(start, is_file).and_then(|()| self.trap(start));
        if emptied.is_err() {
            // As it was: whether it was emptied or not, these are its bytes.
            self.memory.write(start, &contents)?;
            self.unmap(moved.room.start, room_bytes)?;
        }
        emptied
    }

    /// Takes the page's frame away. A page of a file becomes one of no file, since its file's bytes would come back.
    fn empty(&mut self, page: u64, is_file: bool) -> Result<()> {
        let access = word(libc::PROT_READ | libc::PROT_WRITE);
        let flags = word(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        let replace = [page, PAGE_BYTES, access, flags, u64::MAX, 0];
        let drop = [page, PAGE_BYTES, word(libc::MADV_DONTNEED), 0, 0, 0];
        if is_file {
            self.call(("mmap", libc::SYS_mmap), replace).map(|_| ())
        } else {
            self.call(("madvise", libc::SYS_madvise), drop).map(|_| ())
        }
    }

    /// No thread may have its stack or its own block (thread pointer, robust list, restartable sequence) in the page: the kernel writes there
    /// when it likes.
    fn check_threads(&mut self, page: u64) -> Result<()> {
        let numbers: Vec<u32> = self.threads.numbers().collect();
        for thread in numbers {
            let Some(held) = self.threads.get_mut(thread) else { continue };
            let registers = held.tracee.registers()?;
            let on = |address: u64| address & !(PAGE_BYTES - 1) == page;
            if on(registers.rsp) {
                return Err(no(page, "it is on a stack"));
            }
            if on(registers.fs_base) || on(registers.fs_base.saturating_sub(1)) {
                return Err(no(page, "a thread's own block lies in it"));
            }
        }
        Ok(())
    }

    /// Puts a page back: its bytes, those of the views among them, where the program looks for them. All threads stand still, and
    /// none is in a rewritelet.
    ///
    /// # Errors
    /// Where the process is gone.
    pub(crate) fn put_back(&mut self, moved: &Moved) -> Result<()> {
        let contents = moved.composed(&self.memory)?;
        let start = moved.page.start;
        let failed = |source| Error::Process { pid: self.pid(), operation: "put a page back in", source };
        match self.userfault.copy(range(start).start, &contents, false) {
            // Somebody was faster: it was unmapped, or is there again.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EEXIST | libc::ESRCH)) => {}
            other => other.map_err(failed)?,
        }
        // Wakes who still waits.
        let _ = self.userfault.unregister(range(start));
        self.unmap(moved.room.start, moved.room.end - moved.room.start)
    }
}

impl Moved {
    /// The page as the program sees it, by the memory of the process or of a child of it.
    pub(crate) fn composed(&self, memory: &Memory) -> Result<[u8; PAGE]> {
        let page = &self.page;
        let mut contents = [0; PAGE];
        memory.read_exact(page.start.wrapping_add_signed(page.home), &mut contents)?;
        for rule in &page.rules {
            let offset = |address: u64| usize::try_from(address - page.start).unwrap_or(0);
            let own = &mut contents[offset(rule.bytes.start)..offset(rule.bytes.end)];
            memory.read_exact(rule.bytes.start.wrapping_add_signed(rule.delta), own)?;
        }
        Ok(contents)
    }
}

/// Home first, then a view for each owner.
fn plan(wanted: &Wanted, room: u64) -> Result<Page> {
    let delta = |number: u64| (room + number * PAGE_BYTES).wrapping_sub(wanted.page).cast_signed();
    let views = wanted.owners.iter().zip(1..);
    let rule = |bytes: &Range<u64>, number: u64| Rule { bytes: bytes.clone(), delta: delta(number) };
    let mut rules: Vec<Rule> =
        views.flat_map(|(ranges, number)| ranges.iter().map(move |bytes| rule(bytes, number))).collect();
    rules.sort_by_key(|rule| rule.bytes.start);
    Page::new(wanted.page, delta(0), rules).map_err(|error| no(wanted.page, &error.to_string()))
}

fn no(page: u64, why: &str) -> Error {
    Error::Page { page, why: why.to_owned() }
}
