//! Everything as it was: a page back where the program looks for it, the code that led to its views gone.

use std::os::fd::OwnedFd;

use fieldstone_sys::ptrace::Tracee;
use fieldstone_sys::userfault::{Reach, Userfaultfd};

use crate::error::{Error, Result};
use crate::events::{Done, Why};
use crate::memory::Memory;
use crate::page::Moved;
use crate::process::{Process, range};

impl Process {
    /// Puts a page back. All threads stand still meanwhile.
    ///
    /// # Errors
    /// Where the process is gone.
    pub fn put_page_back(&mut self, page: u64, why: Why) -> Result<Done> {
        self.threads.stop_all()?;
        let result = self.forget_code_of(page).and_then(|()| match self.moved.remove(&page) {
            Some(moved) => self.put_back(&moved),
            None => Ok(()),
        });
        self.threads.resume_all()?;
        result.map(|()| Done::PutBack { page, why })
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
        self.threads.resume_all()?;
        result
    }

    /// Gives children that were forked their pages back, and lets them go.
    pub(crate) fn restore_children(&mut self) -> Result<Vec<Done>> {
        let mut done = Vec::new();
        // A child of a process with no page moved has nothing that watches it.
        for child in self.threads.children() {
            let watch = if self.forked.is_empty() { None } else { Some(self.forked.remove(0)) };
            if let Some(watch) = watch {
                self.restore(&child, watch)?;
            }
            done.push(Done::Child(child.thread()));
        }
        Ok(done)
    }

    /// A child has copies of everything: the views among them, which have the bytes as they were when it was born.
    fn restore(&self, child: &Tracee, watch: OwnedFd) -> Result<()> {
        let pid = child.thread();
        let memory = Memory::open(pid)?;
        let mut registers = child.registers()?;
        if self.heads.lead_out(&mut registers) {
            child.set_registers(&registers)?;
        }
        for (head, original) in self.heads.originals() {
            memory.write(head, &original)?;
        }
        let failed = |source| Error::Process { pid, operation: "put a page back in", source };
        let userfault = Userfaultfd::inherited(watch, Reach::UserAndKernel);
        for moved in self.moved.values() {
            let contents = Moved::composed(moved, &memory)?;
            match userfault.copy(range(moved.page.start).start, &contents, false) {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                other => other.map_err(failed)?,
            }
        }
        Ok(())
    }
}
