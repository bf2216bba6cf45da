//! Threads of the program: the page with a thread's control block stays resident.
//!
//! When a thread ends, the kernel clears a word in its control block, and serves no fault at that
//! time: a join of that thread would wait forever. So the agent replaces `pthread_create`. The new
//! thread first records the address of its control block. The pager reads the records.
//!
//! ```text
//! pthread_create ─→ a slot: routine, argument ─→ new thread: takes the slot ─→ RECORDS ─→ routine
//! ```
//! Threads that bypass libc's function are not recorded.

#![allow(unsafe_code, reason = "replaces a function of libc, and calls the program's routine")]

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};

type Routine = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut c_void, *const c_void, Routine, *mut c_void) -> c_int;

/// Threads that may be between their creation and their first instruction.
const SLOTS: usize = 1024;
/// Records that the pager has not read yet.
const RECORDS: usize = 4096;

struct Slot {
    is_used: AtomicBool,
    routine: AtomicUsize,
    argument: AtomicPtr<c_void>,
}

static STARTING: [Slot; SLOTS] = [const {
    Slot { is_used: AtomicBool::new(false), routine: AtomicUsize::new(0), argument: AtomicPtr::new(null_mut()) }
}; SLOTS];

static BLOCKS: [AtomicUsize; RECORDS] = [const { AtomicUsize::new(0) }; RECORDS];

/// libc's function; null before the constructor has found it.
static CREATE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Finds libc's function.
pub(crate) fn prepare() {
    // SAFETY: the name is a C string.
    CREATE.store(unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) }, Release);
}

/// pthread_create(3).
///
/// # Safety
/// As libc's function.
// A test binary would interpose its own calls.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, expect(dead_code, reason = "only the loader binds calls to it"))]
pub(crate) unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    routine: Routine,
    argument: *mut c_void,
) -> c_int {
    if CREATE.load(Acquire).is_null() {
        prepare();
    }
    let create = CREATE.load(Acquire);
    if create.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: the pointer is libc's `pthread_create`, which has this type.
    let create = unsafe { core::mem::transmute::<*mut c_void, Create>(create) };
    let slot = STARTING.iter().find(|slot| slot.is_used.compare_exchange(false, true, AcqRel, Relaxed).is_ok());
    let Some(slot) = slot else {
        // SAFETY: the program makes this call. The thread's control block is not recorded.
        return unsafe { create(thread, attributes, routine, argument) };
    };
    slot.routine.store(routine as usize, Relaxed);
    slot.argument.store(argument, Relaxed);
    // SAFETY: the program makes this call; `begin` calls its routine with its argument.
    let result = unsafe { create(thread, attributes, begin, core::ptr::from_ref(slot).cast_mut().cast()) };
    if result != 0 {
        slot.is_used.store(false, Release);
    }
    result
}

/// The first routine of each thread.
extern "C" fn begin(slot: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` passes a slot, which this thread alone uses until it frees it.
    let slot = unsafe { &*slot.cast::<Slot>() };
    let (routine, argument) = (slot.routine.load(Relaxed), slot.argument.load(Relaxed));
    slot.is_used.store(false, Release);
    let block = crate::start::thread_pointer();
    let _ = BLOCKS.iter().find(|record| record.compare_exchange(0, block, Release, Relaxed).is_ok());
    // SAFETY: the slot holds the routine that the program passed.
    let routine = unsafe { core::mem::transmute::<usize, Routine>(routine) };
    routine(argument)
}

/// Takes the addresses of the control blocks that were recorded since the last call.
pub(crate) fn take_blocks(mut visit: impl FnMut(usize)) {
    for record in &BLOCKS {
        if record.load(Relaxed) != 0 {
            visit(record.swap(0, Acquire));
        }
    }
}
