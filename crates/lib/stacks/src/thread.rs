//! What each thread has: the segment that its stack is in, the first one, its limit. And the guard word.
//!
//! ```text
//! %fs:0x70      guard      what compiled prologues compare the stack pointer with; 0: nothing is checked
//! TLS           Thread     current ──► segment of blocks ──prev──► first: what the system gave the thread
//! ```
//! The guard word belongs to split stacks in the thread control block of glibc. The record is a thread-local variable of the
//! initial-exec model, declared in assembly: Rust's own may allocate at their first use, and `__morestack` must not.
//!
//! A thread is known from its first call on (`begin`): the main thread by a constructor, others by the wrapped
//! `pthread_create` or by `grow`. What it has taken goes back in a destructor of thread-specific data, which runs however the
//! thread ends.

#![allow(unsafe_code, reason = "reads the thread's own words, and asks the system for the bounds of its stack")]

use core::arch::{asm, global_asm};
use core::ffi::c_void;
use core::ops::Range;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::arena;
use crate::limit;
use crate::segment::{FIRST_BYTES, HEADROOM_BYTES, PAGE_BYTES, Segment};

/// Guard while a thread passes from one segment to another: every prologue comes to us, and is led on to the next one.
pub(crate) const SWITCHING: usize = usize::MAX;
/// Guard after a longjmp: the next prologue comes to us, and finds out where the stack is.
pub const LOST: usize = usize::MAX - 1;

/// What a thread has.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Thread {
    /// The segment that the stack is in. The first word, as the assembly has it.
    pub(crate) current: *mut Segment,
    /// The segment that a call went on from the quick way, last. Only compared with `current`: it may be gone.
    pub(crate) last_from: *mut Segment,
    /// What the system gave it.
    pub(crate) first: Segment,
    /// The most that its stack may take, in bytes.
    pub(crate) limit_bytes: usize,
    /// Whether the destructor will run.
    is_registered: bool,
    /// How often it has run.
    ends: u8,
    /// The frame of the outermost handler that came in the middle of a switch and went on elsewhere, or that was one.
    interrupts: usize,
}

global_asm!(
    ".pushsection .tbss.fieldstone_stack_thread, \"awT\", @nobits",
    ".p2align 6",
    ".globl fieldstone_stack_thread",
    ".hidden fieldstone_stack_thread",
    ".type fieldstone_stack_thread, @object",
    ".size fieldstone_stack_thread, {size}",
    "fieldstone_stack_thread:",
    ".zero {size}",
    ".popsection",
    size = const size_of::<Thread>(),
);

/// The key whose destructor gives a thread's segments back, + 1; 0 before the first thread.
static KEY: AtomicU32 = AtomicU32::new(0);

/// How often glibc calls destructors of thread-specific data, as long as there is any (PTHREAD_DESTRUCTOR_ITERATIONS).
const ROUNDS: u8 = 4;

impl Thread {
    /// The calling thread's record. Its words may change under a signal handler: nothing is kept over a call that may be split.
    pub(crate) fn here() -> *mut Self {
        let here: *mut Self;
        // SAFETY: reads the thread pointer, and the variable's offset from it, which the loader has put there.
        unsafe {
            asm!(
                "mov {here}, qword ptr fs:[0]",
                "add {here}, qword ptr [rip + fieldstone_stack_thread@GOTTPOFF]",
                here = out(reg) here,
                options(nostack, pure, readonly),
            );
        }
        here
    }

    /// A handler that has come in the middle of a switch is led on from this frame.
    pub(crate) fn interrupts(&mut self, frame: usize) {
        if !self.is_interrupting() {
            self.interrupts = frame;
        }
    }

    /// Whether such a handler still runs: what comes next is then about to be used by who was interrupted.
    fn is_interrupting(&self) -> bool {
        // SAFETY: segments on the list live.
        let before = |segment: &&Segment| unsafe { segment.prev.as_ref() };
        // SAFETY: as above.
        let current = unsafe { self.current.as_ref() };
        let mut entered = core::iter::successors(current, before).map(|segment| segment.entered_from);
        self.interrupts != 0 && entered.any(|frame| frame == self.interrupts)
    }
}

/// The guard word.
#[inline(always)]
pub(crate) fn guard() -> usize {
    let guard;
    // SAFETY: the word is there in every thread of glibc.
    unsafe { asm!("mov {}, qword ptr fs:[0x70]", out(reg) guard, options(nostack, readonly)) };
    guard
}

pub(crate) fn set_guard(guard: usize) {
    // SAFETY: as above; the word is read by prologues only.
    unsafe { asm!("mov qword ptr fs:[0x70], {}", in(reg) guard, options(nostack)) };
}

/// The stack pointer, more or less.
#[inline(always)]
pub(crate) fn stack_pointer() -> usize {
    let stack_pointer;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) stack_pointer, options(nostack, nomem, preserves_flags)) };
    stack_pointer
}

/// Makes the calling thread known, if it is not: from now on its stack is bounded by its limit only. [`grow`](crate::grow) and compiled
/// code do so by themselves; needed in a thread that was begun elsewhere and runs code compiled for split stacks.
pub fn adopt() {
    begin();
}

/// Bytes that the segments hold in which the calling thread's stack lies; 0 in a thread that is not known.
#[must_use]
pub fn held_bytes() -> usize {
    // SAFETY: the calling thread's own; its segments live.
    unsafe { (*Thread::here()).current.as_ref() }.map_or(0, Segment::held_bytes)
}

/// How often this process took a segment, or grew one.
#[must_use]
pub fn allocations() -> u64 {
    arena::allocations()
}

/// Gives back what the calling thread's stack has held and does not now: segments, and the pages of the one that it is in. At a thread's
/// end that happens by itself.
pub fn trim() {
    let _signals = BlockedSignals::new();
    // SAFETY: the record is this thread's own, and no handler runs.
    let thread = unsafe { &mut *Thread::here() };
    let here = stack_pointer();
    if guard() == SWITCHING || thread.is_interrupting() {
        // A handler in the middle of a switch: what comes next is about to be used.
        return;
    }
    if let Some(mut held) = NonNull::new(thread.current).and_then(|current| crate::more::holder(current, here)) {
        // SAFETY: the stack is in this segment, so that no frame lies in those after it.
        let segment = unsafe { held.as_mut() };
        thread.current = segment;
        set_guard(segment.guard);
        // SAFETY: as above.
        unsafe { give_after(segment) };
        // What is called from here is not as deep as the headroom.
        let used = (here - HEADROOM_BYTES) & !(PAGE_BYTES - 1);
        let unused = used.saturating_sub(segment.low);
        if segment.is_of_blocks() && unused > 0 {
            // SAFETY: the pages lie below every frame of this stack, and in its segment.
            unsafe { libc::madvise(core::ptr::without_provenance_mut(segment.low), unused, libc::MADV_DONTNEED) };
        }
    }
}

/// Makes the calling thread known, if it is not: it runs on what the system gave it.
pub(crate) fn begin() {
    // SAFETY: the record is the calling thread's own.
    let thread = unsafe { &mut *Thread::here() };
    if !thread.current.is_null() {
        return;
    }
    once();
    let given = given();
    // Who is on a stack of another kind now has its own further up.
    let here = Some(stack_pointer()).filter(|here| given.contains(here)).unwrap_or(given.end);
    if thread.limit_bytes == 0 {
        thread.limit_bytes = limit::default_bytes();
    }
    // The limit counts the headroom too. No limit is smaller than the default of what is used first.
    let first_bytes = limit::first_bytes().saturating_add(HEADROOM_BYTES).min(thread.limit_bytes);
    thread.first.low = given.start.max(here.saturating_sub(first_bytes));
    thread.first.guard = thread.first.low + HEADROOM_BYTES;
    thread.first.high = given.end;
    register(thread);
    thread.current = &raw mut thread.first;
    set_guard(thread.first.guard);
}

/// What the first thread does for all.
fn once() {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if !IS_DONE.swap(true, Ordering::Relaxed) {
        crate::morestack::find_registers();
        // SAFETY: the functions live as long as the process, or as the library that they are in.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
    }
}

/// Nobody is at the pool when the process is copied; nor does a handler of this thread come to it meanwhile.
unsafe extern "C" fn before_fork() {
    let signals = BlockedSignals::new();
    arena::lock(signals);
}

unsafe extern "C" fn after_fork() {
    drop(arena::unlock());
}

/// The stack that the system gave the calling thread.
fn given() -> Range<usize> {
    // SAFETY: both ask for a number.
    if unsafe { i64::from(libc::getpid()) == libc::syscall(libc::SYS_gettid) } {
        // The kernel lets the main thread's grow down to RLIMIT_STACK, and keeps other mappings out of that range.
        let end = main_end();
        return end.saturating_sub(main_limit())..end;
    }
    // SAFETY: `attributes` is filled by the first call where it succeeds, read by the others, and destroyed.
    unsafe {
        let mut attributes = core::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) != 0 {
            let here = stack_pointer();
            return here.saturating_sub(FIRST_BYTES)..here + FIRST_BYTES;
        }
        let (mut low, mut bytes, mut guard_bytes) = (null_mut(), 0, 0);
        libc::pthread_attr_getstack(&raw const attributes, &raw mut low, &raw mut bytes);
        libc::pthread_attr_getguardsize(&raw const attributes, &raw mut guard_bytes);
        libc::pthread_attr_destroy(&raw mut attributes);
        low.addr() + guard_bytes..low.addr() + bytes
    }
}

/// How large the kernel lets the main thread's stack grow; `usize::MAX` without a limit.
fn main_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the record, which is this frame's own.
    if unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) } != 0 {
        return usize::MAX;
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// Where the main thread's stack ends: behind the program's name, which the kernel puts there first.
fn main_end() -> usize {
    let name = told(libc::AT_EXECFN);
    if name == 0 {
        return usize::MAX;
    }
    // SAFETY: a string lies there.
    let bytes = unsafe { libc::strlen(core::ptr::with_exposed_provenance(name)) } + 1 + size_of::<usize>();
    (name + bytes).next_multiple_of(PAGE_BYTES)
}

/// What the kernel has told the process (getauxval(3)); 0 if it has not.
pub(crate) fn told(what: core::ffi::c_ulong) -> usize {
    // SAFETY: asks for a number.
    usize::try_from(unsafe { libc::getauxval(what) }).unwrap_or(0)
}

/// Sees to it that the thread gives back what it has when it ends.
pub(crate) fn register(thread: &mut Thread) {
    if thread.is_registered {
        return;
    }
    let mut key = KEY.load(Ordering::Acquire);
    if key == 0 {
        let mut made = 0;
        // SAFETY: the key is written where it succeeds.
        if unsafe { libc::pthread_key_create(&raw mut made, Some(end)) } != 0 {
            return;
        }
        key = match KEY.compare_exchange(0, made + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made + 1,
            Err(theirs) => {
                // SAFETY: nobody else knows the key.
                unsafe { libc::pthread_key_delete(made) };
                theirs
            }
        };
    }
    let this = core::ptr::from_mut(thread).cast::<c_void>();
    // SAFETY: the key exists.
    thread.is_registered = unsafe { libc::pthread_setspecific(key - 1, this) } == 0;
}

/// A thread ends, on what the system gave it: its segments go back. Destructors of other keys are checked as all code is, so this one
/// asks to be called again as often as the system calls any; what takes segments after that brings it back.
unsafe extern "C" fn end(thread: *mut c_void) {
    let _signals = BlockedSignals::new();
    // SAFETY: the value of the key is the record of the thread that ends, which is the calling one.
    let thread = unsafe { &mut *thread.cast::<Thread>() };
    thread.is_registered = false;
    thread.ends += 1;
    if thread.ends < ROUNDS {
        register(thread);
        return;
    }
    if !thread.first.contains(stack_pointer()) {
        // In a context whose stack is not the thread's own: what it lies on has to stay.
        return;
    }
    // glibc gives the thread's memory to the next one, guard word and all: what is left is a thread that is not known.
    thread.current = null_mut();
    thread.ends = 0;
    set_guard(0);
    // SAFETY: the stack is in the first segment, so that nobody is in those after it.
    unsafe { give_after(&mut thread.first) };
}

/// Gives the segments after this one back.
///
/// # Safety
/// No frame lies in them.
pub(crate) unsafe fn give_after(segment: &mut Segment) {
    let mut next = core::mem::replace(&mut segment.next, null_mut());
    while let Some(mut taken) = NonNull::new(next) {
        // SAFETY: a segment on the list is a record of ours, in use until it is given back here.
        next = unsafe { taken.as_ref().next };
        // SAFETY: no frame lies in it, so what its frames had from alloca is of no use either.
        unsafe {
            crate::dynamic::give_all(taken.as_mut());
            give(taken);
        }
    }
}

/// Gives one segment of blocks back, which is on no list any more.
///
/// # Safety
/// No frame lies in it.
pub(crate) unsafe fn give(segment: NonNull<Segment>) {
    // SAFETY: by contract the record is ours and read a last time.
    let (low, blocks) = unsafe { (segment.as_ref().low, segment.as_ref().blocks()) };
    if let Some(low) = NonNull::new(core::ptr::without_provenance_mut(low)) {
        // SAFETY: the segment's blocks were taken from the arena.
        unsafe { arena::give(low, blocks) };
    }
}

/// Signals blocked until it is dropped: all of them, with the two that glibc keeps for itself and would not block, since one of them
/// cancels threads.
#[derive(Debug)]
pub(crate) struct BlockedSignals(u64);

impl BlockedSignals {
    pub(crate) fn new() -> Self {
        Self(set_signals(u64::MAX))
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        set_signals(self.0);
    }
}

/// Blocks these signals and no others; those that were blocked before.
fn set_signals(signals: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: both sets are words of this frame, which is what the kernel takes for a set.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const signals,
            &raw mut before,
            size_of::<u64>(),
        )
    };
    before
}
