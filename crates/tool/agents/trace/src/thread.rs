//! The state of each guest thread: its phase and its counts.
//!
//! ```text
//!            first access           burst over            period over
//!  begins ───────────────> records ────────────> passes ─────────────> records ...
//! ```
//!
//! The mask is all ones while accesses are recorded and zero between bursts, so that one comparison
//! serves both. A new thread records but has no lane yet: its first access claims one.
//!
//! Accesses and instructions are counted block by block; between bursts, with marker call-backs
//! only, marker by marker. Phases change at markers (`marker`).

#![allow(unsafe_code, reason = "QEMU calls with a thread number, which selects the state")]

use std::cell::UnsafeCell;
use std::ffi::c_uint;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use fieldstone_wire::trace::{BurstPhase, EVENT_WORDS, MemoryEvent, Record};

use crate::callback_word::CallbackWord;
use crate::huge_pages;
use crate::lane::{self, LaneWriter, RecordCursor};
use crate::marker::{ExecutionCounts, Marker};
use crate::page_filter::{FilterResult, PageFilter};
use crate::qemu::qemu_plugin_mem_size_shift;
use crate::trace::trace;
use crate::translations::TranslationSwitch;

/// Threads with a state of their own. QEMU numbers threads from 0, and reuses a number when all
/// higher ones have ended.
const THREADS: usize = 4096;
/// States shared by threads with higher numbers. Two live threads whose numbers collide cannot both
/// be traced.
const SHARED: usize = 1024;
const PAGE_SHIFT: u32 = 12;
/// An access at this offset of a page or above may reach the next page: none is longer than 64
/// bytes.
const NEAR_END: u64 = 0xfc0;

/// Accesses between two checks of the requested density.
const CHECK_INTERVAL: u64 = 1 << 17;

/// The arguments of a system call, until it returns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SyscallArguments(pub(crate) [u64; 4]);

/// The state of one guest thread.
#[repr(C, align(128))]
pub(crate) struct GuestThread {
    /// All ones while accesses are recorded.
    mask: u64,
    data: PageFilter,
    cursor: RecordCursor,
    code: PageFilter,
    /// What has run so far; `rest` has the fractions of the counts of markers.
    run: ExecutionCounts,
    rest: ExecutionCounts,
    /// What had run at the last marker.
    last_marker: ExecutionCounts,
    /// The number of accesses at which the phase ends, or is checked.
    limit: u64,
    /// The accesses at which the last burst ended, and the gap before the next one.
    burst_end: u64,
    gap: u64,
    translation: TranslationSwitch,
    phase: BurstPhase,
    /// The number of finished bursts.
    bursts: u64,
    /// What had run when the batch began.
    batch_start: ExecutionCounts,
    writer: Option<LaneWriter>,
    /// Whether the batch has allocations that only this thread knows.
    has_unshared: bool,
    /// The mask and the counts from before the pause, while the recorder's accesses run.
    paused: Option<(u64, ExecutionCounts)>,
    pub(crate) arguments: SyscallArguments,
}

impl GuestThread {
    const NEW: Self = Self {
        mask: u64::MAX,
        data: PageFilter::NONE,
        cursor: RecordCursor::EMPTY,
        code: PageFilter::NONE,
        run: ExecutionCounts::NONE,
        rest: ExecutionCounts::NONE,
        last_marker: ExecutionCounts::NONE,
        limit: u64::MAX,
        burst_end: 0,
        gap: u64::MAX,
        translation: TranslationSwitch::NEW,
        phase: BurstPhase::Passing,
        bursts: 0,
        batch_start: ExecutionCounts::NONE,
        writer: None,
        has_unshared: false,
        paused: None,
        arguments: SyscallArguments([0; 4]),
    };

    /// Starts the next phase, or the first one.
    #[cold]
    fn next_phase(&mut self) {
        let plan = trace().plan;
        if self.writer.is_some() {
            self.submit_batch();
        } else {
            self.writer = LaneWriter::claim();
            self.bursts = 0;
            self.cursor = self.writer.as_ref().map_or(RecordCursor::EMPTY, LaneWriter::start);
        }
        let (warm_up, counted) = plan.burst_of(self.bursts);
        let (phase, length) = match self.phase {
            _ if self.writer.is_none() => (BurstPhase::Passing, u64::MAX),
            _ if plan.burst == 0 => (BurstPhase::Counted, u64::MAX),
            BurstPhase::Passing if warm_up > 0 => (BurstPhase::Warming, warm_up),
            BurstPhase::Passing | BurstPhase::Warming => (BurstPhase::Counted, counted),
            BurstPhase::Counted => {
                self.burst_end = self.run.accesses;
                self.gap = plan.period_of(self.bursts).saturating_sub(warm_up + counted);
                self.bursts += 1;
                match self.remaining_gap() {
                    0 if warm_up > 0 => (BurstPhase::Warming, warm_up),
                    left => (BurstPhase::Passing, until_check(left)),
                }
            }
        };
        self.phase = phase;
        self.limit = self.run.accesses.saturating_add(length);
        self.mask = if phase == BurstPhase::Passing { 0 } else { u64::MAX };
        self.data.clear();
        self.code.clear();
    }

    /// Accesses left before the next burst, with the density that is requested now.
    fn remaining_gap(&self) -> u64 {
        let density = self.writer.as_ref().map_or(1, LaneWriter::density);
        let gap = if density > 1 && density >= trace().plan.density { 0 } else { self.gap / density };
        self.burst_end.saturating_add(gap).saturating_sub(self.run.accesses)
    }

    /// Whether the gap continues; sets the limit of its next check.
    fn continues_gap(&mut self) -> bool {
        let left = if self.phase == BurstPhase::Passing && self.writer.is_some() { self.remaining_gap() } else { 0 };
        self.limit = self.run.accesses.saturating_add(until_check(left));
        left > 0
    }

    #[inline(never)]
    fn submit_batch(&mut self) {
        let is_paused = self.paused.is_some();
        self.resume();
        self.has_unshared = false;
        let run = self.run.since(self.batch_start);
        self.batch_start = self.run;
        if let Some(writer) = &mut self.writer {
            writer.submit(&mut self.cursor, self.phase, run);
        }
        if is_paused {
            self.pause();
        }
    }

    /// The cursor has reached its limit.
    fn handle_full_cursor(&mut self) {
        match &mut self.writer {
            None => self.next_phase(),
            Some(writer) => {
                if !writer.handle_limit(&mut self.cursor) {
                    self.submit_batch();
                }
            }
        }
    }

    /// Records an event between the accesses. With `is_shared_now`, the batch is submitted, before
    /// later batches of other threads.
    pub(crate) fn record_event(&mut self, event: MemoryEvent, operands: [u64; EVENT_WORDS - 1], is_shared_now: bool) {
        if self.writer.is_none() {
            self.next_phase();
        }
        for _ in 0..2 {
            if self.writer.as_mut().is_none_or(|writer| writer.push_event(&mut self.cursor, event, operands)) {
                break;
            }
            self.submit_batch();
        }
        self.has_unshared = !is_shared_now;
        if is_shared_now {
            self.submit_batch();
        }
    }

    /// Whether another thread may access memory whose allocation is still in this thread's batch.
    pub(crate) fn has_unshared_allocations(&self) -> bool {
        self.has_unshared && lane::has_other_threads()
    }

    /// Stops recording: the following accesses are the recorder's.
    pub(crate) fn pause(&mut self) {
        if self.paused.is_none() && self.writer.is_some() {
            self.paused = Some((self.mask, self.run));
            self.mask = 0;
        }
    }

    /// Records again.
    pub(crate) fn resume(&mut self) {
        if let Some((mask, run)) = self.paused.take() {
            self.mask = mask;
            self.run = run;
        }
    }

    /// Counts a block. False if [`Self::record_fetch`] has to record its page.
    #[inline(always)]
    pub(crate) fn count_block(&mut self, word: CallbackWord) -> bool {
        self.run.instructions += word.instructions();
        self.run.accesses += word.accesses();
        (word.page() ^ self.code.last) & self.mask == 0
    }

    /// Runs a marker in code with all call-backs. False if [`Self::handle_marker`] has to handle
    /// it.
    #[inline(always)]
    pub(crate) fn run_marker(&mut self, marker: &Marker) -> bool {
        if self.mask != 0 {
            marker.update(self.run.since(self.last_marker));
        }
        self.last_marker = self.run;
        self.run.accesses < self.limit && self.translation.is_current(self.mask != 0)
    }

    /// Runs a marker in code with marker call-backs only. False if [`Self::handle_marker`] has to
    /// handle it.
    #[inline(always)]
    pub(crate) fn add_marker(&mut self, marker: &Marker) -> bool {
        marker.add_to(&mut self.run, &mut self.rest);
        self.last_marker = self.run;
        self.run.accesses < self.limit && self.translation.is_current(self.mask != 0)
    }

    /// Handles the end of a phase, and code of the other translation. `state` is the address of the
    /// guest state.
    #[cold]
    #[inline(never)]
    pub(crate) fn handle_marker(&mut self, state: u64) {
        if self.paused.is_some() {
            return;
        }
        if self.run.accesses >= self.limit && !self.continues_gap() {
            self.next_phase();
        }
        self.translation.request(state, self.mask != 0);
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn record_fetch(&mut self, page: u64) {
        if self.cursor.is_full() {
            self.handle_full_cursor();
            if self.mask == 0 {
                return;
            }
        }
        if let FilterResult::Record(order) = self.code.change_page(page) {
            // SAFETY: the cursor is not full, by the check above.
            unsafe { self.cursor.push(order.map(Record::fetch), Record::fetch(page << PAGE_SHIFT)) };
        }
    }

    /// Counts an access that is not counted with its block.
    #[inline(always)]
    pub(crate) fn count_access(&mut self) {
        self.run.accesses += 1;
    }

    /// Records an access. Rare cases are in one call at the end, so that no registers are saved.
    #[inline(always)]
    pub(crate) fn record_access(&mut self, information: u32, address: u64, word: CallbackWord) {
        if ((address >> PAGE_SHIFT) ^ self.data.last) & self.mask != 0 {
            if self.cursor.is_full() {
                return self.access_with_full_cursor(information, address, word);
            }
            self.record(address, word);
        }
        if address & NEAR_END == NEAR_END {
            self.record_second_page(information, address, word);
        }
    }

    /// Records an access to another page than the previous one. The cursor must not be full.
    #[inline(always)]
    fn record(&mut self, address: u64, word: CallbackWord) {
        if let FilterResult::Record(order) = self.data.change_page(address >> PAGE_SHIFT) {
            // SAFETY: the callers check that the cursor is not full.
            unsafe { self.cursor.push(order.map(Record::data), Record::data(address).with(word.flags())) };
        }
    }

    #[cold]
    #[inline(never)]
    fn access_with_full_cursor(&mut self, information: u32, address: u64, word: CallbackWord) {
        self.handle_full_cursor();
        if self.mask != 0 {
            self.record(address, word);
        }
        self.record_second_page(information, address, word);
    }

    #[cold]
    #[inline(never)]
    fn record_second_page(&mut self, information: u32, address: u64, word: CallbackWord) {
        // SAFETY: the function only extracts bits of its argument.
        let size = 1_u64 << unsafe { qemu_plugin_mem_size_shift(information) }.min(6);
        let end = address.wrapping_add(size - 1);
        if end >> PAGE_SHIFT != address >> PAGE_SHIFT && self.mask != 0 {
            if self.cursor.is_full() {
                self.handle_full_cursor();
            }
            if self.mask != 0 {
                self.record(end, word);
            }
        }
    }

    /// Submits the current batch.
    pub(crate) fn flush(&mut self) {
        if self.writer.is_some() {
            self.submit_batch();
        }
    }

    /// Submits the current batch and leaves the lane. The next access would claim a new one.
    pub(crate) fn close_lane(&mut self) {
        self.flush();
        if let Some(writer) = self.writer.take() {
            writer.release();
        }
        *self = Self::NEW;
    }
}

/// The accesses before the next check of the gap; all that are left if the density is fixed.
fn until_check(left: u64) -> u64 {
    if trace().plan.density > 1 { left.min(CHECK_INTERVAL) } else { left }
}

struct ThreadStates<const COUNT: usize>([UnsafeCell<GuestThread>; COUNT]);

// SAFETY: a state is used by its own thread only, or after QEMU has stopped all others (exit, child
// of a fork).
unsafe impl<const COUNT: usize> Sync for ThreadStates<COUNT> {}

impl<const COUNT: usize> ThreadStates<COUNT> {
    const fn new() -> Self {
        Self([const { UnsafeCell::new(GuestThread::NEW) }; COUNT])
    }
}

static STATES: ThreadStates<THREADS> = ThreadStates::new();
static SHARED_STATES: ThreadStates<SHARED> = ThreadStates::new();
/// The number of the thread that uses each shared state; 0 for none.
static OWNERS: [AtomicU32; SHARED] = [const { AtomicU32::new(0) }; SHARED];

/// The state of the calling thread, if it has one.
#[inline(always)]
pub(crate) fn thread_state(number: c_uint) -> Option<&'static mut GuestThread> {
    let Some(state) = STATES.0.get(number as usize) else { return shared_thread_state(number) };
    // SAFETY: QEMU passes the number of the calling thread, and no call-back calls another one.
    Some(unsafe { &mut *state.get() })
}

/// The shared state of a thread with a high number, which keeps it until it ends.
#[cold]
fn shared_thread_state(number: c_uint) -> Option<&'static mut GuestThread> {
    let at = number as usize % SHARED;
    match OWNERS[at].compare_exchange(0, number, Acquire, Relaxed) {
        // SAFETY: this thread has just become the owner, and no other number uses the state while
        // it is.
        Ok(_) => Some(unsafe { &mut *SHARED_STATES.0[at].get() }),
        // SAFETY: this thread is the owner, and no other number uses the state while it is.
        Err(owner) if owner == number => Some(unsafe { &mut *SHARED_STATES.0[at].get() }),
        Err(_) => {
            lane::report_no_lane();
            None
        }
    }
}

/// Frees the shared state of a thread that has left its lane.
pub(crate) fn release_state(number: c_uint) {
    if number as usize >= THREADS {
        // Nothing changes if another thread owns it.
        let _ = OWNERS[number as usize % SHARED].compare_exchange(number, 0, Release, Relaxed);
    }
}

/// All states, at exit or in the child of a fork.
pub(crate) fn all_states() -> impl Iterator<Item = &'static mut GuestThread> {
    // SAFETY: the callers run when no other thread exists or runs, so no other reference is in use.
    STATES.0.iter().chain(&SHARED_STATES.0).map(|state| unsafe { &mut *state.get() })
}

/// Resets the states in the child of a fork: it has one thread, and the lanes belong to its parent.
extern "C" fn reset_child() {
    trace().forks.fetch_add(1, Relaxed);
    lane::reset_in_child();
    huge_pages::reset_in_child();
    // Dropping a writer changes nothing shared. The only thread of the child runs this, outside of
    // any call-back.
    all_states().for_each(|state| *state = GuestThread::NEW);
    OWNERS.iter().for_each(|owner| owner.store(0, Relaxed));
}

/// Resets the states in the child of each fork.
pub(crate) fn register_fork_handler() {
    // SAFETY: `reset_child` writes memory of this process and one shared counter only.
    unsafe {
        libc::pthread_atfork(None, None, Some(reset_child));
    }
}
