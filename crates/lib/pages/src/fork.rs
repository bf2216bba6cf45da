//! What a forked child has of the regions: their memory, plain.
//!
//! The kernel drops a child's userfaultfd registrations, and its descriptors still name the parent's memory. So a child closes
//! them, opens what is protected by mprotect(2), and counts as another generation: regions of the former one answer
//! [`crate::Error::Forked`]. New ones can be made.
//!
//! `fork(3)` does all this at once. A child of a bare clone(2) is noticed by a page that the kernel clears there
//! (`MADV_WIPEONFORK`): at its first operation on a region, or at its first fault by mprotect(2).

#![allow(unsafe_code, reason = "registers handlers of fork; keeps a word in memory that a fork clears")]

use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use crate::signal::without_signals;
use crate::spin::{lock, pause, unlock};
use crate::{registry, serve, service};

/// Held by a thread that sets something up that the process has once, and over a fork. Not a `Mutex`, as it is released by a child.
static SETTING_UP: AtomicBool = AtomicBool::new(false);

/// Runs `f` alone, and with no fork in between, so that a child finds what it sets up whole.
pub(crate) fn setting_up<R>(f: impl FnOnce() -> R) -> R {
    watch();
    notice();
    lock(&SETTING_UP);
    let result = f();
    unlock(&SETTING_UP);
    result
}

/// Where the process's generation is kept; null before the first region.
static GENERATION: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
/// The generation where the kernel cannot clear a page: a bare clone(2) goes unnoticed then.
static UNCLEARED: AtomicU32 = AtomicU32::new(0);
/// The last generation of this process and its forebears.
static LAST: AtomicU32 = AtomicU32::new(0);
/// The child of a bare clone(2) that has not noticed.
const CLEARED: u32 = 0;
/// The child of a bare clone(2) that is making its regions plain.
const NOTICING: u32 = u32::MAX;

fn word() -> Option<&'static AtomicU32> {
    // SAFETY: null, or a word that is never freed.
    unsafe { GENERATION.load(Ordering::Acquire).as_ref() }
}

/// This process's number among its forebears.
#[inline]
pub(crate) fn generation() -> u32 {
    word().map_or(CLEARED, |word| word.load(Ordering::Relaxed))
}

/// Has forks reported to this crate.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let word = cleared_page().unwrap_or(&UNCLEARED);
        next_generation(word);
        GENERATION.store(std::ptr::from_ref(word).cast_mut(), Ordering::Release);
        // SAFETY: the functions live as long as the process; the child's does what a child of threads may.
        unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    });
}

/// A word on a page of its own that a fork clears in the child.
fn cleared_page() -> Option<&'static AtomicU32> {
    let bytes = rustix::param::page_size();
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, at a place that the kernel chooses.
    let page = unsafe { libc::mmap(null_mut(), bytes, rights, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the new page, which holds zeros and is never unmapped unless the advice is refused; a word at its start is aligned.
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

/// Makes regions plain in the child of a bare clone(2) that has not done so; whether it did. Async-signal-safe.
pub(crate) fn notice() -> bool {
    let Some(word) = word() else { return false };
    if word.load(Ordering::Acquire) != CLEARED && word.load(Ordering::Acquire) != NOTICING {
        return false;
    }
    // A handler of a signal that came in between would wait for this thread.
    without_signals(|| {
        if word.compare_exchange(CLEARED, NOTICING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            // The parent's threads may have held them; no thread of this process does.
            registry::unlock();
            unlock(&SETTING_UP);
            become_child(word);
        }
        let mut tries = 0;
        // It ends: the thread that notices makes system calls and waits for nobody.
        while word.load(Ordering::Acquire) == NOTICING {
            pause(&mut tries);
        }
    });
    true
}

/// Forgets what is the parent's, in a child that has one thread.
fn become_child(word: &AtomicU32) {
    registry::forget_readers_in_child();
    registry::each_in_child(|region| region.make_plain_in_child());
    service::forget_in_child();
    serve::forget_in_child();
    next_generation(word);
}

extern "C" fn prepare() {
    lock(&SETTING_UP);
    registry::lock();
}

extern "C" fn in_parent() {
    registry::unlock();
    unlock(&SETTING_UP);
}

extern "C" fn in_child() {
    if let Some(word) = word() {
        become_child(word);
    }
    registry::unlock();
    unlock(&SETTING_UP);
}
