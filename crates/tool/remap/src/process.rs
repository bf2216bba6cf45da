//! A process under repair: it coordinates tracer, page table and code cache.
//!
//! ```text
//!   Process ─┬─ PageTable   moved pages, their copies and traps ─┐
//!            ├─ CodeCache   clones, rewritelets, probes ─────────┼─> Tracer   threads, injected calls, memory
//!            ├─ ForkedChildren, ProcessSnapshot   children ──────┘
//!            └─ RepairRecord   all of that, kept in the process
//! ```
//! | file | |
//! |---|---|
//! | `serve` | faults, changes of the address space, signals, the end of the process |
//! | `moves` | a page moved or restored; the release of the process |
//! | `redirect` | one access redirected, by a clone or by a rewritelet |
//! | `forks`, `orphans` | children of traced parents, and of parents that were not traced |
//! | `abandoned_calls` | injected calls of a killed repairer |
//!
//! Nothing but inserted code runs in the process. What only the process itself can do, such as
//! mapping memory or opening a userfaultfd, is done by injected calls.

mod abandoned_calls;
mod forks;
mod moves;
mod orphans;
mod redirect;
mod serve;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use fieldstone_sys::process::ProcessMemory;

use crate::children::{ForkedChildren, ProcessSnapshot};
use crate::code_cache::CodeCache;
use crate::error::{Error, Result};
use crate::event::{RemapEvent, RestoreReason};
use crate::page_table::PageTable;
use crate::page_table::moved::{MovedPage, PageMap, ProgramView};
use crate::page_table::userfault::SharedUserfault;
use crate::record::{AbandonedRepair, RepairRecord};
use crate::space::mappings;
use crate::tracer::Tracer;
use crate::tracer::status::{is_in_other_pid_namespace, living_thread};

/// Interval between two checks whether the program has closed the userfaultfd.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A process under repair.
#[derive(Debug)]
pub struct Process {
    tracer: Tracer,
    pages: PageTable,
    code: CodeCache,
    children: ForkedChildren,
    /// The state before the last page was restored, while a thread may be forking a child with a
    /// copy of it.
    before: Option<ProcessSnapshot>,
    /// The record, once there is something to record.
    record: Option<RepairRecord>,
    /// Events that the next [`Self::serve`] returns.
    unreported: Vec<RemapEvent>,
    /// A descriptor that becomes readable when a thread has stopped by itself.
    alarm: Option<OwnedFd>,
    /// Time of the last check whether the program has closed the userfaultfd.
    checked: Instant,
    /// How many times the userfaultfd was reopened.
    reopened: u32,
}

impl Process {
    /// Traces process `pid`, which then continues. Pages that a killed repairer moved are restored
    /// first; [`Self::serve`] reports them.
    ///
    /// # Errors
    /// [`Error::Refused`] for a 32-bit program, and if kernel accesses to moved pages could not be
    /// trapped; [`Error::Process`] and [`Error::Linux`] if this user may not trace it, or another
    /// tracer does.
    pub fn open(pid: u32) -> Result<Self> {
        Self::open_with(pid, None)
    }

    /// As [`Self::open`], with the userfaultfd of a killed repairer. The program may have closed
    /// its own descriptor.
    fn open_with(pid: u32, shared: Option<OwnedFd>) -> Result<Self> {
        check_class(pid)?;
        SharedUserfault::check(pid)?;
        if is_in_other_pid_namespace(&pid.to_string()) {
            let why = "it is in a pid namespace of its own, where its threads have other numbers: repair it from inside of its container";
            return Err(Error::Refused { pid, why: why.to_owned() });
        }
        let shown_by = living_thread(pid);
        let memory = ProcessMemory::open(shown_by)?;
        let table = mappings(shown_by)?;
        let abandoned = AbandonedRepair::find(pid, &memory, &table)?;
        let mut tracer = Tracer::seize(pid, memory, &table)?;
        let number = abandoned.as_ref().map(|abandoned| abandoned.userfault);
        let userfault = prepare_calls(&mut tracer, number, shared)?;
        let Some(AbandonedRepair { record, stub_page: old_stub_page, pages, code, before, .. }) = abandoned else {
            let mut this = Self::new(tracer, PageTable::new(PageMap::default(), userfault), CodeCache::default());
            this.children.use_stub_page(this.tracer.stub_page());
            this.tracer.resume_all(&this.code)?;
            this.unreported = this.restore_orphans(None)?;
            this.tracer.resume_all(&this.code)?;
            return Ok(this);
        };
        let mut this = Self::new(tracer, PageTable::new(pages, userfault), code);
        this.record = Some(record);
        this.before = before;
        this.restore_abandoned(old_stub_page)?;
        Ok(this)
    }

    fn new(tracer: Tracer, pages: PageTable, code: CodeCache) -> Self {
        Self {
            tracer,
            pages,
            code,
            children: ForkedChildren::default(),
            before: None,
            record: None,
            unreported: Vec::new(),
            alarm: None,
            checked: Instant::now(),
            reopened: 0,
        }
    }

    /// Restores what a killed repairer has left. All threads are stopped, and run on return.
    fn restore_abandoned(&mut self, old_stub_page: Option<u64>) -> Result<()> {
        // The record has the old stub page: until it is updated, the next repairer would read the
        // slots there.
        self.children.use_stub_page(old_stub_page.or(self.tracer.stub_page()));
        if let Some(stub_page) = old_stub_page {
            let reach = self.pages.reach();
            self.children.add_abandoned(self.tracer.pid(), self.tracer.memory(), stub_page, reach);
        }
        self.end_abandoned_calls()?;
        self.tracer.resume_all(&self.code)?;
        self.unreported = self.restore_orphans(old_stub_page)?;
        let Some(stub_page) = old_stub_page else { return self.tracer.resume_all(&self.code) };
        self.children.use_stub_page(self.tracer.stub_page());
        self.update_record()?;
        let restored = self.restore_all(&RestoreReason::Abandoned)?;
        self.unreported.extend(restored);
        self.tracer.unmap_old_stub_page(&self.code, stub_page)
    }

    /// Restores what a killed repairer has left in process `pid`, and detaches. `shared` is a
    /// duplicate of its [userfaultfd](Self::userfault), if the caller has one. Without it nothing
    /// can be restored in a program that has closed all its descriptors. A caller may be killed
    /// during this call and repeat it.
    ///
    /// # Errors
    /// As for [`Self::open`]; also if another process is restoring it already.
    pub fn rescue(pid: u32, shared: Option<OwnedFd>) -> Result<Vec<RemapEvent>> {
        Self::open_with(pid, shared)?.release()
    }

    /// Checks by its capabilities that process `pid` may open the userfaultfd that [`Self::open`]
    /// needs. Does nothing in the process.
    ///
    /// # Errors
    /// [`Error::Refused`] with the command that permits it.
    pub fn check_userfault(pid: u32) -> Result<()> {
        SharedUserfault::check(pid)
    }

    /// Whether a killed repairer has left moved pages in process `pid` or in a child that is being
    /// forked. [`Self::open`] restores them.
    ///
    /// # Errors
    /// As there.
    pub fn is_left_behind(pid: u32) -> Result<bool> {
        let shown_by = living_thread(pid);
        let abandoned = AbandonedRepair::find(pid, &ProcessMemory::open(shown_by)?, &mappings(shown_by)?)?;
        Ok(abandoned.is_some_and(|abandoned| !abandoned.pages.is_empty() || abandoned.before.is_some()))
    }

    /// Makes [`Self::serve`] return when this non-blocking descriptor becomes readable, and read it
    /// until it is empty. It is for SIGCHLD, which announces a stop of a thread. Without it, stops
    /// wait until the next `serve`.
    pub fn wake_by(&mut self, alarm: OwnedFd) {
        self.alarm = Some(alarm);
    }

    /// The userfaultfd that watches moved pages. It changes whenever [`Self::reopened`] does.
    #[must_use]
    pub fn userfault(&self) -> BorrowedFd<'_> {
        self.pages.as_fd()
    }

    /// How many times the userfaultfd was reopened because the program had closed it. No page is
    /// moved right after that.
    #[must_use]
    pub const fn reopened(&self) -> u32 {
        self.reopened
    }

    /// Process number.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.tracer.pid()
    }

    /// Redirects accesses by ladders from now on, and by no clones.
    pub const fn lead_to_ladders(&mut self) {
        self.code.use_ladders();
    }

    /// The program's address for a byte at `address`, which may be in a copy of a moved page.
    #[must_use]
    pub fn seen_at(&self, address: u64) -> u64 {
        let has_it = |moved: &&MovedPage| moved.memory.contains(&address);
        self.pages.pages().iter().find(has_it).map_or(address, |moved| moved.program_address(address))
    }

    /// The program's instruction for the one at `ip`, which may be in the code cache.
    #[must_use]
    pub fn original(&self, ip: u64) -> u64 {
        self.code.original(ip).unwrap_or(ip)
    }

    /// The memory of the process as the program expects it.
    #[must_use]
    pub const fn as_seen(&self) -> ProgramView<'_> {
        ProgramView::new(self.tracer.memory(), self.pages.pages())
    }

    /// Checks at intervals whether the program has closed the userfaultfd. If so, restores all
    /// pages and opens another.
    fn check_descriptor(&mut self) -> Result<Vec<RemapEvent>> {
        if self.checked.elapsed() < CHECK_INTERVAL {
            return Ok(Vec::new());
        }
        self.checked = Instant::now();
        if !self.pages.userfault().is_closed_by_program(&self.tracer) {
            return Ok(Vec::new());
        }
        let events = self.restore_all(&RestoreReason::DescriptorClosed)?;
        let opened = SharedUserfault::open(&mut self.tracer);
        self.tracer.resume_all(&self.code)?;
        self.pages.set_userfault(opened?);
        self.reopened += 1;
        self.update_record()?;
        Ok(events)
    }

    /// Maps the record, unless there is one.
    fn map_record(&mut self) -> Result<()> {
        if self.record.is_some() {
            return Ok(());
        }
        self.tracer.stop_all()?;
        let mapped = RepairRecord::map(&mut self.tracer, &self.code).and_then(|record| {
            let excluded = record.exclude_from_children(&mut self.tracer, &self.code);
            self.record = Some(record);
            excluded
        });
        self.tracer.resume_all(&self.code)?;
        mapped
    }

    /// Records the present state, if there is a record.
    fn update_record(&mut self) -> Result<()> {
        let Some(record) = self.record.as_mut() else { return Ok(()) };
        record.update(&self.tracer, (&self.pages, &self.code), self.before.as_ref())
    }
}

/// Prepares injected calls: maps the stub page and opens the userfaultfd, or takes over the
/// abandoned one of this number. All threads are stopped on return.
fn prepare_calls(tracer: &mut Tracer, abandoned: Option<i32>, shared: Option<OwnedFd>) -> Result<SharedUserfault> {
    let pid = tracer.pid();
    let inherited = abandoned.map(|number| SharedUserfault::inherit(pid, number, shared)).transpose()?;
    tracer.stop_all()?;
    // Without a stub page, abandoned pages can still be restored: all threads may be waiting for
    // them.
    if let Err(error) = tracer.map_stub_page()
        && abandoned.is_none()
    {
        tracer.clear_bootstrap_stub()?;
        return Err(error);
    }
    let opened = inherited.map_or_else(|| SharedUserfault::open(tracer), Ok);
    if opened.is_err() {
        tracer.unmap_new_stub_page();
    }
    if tracer.stub_page().is_some() || opened.is_err() {
        tracer.clear_bootstrap_stub()?;
    }
    opened
}

/// Checks that a process runs a 64-bit program.
fn check_class(pid: u32) -> Result<()> {
    let mut start = [0; 5];
    let failed = |source| Error::Process { pid, operation: "read the program of", source };
    let file = std::fs::File::open(format!("/proc/{}/exe", living_thread(pid))).map_err(failed)?;
    io::Read::read_exact(&mut &file, &mut start).map_err(failed)?;
    if start == *b"\x7fELF\x02" {
        return Ok(());
    }
    Err(Error::Refused { pid, why: "it is no 64-bit program, and only those are rewritten".to_owned() })
}
