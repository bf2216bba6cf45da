//! The service loop: faults, changes of the address space, children, signals, and the end of the
//! process.

use std::ops::Range;
use std::time::Duration;

use fieldstone_sys::userfault::{FaultEvent, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;

use crate::error::{Error, Result};
use crate::event::{RemapEvent, RestoreReason, Route};
use crate::page_table::checks::robust_mutexes;
use crate::page_table::moved::page_with;
use crate::process::Process;
use crate::tracer::status::current_system_call;

/// Maximum number of messages that one call answers.
const MAX_MESSAGES: usize = 32;

impl Process {
    /// Waits for events for at most `wait`, and handles them. A limited number is handled, so that
    /// the caller can react to an endless stream; the next call handles the rest.
    ///
    /// # Errors
    /// If the process is gone, or a needed operation fails.
    pub fn serve(&mut self, wait: Duration) -> Result<Vec<RemapEvent>> {
        let mut events = Vec::new();
        if self.wait(wait) {
            for _ in 0..MAX_MESSAGES {
                let Some(message) = self.read_message()? else { break };
                events.extend(self.answer(message)?);
            }
        }
        events.extend(self.handle_stops()?);
        events.extend(self.restore_new_children()?);
        if !self.tracer.is_over() && !events.contains(&RemapEvent::Ended) {
            events.extend(self.check_descriptor()?);
        }
        Ok(events)
    }

    /// Waits for at most `limit`; returns whether there are messages.
    fn wait(&self, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).unwrap_or_default();
        let descriptors = [Some(self.pages.as_fd()), self.alarm.as_ref().map(AsFd::as_fd)];
        let mut fds: Vec<PollFd<'_>> =
            descriptors.into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let _ = poll(&mut fds, Some(&limit));
        let is_readable = |fd: &PollFd<'_>| fd.revents().contains(PollFlags::IN);
        if let Some(alarm) = self.alarm.as_ref().filter(|_| fds.get(1).is_some_and(is_readable)) {
            while rustix::io::read(alarm, &mut [0; 64]).is_ok_and(|got| got > 0) {}
        }
        fds.first().is_some_and(is_readable)
    }

    /// The next message. Reading a message about a change of the address space resumes the thread
    /// that makes it. So all threads are stopped before, until the message is answered: none can
    /// use the change before it is known here.
    fn read_message(&mut self) -> Result<Option<Message>> {
        let readable =
            poll(&mut [PollFd::from_borrowed_fd(self.pages.as_fd(), PollFlags::IN)], Some(&Timespec::default()));
        if !readable.is_ok_and(|ready| ready > 0) {
            return Ok(None);
        }
        if !self.pages.has_pending_faults() {
            self.tracer.stop_all()?;
        }
        match self.children.next_message(&mut self.tracer, &self.code, &self.pages) {
            Ok(Some(message)) => Ok(Some(message)),
            // A child, which is traced from its first instruction on.
            Ok(None) => self.tracer.resume_all(&self.code).map(|()| None),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                self.tracer.resume_all(&self.code).map(|()| None)
            }
            Err(source) => Err(Error::Process { pid: self.pid(), operation: "read the userfaultfd of", source }),
        }
    }

    /// Answers the messages that were deferred while a page was restored.
    pub(super) fn answer_deferred(&mut self) -> Result<()> {
        for message in self.pages.take_deferred() {
            let events = match message {
                // The thread repeats its access, which is reported again.
                Message::Fault(event) => {
                    self.pages.wake(page_with(event.address as u64));
                    Vec::new()
                }
                other => self.answer(other)?,
            };
            self.unreported.extend(events);
        }
        Ok(())
    }

    fn answer(&mut self, message: Message) -> Result<Vec<RemapEvent>> {
        let events = match message {
            Message::Fault(event) => self.handle_fault(event).map(Vec::from_iter),
            Message::Fork(fd) => {
                self.children.add(fd, self.pages.reach(), None);
                Ok(Vec::new())
            }
            Message::Moved { from, to } => self.handle_remap(&from, to as u64),
            Message::Gone(range) => self.handle_removal(&range),
            Message::Unknown(_) => Ok(Vec::new()),
        };
        self.tracer.resume_all(&self.code)?;
        // `handle_stops` reports the end.
        if self.tracer.is_over() { Ok(Vec::new()) } else { events }
    }

    fn handle_fault(&mut self, event: FaultEvent) -> Result<Option<RemapEvent>> {
        let page = page_with(event.address as u64);
        if !self.pages.pages().contains(page) {
            // It was restored meanwhile: the thread repeats its access.
            self.pages.wake(page);
            return Ok(None);
        }
        match current_system_call(event.thread) {
            Some(number) => {
                self.tracer.request_stop(event.thread)?;
                self.request_other_stops()?;
                self.restore_page(page, RestoreReason::Kernel(Some(number))).map(Some)
            }
            None => self.redirect(event.thread, page),
        }
    }

    /// Requests stops of other threads that fault in system calls, while there are any. After the
    /// request such a thread spins in the kernel until its page is there. Their faults are reported
    /// again.
    fn request_other_stops(&mut self) -> Result<()> {
        for _ in 0..MAX_MESSAGES {
            if !self.pages.has_pending_faults() {
                break;
            }
            let Ok(message) = self.pages.read_message() else { break };
            let thread = if let Message::Fault(event) = &message { Some(event.thread) } else { None };
            self.pages.defer([message]);
            match thread {
                Some(thread) if current_system_call(thread).is_some() => self.tracer.request_stop(thread)?,
                // It spins already.
                Some(_) => break,
                None => {}
            }
        }
        Ok(())
    }

    /// Forgets pages that the program unmaps or empties.
    fn handle_removal(&mut self, range: &Range<usize>) -> Result<Vec<RemapEvent>> {
        let mut events = Vec::new();
        for page in self.pages.pages().addresses_in(range) {
            self.discard_page(page)?;
            events.push(RemapEvent::Restored { page, why: RestoreReason::Removed });
        }
        Ok(events)
    }

    /// Restores pages at the addresses to which the program moves them.
    fn handle_remap(&mut self, from: &Range<usize>, to: u64) -> Result<Vec<RemapEvent>> {
        let pages = self.pages.pages().addresses_in(from);
        self.restore_pages(&pages, to.wrapping_sub(from.start as u64))?;
        let event = |page| RemapEvent::Restored { page, why: RestoreReason::Removed };
        Ok(pages.into_iter().map(event).collect())
    }

    /// Handles signals for threads, new threads, and the end of the process.
    pub(super) fn handle_stops(&mut self) -> Result<Vec<RemapEvent>> {
        let (end, trapped) = self.tracer.handle_stops(&self.code)?;
        self.finish_exits()?;
        // A trap redirects one access, as a rewritelet does.
        let redirected = |(thread, ip)| {
            let page = self.code.page_of_loop(ip)?;
            Some(RemapEvent::Redirected { thread, ip, page, new: false, route: Route::Alone })
        };
        let mut events: Vec<RemapEvent> = trapped.into_iter().filter_map(redirected).collect();
        events.append(&mut self.unreported);
        if end.is_some() {
            self.tracer.detach_all();
            self.pages.pages_mut().clear();
            events.push(RemapEvent::Ended);
        }
        Ok(events)
    }

    /// Lets threads exit. The kernel marks the robust mutexes of an exiting thread and does not
    /// wait for a missing page then, so moved pages with such mutexes are restored before. If the
    /// whole process exits, no thread reads the marks.
    pub(super) fn finish_exits(&mut self) -> Result<()> {
        for thread in self.tracer.exiting() {
            let restored = self.restore_for_exit(thread);
            self.tracer.finish_exit(thread)?;
            restored?;
        }
        Ok(())
    }

    fn restore_for_exit(&mut self, thread: u32) -> Result<()> {
        while let Some(page) = self.page_of_exit(thread) {
            let reason = RestoreReason::Kernel(u32::try_from(libc::SYS_exit).ok());
            let event = self.restore_page(page, reason)?;
            self.unreported.push(event);
        }
        Ok(())
    }

    /// A moved page that the kernel accesses when this thread exits.
    fn page_of_exit(&mut self, thread: u32) -> Option<u64> {
        let pages = self.pages.pages();
        if pages.is_empty() {
            return None;
        }
        let registers = self.tracer.thread(thread)?.tracee.registers().ok()?;
        if registers.orig_rax != libc::SYS_exit.cast_unsigned() {
            return None;
        }
        let mutexes = robust_mutexes(&mut self.tracer, pages, thread).ok()?;
        mutexes.into_iter().find(|&address| pages.contains_address(address)).map(page_with)
    }
}
