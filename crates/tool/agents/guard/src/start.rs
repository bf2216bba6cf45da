//! The start of the agent, and the session that it shares with the supervisor.
//!
//! ```text
//! first allocation after libc's start, or the constructor
//!   search the next allocator -> map the session -> reserve objects, sites and caches
//!   -> install the handler of faults -> atfork handlers -> set the range: objects are guarded
//! ```
//! The first allocation may come from a constructor that runs before the agent's own. Before libc
//! has set `environ`, nothing is started: the loader allocates then.
//!
//! The agent's two environment variables stay, so that programs that this one executes are guarded
//! too. A step that fails leaves the program unguarded, and one line says so on standard error.

#![allow(unsafe_code, reason = "runs as a constructor, and maps the session")]

use core::ffi::CStr;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use fieldstone_guard::{Side, Slots};
use fieldstone_preload::{loader, process};
use fieldstone_wire::MAGIC;
use fieldstone_wire::guard::{GUARD_VARIABLE, GuardProcess, GuardSession, Sampling, UnguardedReason};

use crate::{budget, buffers, dispositions, ending, foreign, fork, masks, next, operators, range, raw, sites, thread};

/// The user's settings.
pub(crate) struct Settings {
    pub(crate) sampling: Sampling,
    /// The largest number of allocations of a site per guarded one.
    pub(crate) interval: u32,
    /// Allocations of each site that are guarded first.
    pub(crate) first: u32,
    /// Whether the process continues after a finding.
    pub(crate) keep_going: bool,
    side: Side,
    /// The side of the first object of each site with [`Side::Both`]; differs from run to run.
    is_left_first: bool,
}

impl Settings {
    /// The side of a site's object number `number`. Both sides take turns at each site, so two
    /// objects find overflows and underflows.
    pub(crate) fn side_of(&self, number: u64) -> Side {
        match self.side {
            Side::Both if number.is_multiple_of(2) == self.is_left_first => Side::Left,
            Side::Both => Side::Right,
            side => side,
        }
    }
}

struct Started {
    session: &'static GuardSession,
    settings: Settings,
}

struct StartedCell(core::cell::UnsafeCell<Option<Started>>);

// SAFETY: written once, in state `STARTING`, and read only in state `STARTED`, which is final.
unsafe impl Sync for StartedCell {}

static STARTED_VALUE: StartedCell = StartedCell(core::cell::UnsafeCell::new(None));
static PROCESS: AtomicPtr<GuardProcess> = AtomicPtr::new(null_mut());
static STATE: AtomicU32 = AtomicU32::new(NEW);

const NEW: u32 = 0;
const STARTING: u32 = 1;
/// Started, or not to be started in this process.
const STARTED: u32 = 2;

fn started() -> Option<&'static Started> {
    if STATE.load(Acquire) != STARTED {
        return None;
    }
    // SAFETY: in this state the value is not written again.
    unsafe { (*STARTED_VALUE.0.get()).as_ref() }
}

/// The settings; `None` in a process that is not guarded.
pub(crate) fn settings() -> Option<&'static Settings> {
    started().map(|started| &started.settings)
}

/// Whether the process continues after a finding.
pub(crate) fn keeps_going() -> bool {
    settings().is_some_and(|settings| settings.keep_going)
}

/// The record shared with the supervisor.
pub(crate) fn session() -> Option<&'static GuardSession> {
    started().map(|started| started.session)
}

fn process() -> Option<&'static GuardProcess> {
    // SAFETY: null, or an entry of the session, which stays mapped and consists of atomics.
    unsafe { PROCESS.load(Acquire).as_ref() }
}

/// Adds to a counter of this process.
pub(crate) fn count(counter: impl FnOnce(&GuardProcess) -> &AtomicU64, by: u64) {
    if let Some(process) = process() {
        counter(process).fetch_add(by, Relaxed);
    }
}

/// Counts an allocation that was due and is not guarded.
pub(crate) fn count_unguarded(reason: UnguardedReason) {
    count(|process| &process.unguarded[reason as usize], 1);
}

/// Counts a finding, also one that is not printed.
pub(crate) fn count_finding() {
    if let Some(process) = process() {
        process.findings.fetch_add(1, Relaxed);
    }
}

/// The constructor.
///
/// # Safety
/// Only the loader may call this.
pub(crate) unsafe extern "C" fn construct() {
    ending::search();
    begin();
}

/// The destructor: waits for findings, and completes the counters.
///
/// # Safety
/// Only the loader may call this, at the end of the process.
pub(crate) unsafe extern "C" fn finish() {
    if settings().is_some() {
        ending::wait();
        thread::write_back_all();
        record_memory();
    }
}

/// Records the memory of the objects.
pub(crate) fn record_memory() {
    let (Some(process), Some(slots)) = (process(), range::slots()) else { return };
    let stats = slots.stats();
    process.memory_bytes.store(stats.memory as u64, Relaxed);
    process.peak_bytes.fetch_max(stats.memory_peak as u64, Relaxed);
}

/// Starts the agent, unless that was done or libc has not started yet.
pub(crate) fn begin() {
    if STATE.load(Relaxed) == STARTED || !process::is_started() || !next::search() {
        return;
    }
    if STATE.compare_exchange(NEW, STARTING, AcqRel, Acquire).is_err() {
        return;
    }
    if let Some(path) = process::variable(GUARD_VARIABLE) {
        match start(path) {
            // SAFETY: only the thread that set `STARTING` comes here, and no reader exists before
            // `STARTED`.
            Ok((started, slots)) => unsafe {
                let is_all = started.settings.sampling == Sampling::All;
                *STARTED_VALUE.0.get() = Some(started);
                STATE.store(STARTED, Release);
                range::install(slots);
                operators::prepare();
                if is_all {
                    foreign::check_frees();
                }
                return;
            },
            Err(why) => {
                raw::write_error(b"fieldstone: a process runs without guards: ");
                raw::write_error(why.as_bytes());
                raw::write_error(b"\n");
            }
        }
    }
    STATE.store(STARTED, Release);
}

/// The record vanishes with the command that shares it.
const HAS_ENDED: &str = "the fieldstone command that guards it has ended (or there is no /proc)\n\
    try: fieldstone run --guard -- sh -c 'PROGRAM; wait', so that the command lasts as long as its processes";
const NO_ACCESS: &str = "it may not open the record of the fieldstone command, which another user runs\n\
    try: run the fieldstone command as the user of this process";

fn start(path: &CStr) -> Result<(Started, Slots), &'static str> {
    let session = raw::map_file(path, size_of::<GuardSession>())
        // SAFETY: mapped for the life of the process and long enough; all fields that change are
        // atomic.
        .map(|memory| unsafe { memory.cast::<GuardSession>().as_ref() })
        .map_err(|error| if error == libc::ENOENT { HAS_ENDED } else { NO_ACCESS })?;
    if session.magic != MAGIC {
        return Err(HAS_ENDED);
    }
    session.check().map_err(|_| "the record belongs to another build of fieldstone")?;
    let config = &session.config;
    let side = Side::from_code(config.side).unwrap_or_default();
    let memory = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX);
    let slots = Slots::builder().memory(memory).side(side).seed(raw::ticks() as usize);
    // The filters of programs allow what their malloc calls: madvise(2), not process_madvise(2).
    let slots = slots.without_batches().build();
    let slots = slots.map_err(|_| "no address space for guarded objects: raise `ulimit -v`")?;
    if !sites::prepare() || !thread::prepare() {
        return Err("no address space for its tables: raise `ulimit -v`");
    }
    // A core dump would have the size of the address space.
    raw::exclude_from_dumps(slots.base(), slots.span());
    claim_process(session, slots.span());
    loader::prepare();
    budget::prepare();
    buffers::prepare();
    ending::prepare();
    dispositions::install();
    masks::prepare();
    fork::prepare();
    let sampling = match config.sampling {
        sampling if sampling == Sampling::All as u32 => Sampling::All,
        sampling if sampling == Sampling::Fixed as u32 => Sampling::Fixed,
        _ => Sampling::Budget,
    };
    let keep_going = config.keep_going != 0;
    let settings = Settings {
        sampling,
        interval: config.interval.max(1),
        first: config.first.max(1),
        keep_going,
        side,
        is_left_first: raw::ticks() >> 8 & 1 == 1,
    };
    Ok((Started { session, settings }, slots))
}

fn claim_process(session: &'static GuardSession, reserved: usize) {
    if let Some(process) = session.claim_process(raw::getpid()) {
        process.reserved_bytes.store(reserved as u64, Relaxed);
        process.name.set(process::program_name());
        PROCESS.store(core::ptr::from_ref(process).cast_mut(), Release);
    } else {
        PROCESS.store(null_mut(), Release);
    }
}

/// In the child of a fork: it counts for itself.
pub(crate) fn after_fork() {
    if let (Some(session), Some(slots)) = (session(), range::slots()) {
        claim_process(session, slots.span());
    }
}
