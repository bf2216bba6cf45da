//! What the agent keeps for each thread: its cache of sites, its number, and whether it is inside
//! the agent.
//!
//! ```text
//! fieldstone_guard_thread (thread-local, zero in a new thread)
//!   +0   address of the cache − address of NO_CACHE
//!   +8   1 while the thread is inside the agent
//!   +12  the thread's number (gettid), 0 until it is needed
//!   +16  first address of its stack, +24 end: 0 until they are needed
//!
//! Cache   512 × { tag, countdown }   512 × { site, allocations granted }
//! ```
//! Rust's own thread-local storage may allocate, so the variable is defined in assembly, with a
//! fixed distance from the thread pointer (initial-exec model). Caches are in one reserved range.
//! When a thread ends, a destructor of pthread writes its countdowns back and clears the cache for
//! the next thread.
//!
//! A thread inside the agent is not entered again: a signal handler that allocates meanwhile gets
//! its memory from the program's allocator. A handler that leaves the agent by `siglongjmp` leaves
//! its thread marked; later allocations of that thread are not guarded.

#![allow(unsafe_code, reason = "thread-local storage in assembly; maps and shares caches")]

use core::arch::{asm, global_asm};
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, compiler_fence};

use crate::{raw, sites};

global_asm!(
    ".pushsection .tbss.fieldstone_guard_thread,\"awT\",@nobits",
    ".balign 16",
    ".globl fieldstone_guard_thread",
    ".hidden fieldstone_guard_thread",
    ".type fieldstone_guard_thread, @object",
    ".size fieldstone_guard_thread, 32",
    "fieldstone_guard_thread:",
    ".zero 32",
    ".popsection",
);

/// Entries of a cache: 512 hot ones fill a page.
pub(crate) const ENTRIES: usize = 512;
/// Threads that have a cache at the same time. Allocations of further threads are not sampled.
const CACHES: usize = 8192;

/// One entry of a cache as the fast path reads it.
#[repr(C)]
pub(crate) struct HotEntry {
    /// The lower half of the site's key, made odd; 0 if unused.
    pub(crate) tag: AtomicU32,
    /// Allocations until the site's next decision, as a signed number.
    pub(crate) left: AtomicU32,
}

/// The part of an entry that only the slow path uses.
#[repr(C)]
pub(crate) struct ColdEntry {
    /// The number of the site.
    pub(crate) site: AtomicU32,
    /// The countdown at the last decision.
    pub(crate) granted: AtomicU32,
}

/// The cache of a thread. One thread uses it; the end of the process may read it.
#[repr(C, align(4096))]
pub(crate) struct Cache {
    pub(crate) hot: [HotEntry; ENTRIES],
    pub(crate) cold: [ColdEntry; ENTRIES],
}

/// What a thread without a cache reads: no tag is equal to it.
pub(crate) static NO_CACHE: [usize; ENTRIES] = [0; ENTRIES];

#[repr(C)]
struct ThreadWords {
    cache: AtomicUsize,
    inside: AtomicU32,
    number: AtomicU32,
    stack_start: AtomicUsize,
    stack_end: AtomicUsize,
}

fn words() -> &'static ThreadWords {
    let address: *const ThreadWords;
    // SAFETY: the word that the thread pointer points to holds the thread pointer, and the loader
    // stored the distance of the variable in the table. Nothing is written.
    unsafe {
        asm!("mov {0}, qword ptr [rip + fieldstone_guard_thread@GOTTPOFF]", "add {0}, qword ptr fs:[0]",
            out(reg) address, options(nostack, readonly));
    }
    // SAFETY: the variable has this size and alignment, lives as long as its thread, is not sent to
    // another one, and consists of atomics.
    unsafe { &*address }
}

/// The thread pointer.
pub(crate) fn pointer() -> usize {
    let pointer;
    // SAFETY: the ABI stores the thread pointer in the word that it points to; nothing is written.
    unsafe { asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

/// The current thread, inside the agent until this is dropped.
pub(crate) struct Inside(());

impl Inside {
    /// Enters the agent. `None` if the thread is inside already.
    pub(crate) fn enter() -> Option<Self> {
        let inside = &words().inside;
        if inside.load(Relaxed) != 0 {
            return None;
        }
        inside.store(1, Relaxed);
        // A signal handler of this thread must see the mark before any later store.
        compiler_fence(SeqCst);
        Some(Self(()))
    }

    /// The thread's cache; claims one at first use. `None` if all are in use.
    pub(crate) fn cache(&self) -> Option<&'static Cache> {
        let words = words();
        let distance = words.cache.load(Relaxed);
        if distance != 0 {
            let address = distance.wrapping_add(NO_CACHE.as_ptr() as usize);
            // SAFETY: the thread claimed this cache, which stays mapped.
            return Some(unsafe { &*core::ptr::with_exposed_provenance::<Cache>(address) });
        }
        let cache = CACHE_POOL.claim()?;
        words.cache.store((core::ptr::from_ref(cache) as usize).wrapping_sub(NO_CACHE.as_ptr() as usize), Relaxed);
        CACHE_POOL.release_at_thread_end(cache);
        Some(cache)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        words().inside.store(0, Relaxed);
    }
}

/// The number of the current thread.
pub(crate) fn number() -> u32 {
    let number = &words().number;
    match number.load(Relaxed) {
        0 => {
            let new = raw::gettid();
            number.store(new, Relaxed);
            new
        }
        known => known,
    }
}

/// Whether an address is in the used part of the current thread's stack.
pub(crate) fn is_on_stack(address: usize) -> bool {
    let here = core::ptr::from_ref(&address) as usize;
    if address < here || address - here > 1 << 30 {
        return false;
    }
    let words = words();
    if words.stack_end.load(Relaxed) == 0 {
        // libc frees memory during the search, under a lock that another search would wait for:
        // until it ends, the stack is an empty range.
        words.stack_end.store(1, Relaxed);
        let (start, end) = raw::stack_of_thread();
        words.stack_start.store(start, Relaxed);
        words.stack_end.store(end, Relaxed);
    }
    // A coroutine runs on another stack than its thread's: nothing is known of it.
    let stack = words.stack_start.load(Relaxed)..words.stack_end.load(Relaxed);
    stack.contains(&here) && stack.contains(&address)
}

/// The caches of all threads.
struct CachePool {
    /// Address of the first; 0 until [`prepare`].
    base: AtomicUsize,
    used: [AtomicBool; CACHES],
    /// Where the search for a free cache starts.
    hint: AtomicUsize,
    /// The key whose destructor releases a cache.
    key: AtomicU32,
}

static CACHE_POOL: CachePool = CachePool {
    base: AtomicUsize::new(0),
    used: [const { AtomicBool::new(false) }; CACHES],
    hint: AtomicUsize::new(0),
    key: AtomicU32::new(u32::MAX),
};

/// Reserves the caches. False if there is no address space for them.
pub(crate) fn prepare() -> bool {
    let Some(range) = raw::map(CACHES * size_of::<Cache>()) else { return false };
    let mut key = 0;
    // SAFETY: the destructor stays valid: the loader never unloads a preloaded library.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(end_thread)) } == 0 {
        CACHE_POOL.key.store(key, Relaxed);
    }
    CACHE_POOL.base.store(range.as_ptr() as usize, Release);
    true
}

impl CachePool {
    fn at(&self, index: usize) -> Option<&'static Cache> {
        let base = NonNull::new(core::ptr::with_exposed_provenance_mut::<Cache>(self.base.load(Acquire)))?;
        // SAFETY: the range holds this many caches, and all zeroes are a valid cache of atomics.
        Some(unsafe { base.add(index).as_ref() })
    }

    fn claim(&self) -> Option<&'static Cache> {
        let hint = self.hint.load(Relaxed);
        let is_claimed = |index: &usize| self.used[*index].compare_exchange(false, true, AcqRel, Relaxed).is_ok();
        let index = (hint..CACHES).chain(0..hint).find(is_claimed)?;
        self.hint.store((index + 1) % CACHES, Relaxed);
        self.at(index)
    }

    fn release(&self, cache: &Cache) {
        sites::write_back(cache);
        for (hot, cold) in cache.hot.iter().zip(&cache.cold) {
            hot.tag.store(0, Relaxed);
            cold.site.store(0, Relaxed);
        }
        let index = (core::ptr::from_ref(cache) as usize - self.base.load(Relaxed)) / size_of::<Cache>();
        self.hint.store(index, Relaxed);
        self.used[index].store(false, Release);
    }

    fn release_at_thread_end(&self, cache: &'static Cache) {
        let key = self.key.load(Relaxed);
        if key != u32::MAX {
            // SAFETY: `prepare` created the key. A failure leaves the cache in use, which is valid.
            unsafe { libc::pthread_setspecific(key, core::ptr::from_ref(cache).cast()) };
        }
    }
}

/// The destructor: the thread may allocate afterwards, without a cache until it claims a new one.
unsafe extern "C" fn end_thread(cache: *mut c_void) {
    let Some(_inside) = Inside::enter() else { return };
    words().cache.store(0, Relaxed);
    // SAFETY: `release_at_thread_end` stored the thread's own cache, which stays mapped.
    CACHE_POOL.release(unsafe { &*cache.cast::<Cache>() });
}

/// Writes the countdowns of all threads back, at the end of the process.
pub(crate) fn write_back_all() {
    for (index, _) in CACHE_POOL.used.iter().enumerate().filter(|(_, used)| used.load(Acquire)) {
        if let Some(cache) = CACHE_POOL.at(index) {
            sites::write_back(cache);
        }
    }
}

/// In the child of a fork: the thread has a new number, and the parent's other threads do not
/// exist.
pub(crate) fn after_fork() {
    let words = words();
    words.number.store(0, Relaxed);
    let own = words.cache.load(Relaxed).wrapping_add(NO_CACHE.as_ptr() as usize);
    for (index, _) in CACHE_POOL.used.iter().enumerate().filter(|(_, used)| used.load(Acquire)) {
        if let Some(cache) = CACHE_POOL.at(index).filter(|cache| core::ptr::from_ref(*cache) as usize != own) {
            CACHE_POOL.release(cache);
        }
    }
}
