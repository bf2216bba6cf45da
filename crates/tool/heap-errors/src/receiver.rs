//! Creates the record of a guarded run, and receives findings in a thread.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::thread::JoinHandle;

use fieldstone_guard::{Kind, Side};
use fieldstone_launch::identity::inner_pid;
use fieldstone_launch::launch::Injection;
use fieldstone_launch::shared_record::SharedRecord;
use fieldstone_launch::{AgentFile, Error, Result};
use fieldstone_report::HeapError;
use fieldstone_report::heap_error::{GuardedProcess, UnguardedCount};
use fieldstone_sys::signals::spawn_without_signals;
use fieldstone_sys::{process, thread_end};
use fieldstone_wire::guard::{
    Access, CellState, FindingCell, GUARD_VARIABLE, GuardConfig, GuardProcess, GuardSession, Place, Sampling,
    UnguardedReason,
};
use rustix::thread::futex;

use crate::access;
use crate::stacks::{ProcessMaps, StackNames};

/// Allocations of each site that are guarded before the gaps grow.
const FIRST_OF_SITE: u32 = 2;

/// The user's choices.
#[derive(Clone, Copy, Debug)]
pub struct GuardOptions {
    /// Which allocations are guarded.
    pub sampling: Sampling,
    /// The largest number of allocations of a site per guarded one.
    pub interval: u32,
    /// Bytes that guarded objects may take in each process.
    pub memory_bytes: u64,
    /// Where in its pages an object lies.
    pub side: Side,
    /// Whether a process continues after a finding.
    pub keep_going: bool,
}

/// A run of a program with guards: the shared record, and the thread that receives findings.
/// Dropping it ends the thread.
pub struct GuardedRun {
    record: Arc<SharedRecord<GuardSession>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for GuardedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedRun").field("record", &self.record).finish_non_exhaustive()
    }
}

impl GuardedRun {
    /// Creates the record and starts the thread, which calls `report` for each finding. The process
    /// that found it waits until `report` has returned.
    ///
    /// # Errors
    /// [`fieldstone_launch::Error::System`] without memory, descriptors or a thread.
    pub fn start(options: &GuardOptions, report: impl FnMut(&HeapError) + Send + 'static) -> Result<Self> {
        let config = GuardConfig {
            sampling: options.sampling as u32,
            interval: options.interval,
            first: FIRST_OF_SITE,
            side: options.side as u32,
            keep_going: u32::from(options.keep_going),
            memory_bytes: options.memory_bytes,
        };
        let record = Arc::new(SharedRecord::<GuardSession>::create_with(|session| session.config = config)?);
        let stop = Arc::new(AtomicBool::new(false));
        let receiver = Receiver { record: Arc::clone(&record), names: StackNames::new(), report };
        let stopped = Arc::clone(&stop);
        // A signal to this command is the program's, and its forwarder takes it.
        let work = move || {
            let record = Arc::clone(&receiver.record);
            thread_end::with_mark(&record.record().receiver, || receiver.run(&stopped));
        };
        let thread = spawn_without_signals("heap-errors", work).map_err(Error::system("start a thread"))?;
        Ok(Self { record, stop, thread: Some(thread) })
    }

    /// What loads the agent into the program and its children.
    #[must_use]
    pub fn injection(&self, agent: &AgentFile) -> Injection {
        let variable = format!("{}={}", GUARD_VARIABLE.to_string_lossy(), self.record.path());
        Injection { library: agent.path().to_owned(), variable: OsString::from(variable) }
    }

    /// The counts of each process so far.
    #[must_use]
    pub fn counts(&self) -> Vec<GuardedProcess> {
        self.record.record().claimed_processes().map(counts).collect()
    }

    /// Receives the findings that are left, and ends the thread.
    pub fn end(&mut self) {
        self.stop.store(true, SeqCst);
        let attention = &self.record.record().attention;
        attention.fetch_add(1, SeqCst);
        let _ = futex::wake(attention, futex::Flags::empty(), 1);
        // A panic of the thread was printed by itself.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for GuardedRun {
    fn drop(&mut self) {
        self.end();
    }
}

fn counts(process: &GuardProcess) -> GuardedProcess {
    let (allocations, guarded) = (process.allocations.load(Relaxed), process.guarded.load(Relaxed));
    let counted: Vec<u64> = process.unguarded.iter().map(|count| count.load(Relaxed)).collect();
    let others = guarded + counted.iter().sum::<u64>();
    let unguarded = UnguardedReason::ALL.into_iter().map(|reason| {
        let is_rest = reason == UnguardedReason::NotSampled;
        let allocations = if is_rest { allocations.saturating_sub(others) } else { counted[reason as usize] };
        UnguardedCount { reason: reason.words().to_owned(), allocations }
    });
    GuardedProcess {
        pid: process.pid.load(Relaxed),
        name: process.name.to_string(),
        findings: process.findings.load(Relaxed),
        allocations,
        guarded,
        sites: process.sites.load(Relaxed),
        unguarded: unguarded.collect(),
        peak_memory_bytes: process.peak_bytes.load(Relaxed),
        reserved_bytes: process.reserved_bytes.load(Relaxed),
    }
}

/// The state of the thread.
struct Receiver<F> {
    record: Arc<SharedRecord<GuardSession>>,
    names: StackNames,
    report: F,
}

impl<F: FnMut(&HeapError)> Receiver<F> {
    fn run(mut self, stop: &AtomicBool) {
        let record = Arc::clone(&self.record);
        let session = record.record();
        loop {
            let seen = session.attention.load(Acquire);
            let is_last = stop.load(SeqCst);
            for cell in &session.cells {
                if cell.state.load(Acquire) == CellState::Waiting as u32 {
                    let error = self.read(cell);
                    (self.report)(&error);
                    let answered = CellState::Answered as u32;
                    // A process that gave up has printed the finding itself.
                    let _ = cell.state.compare_exchange(CellState::Waiting as u32, answered, Release, Relaxed);
                    let _ = futex::wake(&cell.state, futex::Flags::empty(), 64);
                }
            }
            if is_last {
                return;
            }
            // The loop compares the counter, so it does not matter why the wait ended.
            let _ = futex::wait(&session.attention, futex::Flags::empty(), seen, None);
        }
    }

    fn read(&mut self, cell: &FindingCell) -> HeapError {
        let maps = maps_of(cell.pid.load(Relaxed));
        let kind = Kind::from_code(cell.kind.load(Relaxed)).unwrap_or(Kind::InvalidFree);
        let access = Access::from_code(cell.access.load(Relaxed)).unwrap_or(Access::Read);
        let is_fault = cell.faulted.load(Relaxed) != 0;
        let mut stack = |stack: &fieldstone_wire::guard::Stack, is_fault| {
            self.names.name(&maps, &stack.frames().collect::<Vec<_>>(), is_fault)
        };
        let address = cell.address.load(Relaxed);
        let bytes = if is_fault { access::bytes(&code(cell)) } else { cell.bytes.load(Relaxed) };
        HeapError {
            schema: HeapError::SCHEMA.to_owned(),
            kind: kind.name().to_owned(),
            access: access_name(access).to_owned(),
            bytes,
            is_vector: is_fault && access::is_vector(bytes),
            offset: cell.offset.load(Relaxed),
            object_bytes: cell.object_bytes.load(Relaxed),
            stack: stack(&cell.stack, is_fault),
            allocated: stack(&cell.allocated, false),
            freed: stack(&cell.freed, false),
            site_allocations: cell.site_allocations.load(Relaxed),
            site_guarded: cell.site_guarded.load(Relaxed),
            program: program_name(self.record.record(), maps.pid(), cell.pid.load(Relaxed)),
            process: cell.pid.load(Relaxed),
            thread: cell.thread.load(Relaxed),
            allocated_thread: cell.allocated_by.load(Relaxed),
            freed_thread: cell.freed_by.load(Relaxed),
            address,
            object: cell.object.load(Relaxed),
            is_padding: access == Access::Padding,
            place: match Place::from_code(cell.place.load(Relaxed)) {
                Some(Place::Stack) => "the stack".to_owned(),
                Some(Place::File) => maps.file_name_at(address).unwrap_or_else(|| "a loaded file".to_owned()),
                _ => String::new(),
            },
        }
    }
}

const fn access_name(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::Write | Access::Padding => "write",
        Access::Free => "free",
    }
}

fn code(cell: &FindingCell) -> Vec<u8> {
    cell.code.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect()
}

/// The mappings of the process that calls itself `pid`, possibly in its own pid namespace.
fn maps_of(pid: u32) -> ProcessMaps {
    let has_agent = |maps: &ProcessMaps| maps.has_name("memfd:fieldstone-guard");
    let direct = ProcessMaps::read(pid);
    if has_agent(&direct) {
        return direct;
    }
    let others = process::descendants(std::process::id()).unwrap_or_default();
    let others = others.into_iter().filter(|&other| inner_pid(other) == pid);
    others.map(ProcessMaps::read).find(has_agent).unwrap_or_default()
}

/// The name of process `pid`, or that of the entry of `inner_pid` if the process has ended.
fn program_name(session: &GuardSession, pid: u32, inner_pid: u32) -> String {
    let name = process::exe(pid).ok().and_then(|path| path.file_name().map(Path::new).map(Path::to_owned));
    let is_own = |process: &&GuardProcess| process.pid.load(Relaxed) == inner_pid;
    let entry = || session.claimed_processes().filter(is_own).last().map(|process| process.name.to_string());
    let name = name.map(|name| name.display().to_string()).or_else(entry);
    name.unwrap_or_else(|| "a program".to_owned())
}
