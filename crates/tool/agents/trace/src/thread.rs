//! The state of each guest thread: what it records now, and what it has counted.
//!
//! ```text
//!            first access           burst over            period over
//!  begins ───────────────> records ────────────> passes ─────────────> records ...
//! ```
//!
//! The mask is all ones while accesses are recorded and zero while they pass, so that one comparison serves both. A thread
//! that has just begun records, and has nowhere to: its first access finds it a lane.
//!
//! Accesses and instructions are counted block by block; while accesses pass and markers alone call back, marker by marker. Phases
//! change at markers (`marker`).

#![allow(unsafe_code, reason = "QEMU calls with the thread's number; its state is reached by it")]

use std::cell::UnsafeCell;
use std::ffi::c_uint;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use fieldstone_wire::trace::{BurstPhase, EVENT_WORDS, MemoryEvent, Record};

use crate::huge;
use crate::lane::{self, Cursor, Writer};
use crate::marker::{Marker, Run};
use crate::qemu::qemu_plugin_mem_size_shift;
use crate::recent::{Recent, Turn};
use crate::switch::Environment;
use crate::trace::trace;
use crate::word::Word;

/// Threads that have a state by their number; QEMU numbers them from 0, and gives a number anew only when all above it have ended.
const THREADS: usize = 4096;
/// States that those with higher numbers share: as many of them can live at once that do not meet.
const LATER: usize = 1024;
const PAGE_SHIFT: u32 = 12;
/// An access that begins here or later in its page may reach the next page: none is longer than 64 bytes.
const NEAR_END: u64 = 0xfc0;

/// Accesses that pass from one look at whether haste is asked for to the next.
const PIECE: u64 = 1 << 17;

/// What a system call was asked, until it returns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked(pub(crate) [u64; 4]);

/// One guest thread.
#[repr(C, align(128))]
pub(crate) struct Thread {
    /// All ones while accesses are recorded.
    mask: u64,
    data: Recent,
    cursor: Cursor,
    code: Recent,
    /// What has run so far, with the fractions of what markers stand for.
    run: Run,
    rest: Run,
    /// What had run when the last marker did.
    marked: Run,
    /// The accesses at which the phase ends, or is looked at.
    limit: u64,
    /// The accesses at which the last burst ended, and those that pass before the next one.
    ended: u64,
    gap: u64,
    environment: Environment,
    phase: BurstPhase,
    /// Bursts that are over.
    bursts: u64,
    /// What had run when the batch began.
    began: Run,
    writer: Option<Writer>,
    /// Whether allocations lie in the batch that only this thread knows of.
    untold: bool,
    /// The mask and what had run before, while accesses are not the program's.
    paused: Option<(u64, Run)>,
    pub(crate) asked: Asked,
}

impl Thread {
    const NEW: Self = Self {
        mask: u64::MAX,
        data: Recent::NONE,
        cursor: Cursor::NOWHERE,
        code: Recent::NONE,
        run: Run::NONE,
        rest: Run::NONE,
        marked: Run::NONE,
        limit: u64::MAX,
        ended: 0,
        gap: u64::MAX,
        environment: Environment::NEW,
        phase: BurstPhase::Passing,
        bursts: 0,
        began: Run::NONE,
        writer: None,
        untold: false,
        paused: None,
        asked: Asked([0; 4]),
    };

    /// The next phase, or the first one.
    #[cold]
    fn turn(&mut self) {
        let plan = trace().plan;
        if self.writer.is_some() {
            self.hand_over();
        } else {
            self.writer = Writer::claim();
            self.bursts = 0;
            self.cursor = self.writer.as_ref().map_or(Cursor::NOWHERE, Writer::start);
        }
        let (warm_up, counted) = plan.burst_of(self.bursts);
        let (phase, length) = match self.phase {
            _ if self.writer.is_none() => (BurstPhase::Passing, u64::MAX),
            _ if plan.burst == 0 => (BurstPhase::Counted, u64::MAX),
            BurstPhase::Passing if warm_up > 0 => (BurstPhase::Warming, warm_up),
            BurstPhase::Passing | BurstPhase::Warming => (BurstPhase::Counted, counted),
            BurstPhase::Counted => {
                self.ended = self.run.accesses;
                self.gap = plan.period_of(self.bursts).saturating_sub(warm_up + counted);
                self.bursts += 1;
                match self.left_to_pass() {
                    0 if warm_up > 0 => (BurstPhase::Warming, warm_up),
                    left => (BurstPhase::Passing, until_look(left)),
                }
            }
        };
        self.phase = phase;
        self.limit = self.run.accesses.saturating_add(length);
        self.mask = if phase == BurstPhase::Passing { 0 } else { u64::MAX };
        self.data.clear();
        self.code.clear();
    }

    /// Accesses that are still to pass before the next burst, with the haste that is asked for now.
    fn left_to_pass(&self) -> u64 {
        let density = self.writer.as_ref().map_or(1, Writer::density);
        let gap = if density > 1 && density >= trace().plan.density { 0 } else { self.gap / density };
        self.ended.saturating_add(gap).saturating_sub(self.run.accesses)
    }

    /// Whether accesses go on passing, and until when.
    fn passes_on(&mut self) -> bool {
        let left = if self.phase == BurstPhase::Passing && self.writer.is_some() { self.left_to_pass() } else { 0 };
        self.limit = self.run.accesses.saturating_add(until_look(left));
        left > 0
    }

    #[inline(never)]
    fn hand_over(&mut self) {
        let paused = self.paused.is_some();
        self.resume();
        self.untold = false;
        let run = self.run.since(self.began);
        self.began = self.run;
        if let Some(writer) = &mut self.writer {
            writer.hand_over(&mut self.cursor, self.phase, run);
        }
        if paused {
            self.pause();
        }
    }

    /// The cursor has come to its limit.
    fn make_room(&mut self) {
        match &mut self.writer {
            None => self.turn(),
            Some(writer) => {
                if !writer.go_on(&mut self.cursor) {
                    self.hand_over();
                }
            }
        }
    }

    /// Tells an event between the accesses. With `now`, other threads' later batches are read after it.
    pub(crate) fn tell(&mut self, event: MemoryEvent, operands: [u64; EVENT_WORDS - 1], now: bool) {
        if self.writer.is_none() {
            self.turn();
        }
        for _ in 0..2 {
            if self.writer.as_mut().is_none_or(|writer| writer.push_event(&mut self.cursor, event, operands)) {
                break;
            }
            self.hand_over();
        }
        self.untold = !now;
        if now {
            self.hand_over();
        }
    }

    /// Whether another thread may touch what only this one has been told of.
    pub(crate) fn has_untold(&self) -> bool {
        self.untold && lane::are_several()
    }

    /// From now on accesses are not the program's.
    pub(crate) fn pause(&mut self) {
        if self.paused.is_none() && self.writer.is_some() {
            self.paused = Some((self.mask, self.run));
            self.mask = 0;
        }
    }

    /// They are again.
    pub(crate) fn resume(&mut self) {
        if let Some((mask, run)) = self.paused.take() {
            self.mask = mask;
            self.run = run;
        }
    }

    /// A block runs. False where [`Self::fetch`] has to see to its page.
    #[inline(always)]
    pub(crate) fn enter(&mut self, word: Word) -> bool {
        self.run.instructions += word.instructions();
        self.run.accesses += word.accesses();
        (word.page() ^ self.code.last) & self.mask == 0
    }

    /// A marker begins in code that tells everything. False where [`Self::attend`] has to see to it.
    #[inline(always)]
    pub(crate) fn mark(&mut self, marker: &Marker) -> bool {
        if self.mask != 0 {
            marker.learn(self.run.since(self.marked));
        }
        self.marked = self.run;
        self.run.accesses < self.limit && self.environment.suits(self.mask != 0)
    }

    /// A marker begins in code that tells nothing else: as [`Self::mark`].
    #[inline(always)]
    pub(crate) fn pass(&mut self, marker: &Marker) -> bool {
        marker.add_to(&mut self.run, &mut self.rest);
        self.marked = self.run;
        self.run.accesses < self.limit && self.environment.suits(self.mask != 0)
    }

    /// Sees to the end of a phase, and to code that is not the phase's. `state` is where QEMU has the guest's state.
    #[cold]
    #[inline(never)]
    pub(crate) fn attend(&mut self, state: u64) {
        if self.paused.is_some() {
            return;
        }
        if self.run.accesses >= self.limit && !self.passes_on() {
            self.turn();
        }
        self.environment.want(state, self.mask != 0);
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn fetch(&mut self, page: u64) {
        if self.cursor.is_full() {
            self.make_room();
            if self.mask == 0 {
                return;
            }
        }
        if let Turn::On(order) = self.code.turn_to(page) {
            // SAFETY: there was room.
            unsafe { self.cursor.push(order.map(Record::fetch), Record::fetch(page << PAGE_SHIFT)) };
        }
    }

    /// An access that is not counted with its block.
    #[inline(always)]
    pub(crate) fn count(&mut self) {
        self.run.accesses += 1;
    }

    /// An access. All that is rare is left to one call at the end: nothing has to be saved for it.
    #[inline(always)]
    pub(crate) fn access(&mut self, information: u32, address: u64, word: Word) {
        if ((address >> PAGE_SHIFT) ^ self.data.last) & self.mask != 0 {
            if self.cursor.is_full() {
                return self.access_anew(information, address, word);
            }
            self.record(address, word);
        }
        if address & NEAR_END == NEAR_END {
            self.access_end(information, address, word);
        }
    }

    /// Records an access to another page than the one before it; there is room.
    #[inline(always)]
    fn record(&mut self, address: u64, word: Word) {
        if let Turn::On(order) = self.data.turn_to(address >> PAGE_SHIFT) {
            // SAFETY: there was room.
            unsafe { self.cursor.push(order.map(Record::data), Record::data(address).with(word.signs())) };
        }
    }

    #[cold]
    #[inline(never)]
    fn access_anew(&mut self, information: u32, address: u64, word: Word) {
        self.make_room();
        if self.mask != 0 {
            self.record(address, word);
        }
        self.access_end(information, address, word);
    }

    #[cold]
    #[inline(never)]
    fn access_end(&mut self, information: u32, address: u64, word: Word) {
        // SAFETY: takes a number apart.
        let size = 1_u64 << unsafe { qemu_plugin_mem_size_shift(information) }.min(6);
        let end = address.wrapping_add(size - 1);
        if end >> PAGE_SHIFT != address >> PAGE_SHIFT && self.mask != 0 {
            if self.cursor.is_full() {
                self.make_room();
            }
            if self.mask != 0 {
                self.record(end, word);
            }
        }
    }

    /// Hands over what there is.
    pub(crate) fn flush(&mut self) {
        if self.writer.is_some() {
            self.hand_over();
        }
    }

    /// Hands over what there is and leaves the lane. The next access would take a new one.
    pub(crate) fn leave(&mut self) {
        self.flush();
        if let Some(writer) = self.writer.take() {
            writer.leave();
        }
        *self = Self::NEW;
    }
}

/// Of accesses that are still to pass, those before the next look: all, where no haste is made.
fn until_look(left: u64) -> u64 {
    if trace().plan.density > 1 { left.min(PIECE) } else { left }
}

struct States<const COUNT: usize>([UnsafeCell<Thread>; COUNT]);

// SAFETY: a state is reached only by its own thread, or where QEMU has stopped all others (the end, a fork's child).
unsafe impl<const COUNT: usize> Sync for States<COUNT> {}

impl<const COUNT: usize> States<COUNT> {
    const fn new() -> Self {
        Self([const { UnsafeCell::new(Thread::NEW) }; COUNT])
    }
}

static STATES: States<THREADS> = States::new();
static LATER_STATES: States<LATER> = States::new();
/// The number of the thread that has each of these; 0 for none.
static OWNERS: [AtomicU32; LATER] = [const { AtomicU32::new(0) }; LATER];

/// The state of the calling thread, if it has one.
#[inline(always)]
pub(crate) fn of(number: c_uint) -> Option<&'static mut Thread> {
    let Some(state) = STATES.0.get(number as usize) else { return of_later(number) };
    // SAFETY: QEMU numbers its threads, and a thread calls for itself alone; no call-back calls another one.
    Some(unsafe { &mut *state.get() })
}

/// That of a thread with a high number: the first to come has it until it ends.
#[cold]
fn of_later(number: c_uint) -> Option<&'static mut Thread> {
    let at = number as usize % LATER;
    match OWNERS[at].compare_exchange(0, number, Acquire, Relaxed) {
        // SAFETY: as above; another number does not come here while this one is the owner.
        Ok(_) => Some(unsafe { &mut *LATER_STATES.0[at].get() }),
        // SAFETY: as above.
        Err(owner) if owner == number => Some(unsafe { &mut *LATER_STATES.0[at].get() }),
        Err(_) => {
            lane::tell_laneless();
            None
        }
    }
}

/// A thread has left its lane: its state may be another's next.
pub(crate) fn give_up(number: c_uint) {
    if number as usize >= THREADS {
        // Where another thread has it, nothing changes.
        let _ = OWNERS[number as usize % LATER].compare_exchange(number, 0, Release, Relaxed);
    }
}

/// All states, at the end: QEMU has stopped all other threads.
pub(crate) fn all() -> impl Iterator<Item = &'static mut Thread> {
    // SAFETY: so nobody else has any of them.
    STATES.0.iter().chain(&LATER_STATES.0).map(|state| unsafe { &mut *state.get() })
}

/// A fork's child has one thread, and the lanes are its parent's.
extern "C" fn forked() {
    trace().forks.fetch_add(1, Relaxed);
    lane::forget_in_child();
    huge::forget_in_child();
    // Dropping a writer touches nothing that is shared. The only thread of a new process runs this, and no call-back is under way in it.
    all().for_each(|state| *state = Thread::NEW);
    OWNERS.iter().for_each(|owner| owner.store(0, Relaxed));
}

/// Has new processes begin with states of their own.
pub(crate) fn watch_forks() {
    // SAFETY: `forked` only writes memory of this process and one shared counter.
    unsafe {
        libc::pthread_atfork(None, None, Some(forked));
    }
}
