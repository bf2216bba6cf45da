//! What a forked child has of the regions: their memory, plain.
//!
//! The kernel drops a child's userfaultfd registrations, and its descriptors still name the parent's memory. So a child closes
//! them, opens what is protected by mprotect(2), and counts as another generation: regions of the former one answer
//! [`crate::Error::Forked`]. New ones can be made. `fork(3)` does all this; a bare clone(2) does not.

#![allow(unsafe_code, reason = "registers handlers of fork")]

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::{registry, serve, service};

/// Held by who sets something up that the process has once, and over a fork. Not a `Mutex`, as it is released by a child.
static SETTING_UP: AtomicBool = AtomicBool::new(false);

/// Runs `f` alone, and with no fork in between, so that a child finds what it sets up whole.
pub(crate) fn setting_up<R>(f: impl FnOnce() -> R) -> R {
    watch();
    lock(&SETTING_UP);
    let result = f();
    unlock(&SETTING_UP);
    result
}

pub(crate) fn lock(word: &AtomicBool) {
    while word.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

pub(crate) fn unlock(word: &AtomicBool) {
    word.store(false, Ordering::Release);
}

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// This process's number among its forebears.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Has forks told to this crate.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    // SAFETY: the functions live as long as the process; the child's does what a child of threads may.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child));
    });
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
    GENERATION.fetch_add(1, Ordering::Relaxed);
    registry::forget_readers_in_child();
    registry::each_in_child(|region| region.make_plain_in_child());
    service::forget_in_child();
    serve::forget_in_child();
    registry::unlock();
    unlock(&SETTING_UP);
}
