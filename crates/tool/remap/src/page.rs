//! A page moved away: its bytes at home, those of a rule at its view, and nothing where the program looks for them.
//!
//! ```text
//!   P              missing: whoever touches it waits, and is redirected
//!   P + home       all bytes, those of no rule in use                     one run of free pages within reach of a displacement
//!   P + home + 1   bytes of the first owner's rules in use, at their offset in the page
//!   P + home + 2   of the second owner's
//! ```
//! Source: the thesis, figure 5.1 (underlay and isolated data). Where it differs: a view has a page to itself, at the same offset in a line, so
//! that a redirect is another displacement in the same instruction. While the page moves, and while it moves back, all threads
//! stand still; between, none does.

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{io, iter};

use fieldstone_rewrite::page::LINE_BYTES;
use fieldstone_rewrite::{Page, Piece, Rule};
use fieldstone_sys::process::has_ended;
use fieldstone_sys::scheduling;
use fieldstone_sys::userfault::{Message, Userfaultfd};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::futex;
use crate::held::is_of_64_bits;
use crate::memory::Memory;
use crate::process::{Process, range, word};
use crate::protect::MOST_PAGES;
use crate::space::{Mapping, free_near, peculiarity};
use crate::tasks::{is_filtered, is_kernels, locked_kib, pinned_kib, tasks};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = 4096;
const PAGE: usize = 4096;
/// Of what a C library keeps of a thread, from its thread pointer on, at most.
const BLOCK_BYTES: u64 = 2560;
/// Robust mutexes of a thread that the kernel looks at.
const MOST_ROBUST: usize = 2048;
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
    /// Whether what an owner has on several lines comes together on as few as can be: for programs whose data in use does not fit in a cache.
    pub consolidated: bool,
    /// Ranges of addresses in it of which each access is told: it is redirected one by one, which takes some ten microseconds.
    pub watched: Vec<Range<u64>>,
}

/// A page that was moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Where its bytes are.
    pub page: Page,
    /// The memory that they lie in.
    pub room: Range<u64>,
    /// Of which each access is told.
    pub watched: Vec<Range<u64>>,
}

impl Process {
    /// Moves a page. All threads stand still meanwhile: about a tenth of a millisecond for each.
    ///
    /// # Errors
    /// [`Error::Page`] where it cannot be: then nothing has changed.
    pub fn move_page(&mut self, wanted: &Wanted) -> Result<Moved> {
        if self.ours.moved.contains_key(&wanted.page) {
            return Err(no(wanted.page, "it was moved already: put it back first"));
        }
        if self.ours.moved.len() >= MOST_PAGES {
            return Err(no(wanted.page, &format!("{MOST_PAGES} pages are moved already")));
        }
        self.in_vain.clear();
        let not_now = |error| not_now(wanted.page, error);
        self.begin_record().map_err(not_now)?;
        self.find_protections().map_err(not_now)?;
        let table = self.mappings()?;
        let mapping = self.movable(&table, wanted.page)?;
        let bytes = (wanted.owners.len() as u64 + 1) * PAGE_BYTES;
        let near = wanted.page..wanted.page + PAGE_BYTES;
        let room = free_near(&table, &near, bytes).ok_or_else(|| no(wanted.page, "no free memory is near enough"))?;
        let page = plan(wanted, room)?;
        let moved = Moved { page, room: room..room + bytes, watched: wanted.watched.clone() };
        let is_file = mapping.is_file;
        for _ in 1..TRIES {
            if !self.is_in_the_kernel()? {
                break;
            }
            self.resume_all()?;
            self.see_off()?;
            std::thread::sleep(BETWEEN_TRIES);
        }
        self.threads.stop_all()?;
        let result = self.move_now(&moved, is_file);
        let heard = self.answer_heard();
        self.resume_all()?;
        result.and(heard).map(|()| moved)
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
        let asynchronous =
            |mapping: &Mapping| mapping.name.starts_with("/[aio]") || mapping.name == "anon_inode:[io_uring]";
        let by_itself = table.iter().any(asynchronous) || tasks(self.pid()).into_iter().any(is_kernels);
        if pinned_kib(self.pid()) > 0 || by_itself {
            return Err(no(page, "the kernel or a device may write to the program's memory by itself"));
        }
        if mapping.name.starts_with("[stack") {
            return Err(no(page, "it is on a stack"));
        }
        if let Some(why) = peculiarity(self.pid(), page) {
            return Err(no(page, why));
        }
        // What is mapped is filled at once then, where everything is to be locked.
        if mapping.is_file && locked_kib(self.pid()) > 0 {
            return Err(no(page, "it is a file's, and the program has locked memory"));
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
            let _ = self.userfault.unregister(range(start));
            self.memory.write(start, &contents)?;
            self.forget(moved)?;
        }
        mapped
    }

    /// Its bytes at home and in the views, and nothing where they were. All that it takes to put them back is kept before.
    fn empty_into(&mut self, moved: &Moved, contents: &[u8; PAGE], is_file: bool) -> Result<()> {
        let start = moved.page.start;
        self.memory.write(start.wrapping_add_signed(moved.page.home), contents)?;
        for rule in &moved.page.rules {
            let own = &contents[offset(start, rule.bytes.start)..offset(start, rule.bytes.end)];
            self.memory.write(rule.bytes.start.wrapping_add_signed(rule.delta), own)?;
        }
        self.ours.moved.insert(start, moved.clone());
        self.look_after_protections()?;
        self.keep_record()?;
        let refused =
            |error: Error| no(start, &format!("it cannot be emptied, as where it is locked or huge ({error})"));
        self.empty(moved, is_file).map_err(refused)
    }

    /// Takes the page's frame away; whoever touches it from then on waits. A page of a file becomes one of no file, since its file's bytes
    /// would come back: one that is watched already takes its place.
    ///
    /// When this process is killed in between, the program's threads go on before the frame is gone. Their writes wait then, too, until
    /// the page is put back; those to a page of a file cannot be made to wait.
    fn empty(&mut self, moved: &Moved, is_file: bool) -> Result<()> {
        let page = moved.page.start;
        if !is_file {
            self.trap(page, true)?;
            let drop = [page, PAGE_BYTES, word(libc::MADV_DONTNEED), 0, 0, 0];
            return self.call_and_hear(("madvise", libc::SYS_madvise), drop);
        }
        // Behind a room a page is free.
        let spare = moved.room.end;
        self.map(spare, PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE)?;
        let flags = word(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        let replace = [spare, PAGE_BYTES, PAGE_BYTES, flags, page, 0];
        let replaced = self.trap(spare, false).and_then(|()| self.call_and_hear(("mremap", libc::SYS_mremap), replace));
        if replaced.is_err() {
            let _ = self.userfault.unregister(range(spare));
            self.unmap(spare, PAGE_BYTES)?;
        }
        replaced
    }

    /// Makes a call in its name that the userfaultfd tells of. Beside it only faults are told then, of other processes: all threads stand
    /// still, and none is in the kernel.
    fn call_and_hear(&mut self, call: (&'static str, libc::c_long), arguments: [u64; 6]) -> Result<()> {
        let (result, heard) = self.hear_while(|this| this.call(call, arguments))?;
        self.heard.extend(heard.into_iter().filter(|message| matches!(message, Message::Fault(_))));
        result.map(|_| ())
    }

    /// Does what waits in the kernel until the userfaultfd is read; what that tells meanwhile.
    fn hear_while<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> Result<(T, Vec<Message>)> {
        let pid = self.pid();
        let failed = |source| Error::Process { pid, operation: "hear from", source };
        let descriptor = self.userfault.as_fd().try_clone_to_owned().map_err(failed)?;
        let listener = Userfaultfd::inherited(descriptor, self.userfault.reach());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let hearing = scope.spawn(|| {
                let (mut heard, mut looks) = (Vec::new(), 0);
                while !over.load(Ordering::Acquire) {
                    match listener.message() {
                        Ok(message) => heard.push(message),
                        Err(_) => scheduling::spin_or_sleep(looks),
                    }
                    looks += 1;
                }
                heard
            });
            let done = act(self);
            over.store(true, Ordering::Release);
            let heard = hearing.join().map_err(|_| failed(io::ErrorKind::Other.into()))?;
            Ok((done, heard))
        })
    }

    /// No thread may have its stack or its own block in the page, nor anything that the kernel writes when the thread ends: then it
    /// waits for nobody. `scratch` is memory of ours.
    fn check_threads(&mut self, page: u64, scratch: u64) -> Result<()> {
        let on = |address| page_with(address) == page;
        let numbers: Vec<u32> = self.threads.numbers().collect();
        for thread in numbers {
            let Some(held) = self.threads.get_mut(thread).filter(|held| held.stands()) else { continue };
            let registers = held.tracee.registers()?;
            if on(registers.rsp) {
                return Err(no(page, "it is on a stack"));
            }
            if !is_of_64_bits(&registers) {
                return Err(no(page, "a thread is in code of 32 bits"));
            }
            if futex::written(&registers).into_iter().any(on) {
                return Err(no(page, "a thread waits for a mutex in it that inherits priority"));
            }
            let block = registers.fs_base;
            if block != 0 && [block.saturating_sub(1), block, block.saturating_add(BLOCK_BYTES)].into_iter().any(on) {
                return Err(no(page, "a thread's own block lies in it"));
            }
            if self.end_of(thread, scratch)?.into_iter().any(|address| on(address) || self.is_moved(address)) {
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
        // Nobody joins the first one: what the kernel writes for it is in its block.
        if thread != self.pid()
            && let Some(held) = self.threads.get_mut(thread).filter(|held| held.stands())
        {
            let ask = [PR_GET_TID_ADDRESS, scratch, 0, 0, 0, 0];
            // Not every kernel tells.
            if !is_filtered(thread) && held.call((&self.memory, self.way), ("prctl", libc::SYS_prctl), ask).is_ok() {
                found.push(self.memory.word(scratch)?);
            }
        }
        found.extend(self.robust_mutexes(thread)?);
        Ok(found)
    }

    /// Where the kernel looks for the robust mutexes of a thread that ends: up to the first place in a page that is moved, which cannot be
    /// read where it was.
    pub(crate) fn robust_mutexes(&mut self, thread: u32) -> Result<Vec<u64>> {
        let Some(held) = self.threads.get_mut(thread) else { return Ok(Vec::new()) };
        let head = held.tracee.robust_list()?;
        if head == 0 {
            return Ok(Vec::new());
        }
        let read = |address: u64| if self.is_moved(address) { None } else { self.memory.word(address).ok() };
        let (Some(offset), Some(pending)) = (read(head.wrapping_add(8)), read(head.wrapping_add(16))) else {
            return Ok(vec![head]);
        };
        // The lowest bit of a link says that the mutex inherits priority.
        let is_mutex = |&link: &u64| ![0, head].contains(&(link & !1));
        let held = iter::successors(read(head), |link| read(link & !1)).take_while(is_mutex).take(MOST_ROBUST);
        let links = held.chain(Some(pending).filter(is_mutex)).map(|link| link & !1);
        Ok(iter::once(head).chain(links.flat_map(|link| [link, link.wrapping_add(offset)])).collect())
    }

    /// Whether an address is in a page that is moved.
    pub(crate) fn is_moved(&self, address: u64) -> bool {
        self.ours.moved.contains_key(&page_with(address))
    }

    /// Fills a page again: its bytes, those of the views among them, where the program looks for them now. All threads stand still, and
    /// none is in a rewritelet.
    ///
    /// # Errors
    /// Where the process is gone.
    pub(crate) fn fill(&mut self, moved: &Moved, at: u64) -> Result<()> {
        let contents = moved.composed(&self.memory)?;
        let pid = self.pid();
        let failed = |source| Error::Process { pid, operation: "put a page back in", source };
        match self.copy_back(at, &contents)? {
            // Somebody was faster: it was unmapped, or is there again.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EEXIST | libc::ESRCH)) => {}
            other => other.map_err(failed)?,
        }
        // Wakes who still waits.
        let _ = self.userfault.unregister(range(at));
        let _ = self.userfault.unregister(range(moved.page.start));
        Ok(())
    }
}

impl Process {
    /// Fills a missing page. The kernel refuses that as long as the program changes its memory, which it does until we have heard of it.
    fn copy_back(&mut self, at: u64, contents: &[u8; PAGE]) -> Result<io::Result<()>> {
        let (copied, heard) = self.hear_while(|this| this.userfault.copy(range(at).start, contents, false))?;
        self.heard.extend(heard);
        Ok(copied)
    }
}

impl Moved {
    /// Whether accesses to these bytes are told.
    pub(crate) fn is_watched(&self, address: u64, bytes: u32) -> bool {
        let end = address.saturating_add(bytes.into());
        self.watched.iter().any(|range| range.start < end && address < range.end)
    }

    /// What of a piece lies around an access to it, and is not watched: a clone may go on there for as long as it likes.
    pub(crate) fn unwatched(&self, piece: Piece, address: u64) -> Rule {
        let below = self.watched.iter().map(|range| range.end).filter(|&end| end <= address);
        let above = self.watched.iter().map(|range| range.start).filter(|&start| start > address);
        let start = below.fold(piece.bytes.start, u64::max);
        let end = above.fold(piece.bytes.end, u64::min);
        Rule { bytes: start..end, delta: piece.delta }
    }

    /// Where the program thinks that what lies at `address`, in the room, is.
    pub(crate) fn seen_at(&self, address: u64) -> u64 {
        let looked_for = |delta: i64| address.wrapping_add_signed(delta.wrapping_neg());
        let rules = self.page.rules.iter().map(|rule| (looked_for(rule.delta), rule));
        let by_rule = rules.filter(|(seen, rule)| rule.bytes.contains(seen)).map(|(seen, _)| seen).next();
        by_rule.unwrap_or(self.page.start + address % PAGE_BYTES)
    }

    /// The page as the program sees it, by the memory of the process or of a child of it.
    pub(crate) fn composed(&self, memory: &Memory) -> Result<[u8; PAGE]> {
        let page = &self.page;
        let mut contents = [0; PAGE];
        memory.read_exact(page.start.wrapping_add_signed(page.home), &mut contents)?;
        for rule in &page.rules {
            let own = &mut contents[offset(page.start, rule.bytes.start)..offset(page.start, rule.bytes.end)];
            memory.read_exact(rule.bytes.start.wrapping_add_signed(rule.delta), own)?;
        }
        Ok(contents)
    }
}

/// The page that has an address.
#[must_use]
pub const fn page_with(address: u64) -> u64 {
    address & !(PAGE_BYTES - 1)
}

fn offset(start: u64, address: u64) -> usize {
    usize::try_from(address - start).unwrap_or(PAGE)
}

/// Home first, then a view for each owner.
fn plan(wanted: &Wanted, room: u64) -> Result<Page> {
    let mut rules = Vec::new();
    for (ranges, number) in wanted.owners.iter().zip(1..) {
        let delta = (room + number * PAGE_BYTES).wrapping_sub(wanted.page).cast_signed();
        let shifts = if wanted.consolidated { together(ranges) } else { vec![0; ranges.len()] };
        let rule = |(bytes, shift): (&Range<u64>, i64)| Rule { bytes: bytes.clone(), delta: delta + shift };
        rules.extend(ranges.iter().zip(shifts).map(rule));
    }
    let home = room.wrapping_sub(wanted.page).cast_signed();
    Page::new(wanted.page, home, rules).map_err(|error| no(wanted.page, &error.to_string()))
}

/// How far each range moves so that it comes to the first line that has its place in it free. What is over a line's border stays.
///
/// Source: the thesis, section 7.1: consolidation, which is left to others there. What is close to what is not told by
/// addresses; here it is what one thread uses.
fn together(ranges: &[Range<u64>]) -> Vec<i64> {
    let line = |address: u64| address / LINE_BYTES;
    let stays = |range: &Range<u64>| line(range.start) != line(range.end - 1);
    // By line of the view, which of its bytes are taken.
    let mut taken = [0_u64; (PAGE_BYTES / LINE_BYTES) as usize];
    let place = |address: u64| usize::try_from(address % PAGE_BYTES / LINE_BYTES).unwrap_or(0);
    let bits = |range: &Range<u64>| range.clone().fold(0, |bits, address| bits | 1_u64 << (address % LINE_BYTES));
    for range in ranges.iter().filter(|range| stays(range)) {
        range.clone().for_each(|address| taken[place(address)] |= 1 << (address % LINE_BYTES));
    }
    let mut shift = |range: &Range<u64>| {
        if stays(range) {
            return 0;
        }
        let (own, bits) = (place(range.start), bits(range));
        let Some(free) = taken.iter().position(|taken| taken & bits == 0) else { return 0 };
        taken[free] |= bits;
        (free as u64).wrapping_sub(own as u64).wrapping_mul(LINE_BYTES).cast_signed()
    };
    ranges.iter().map(&mut shift).collect()
}

/// What no thread can be made to do now is no reason to give the process up.
fn not_now(page: u64, error: Error) -> Error {
    match error {
        Error::Refused { why, .. } => Error::Page { page, why },
        other => other,
    }
}

fn no(page: u64, why: &str) -> Error {
    Error::Page { page, why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_owner_has_on_several_lines_comes_together() {
        let ranges = [0x1008..0x1010, 0x1050..0x1058, 0x1088..0x1090, 0x1ff0..0x1ff8, 0x1130..0x1148];
        let shifts = together(&ranges);
        let moved: Vec<u64> =
            ranges.iter().zip(&shifts).map(|(range, shift)| range.start.wrapping_add_signed(*shift)).collect();
        // The third has the place of the first in its line; the last lies over a border.
        assert_eq!(moved, [0x1008, 0x1010, 0x1048, 0x1030, 0x1130]);
    }

    #[test]
    fn a_consolidated_page_has_each_byte_once() {
        let owner = |lines: Range<u64>| {
            lines.map(|line| 0x1000 + line * 64 + line % 8 * 8..0x1008 + line * 64 + line % 8 * 8).collect::<Vec<_>>()
        };
        let wanted =
            Wanted { page: 0x1000, owners: vec![owner(0..20), owner(20..40)], consolidated: true, watched: Vec::new() };
        let page = plan(&wanted, 0x10_0000).unwrap();
        let places: std::collections::BTreeSet<u64> = page
            .rules
            .iter()
            .flat_map(|rule| rule.bytes.clone().map(|at| at.wrapping_add_signed(rule.delta)))
            .collect();
        assert_eq!(places.len(), 40 * 8, "no two bytes at one place");
        let lines: std::collections::BTreeSet<u64> = places.iter().map(|at| at / 64).collect();
        assert_eq!(lines.len(), 6, "of 20 words three lines each");
        assert!(lines.iter().all(|line| (0x10_1000 / 64..0x10_3000 / 64).contains(line)));
    }
}
