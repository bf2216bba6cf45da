//! What comes from the process: accesses to moved pages, memory that goes, children, signals, its end.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use fieldstone_sys::userfault::{FaultEvent, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;

use crate::error::{Error, Result};
use crate::page::page_with;
use crate::process::Process;
use crate::tasks::in_system_call;
use crate::threads::Happening;

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
    /// The program unmaps, moves, protects or empties it.
    Gone,
    /// Who moved it is gone without having put it back.
    Left,
    /// The program closed the descriptor that watches it.
    Closed,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => write!(f, "it was asked for"),
            Self::Kernel(Some(number)) => write!(f, "the kernel uses it, in system call {number}"),
            Self::Kernel(None) => write!(f, "the kernel uses it"),
            Self::Access { ip, reason } => write!(f, "the access at {ip:#x} cannot be redirected: {reason}"),
            Self::Gone => write!(f, "the program unmapped, moved, protected or emptied it"),
            Self::Left => write!(f, "whoever moved it was killed"),
            Self::Closed => write!(f, "the program closed the descriptor that watches it, with its own"),
        }
    }
}

/// An access to bytes that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The thread.
    pub thread: u32,
    /// The instruction.
    pub ip: u64,
    /// The address.
    pub address: u64,
    /// How many bytes.
    pub bytes: u32,
    /// It reads them.
    pub read: bool,
    /// It writes them.
    pub write: bool,
}

/// The code that was made for an access to a moved page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// A clone of the loop around it: the thread stays there until it leaves the loop.
    Loop,
    /// A clone of the code up to the next jump or call: the thread enters and leaves it at each access.
    Stretch,
    /// No clone: it is redirected by itself, and the next access faults again.
    Alone,
}

/// What was done for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// An access at `ip` was redirected.
    Redirected {
        /// The thread.
        thread: u32,
        /// The instruction.
        ip: u64,
        /// The page.
        page: u64,
        /// Whether code was made for it: a clone, or its first rewritelet.
        new: bool,
        /// Which clone was made.
        route: Route,
    },
    /// Bytes were touched that are watched.
    Touched(Touch),
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

/// Messages that are answered at once.
const MOST_MESSAGES: usize = 32;

impl Process {
    /// Waits for what comes, so long at most, and does what it takes. Whoever waits here for nothing sleeps. What comes without end is left
    /// for the next call: the caller may want to do something about it.
    ///
    /// # Errors
    /// Where the process is gone, or refuses what has to be done.
    pub fn serve(&mut self, wait: Duration) -> Result<Vec<Done>> {
        let mut done = Vec::new();
        if self.wait(wait) {
            for _ in 0..MOST_MESSAGES {
                let Some(message) = self.message()? else { break };
                done.extend(self.answer(message)?);
            }
        }
        done.extend(self.attend()?);
        done.extend(self.attend_children()?);
        if !self.threads.is_over() && !done.contains(&Done::Over) {
            done.extend(self.look_after_descriptor()?);
        }
        Ok(done)
    }

    /// Waits; whether there are messages.
    fn wait(&self, so_long: Duration) -> bool {
        let wait = Timespec::try_from(so_long).unwrap_or_default();
        let descriptors = [Some(self.userfault.as_fd()), self.alarm.as_ref().map(AsFd::as_fd)];
        let mut fds: Vec<PollFd<'_>> =
            descriptors.into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let _ = poll(&mut fds, Some(&wait));
        let is_readable = |fd: &PollFd<'_>| fd.revents().contains(PollFlags::IN);
        if let Some(alarm) = self.alarm.as_ref().filter(|_| fds.get(1).is_some_and(is_readable)) {
            while rustix::io::read(alarm, &mut [0; 64]).is_ok_and(|got| got > 0) {}
        }
        fds.first().is_some_and(is_readable)
    }

    /// The next message. One that tells of a change of memory lets the thread go on that makes it: whoever could use what it has
    /// made before it is followed here stands still from then until it is answered.
    fn message(&mut self) -> Result<Option<Message>> {
        let readable = poll(&mut [PollFd::new(&self.userfault, PollFlags::IN)], Some(&Timespec::default()));
        if !readable.is_ok_and(|ready| ready > 0) {
            return Ok(None);
        }
        if !self.fault_waits() {
            self.threads.stop_all()?;
        }
        match self.next_message() {
            Ok(Some(message)) => Ok(Some(message)),
            // A child, which is held from its first instruction on.
            Ok(None) => self.resume_all().map(|()| None),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => self.resume_all().map(|()| None),
            Err(source) => Err(Error::Process { pid: self.pid(), operation: "hear from", source }),
        }
    }

    /// Whether a fault is among the messages: those are given first.
    pub(crate) fn fault_waits(&self) -> bool {
        let told =
            std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.userfault.number())).unwrap_or_default();
        let pending = told.lines().find_map(|line| line.strip_prefix("pending:"));
        pending.is_none_or(|number| number.trim() != "0")
    }

    /// Answers what was heard while a page was put back.
    pub(crate) fn answer_heard(&mut self) -> Result<()> {
        for message in std::mem::take(&mut self.heard) {
            let done = match message {
                // It is told again.
                Message::Fault(event) => {
                    let _ = self.userfault.wake(crate::process::range(page_with(event.address as u64)));
                    Vec::new()
                }
                other => self.answer(other)?,
            };
            self.late.extend(done);
        }
        Ok(())
    }

    fn answer(&mut self, message: Message) -> Result<Vec<Done>> {
        let done = match message {
            Message::Fault(event) => self.fault(event).map(Vec::from_iter),
            Message::Fork(watch) => {
                self.keep_birth(watch, None);
                Ok(Vec::new())
            }
            Message::Moved { from, to } => self.follow(&from, to as u64),
            Message::Gone(range) => self.gone(&range),
            Message::Unknown(_) => Ok(Vec::new()),
        };
        self.resume_all()?;
        // `attend` tells of the end.
        if self.threads.is_over() { Ok(Vec::new()) } else { done }
    }

    fn fault(&mut self, event: FaultEvent) -> Result<Option<Done>> {
        let page = page_with(event.address as u64);
        if !self.ours.moved.contains_key(&page) {
            // It was put back meanwhile: try again.
            let _ = self.userfault.wake(crate::process::range(page));
            return Ok(None);
        }
        match in_system_call(event.thread) {
            Some(number) => {
                self.threads.ask(event.thread)?;
                self.ask_others()?;
                self.put_page_back(page, Why::Kernel(Some(number))).map(Some)
            }
            None => self.redirect(event.thread, page),
        }
    }

    /// Asks others that wait in system calls to stop, as long as that can be seen of them: who is asked runs round in the kernel until it has
    /// its page. Their faults are told again.
    fn ask_others(&mut self) -> Result<()> {
        for _ in 0..MOST_MESSAGES {
            if !self.fault_waits() {
                break;
            }
            let Ok(message) = self.userfault.message() else { break };
            let number = if let Message::Fault(event) = &message { Some(event.thread) } else { None };
            self.heard.push(message);
            match number {
                Some(thread) if in_system_call(thread).is_some() => self.threads.ask(thread)?,
                // It runs round already.
                Some(_) => break,
                None => {}
            }
        }
        Ok(())
    }

    fn gone(&mut self, range: &Range<usize>) -> Result<Vec<Done>> {
        let mut done = Vec::new();
        for page in self.moved_in(range) {
            self.give_up(page)?;
            done.push(Done::PutBack { page, why: Why::Gone });
        }
        Ok(done)
    }

    /// Puts pages back where the program has moved them itself.
    fn follow(&mut self, from: &Range<usize>, to: u64) -> Result<Vec<Done>> {
        let pages = self.moved_in(from);
        self.put_back_at(&pages, to.wrapping_sub(from.start as u64))?;
        Ok(pages.into_iter().map(|page| Done::PutBack { page, why: Why::Gone }).collect())
    }

    /// Lets threads end that are about to. The kernel marks the robust mutexes that they hold, and waits for no page then: what of them is
    /// moved is put back before. Where the whole process ends, nobody would look.
    pub(crate) fn see_off(&mut self) -> Result<()> {
        for thread in self.threads.ending() {
            let ready = self.ready_for_the_end_of(thread);
            self.threads.see_off(thread)?;
            ready?;
        }
        Ok(())
    }

    fn ready_for_the_end_of(&mut self, thread: u32) -> Result<()> {
        while let Some(page) = self.looked_at_by_the_end_of(thread) {
            let done = self.put_page_back(page, Why::Kernel(u32::try_from(libc::SYS_exit).ok()))?;
            self.late.push(done);
        }
        Ok(())
    }

    fn looked_at_by_the_end_of(&mut self, thread: u32) -> Option<u64> {
        if self.ours.moved.is_empty() {
            return None;
        }
        let registers = self.threads.get_mut(thread)?.tracee.registers().ok()?;
        if registers.orig_rax != libc::SYS_exit.cast_unsigned() {
            return None;
        }
        let moved = self.robust_mutexes(thread).ok()?.into_iter().find(|&address| self.is_moved(address))?;
        Some(page_with(moved))
    }

    fn moved_in(&self, range: &Range<usize>) -> Vec<u64> {
        self.ours.moved.range(range.start as u64..range.end as u64).map(|(&page, _)| page).collect()
    }

    /// Signals on their way to a thread, new threads, the end.
    pub(crate) fn attend(&mut self) -> Result<Vec<Done>> {
        let (ours, memory) = (&self.ours, &self.memory);
        let mut trapped = Vec::new();
        let happening = self.threads.attend(&mut |held| {
            let trap = ours.settle(memory, held)?;
            trapped.extend(trap.map(|at| (held.tracee.thread(), at)));
            Ok(())
        })?;
        self.see_off()?;
        // Led on one by one, as any other access that no clone knows.
        let led = |(thread, ip)| {
            Some(Done::Redirected { thread, ip, page: self.ours.heads.page_of(ip)?, new: false, route: Route::Alone })
        };
        let mut done: Vec<Done> = trapped.into_iter().filter_map(led).collect();
        done.append(&mut self.late);
        if let Some(Happening::Exec | Happening::Ended) = happening {
            self.threads.let_go();
            self.ours.moved.clear();
            done.push(Done::Over);
        }
        Ok(done)
    }
}
