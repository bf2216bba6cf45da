//! The guard word, and each thread's record: its current segment, its first segment and its limit.
//!
//! ```text
//! %fs:0x70      guard        compiled prologues compare the stack pointer with it; 0: no checks
//! TLS           ThreadStack  current ──► segment of blocks ──prev──► first: the system's stack
//! ```
//! glibc reserves the guard word in its thread control block for split stacks. The record is a
//! thread-local variable of the initial-exec model, declared in assembly: Rust's thread-locals may
//! allocate at their first use, which `__morestack` must not.
//!
//! `init_thread` initialises a record: for the main thread in a constructor, for others in the
//! wrapped `pthread_create` or in `grow`. A destructor of thread-specific data frees the segments,
//! however the thread ends.

#![allow(unsafe_code, reason = "accesses the thread's words, and queries the bounds of its stack")]

use core::arch::{asm, global_asm};
use core::ffi::c_void;
use core::ops::Range;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::auxv::auxv;
use crate::segment::{self, HEADROOM_BYTES, PAGE_BYTES, StackSegment};
use crate::settings::FIRST_BYTES;
use crate::signals::BlockedSignals;
use crate::{arena, registers, release, settings};

/// The guard during a switch between segments: every prologue calls `__morestack`, which goes to
/// the next segment.
pub(crate) const SWITCHING: usize = usize::MAX;
/// The guard after a longjmp: the next prologue calls `__morestack`, which finds the current
/// segment.
pub const LOST: usize = usize::MAX - 1;

/// The stack of one thread.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ThreadStack {
    /// The current segment. The assembly expects it as the first word.
    pub(crate) current: *mut StackSegment,
    /// The segment that the quick path last left. Only compared with `current`: it may be freed.
    pub(crate) last_from: *mut StackSegment,
    /// The system's stack.
    pub(crate) first: StackSegment,
    /// The limit in bytes.
    pub(crate) limit_bytes: usize,
    /// Whether the destructor will run.
    is_registered: bool,
    /// The number of times that the destructor has run.
    destructor_runs: u8,
    /// The frame of the outermost handler that interrupted a switch and continued in another
    /// segment; it may have returned. 0 if none.
    handler_frame: usize,
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
    size = const size_of::<ThreadStack>(),
);

/// The key whose destructor frees a thread's segments, + 1; 0 before the first thread.
static KEY: AtomicU32 = AtomicU32::new(0);

/// The number of rounds in which glibc calls destructors of thread-specific data
/// (PTHREAD_DESTRUCTOR_ITERATIONS).
const DESTRUCTOR_ROUNDS: u8 = 4;

impl ThreadStack {
    /// The calling thread's record. A signal handler may change its words: keep none across a call
    /// that may be split.
    pub(crate) fn current_thread() -> *mut Self {
        let here: *mut Self;
        // SAFETY: reads the thread pointer, and the variable's offset from it, which the loader has
        // set.
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

    /// Records the frame of a handler that has interrupted a switch.
    pub(crate) fn record_handler(&mut self, frame: usize) {
        if !self.is_switch_interrupted() {
            self.handler_frame = frame;
        }
    }

    /// Whether such a handler still runs. The interrupted switch is then about to use the next
    /// segment.
    fn is_switch_interrupted(&self) -> bool {
        // SAFETY: segments on the list live.
        let before = |segment: &&StackSegment| unsafe { segment.prev.as_ref() };
        // SAFETY: the current segment is null or lives.
        let current = unsafe { self.current.as_ref() };
        let mut entered = core::iter::successors(current, before).map(|segment| segment.entered_from);
        self.handler_frame != 0 && entered.any(|frame| frame == self.handler_frame)
    }
}

/// Reads the guard word.
#[inline(always)]
pub(crate) fn guard() -> usize {
    let guard;
    // SAFETY: the word exists in every thread of glibc.
    unsafe { asm!("mov {}, qword ptr fs:[0x70]", out(reg) guard, options(nostack, readonly)) };
    guard
}

pub(crate) fn set_guard(guard: usize) {
    // SAFETY: the word exists in every thread of glibc, and only prologues read it.
    unsafe { asm!("mov qword ptr fs:[0x70], {}", in(reg) guard, options(nostack)) };
}

/// The approximate stack pointer.
#[inline(always)]
pub(crate) fn stack_pointer() -> usize {
    let stack_pointer;
    // SAFETY: the instruction reads a register and no memory.
    unsafe { asm!("mov {}, rsp", out(reg) stack_pointer, options(nostack, nomem, preserves_flags)) };
    stack_pointer
}

/// Initialises the calling thread if needed: from now on only its limit bounds its stack.
/// [`grow`](crate::grow) and compiled code call this. Call it in a thread that was created
/// elsewhere and runs code compiled for split stacks.
pub fn adopt() {
    init_thread();
}

/// Bytes held by the segments of the calling thread's stack; 0 if the thread is not initialised.
#[must_use]
pub fn held_bytes() -> usize {
    // SAFETY: the record belongs to the calling thread, and its segments live.
    unsafe { (*ThreadStack::current_thread()).current.as_ref() }.map_or(0, StackSegment::held_bytes)
}

/// The number of times that this process allocated or extended a segment.
#[must_use]
pub fn allocations() -> u64 {
    arena::allocations()
}

/// Frees the unused segments of the calling thread's stack, and the unused pages of its current
/// one. Also happens when the thread ends.
pub fn trim() {
    let _signals = BlockedSignals::new();
    // SAFETY: the record belongs to the calling thread, and no handler runs while signals are
    // blocked.
    let thread = unsafe { &mut *ThreadStack::current_thread() };
    let here = stack_pointer();
    if guard() == SWITCHING || thread.is_switch_interrupted() {
        // A handler interrupted a switch, which is about to use the next segment.
        return;
    }
    let current = NonNull::new(thread.current);
    if let Some(mut containing) = current.and_then(|current| segment::find_containing(current, here)) {
        // SAFETY: the segment is on this thread's list, and contains the stack pointer.
        let segment = unsafe { containing.as_mut() };
        thread.current = segment;
        set_guard(segment.guard);
        // SAFETY: the stack pointer is in this segment, so no frame is in later ones.
        unsafe { release::free_after(segment) };
        // Functions called from here need less than the headroom.
        let used = (here - HEADROOM_BYTES) & !(PAGE_BYTES - 1);
        let unused = used.saturating_sub(segment.low);
        if segment.is_made_of_blocks() && unused > 0 {
            // SAFETY: the pages are below every frame of this stack, and in its segment.
            unsafe { libc::madvise(core::ptr::without_provenance_mut(segment.low), unused, libc::MADV_DONTNEED) };
        }
    }
}

/// Initialises the calling thread if needed: its first segment is the system's stack.
pub(crate) fn init_thread() {
    // SAFETY: the record belongs to the calling thread.
    let thread = unsafe { &mut *ThreadStack::current_thread() };
    if !thread.current.is_null() {
        return;
    }
    init_process();
    let system = system_stack();
    // A thread that is on another stack now returns to its own further up.
    let here = Some(stack_pointer()).filter(|here| system.contains(here)).unwrap_or(system.end);
    if thread.limit_bytes == 0 {
        thread.limit_bytes = settings::default_limit_bytes();
    }
    // The limit includes the headroom. No limit is smaller than the default of the first bytes.
    let first_bytes = settings::first_bytes().saturating_add(HEADROOM_BYTES).min(thread.limit_bytes);
    thread.first.low = system.start.max(here.saturating_sub(first_bytes));
    thread.first.guard = thread.first.low + HEADROOM_BYTES;
    thread.first.high = system.end;
    register_destructor(thread);
    thread.current = &raw mut thread.first;
    set_guard(thread.first.guard);
}

/// Initialises the process: the first thread does this.
fn init_process() {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if !IS_DONE.swap(true, Ordering::Relaxed) {
        registers::detect();
        // SAFETY: the functions live as long as the process, or as the library that contains them.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
    }
}

/// Locks the pool with signals blocked, so that no thread or handler uses it while the process is
/// copied.
unsafe extern "C" fn before_fork() {
    let signals = BlockedSignals::new();
    arena::lock(signals);
}

unsafe extern "C" fn after_fork() {
    drop(arena::unlock());
}

/// The address range of the calling thread's system stack.
fn system_stack() -> Range<usize> {
    // SAFETY: both calls return a number and write no memory.
    if unsafe { i64::from(libc::getpid()) == libc::syscall(libc::SYS_gettid) } {
        // The kernel lets the main thread's stack grow down to RLIMIT_STACK, and keeps other
        // mappings out of that range.
        let end = main_stack_end();
        return end.saturating_sub(main_stack_limit())..end;
    }
    // SAFETY: the first call fills `attributes` if it succeeds; the others read it and destroy it.
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

/// The largest size of the main thread's stack; `usize::MAX` without a limit.
fn main_stack_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes the record, which belongs to this frame.
    if unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) } != 0 {
        return usize::MAX;
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// The end of the main thread's stack: after the program's name, which the kernel puts there first.
fn main_stack_end() -> usize {
    let name = auxv(libc::AT_EXECFN);
    if name == 0 {
        return usize::MAX;
    }
    // SAFETY: the kernel reports the address of a C string.
    let bytes = unsafe { libc::strlen(core::ptr::with_exposed_provenance(name)) } + 1 + size_of::<usize>();
    (name + bytes).next_multiple_of(PAGE_BYTES)
}

/// Registers the destructor that frees the thread's segments when it ends.
pub(crate) fn register_destructor(thread: &mut ThreadStack) {
    if thread.is_registered {
        return;
    }
    let mut key = KEY.load(Ordering::Acquire);
    if key == 0 {
        let mut made = 0;
        // SAFETY: the call writes the key if it succeeds.
        if unsafe { libc::pthread_key_create(&raw mut made, Some(destroy)) } != 0 {
            return;
        }
        key = match KEY.compare_exchange(0, made + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made + 1,
            Err(theirs) => {
                // SAFETY: no other thread has this key.
                unsafe { libc::pthread_key_delete(made) };
                theirs
            }
        };
    }
    let this = core::ptr::from_mut(thread).cast::<c_void>();
    // SAFETY: `key` was created above and is never deleted; `this` lives as long as its thread.
    thread.is_registered = unsafe { libc::pthread_setspecific(key - 1, this) } == 0;
}

/// Runs when a thread ends, on its system stack: frees its segments. Destructors of other keys may
/// grow the stack, so this one registers itself again until the last round. A destructor that
/// allocates segments afterwards registers it again.
unsafe extern "C" fn destroy(thread: *mut c_void) {
    let _signals = BlockedSignals::new();
    // SAFETY: the key's value is the record of the ending thread, which is the calling one.
    let thread = unsafe { &mut *thread.cast::<ThreadStack>() };
    thread.is_registered = false;
    thread.destructor_runs += 1;
    if thread.destructor_runs < DESTRUCTOR_ROUNDS {
        register_destructor(thread);
        return;
    }
    if !thread.first.contains(stack_pointer()) {
        // The thread ends on a context's stack, whose memory has to stay.
        return;
    }
    // glibc reuses the thread's memory with its guard word: reset both for an uninitialised thread.
    thread.current = null_mut();
    thread.destructor_runs = 0;
    set_guard(0);
    // SAFETY: the stack pointer is in the first segment, so no frame is in later ones.
    unsafe { release::free_after(&mut thread.first) };
}
