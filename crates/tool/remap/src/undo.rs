//! Everything as it was: a page back where the program looks for it, the code that led to its views gone.

use std::time::{Duration, Instant};

use fieldstone_sys::scheduling;

use crate::error::{Error, Result};
use crate::events::{Done, Why};
use crate::heads::Head;
use crate::home;
use crate::page::Moved;
use crate::process::{Process, range};
use crate::record::Record;
use crate::redirect::Site;
use crate::tasks::{goes_on_at, processor_ns};
use crate::threads::gone_is_fine;

/// Threads that may have run into a trap of ours are let on so often, for so long, before all is let go.
const MOST_ROUNDS: u32 = 4;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(1);
/// A page is fetched for a thread within so long, whatever that takes.
const LONGEST_FAULT: Duration = Duration::from_millis(250);
/// And with so much of a processor, in nanoseconds: mostly it sleeps. Who takes more runs round in a system call, for a page of ours.
const LONGEST_FAULT_NS: u64 = 50_000_000;

impl Process {
    /// Puts a page back. All threads stand still meanwhile.
    ///
    /// # Errors
    /// Where the process is gone.
    pub fn put_page_back(&mut self, page: u64, why: Why) -> Result<Done> {
        self.put_back_at(&[page], 0).map(|()| Done::PutBack { page, why })
    }

    /// Puts the bytes of pages where the program looks for them now: so far behind where that was.
    pub(crate) fn put_back_at(&mut self, pages: &[u64], distance: u64) -> Result<()> {
        self.stop_all_and_births()?;
        let result = pages.iter().try_for_each(|&page| self.put_back_one(page, page.wrapping_add(distance)));
        let heard = self.answer_heard();
        self.resume_all()?;
        result.and(heard)
    }

    fn put_back_one(&mut self, page: u64, at: u64) -> Result<()> {
        self.forget_code_of(page)?;
        let Some(moved) = self.ours.moved.get(&page).cloned() else { return Ok(()) };
        self.fill(&moved, at)?;
        self.forget(&moved)
    }

    /// Forgets a page that is back, or gone: then its room is free.
    pub(crate) fn forget(&mut self, moved: &Moved) -> Result<()> {
        self.ours.moved.remove(&moved.page.start);
        self.look_after_protections()?;
        // Whoever comes after us must not think that what is there next is ours.
        self.keep_record()?;
        self.unmap(moved.room.start, moved.room.end - moved.room.start)
    }

    /// Puts all pages back.
    ///
    /// # Errors
    /// Where the process is gone.
    pub fn put_all_back(&mut self) -> Result<Vec<Done>> {
        self.put_back_all(&Why::Asked)
    }

    pub(crate) fn put_back_all(&mut self, why: &Why) -> Result<Vec<Done>> {
        let pages: Vec<u64> = self.ours.moved.keys().copied().collect();
        pages.into_iter().map(|page| self.put_page_back(page, why.clone())).collect()
    }

    /// Puts all pages back and lets go of it: nothing of ours is left in it.
    ///
    /// # Errors
    /// Where the process is gone.
    pub fn release(mut self) -> Result<Vec<Done>> {
        let mut done = self.put_all_back()?;
        self.await_last_births()?;
        for _ in 0..MOST_ROUNDS {
            if !self.is_anyone_behind_a_trap() {
                break;
            }
            // A trap on its way, which only we understand: or an instruction of the program's own that begins there.
            self.resume_all()?;
            std::thread::sleep(BETWEEN_ROUNDS);
            done.extend(self.attend()?);
            self.threads.stop_all()?;
        }
        // As they stand they are let go of: one that went on before would be stopped once more for that.
        self.leave_nothing().map(|()| done)
    }

    fn is_anyone_behind_a_trap(&mut self) -> bool {
        let threads: Vec<u32> = self.threads.numbers().collect();
        threads.into_iter().any(|thread| {
            let held = self.threads.get_mut(thread).filter(|held| held.stands());
            let registers = held.and_then(|held| held.tracee.registers().ok());
            registers.is_some_and(|registers| self.ours.heads.is_behind_trap(registers.rip))
        })
    }

    /// Where no thread can do it, because all sleep in the kernel, it stays: memory that nobody looks for, and a descriptor.
    fn leave_nothing(&mut self) -> Result<()> {
        self.leave_code()?;
        if self.threads.standing(&|_| false).is_none() {
            return Ok(());
        }
        for range in self.ours.code.ranges() {
            self.unmap(range.start, range.end - range.start)?;
        }
        if let Some(record) = self.record.take() {
            self.unmap(record.at, Record::BYTES)?;
        }
        self.close_theirs()?;
        let Some(home) = self.way.home.take() else { return Ok(()) };
        // No call can be made in the page that it unmaps.
        self.way.first = home::settle_first(self.pid(), &self.memory, &self.mappings()?)?;
        self.unmap(home, home::BYTES)?;
        home::leave_first(&self.memory, self.way.first)
    }

    /// Forgets a page that the program itself has unmapped, moved or emptied.
    pub(crate) fn give_up(&mut self, page: u64) -> Result<()> {
        self.stop_all_and_births()?;
        let result = self.forget_code_of(page).and_then(|()| match self.ours.moved.get(&page).cloned() {
            Some(moved) => {
                // Nothing may be there any more.
                let _ = self.userfault.unregister(range(page));
                self.forget(&moved)
            }
            None => Ok(()),
        });
        self.resume_all()?;
        result
    }

    /// Has every thread leave clones and rewritelets, and gives up those that lead to `page`. All stand still.
    fn forget_code_of(&mut self, page: u64) -> Result<()> {
        // First of all the program's own code: were we killed, whoever is led there would run into a trap.
        for head in self.ours.heads.of_page(page) {
            let Some(found) = self.ours.heads.led.remove(&head) else { continue };
            if found.is_led(&self.memory) {
                self.memory.write(head, &found.patch.original)?;
            }
            // A thread may stand behind one of its traps now, before its copy is given up.
            self.ours.heads.remember_traps(&found);
            self.ours.heads.retired.push(found);
        }
        self.leave_code()?;
        for found in std::mem::take(&mut self.ours.heads.retired) {
            self.give_up_head(&found);
        }
        self.clear_heads()?;
        let Some(moved) = self.ours.moved.get(&page) else { return Ok(()) };
        let room = moved.room.clone();
        for site in self.ours.sites.values_mut() {
            site.rewritelets.retain(|(delta, trampoline)| {
                let is_gone = room.contains(&page.wrapping_add_signed(*delta));
                if is_gone {
                    self.ours.code.free(trampoline.at);
                }
                !is_gone
            });
        }
        self.ours.sites.retain(|_, site| !site.rewritelets.is_empty());
        Ok(())
    }

    /// Nobody is in code of ours.
    fn give_up_head(&mut self, found: &Head) {
        self.ours.heads.remember_traps(found);
        // They go on in its copy.
        let before_it = |_: &u64, site: &mut Site| found.copy.has(site.next_ip());
        for (_, site) in self.ours.sites.extract_if(.., before_it) {
            site.rewritelets.iter().for_each(|(_, trampoline)| self.ours.code.free(trampoline.at));
        }
        self.ours.code.free(found.copy.at);
        self.ours.code.free(found.station);
        found.clones.iter().for_each(|cloned| self.ours.code.free(cloned.clone.at));
    }

    /// Has every thread that is in code of ours go on in the program's own. All stand still.
    fn leave_code(&mut self) -> Result<()> {
        let threads: Vec<u32> = self.threads.numbers().collect();
        for thread in threads {
            // Memory of the program's own that has to be fetched first: it stops when it has it. Where it will go on is not known as long as
            // it runs in the kernel; one that does so for longer is in a system call, and none is made in code of ours.
            let (began, mut spent_ns) = (Instant::now(), None);
            let mut is_short = || {
                let now_ns = processor_ns(thread);
                let since_ns = now_ns.saturating_sub(*spent_ns.get_or_insert(now_ns));
                began.elapsed() < LONGEST_FAULT && since_ns < LONGEST_FAULT_NS
            };
            let mut may_be_in = |at: Option<u64>| at.map_or_else(&mut is_short, |at| self.ours.code.contains(at));
            let mut looks = 0;
            let in_call = self.threads.get_mut(thread).is_some_and(|held| held.in_call);
            while !in_call && may_be_in(goes_on_at(thread)) && self.threads.still_waits(thread)? {
                scheduling::spin_or_sleep(looks);
                looks += 1;
            }
            let Some(held) = self.threads.get_mut(thread).filter(|held| held.stands()) else { continue };
            self.ours.untrap(&self.memory, held)?;
            let Ok(mut registers) = held.tracee.registers() else { continue };
            if !self.ours.code.contains(registers.rip) {
                continue;
            }
            if !self.ours.lead_out(&self.memory, &mut registers) {
                let why = format!("thread {thread} cannot be led out of the code at {:#x}", registers.rip);
                return Err(Error::Refused { pid: self.pid(), why });
            }
            self.ours.heads.land(&mut registers);
            gone_is_fine(held.tracee.set_registers(&registers))?;
        }
        self.lead_frames_out()
    }
}
