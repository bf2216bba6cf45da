//! Everything as it was: a page back where the program looks for it, the code that led to its views gone.

use fieldstone_sys::ptrace::Tracee;

use crate::error::Result;
use crate::events::{Done, Why};
use crate::leave::Ours;
use crate::memory::Memory;
use crate::page::Moved;
use crate::process::{Process, range};
use crate::tasks::has_ended;

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
        self.threads.stop_all()?;
        let result = self.take_out(pages).and_then(|taken| {
            taken.iter().try_for_each(|moved| self.put_back(moved, moved.page.start.wrapping_add(distance)))
        });
        let heard = self.answer_heard();
        self.resume_all()?;
        result.and(heard)
    }

    fn take_out(&mut self, pages: &[u64]) -> Result<Vec<Moved>> {
        let mut taken = Vec::new();
        for page in pages {
            self.forget_code_of(*page)?;
            taken.extend(self.moved.remove(page));
        }
        Ok(taken)
    }

    /// Puts all pages back.
    ///
    /// # Errors
    /// Where the process is gone.
    pub fn put_all_back(&mut self) -> Result<Vec<Done>> {
        let pages: Vec<u64> = self.moved.keys().copied().collect();
        pages.into_iter().map(|page| self.put_page_back(page, Why::Asked)).collect()
    }

    /// Forgets a page that the program itself has unmapped, moved or emptied.
    pub(crate) fn give_up(&mut self, page: u64) -> Result<()> {
        self.threads.stop_all()?;
        let result = self.forget_code_of(page).and_then(|()| match self.moved.remove(&page) {
            Some(moved) => {
                // Nothing may be there any more.
                let _ = self.userfault.unregister(range(page));
                self.unmap(moved.room.start, moved.room.end - moved.room.start)
            }
            None => Ok(()),
        });
        self.resume_all()?;
        result
    }

    /// Gives children that were forked their pages back, and lets them go.
    pub(crate) fn restore_children(&mut self) -> Result<Vec<Done>> {
        let mut done = Vec::new();
        for child in self.threads.children() {
            // One that is killed before it has begun needs nothing.
            let restored = self.restore(&child);
            if !has_ended(child.thread()) {
                restored?;
            }
            done.push(Done::Child(child.thread()));
        }
        Ok(done)
    }

    /// A child has copies of everything: the views among them, which have the bytes as they were when it was born. Nothing watches its memory
    /// any more, so that a page that was moved is one of zeros until it is written here.
    fn restore(&self, child: &Tracee) -> Result<()> {
        let memory = Memory::open(child.thread())?;
        let mut registers = child.registers()?;
        let was = registers.rip;
        let ours = Ours { heads: &self.heads, sites: &self.sites, code: &self.code, memory: &memory };
        if ours.lead_out(&mut registers) && registers.rip != was {
            child.set_registers(&registers)?;
        }
        for (head, original) in self.heads.jumps(&memory) {
            memory.write(head, &original)?;
        }
        for moved in self.moved.values() {
            // What the program keeps from its children is not there.
            if let Ok(contents) = Moved::composed(moved, &memory) {
                let _ = memory.write(moved.page.start, &contents);
            }
        }
        Ok(())
    }
}
