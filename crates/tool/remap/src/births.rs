//! Userfaultfds of children, kept where they survive the repairer until the child has its pages back.
//!
//! ```text
//!   fork(2) waits ── a thread of the program reads the message, in our name ──> the child's userfaultfd is a descriptor of the program
//!                 ── we share it, and give the child its pages ── it is closed in the program
//! ```
//! A child whose userfaultfd is closed reads zeros where pages are moved. If we read the message ourselves, the descriptor would be ours, and
//! closed when we are killed. So the program reads it: its number is in the message, which lies in the page where calls are made (`home`),
//! and whoever comes after us finds it there. Where no thread can make the call, we read it.

use std::io;
use std::os::fd::OwnedFd;

use fieldstone_sys::userfault::{Message, Userfaultfd};

use crate::error::{Error, Result};
use crate::home::birth_slots;
use crate::memory::Memory;
use crate::process::{Process, range, take, word};

/// Where a message has what happened, and the number of the descriptor.
const EVENT_AT: u64 = 0;
const NUMBER_AT: u64 = 8;

/// A child that has not been given its pages yet.
#[derive(Debug)]
pub(crate) struct Birth {
    /// Its userfaultfd.
    pub(crate) watch: Userfaultfd,
    /// Where the message lies, and the number of the descriptor in the program.
    kept: Option<(u64, i32)>,
}

impl Birth {
    /// Whether its memory is gone: then the child is.
    fn is_gone(&self, somewhere: u64) -> bool {
        let asked = self.watch.unregister(range(somewhere));
        asked.is_err_and(|error| matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ESRCH)))
    }
}

impl Process {
    /// The next message of the userfaultfd. One that tells of a child is kept as a [`Birth`], and none is returned. All threads stand still.
    ///
    /// # Errors
    /// As read(2): `WouldBlock` where there is none.
    pub(crate) fn next_message(&mut self) -> io::Result<Option<Message>> {
        let slot = self.births_at.filter(|_| !self.fault_waits()).and_then(|home| self.free_slot(home));
        let read = slot.map(|slot| (slot, self.read_by_the_program(slot)));
        let (message, kept) = match read {
            Some((slot, Ok((message, number)))) => (message, number.map(|number| (slot, number))),
            Some((_, Err(error))) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
            _ => (self.userfault.message()?, None),
        };
        match message {
            Message::Fork(watch) => {
                self.keep_birth(watch, kept);
                Ok(None)
            }
            other => Ok(Some(other)),
        }
    }

    /// A child is on its way that this one watches.
    pub(crate) fn keep_birth(&mut self, watch: OwnedFd, kept: Option<(u64, i32)>) {
        let watch = Userfaultfd::inherited(watch, self.userfault.reach());
        self.births.push(Birth { watch, kept });
    }

    fn free_slot(&self, home: u64) -> Option<u64> {
        let is_taken = |slot: &u64| self.births.iter().any(|birth| birth.kept.is_some_and(|(taken, _)| taken == *slot));
        birth_slots(home).find(|slot| !is_taken(slot))
    }

    /// Has a thread of the program read a message into `slot`; with the number that its descriptor has there, out of the program's way.
    fn read_by_the_program(&mut self, slot: u64) -> io::Result<(Message, Option<i32>)> {
        let bytes = Message::BYTES as u64;
        let theirs = u64::from(self.theirs.cast_unsigned());
        self.call(("read", libc::SYS_read), [theirs, slot, bytes, 0, 0, 0]).map_err(errno)?;
        let mut message = [0; Message::BYTES];
        self.memory.read_exact(slot, &mut message).map_err(errno)?;
        let pid = self.pid();
        let mut low = None;
        let message = Message::from_tracee_bytes(&message, |number| {
            low = Some(number);
            take(pid, number)
        })?;
        let Some(low) = low else { return Ok((message, None)) };
        let from = u64::from(low.cast_unsigned());
        let above = u64::from(self.theirs.cast_unsigned()) / 2;
        let high = self.call(("fcntl", libc::SYS_fcntl), [from, word(libc::F_DUPFD_CLOEXEC), above, 0, 0, 0]);
        let Ok(high) = high else { return Ok((message, Some(low))) };
        self.memory.write(slot + NUMBER_AT, &u32::try_from(high).unwrap_or(0).to_le_bytes()).map_err(errno)?;
        self.call(("close", libc::SYS_close), [from, 0, 0, 0, 0, 0]).map_err(errno)?;
        Ok((message, i32::try_from(high).ok()))
    }

    /// Forgets children that have their pages, or are gone. All threads stand still.
    ///
    /// # Errors
    /// Where the process is gone.
    pub(crate) fn end_births(&mut self, are_over: &dyn Fn(&Birth) -> bool) -> Result<()> {
        let (over, rest) = std::mem::take(&mut self.births).into_iter().partition(are_over);
        self.births = rest;
        let over: Vec<Birth> = over;
        over.into_iter().try_for_each(|birth| self.end_birth(birth))
    }

    /// Closes the descriptor of a child that has its pages. All threads stand still.
    pub(crate) fn end_birth(&mut self, birth: Birth) -> Result<()> {
        let Some((slot, number)) = birth.kept else { return Ok(()) };
        self.memory.write(slot + EVENT_AT, &[0])?;
        self.call(("close", libc::SYS_close), [u64::from(number.cast_unsigned()), 0, 0, 0, 0, 0]).map(|_| ())
    }

    /// Forgets those of which nothing is left.
    pub(crate) fn end_births_of_the_dead(&mut self) -> Result<()> {
        let Some(somewhere) = self.somewhere() else { return Ok(()) };
        if self.births.iter().any(|birth| birth.is_gone(somewhere)) {
            self.end_births(&|birth| birth.is_gone(somewhere))?;
        }
        Ok(())
    }
}

/// Children whose messages lie in the page of a killed repairer.
pub(crate) fn left_births(pid: u32, memory: &Memory, home: u64) -> Vec<(OwnedFd, (u64, i32))> {
    let read = |slot: u64| {
        let mut bytes = [0; Message::BYTES];
        memory.read_exact(slot, &mut bytes).ok()?;
        let mut number = None;
        let message = Message::from_tracee_bytes(&bytes, |there| {
            number = Some(there);
            take(pid, there)
        });
        match (message, number) {
            (Ok(Message::Fork(watch)), Some(number)) => Some((watch, (slot, number))),
            _ => None,
        }
    };
    birth_slots(home).filter_map(read).collect()
}

fn errno(error: Error) -> io::Error {
    match error {
        Error::Linux(fieldstone_sys::Error::Call { source, .. }) => source,
        other => io::Error::other(other),
    }
}
