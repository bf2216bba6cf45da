//! What comes from the process: accesses to moved pages, memory that goes, children, signals, its end.

use std::time::Duration;

use fieldstone_sys::userfault::{Event, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;

use crate::error::{Error, Result};
use crate::page::PAGE_BYTES;
use crate::process::Process;
use crate::threads::{Happening, in_system_call};

/// Why a page was put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was asked for.
    Asked,
    /// The kernel reads or writes it, in the system call of this number, where that can be told.
    Kernel(Option<u32>),
    /// An access that cannot be redirected: where, and why.
    Access {
        /// The instruction.
        ip: u64,
        /// What stands in the way.
        reason: String,
    },
    /// The program unmaps, moves or empties it.
    Gone,
}

/// What was done for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// An access at `ip` was redirected; `new` where it had no rewritelet before.
    Redirected {
        /// The thread.
        thread: u32,
        /// The instruction.
        ip: u64,
        /// Whether this was the first one.
        new: bool,
    },
    /// A page was put back.
    PutBack {
        /// Its address.
        page: u64,
        /// Why.
        why: Why,
    },
    /// A forked child has its pages back where they were.
    Child(u32),
    /// The process runs another program, or has ended.
    Over,
}

impl Process {
    /// Waits for what comes, so long at most, and does what it takes. Whoever waits here for nothing sleeps.
    ///
    /// # Errors
    /// Where the process is gone, or refuses what has to be done.
    pub fn serve(&mut self, wait: Duration) -> Result<Vec<Done>> {
        let mut done = Vec::new();
        let readable = {
            let mut fds = [PollFd::from_borrowed_fd(self.userfault.as_fd(), PollFlags::IN)];
            let wait = Timespec::try_from(wait).unwrap_or_default();
            poll(&mut fds, Some(&wait)).is_ok_and(|ready| ready > 0)
        };
        if readable {
            while let Some(message) = self.message()? {
                done.extend(self.answer(message)?);
            }
        }
        done.extend(self.attend()?);
        done.extend(self.restore_children()?);
        Ok(done)
    }

    fn message(&self) -> Result<Option<Message>> {
        match self.userfault.message() {
            Ok(message) => Ok(Some(message)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(source) => Err(Error::Process { pid: self.pid(), operation: "hear from", source }),
        }
    }

    fn answer(&mut self, message: Message) -> Result<Option<Done>> {
        match message {
            Message::Fault(event) => self.fault(event),
            Message::Fork(descriptor) => {
                self.forked.push(descriptor);
                Ok(None)
            }
            Message::Moved { from, .. } => self.gone(&from),
            Message::Gone(range) => self.gone(&range),
            Message::Unknown(_) => Ok(None),
        }
    }

    fn fault(&mut self, event: Event) -> Result<Option<Done>> {
        let page = event.address as u64 & !(PAGE_BYTES - 1);
        if !self.moved.contains_key(&page) {
            // It was put back meanwhile: try again.
            let _ = self.userfault.wake(crate::process::range(page));
            return Ok(None);
        }
        match in_system_call(event.thread) {
            Some(number) => self.put_page_back(page, Why::Kernel(Some(number))).map(Some),
            None => self.redirect(event.thread, page),
        }
    }

    fn gone(&mut self, range: &std::ops::Range<usize>) -> Result<Option<Done>> {
        let pages = range.start as u64..range.end as u64;
        let Some(page) = self.moved.range(pages).next().map(|(&page, _)| page) else { return Ok(None) };
        self.give_up(page)?;
        Ok(Some(Done::PutBack { page, why: Why::Gone }))
    }

    /// Signals on their way to a thread, new threads, the end.
    fn attend(&mut self) -> Result<Option<Done>> {
        let heads = &self.heads;
        let happening = self.threads.attend(&mut |_, registers| heads.lead_back(registers))?;
        Ok(happening.map(|(Happening::Exec | Happening::Ended)| {
            self.threads.let_go();
            Done::Over
        }))
    }
}
