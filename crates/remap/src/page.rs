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

use std::io;
use std::ops::Range;
use std::time::Duration;

use fieldstone_rewrite::{Page, Rule};

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::process::{Process, range, word};
use crate::space::{Mapping, free_near};
use crate::tasks::{has_ended, is_filtered, pinned_kib};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = 4096;
const PAGE: usize = 4096;
/// Of what a C library keeps of a thread, from its thread pointer on, at most.
const BLOCK_BYTES: u64 = 2560;
/// Robust mutexes of a thread that the kernel looks at.
const MOST_ROBUST: u32 = 2048;
const PR_GET_TID_ADDRESS: u64 = 40;
/// How often, and how long apart, threads are looked at again that are in the kernel when a page is to move.
const TRIES: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

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
        self.in_vain.clear();
        let table = self.mappings()?;
        let mapping = self.movable(&table, wanted.page)?;
        let bytes = (wanted.owners.len() as u64 + 1) * PAGE_BYTES;
        let near = wanted.page..wanted.page + PAGE_BYTES;
        let room = free_near(&table, &near, bytes).ok_or_else(|| no(wanted.page, "no free memory is near enough"))?;
        let moved = Moved { page: plan(wanted, room)?, room: room..room + bytes };
        let is_file = mapping.is_file;
        for _ in 1..TRIES {
            if !self.is_in_the_kernel()? {
                break;
            }
            self.resume_all()?;
            std::thread::sleep(BETWEEN_TRIES);
        }
        self.threads.stop_all()?;
        let result = self.move_now(&moved, is_file);
        if result.is_ok() {
            self.moved.insert(wanted.page, moved.clone());
        }
        self.resume_all()?;
        result.map(|()| moved)
    }

    /// Has all stand still; whether some thread is in the kernel all the same, and may be writing to any memory there.
    fn is_in_the_kernel(&mut self) -> Result<bool> {
        self.threads.stop_all()?;
        let threads: Vec<u32> = self.threads.numbers().collect();
        for thread in threads {
            let stands = self.threads.get_mut(thread).is_none_or(|held| held.stands());
            if !stands && !has_ended(thread) {
                return Ok(true);
            }
        }
        Ok(false)
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
        // Asynchronous reads of the kernel, or a device, go to the memory itself and wait for nobody.
        if pinned_kib(self.pid()) > 0 || table.iter().any(|mapping| mapping.name.starts_with("/[aio]")) {
            return Err(no(page, "the kernel or a device may write to the program's memory by itself"));
        }
        if mapping.name.starts_with("[stack") {
            return Err(no(page, "it is on a stack"));
        }
        Ok(mapping)
    }

    fn move_now(&mut self, moved: &Moved, is_file: bool) -> Result<()> {
        let start = moved.page.start;
        if self.is_in_the_kernel()? {
            return Err(no(start, "a thread is in the kernel and may be using it there: try again"));
        }
        let room_bytes = moved.room.end - moved.room.start;
        let mut contents = [0; PAGE];
        self.memory.read_exact(start, &mut contents)?;
        let refused = |error: Error| no(start, &format!("the program gets no memory to spread it over ({error})"));
        self.map(moved.room.start, room_bytes, libc::PROT_READ | libc::PROT_WRITE).map_err(refused)?;
        let mapped =
            self.check_threads(start, moved.room.start).and_then(|()| self.empty_into(moved, &contents, is_file));
        if mapped.is_err() {
            // As it was: whether it was emptied or not, these are its bytes.
            self.memory.write(start, &contents)?;
            self.unmap(moved.room.start, room_bytes)?;
        }
        mapped
    }

    fn empty_into(&mut self, moved: &Moved, contents: &[u8; PAGE], is_file: bool) -> Result<()> {
        for at in moved.room.clone().step_by(PAGE) {
            self.memory.write(at, contents)?;
        }
        let start = moved.page.start;
        let refused =
            |error: Error| no(start, &format!("it cannot be emptied, as where it is locked or huge ({error})"));
        self.empty(start, is_file).map_err(refused)?;
        self.trap(start)
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

    /// No thread may have its stack or its own block in the page, nor anything that the kernel writes when the thread ends: then it
    /// waits for nobody. `scratch` is memory of ours.
    fn check_threads(&mut self, page: u64, scratch: u64) -> Result<()> {
        let on = |address: u64| address & !(PAGE_BYTES - 1) == page;
        let numbers: Vec<u32> = self.threads.numbers().collect();
        for thread in numbers {
            let Some(held) = self.threads.get_mut(thread).filter(|held| held.stands()) else { continue };
            let registers = held.tracee.registers()?;
            if on(registers.rsp) {
                return Err(no(page, "it is on a stack"));
            }
            let block = registers.fs_base;
            if block != 0 && [block.saturating_sub(1), block, block.saturating_add(BLOCK_BYTES)].into_iter().any(on) {
                return Err(no(page, "a thread's own block lies in it"));
            }
            if self.end_of(thread, scratch)?.into_iter().any(on) {
                return Err(no(
                    page,
                    "the kernel writes to it when a thread ends: its number, or a robust mutex that it holds",
                ));
            }
        }
        Ok(())
    }

    /// Where the kernel writes when the thread ends.
    fn end_of(&mut self, thread: u32, scratch: u64) -> Result<Vec<u64>> {
        let mut found = Vec::new();
        let syscall = self.syscall();
        // Nobody joins the first one: what the kernel writes for it is in its block.
        if thread != self.pid()
            && let Some(held) = self.threads.get_mut(thread).filter(|held| held.stands())
        {
            let ask = [PR_GET_TID_ADDRESS, scratch, 0, 0, 0, 0];
            // Not every kernel tells.
            if !is_filtered(thread) && held.call(syscall, ("prctl", libc::SYS_prctl), ask).is_ok() {
                found.push(self.word_at(scratch)?);
            }
        }
        let ask = [thread.into(), scratch, scratch + 8, 0, 0, 0];
        self.call(("get_robust_list", libc::SYS_get_robust_list), ask)?;
        let head = self.word_at(scratch)?;
        let Ok(offset) = self.word_at(head.wrapping_add(8)) else { return Ok(found) };
        found.push(head);
        let mut entry = self.word_at(head).unwrap_or(head) & !1;
        for _ in 0..MOST_ROBUST {
            if entry == head || entry == 0 {
                break;
            }
            found.extend([entry, entry.wrapping_add(offset)]);
            entry = self.word_at(entry).unwrap_or(head) & !1;
        }
        Ok(found)
    }

    fn word_at(&self, address: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Puts a page back: its bytes, those of the views among them, where the program looks for them now. All threads stand still, and
    /// none is in a rewritelet.
    ///
    /// # Errors
    /// Where the process is gone.
    pub(crate) fn put_back(&mut self, moved: &Moved, at: u64) -> Result<()> {
        let contents = moved.composed(&self.memory)?;
        let pid = self.pid();
        let failed = |source| Error::Process { pid, operation: "put a page back in", source };
        match self.copy_back(at, &contents) {
            // Somebody was faster: it was unmapped, or is there again.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EEXIST | libc::ESRCH)) => {}
            other => other.map_err(failed)?,
        }
        // Wakes who still waits.
        let _ = self.userfault.unregister(range(at));
        let _ = self.userfault.unregister(range(moved.page.start));
        self.unmap(moved.room.start, moved.room.end - moved.room.start)
    }
}

impl Process {
    /// Fills a missing page. The kernel refuses that as long as the program changes its memory, which it does until we have heard of it: so
    /// what it tells meanwhile is heard.
    fn copy_back(&mut self, at: u64, contents: &[u8; PAGE]) -> io::Result<()> {
        let (userfault, heard) = (&self.userfault, &mut self.heard);
        std::thread::scope(|scope| {
            let copying = scope.spawn(|| userfault.copy(range(at).start, contents, false));
            while !copying.is_finished() {
                match userfault.message() {
                    Ok(message) => heard.push(message),
                    Err(_) => std::thread::yield_now(),
                }
            }
            copying.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
        })
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
