//! The page table of a repair: moved pages, and the userfaultfd that traps accesses to them.
//!
//! ```text
//!   empty    copies are written ── page is registered ── its frame is dropped: accesses wait
//!   restore  bytes are composed from the copies ── page has them ── waiting threads continue
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `checks` | which pages must not be moved, and why |
//! | `moved` | where the bytes of each page are |
//! | `userfault` | the userfaultfd that the program and the repairer share |
//! | `futex` | which futexes the kernel writes itself |
//!
//! The userfaultfd reports changes of the address space too (fork, mremap, munmap, madvise). The
//! thread that makes such a change waits until the message is read. So this module reads messages
//! while an injected call changes the address space. Messages about children are read by a thread
//! of the program instead (see `children`).
//!
//! Invariant: while a page is moved or restored, all threads are stopped.

pub(crate) mod checks;
pub(crate) mod futex;
pub(crate) mod moved;
pub(crate) mod userfault;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use fieldstone_sys::process::ProcessMemory;
use fieldstone_sys::scheduling;
use fieldstone_sys::userfault::{FaultOrigin, Message, Modes, Userfaultfd};
use fieldstone_wire::Cause;

use crate::error::{Error, Result};
use crate::tracer::{InsertedCode, SystemCall, Tracer, argument};
use moved::{MovedPage, PAGE_BYTES, PageMap, page_range};
use userfault::SharedUserfault;

/// The moved pages of a process with their traps.
#[derive(Debug)]
pub(crate) struct PageTable {
    pages: PageMap,
    userfault: SharedUserfault,
    /// Messages that were read while a page was moved or restored.
    deferred: Vec<Message>,
}

impl PageTable {
    pub(crate) const fn new(pages: PageMap, userfault: SharedUserfault) -> Self {
        Self { pages, userfault, deferred: Vec::new() }
    }

    /// The moved pages.
    pub(crate) const fn pages(&self) -> &PageMap {
        &self.pages
    }

    /// The moved pages, to change the table. The caller moves or frees their bytes.
    pub(crate) const fn pages_mut(&mut self) -> &mut PageMap {
        &mut self.pages
    }

    /// The userfaultfd.
    pub(crate) const fn userfault(&self) -> &SharedUserfault {
        &self.userfault
    }

    /// Replaces the userfaultfd. No page may be moved.
    pub(crate) fn set_userfault(&mut self, userfault: SharedUserfault) {
        self.userfault = userfault;
    }

    /// Traps accesses to a page once it is missing. With `writes`, traps writes from now on.
    fn trap(&self, page: u64, writes: bool) -> Result<()> {
        let modes = Modes { missing: true, write_protect: writes };
        let failed = |source| Error::Page { page, why: format!("userfaultfd refuses it ({})", Cause(source)) };
        let fd = self.userfault.fd();
        fd.register(page_range(page), modes).map_err(failed)?;
        if writes { fd.write_protect(page_range(page), true).map_err(failed) } else { Ok(()) }
    }

    /// Removes the trap of a page, and wakes the threads that wait for it. It may be gone already.
    pub(crate) fn untrap(&self, page: u64) {
        let _ = self.userfault.fd().unregister(page_range(page));
    }

    /// Wakes the threads that wait for a page: they repeat their accesses.
    pub(crate) fn wake(&self, page: u64) {
        let _ = self.userfault.fd().wake(page_range(page));
    }

    /// Drops the frame of a page, whose copies are written: threads that access it wait from now
    /// on. A page of a file is replaced by a trapped anonymous page, since the file's bytes would
    /// reappear.
    ///
    /// If this process is killed between trap and drop, the program's threads resume before the
    /// frame is gone. Their writes to anonymous pages wait until the page is restored. Writes to
    /// file pages cannot be trapped in this interval.
    ///
    /// # Errors
    /// As userfaultfd(2) and the injected calls.
    pub(crate) fn empty(
        &mut self,
        tracer: &mut Tracer,
        code: &dyn InsertedCode,
        moved: &MovedPage,
        is_file: bool,
    ) -> Result<()> {
        let page = moved.page.start;
        if !is_file {
            self.trap(page, true)?;
            let arguments = [page, PAGE_BYTES, argument(libc::MADV_DONTNEED), 0, 0, 0];
            return self.call_and_read(tracer, code, ("madvise", libc::SYS_madvise), arguments);
        }
        // A free page follows the copies.
        let spare = moved.memory.end;
        tracer.map(code, spare, PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE)?;
        let flags = argument(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        let arguments = [spare, PAGE_BYTES, PAGE_BYTES, flags, page, 0];
        let call = ("mremap", libc::SYS_mremap);
        let replaced = self.trap(spare, false).and_then(|()| self.call_and_read(tracer, code, call, arguments));
        if replaced.is_err() {
            self.untrap(spare);
            tracer.unmap(code, spare, PAGE_BYTES)?;
        }
        replaced
    }

    /// Restores a page: writes its composed bytes at `at`, its present address in the program. All
    /// threads are stopped, and none is in a rewritelet. Returns false if the kernel refuses that,
    /// because the program changes its address space: the caller reads the message about the change
    /// and tries again.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn try_restore(&self, memory: &ProcessMemory, pid: u32, moved: &MovedPage, at: u64) -> Result<bool> {
        let contents = moved.composed(memory)?;
        if let Err(source) = self.userfault.fd().try_copy(page_range(at).start, &contents) {
            match source.raw_os_error() {
                Some(libc::EAGAIN) => return Ok(false),
                // It was unmapped or restored meanwhile.
                Some(libc::ENOENT | libc::EEXIST | libc::ESRCH) => {}
                _ => return Err(Error::Process { pid, operation: "restore a page of", source }),
            }
        }
        self.untrap(at);
        self.untrap(moved.page.start);
        Ok(true)
    }

    /// Makes an injected call that the userfaultfd reports. All threads are stopped and outside of
    /// the kernel, so the other messages are faults of other processes only.
    fn call_and_read(
        &mut self,
        tracer: &mut Tracer,
        code: &dyn InsertedCode,
        call: SystemCall,
        arguments: [u64; 6],
    ) -> Result<()> {
        let pid = tracer.pid();
        let (result, messages) = while_reading(self.userfault.fd(), pid, || tracer.call(code, call, arguments))?;
        self.deferred.extend(messages.into_iter().filter(|message| matches!(message, Message::Fault(_))));
        result.map(|_| ())
    }
}

/// Messages.
impl PageTable {
    /// The descriptor, to wait for messages.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.userfault.fd().as_fd()
    }

    /// Which faults the userfaultfd reports.
    pub(crate) const fn reach(&self) -> FaultOrigin {
        self.userfault.fd().reach()
    }

    /// The next message.
    ///
    /// # Errors
    /// As read(2): `WouldBlock` if there is none.
    pub(crate) fn read_message(&self) -> io::Result<Message> {
        self.userfault.fd().message()
    }

    /// Whether a fault is among the unread messages. Faults are read first.
    pub(crate) fn has_pending_faults(&self) -> bool {
        let path = format!("/proc/self/fdinfo/{}", self.userfault.fd().number());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let pending = text.lines().find_map(|line| line.strip_prefix("pending:"));
        pending.is_none_or(|number| number.trim() != "0")
    }

    /// Keeps messages for [`Self::take_deferred`].
    pub(crate) fn defer(&mut self, messages: impl IntoIterator<Item = Message>) {
        self.deferred.extend(messages);
    }

    /// Drops those deferred messages for which `is_kept` is false.
    pub(crate) fn retain_deferred(&mut self, is_kept: impl FnMut(&Message) -> bool) {
        self.deferred.retain(is_kept);
    }

    /// The deferred messages, which are forgotten here.
    pub(crate) fn take_deferred(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.deferred)
    }
}

/// Runs `act`, which may wait in the kernel until the userfaultfd is read; returns its result and
/// the messages read meanwhile.
fn while_reading<T>(fd: &Userfaultfd, pid: u32, act: impl FnOnce() -> T) -> Result<(T, Vec<Message>)> {
    let failed = |source| Error::Process { pid, operation: "read the userfaultfd of", source };
    let descriptor = fd.as_fd().try_clone_to_owned().map_err(failed)?;
    let reader = Userfaultfd::inherited(descriptor, fd.reach());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let (mut messages, mut polls) = (Vec::new(), 0);
            while !is_over.load(Ordering::Acquire) {
                match reader.message() {
                    Ok(message) => messages.push(message),
                    Err(_) => scheduling::spin_or_sleep(polls),
                }
                polls += 1;
            }
            messages
        });
        let done = act();
        is_over.store(true, Ordering::Release);
        let messages = reading.join().map_err(|_| failed(io::ErrorKind::Other.into()))?;
        Ok((done, messages))
    })
}
