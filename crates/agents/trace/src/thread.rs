//! The state of each guest thread, and the call-backs that run while the program does.
//!
//! At each access a countdown falls; below zero, [`Thread::turn`] goes to the next phase. The mask is all ones while
//! accesses are recorded and zero while they pass, so that one comparison serves both. A thread that has just begun has a
//! countdown of zero: its first access finds it a lane.
//!
//! The word that QEMU keeps for each call-back says what the block costs, so that nothing has to be looked up:
//!
//! ```text
//!  63      62     61 ........ 51  50 ...... 40  39 ................ 0
//!  chases  stack  instructions    left out      page of the block          left out: accesses to the very address before
//! ```

#![allow(unsafe_code, reason = "QEMU calls with the thread's number; its state is reached by it")]

use std::cell::UnsafeCell;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_wire::trace::{EVENT_WORDS, Event, Phase, Record};

use crate::chain::Chain;
use crate::decode::Nature;
use crate::lane::Writer;
use crate::qemu::Id;
use crate::recent::Recent;
use crate::trace::{self, trace};

/// Threads that have a state; QEMU numbers them from 0. Those beyond are not traced.
const THREADS: usize = 4096;
const PAGE_SHIFT: u32 = 12;
/// An access that begins here or later in its page may reach the next page: none is longer than 64 bytes.
const NEAR_END: u64 = 0xfc0;
/// Accesses until the next turn where there are no bursts.
const ENDLESS: i64 = i64::MAX / 2;

/// The word of a call-back.
#[derive(Clone, Copy)]
pub(crate) struct Word(u64);

impl Word {
    /// The most that either count can be.
    const MOST: u64 = (1 << 11) - 1;
    /// The access loads what the address of its next run is made of.
    const CHASES: u64 = 1 << 63;
    /// The access is to the stack.
    const STACK: u64 = 1 << 62;

    /// A block on the page of `address`, with so many instructions, and so many accesses left out.
    pub(crate) fn new(address: u64, instructions: usize, left_out: usize) -> Self {
        let count = |count: usize| (count as u64).min(Self::MOST);
        Self(count(instructions) << 51 | count(left_out) << 40 | address >> PAGE_SHIFT & ((1 << 40) - 1))
    }

    /// A call-back that stands for no block.
    pub(crate) const NONE: Self = Self(0);

    /// The same, for an access of this nature.
    pub(crate) fn with(self, nature: Nature) -> Self {
        match nature {
            Nature::Plain => self,
            Nature::Chase => Self(self.0 | Self::CHASES),
            Nature::Stack => Self(self.0 | Self::STACK),
        }
    }

    pub(crate) fn pointer(self) -> *mut c_void {
        std::ptr::without_provenance_mut(usize::try_from(self.0).unwrap_or(0))
    }

    fn of(pointer: *mut c_void) -> Self {
        Self(pointer.addr() as u64)
    }
}

/// What a system call was asked, until it returns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked(pub(crate) [u64; 4]);

/// One guest thread.
#[repr(C, align(128))]
pub(crate) struct Thread {
    /// Accesses until the next turn.
    left: i64,
    /// All ones while accesses are recorded.
    mask: u64,
    data: Recent,
    code: Recent,
    chain: Chain,
    instructions: u64,
    left_out: u64,
    /// The countdown when the batch began.
    began: i64,
    phase: Phase,
    writer: Option<Writer>,
    /// The countdown and the mask of before, while accesses are not the program's.
    paused: Option<(i64, u64)>,
    pub(crate) asked: Asked,
}

impl Thread {
    const NEW: Self = Self {
        left: 0,
        mask: 0,
        data: Recent::NONE,
        code: Recent::NONE,
        chain: Chain::NEW,
        instructions: 0,
        left_out: 0,
        began: 0,
        phase: Phase::Passing,
        writer: None,
        paused: None,
        asked: Asked([0; 4]),
    };

    /// The next phase, or the first one.
    #[cold]
    #[inline(never)]
    fn turn(&mut self) {
        let plan = trace().plan;
        self.left = self.left.max(0);
        if self.writer.is_some() {
            self.hand_over();
        } else {
            self.writer = Writer::claim();
        }
        let counted = plan.burst.saturating_sub(plan.warm_up);
        let (phase, length) = match self.phase {
            _ if self.writer.is_none() => (Phase::Passing, u64::MAX),
            _ if plan.burst == 0 => (Phase::Counted, u64::MAX),
            Phase::Passing if plan.warm_up > 0 => (Phase::Warming, plan.warm_up),
            Phase::Passing | Phase::Warming => (Phase::Counted, counted),
            Phase::Counted => (Phase::Passing, plan.period.saturating_sub(plan.burst)),
        };
        self.phase = phase;
        self.left = i64::try_from(length).unwrap_or(ENDLESS).min(ENDLESS);
        self.began = self.left;
        self.mask = if phase == Phase::Passing { 0 } else { u64::MAX };
        self.data.clear();
        self.code.clear();
    }

    fn hand_over(&mut self) {
        let left = self.paused.map_or(self.left, |(left, _)| left);
        let accesses = (self.began - left).max(0).cast_unsigned() + self.left_out;
        if let Some(writer) = &mut self.writer {
            writer.hand_over(self.phase, accesses, self.instructions);
        }
        self.began = left;
        self.left_out = 0;
        self.instructions = 0;
    }

    fn push(&mut self, record: Record) {
        if self.writer.as_mut().is_some_and(|writer| writer.push(record)) {
            self.hand_over();
        }
    }

    /// Puts an event between the accesses. With `now`, other threads' later batches are read after it.
    pub(crate) fn tell(&mut self, event: Event, operands: [u64; EVENT_WORDS - 1], now: bool) {
        if self.writer.is_none() {
            self.turn();
        }
        if self.writer.as_mut().is_some_and(|writer| writer.push_event(event, operands)) || now {
            self.hand_over();
        }
    }

    /// From now on accesses are not the program's.
    pub(crate) fn pause(&mut self) {
        if self.paused.is_none() && self.writer.is_some() {
            self.paused = Some((self.left, self.mask));
            self.left = ENDLESS;
            self.mask = 0;
        }
    }

    /// They are again.
    pub(crate) fn resume(&mut self) {
        if let Some((left, mask)) = self.paused.take() {
            self.left = left;
            self.mask = mask;
        }
    }

    /// An access that the quick look could not settle.
    #[inline(never)]
    fn accessed(&mut self, information: u32, address: u64, word: Word) {
        let size = 1 << (information & 0xf).min(6);
        self.touch_data(address, word);
        let end = address.wrapping_add(size - 1);
        if end >> PAGE_SHIFT != address >> PAGE_SHIFT {
            self.touch_data(end, word);
        }
    }

    fn touch_data(&mut self, address: u64, word: Word) {
        let (order, address) = self.data.touch(address);
        if let Some(address) = order {
            self.push(Record::data(address));
        }
        if let Some(address) = address {
            let record = Record::data(address);
            let judged = self.chain.note(address, word.0 & Word::STACK != 0, trace::guest_base());
            let chases = word.0 & Word::CHASES != 0;
            self.push(judged.map_or(record, |depends| record.judged(depends || chases)));
        }
    }

    #[inline(never)]
    fn fetched(&mut self, page: u64) {
        let (order, address) = self.code.touch(page << PAGE_SHIFT);
        if let Some(address) = order {
            self.push(Record::fetch(address));
        }
        if let Some(address) = address {
            self.push(Record::fetch(address));
        }
    }

    #[inline(always)]
    fn entered(&mut self, word: Word) {
        if self.paused.is_some() {
            return;
        }
        self.instructions += word.0 >> 51 & Word::MOST;
        self.left_out += word.0 >> 40 & Word::MOST;
        let page = word.0 & ((1 << 40) - 1);
        if (page ^ self.code.last) & self.mask != 0 {
            self.fetched(page);
        }
    }

    #[inline(always)]
    fn access(&mut self, information: u32, address: u64, word: Word) {
        self.left -= 1;
        if self.left < 0 {
            self.turn();
            // The access that brought us here belongs to the new phase.
            self.left -= 1;
        }
        let moved = ((address >> PAGE_SHIFT) ^ self.data.last) & self.mask != 0;
        if moved || (address & NEAR_END == NEAR_END && self.mask != 0) {
            self.accessed(information, address, word);
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

struct States([UnsafeCell<Thread>; THREADS]);

// SAFETY: a state is reached only by its own thread, or where QEMU has stopped all others (the end, a fork's child).
unsafe impl Sync for States {}

static STATES: States = States([const { UnsafeCell::new(Thread::NEW) }; THREADS]);

/// The state of the calling thread, if it has one.
#[inline(always)]
pub(crate) fn of(number: c_uint) -> Option<&'static mut Thread> {
    let state = STATES.0.get(number as usize)?;
    // SAFETY: QEMU numbers its threads, and a thread calls for itself alone; no call-back calls another one.
    Some(unsafe { &mut *state.get() })
}

/// An access of an instruction that is not its block's first.
pub(crate) extern "C" fn touched(number: c_uint, information: u32, address: u64, word: *mut c_void) {
    if let Some(thread) = of(number) {
        thread.access(information, address, Word::of(word));
    }
}

/// The access of a block's first instruction that has one: stands for the block too.
pub(crate) extern "C" fn touched_first(number: c_uint, information: u32, address: u64, word: *mut c_void) {
    if let Some(thread) = of(number) {
        thread.entered(Word::of(word));
        thread.access(information, address, Word::of(word));
    }
}

/// A block without such an instruction, or its second page.
pub(crate) extern "C" fn entered(number: c_uint, word: *mut c_void) {
    if let Some(thread) = of(number) {
        thread.entered(Word::of(word));
    }
}

/// A thread is gone.
pub(crate) extern "C" fn left(_: Id, number: c_uint) {
    if let Some(thread) = of(number) {
        thread.leave();
    }
}

/// The program ends: QEMU has stopped all other threads.
pub(crate) extern "C" fn ended(_: Id, _: *mut c_void) {
    for number in 0.. {
        let Some(thread) = of(number) else { break };
        thread.leave();
    }
}

/// A fork's child has one thread, and the lanes are its parent's.
extern "C" fn forked() {
    trace().forks.fetch_add(1, Relaxed);
    for state in &STATES.0 {
        // SAFETY: the only thread of a new process runs this, and no call-back is under way in it. Dropping a writer
        // touches nothing that is shared.
        unsafe {
            *state.get() = Thread::NEW;
        }
    }
}

/// Has new processes begin with states of their own.
pub(crate) fn watch_forks() {
    // SAFETY: `forked` only writes memory of this process and one shared counter.
    unsafe {
        libc::pthread_atfork(None, None, Some(forked));
    }
}
