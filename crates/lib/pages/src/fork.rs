//! Regions in a forked child: their memory becomes plain.
//!
//! The kernel drops a child's userfaultfd registrations, and its descriptors still refer to the
//! parent's memory. So a child closes them, makes memory protected by mprotect(2) accessible, and
//! starts a new generation: regions of an older one return [`crate::Error::Forked`]. New ones can
//! be created.
//!
//! `fork(3)` does this at once. The child of a bare clone(2) is detected by a page that the kernel
//! clears there (`MADV_WIPEONFORK`): at its first operation on a region, or its first fault by
//! mprotect(2).

#![allow(unsafe_code, reason = "registers handlers of fork; keeps a word in memory that a fork clears")]

use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

use crate::signal_mask::without_signals;
use crate::spin::{lock, pause, unlock};

/// What the rest of the crate does at a fork. The functions are async-signal-safe.
pub(crate) struct Hooks {
    /// Takes the locks that the child must find free.
    pub(crate) lock: fn(),
    /// Releases them, in the parent and in the child.
    pub(crate) unlock: fn(),
    /// Drops the parent's state, in a child with one thread.
    pub(crate) reset: fn(),
}

static HOOKS: OnceLock<&'static Hooks> = OnceLock::new();

/// Held during process-wide setup, and across a fork. Not a `Mutex`, because a child releases it.
static SETUP_LOCK: AtomicBool = AtomicBool::new(false);

/// Runs `f` exclusively and without a fork in between, so that a child finds its result complete.
pub(crate) fn with_setup_lock<R>(f: impl FnOnce() -> R) -> R {
    detect_child();
    lock(&SETUP_LOCK);
    let result = f();
    unlock(&SETUP_LOCK);
    result
}

/// The process's generation; null before the first region.
static GENERATION: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
/// The generation if the kernel cannot clear a page; a bare clone(2) is then not detected.
static UNCLEARED: AtomicU32 = AtomicU32::new(0);
/// The last generation of this process and its ancestors.
static LAST: AtomicU32 = AtomicU32::new(0);
/// The child of a bare clone(2) before its detection.
const CLEARED: u32 = 0;
/// The child of a bare clone(2) that is making its regions plain.
const DETECTING: u32 = u32::MAX;

fn word() -> Option<&'static AtomicU32> {
    // SAFETY: the pointer is null, or points to a word that is never freed.
    unsafe { GENERATION.load(Ordering::Acquire).as_ref() }
}

/// This process's generation.
#[inline]
pub(crate) fn generation() -> u32 {
    word().map_or(CLEARED, |word| word.load(Ordering::Relaxed))
}

/// Registers the fork handlers, once. Every region's setup calls it first.
pub(crate) fn watch(hooks: &'static Hooks) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = HOOKS.set(hooks);
        let word = cleared_page().unwrap_or(&UNCLEARED);
        next_generation(word);
        GENERATION.store(std::ptr::from_ref(word).cast_mut(), Ordering::Release);
        // SAFETY: the functions live as long as the process, and the child's handler does only what
        // a child of a threaded process may do.
        unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    });
}

/// A word in its own page, which a fork clears in the child.
fn cleared_page() -> Option<&'static AtomicU32> {
    let bytes = rustix::param::page_size();
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address chosen by the kernel replaces no other memory.
    let page = unsafe { libc::mmap(null_mut(), bytes, rights, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the new page holds zeros and stays mapped unless the advice is refused; its start is
    // aligned for a word.
    unsafe {
        if libc::madvise(page, bytes, libc::MADV_WIPEONFORK) != 0 {
            libc::munmap(page, bytes);
            return None;
        }
        with_exposed_provenance_mut::<AtomicU32>(page.expose_provenance()).as_ref()
    }
}

fn next_generation(word: &AtomicU32) {
    word.store(LAST.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Release);
}

/// In the undetected child of a bare clone(2), makes regions plain. Returns whether this is such a
/// child. Async-signal-safe.
pub(crate) fn detect_child() -> bool {
    let Some(word) = word() else { return false };
    if word.load(Ordering::Acquire) != CLEARED && word.load(Ordering::Acquire) != DETECTING {
        return false;
    }
    // A signal handler that ran in between would wait for this thread.
    without_signals(|| {
        if word.compare_exchange(CLEARED, DETECTING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            // Threads of the parent may have held these locks; no thread of this process does.
            run_hook(|hooks| hooks.unlock);
            unlock(&SETUP_LOCK);
            become_child(word);
        }
        let mut tries = 0;
        // This terminates: the detecting thread makes system calls and does not wait.
        while word.load(Ordering::Acquire) == DETECTING {
            pause(&mut tries);
        }
    });
    true
}

/// Runs a hook.
fn run_hook(hook: impl FnOnce(&Hooks) -> fn()) {
    if let Some(hooks) = HOOKS.get() {
        hook(hooks)();
    }
}

/// Drops the parent's state, in a child with one thread.
fn become_child(word: &AtomicU32) {
    run_hook(|hooks| hooks.reset);
    next_generation(word);
}

extern "C" fn prepare() {
    lock(&SETUP_LOCK);
    run_hook(|hooks| hooks.lock);
}

extern "C" fn in_parent() {
    run_hook(|hooks| hooks.unlock);
    unlock(&SETUP_LOCK);
}

extern "C" fn in_child() {
    if let Some(word) = word() {
        become_child(word);
    }
    run_hook(|hooks| hooks.unlock);
    unlock(&SETUP_LOCK);
}
