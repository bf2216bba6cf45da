//! Forked children that wait for their pages: the userfaultfds that watch their memory.
//!
//! ```text
//!   fork(2) waits ── a program thread reads the message ──> the child's userfaultfd is a descriptor of the program
//!                 ── the repairer duplicates it and restores the child's pages ── the program closes it
//! ```
//! If a child's userfaultfd is closed too early, the child reads zeros where pages are moved. A
//! descriptor of the repairer would be closed when the repairer is killed. So the program reads the
//! message, by an injected call, into a slot of the stub's data page. The message contains the
//! descriptor's number, so the next repairer finds it. If no thread can make the call, the repairer
//! reads the message.

use std::io;
use std::os::fd::OwnedFd;

use fieldstone_sys::process::ProcessMemory;
use fieldstone_sys::ptrace::Tracee;
use fieldstone_sys::userfault::{FaultOrigin, Message, Userfaultfd};

use crate::code_cache::CodeCache;
use crate::error::{Error, Result};
use crate::page_table::PageTable;
use crate::page_table::moved::{PageMap, page_range};
use crate::tracer::call_stub::child_slots;
use crate::tracer::{InsertedCode, Tracer, argument, duplicate_descriptor};

/// Offsets of the event's kind and of the descriptor's number in a message.
const EVENT_AT: u64 = 0;
const NUMBER_AT: u64 = 8;

/// The userfaultfd of a child whose pages are not restored yet.
#[derive(Debug)]
pub(crate) struct ChildWatch {
    fd: Userfaultfd,
    /// The slot of its message, and the descriptor's number in the program.
    slot: Option<(u64, i32)>,
}

impl ChildWatch {
    /// The repairer's descriptor.
    pub(crate) const fn fd(&self) -> &Userfaultfd {
        &self.fd
    }

    /// Whether the child's memory is gone, and so the child. `somewhere` is an address that the
    /// child has.
    fn is_gone(&self, somewhere: u64) -> bool {
        let result = self.fd.unregister(page_range(somewhere));
        result.is_err_and(|error| matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ESRCH)))
    }
}

/// The userfaultfds of all children whose pages are not restored yet.
#[derive(Debug, Default)]
pub(crate) struct ForkedChildren {
    watches: Vec<ChildWatch>,
    /// The stub page whose data page has the slots.
    stub_page: Option<u64>,
}

impl ForkedChildren {
    /// The watches.
    pub(crate) fn as_slice(&self) -> &[ChildWatch] {
        &self.watches
    }

    /// Uses the slots of this stub page from now on.
    pub(crate) const fn use_stub_page(&mut self, stub_page: Option<u64>) {
        self.stub_page = stub_page;
    }

    /// Adds a child.
    pub(crate) fn add(&mut self, fd: OwnedFd, reach: FaultOrigin, slot: Option<(u64, i32)>) {
        self.watches.push(ChildWatch { fd: Userfaultfd::inherited(fd, reach), slot });
    }

    /// Adds the children whose messages a killed repairer left in the slots of `stub_page`.
    pub(crate) fn add_abandoned(&mut self, pid: u32, memory: &ProcessMemory, stub_page: u64, reach: FaultOrigin) {
        let read = |slot: u64| {
            let mut bytes = [0; Message::BYTES];
            memory.read_exact(slot, &mut bytes).ok()?;
            let mut number = None;
            let message = Message::from_tracee_bytes(&bytes, |in_program| {
                number = Some(in_program);
                duplicate_descriptor(pid, in_program)
            });
            match (message, number) {
                (Ok(Message::Fork(fd)), Some(number)) => Some((fd, (slot, number))),
                _ => None,
            }
        };
        for (fd, slot) in child_slots(stub_page).filter_map(read) {
            self.add(fd, reach, Some(slot));
        }
    }

    /// The next message of the userfaultfd. A message about a child is added here, and `None` is
    /// returned. All threads are stopped.
    ///
    /// # Errors
    /// As read(2): `WouldBlock` if there is none.
    pub(crate) fn next_message(
        &mut self,
        tracer: &mut Tracer,
        code: &dyn InsertedCode,
        pages: &PageTable,
    ) -> io::Result<Option<Message>> {
        let stub_page = self.stub_page.filter(|_| !pages.has_pending_faults());
        let slot = stub_page.and_then(|stub_page| self.free_slot(stub_page));
        let read = slot.map(|slot| (slot, read_in_program(tracer, code, pages, slot)));
        let (message, kept) = match read {
            Some((slot, Ok((message, number)))) => (message, number.map(|number| (slot, number))),
            Some((_, Err(error))) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
            _ => (pages.read_message()?, None),
        };
        match message {
            Message::Fork(fd) => {
                self.add(fd, pages.reach(), kept);
                Ok(None)
            }
            other => Ok(Some(other)),
        }
    }

    fn free_slot(&self, stub_page: u64) -> Option<u64> {
        let is_taken =
            |slot: &u64| self.watches.iter().any(|watch| watch.slot.is_some_and(|(taken, _)| taken == *slot));
        child_slots(stub_page).find(|slot| !is_taken(slot))
    }

    /// Closes and forgets one watch. All threads are stopped.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn close(&mut self, tracer: &mut Tracer, code: &dyn InsertedCode, index: usize) -> Result<()> {
        close(tracer, code, &self.watches.remove(index))
    }

    /// Closes and forgets all watches. All threads are stopped.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn close_all(&mut self, tracer: &mut Tracer, code: &dyn InsertedCode) -> Result<()> {
        std::mem::take(&mut self.watches).into_iter().try_for_each(|watch| close(tracer, code, &watch))
    }

    /// Closes and forgets the watches of children that are gone. `somewhere` is an address that all
    /// children have.
    ///
    /// # Errors
    /// If the process is gone.
    pub(crate) fn close_gone(&mut self, tracer: &mut Tracer, code: &dyn InsertedCode, somewhere: u64) -> Result<()> {
        if !self.watches.iter().any(|watch| watch.is_gone(somewhere)) {
            return Ok(());
        }
        let watches = std::mem::take(&mut self.watches).into_iter();
        let (gone, rest): (Vec<_>, Vec<_>) = watches.partition(|watch| watch.is_gone(somewhere));
        self.watches = rest;
        gone.iter().try_for_each(|watch| close(tracer, code, watch))
    }
}

/// Makes a program thread read a message into `slot`. Returns it with the number of its descriptor
/// in the program, which is moved to a high number.
fn read_in_program(
    tracer: &mut Tracer,
    code: &dyn InsertedCode,
    pages: &PageTable,
    slot: u64,
) -> io::Result<(Message, Option<i32>)> {
    let theirs = u64::from(pages.userfault().number().cast_unsigned());
    let arguments = [theirs, slot, Message::BYTES as u64, 0, 0, 0];
    tracer.call(code, ("read", libc::SYS_read), arguments).map_err(as_io_error)?;
    let mut message = [0; Message::BYTES];
    tracer.memory().read_exact(slot, &mut message).map_err(io::Error::other)?;
    let pid = tracer.pid();
    let mut low = None;
    let message = Message::from_tracee_bytes(&message, |number| {
        low = Some(number);
        duplicate_descriptor(pid, number)
    })?;
    let Some(low) = low else { return Ok((message, None)) };
    let from = u64::from(low.cast_unsigned());
    let arguments = [from, argument(libc::F_DUPFD_CLOEXEC), theirs / 2, 0, 0, 0];
    let Ok(high) = tracer.call(code, ("fcntl", libc::SYS_fcntl), arguments) else { return Ok((message, Some(low))) };
    let number = u32::try_from(high).unwrap_or(0).to_le_bytes();
    tracer.memory().write(slot + NUMBER_AT, &number).map_err(io::Error::other)?;
    tracer.close(code, low).map_err(as_io_error)?;
    Ok((message, i32::try_from(high).ok()))
}

/// Clears the slot of a watch and closes its descriptor in the program.
fn close(tracer: &mut Tracer, code: &dyn InsertedCode, watch: &ChildWatch) -> Result<()> {
    let Some((slot, number)) = watch.slot else { return Ok(()) };
    tracer.memory().write(slot + EVENT_AT, &[0])?;
    tracer.close(code, number)
}

fn as_io_error(error: Error) -> io::Error {
    match error {
        Error::Linux(fieldstone_sys::Error::Call { source, .. }) => source,
        other => io::Error::other(other),
    }
}

/// Moved pages and inserted code at one moment, which a child may have a copy of.
#[derive(Clone, Debug)]
pub(crate) struct ProcessSnapshot {
    pub(crate) pages: PageMap,
    pub(crate) code: CodeCache,
}

/// Restores moved pages and removes inserted code in a child, whose memory is a copy of its
/// parent's. The child's userfaultfd stays open meanwhile: without it, a missing page reads as
/// zeros.
///
/// # Errors
/// If the child is gone.
pub(crate) fn restore_child(
    (pages, code): (&PageMap, &CodeCache),
    child: &Tracee,
    memory: &ProcessMemory,
    watch: Option<&Userfaultfd>,
) -> Result<()> {
    let mut registers = child.registers()?;
    let before = registers.rip;
    if code.leave(memory, &mut registers) && registers.rip != before {
        child.set_registers(&registers)?;
    }
    for (at, original) in code.jumps(memory) {
        memory.write(at, &original)?;
    }
    for moved in pages.iter() {
        // Fails if the program excludes the memory from its children.
        let Ok(contents) = moved.composed(memory) else { continue };
        let page = page_range(moved.page.start);
        match watch {
            // Fails if the page is present already, or not mapped.
            Some(watch) => {
                let _ = watch.copy(page.start, &contents, false);
                let _ = watch.unregister(page);
            }
            None => drop(memory.write(moved.page.start, &contents)),
        }
    }
    Ok(())
}
