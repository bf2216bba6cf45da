//! Requests that a thread passes to a thread of this crate and waits for. The sender may be in a signal handler.
//!
//! ```text
//! sender:    letter on its own stack -> LAST (compare and swap), BELL += 1, wake;  sleeps on the letter's answer
//! receiver:  sleeps on BELL;  takes all letters, serves the oldest first;  writes the answer, wakes
//! ```
//! Both sleep by futex(2), so that there is no descriptor that the program could close. A sender that waits looks every second
//! whether a receiver still runs.

#![allow(unsafe_code, reason = "passes letters between threads")]

use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

pub(crate) struct Mail<T> {
    /// The last letter, which names the one before it, and so on.
    last: AtomicPtr<Letter<T>>,
    /// Letters that were ever sent.
    bell: AtomicU32,
    /// Letters that a receiver has taken out of `last`: the oldest one names the one after it.
    taken: Mutex<Oldest<T>>,
}

struct Oldest<T>(*mut Letter<T>);

// SAFETY: a letter lies on the stack of the thread that sleeps on it, until it is answered.
unsafe impl<T> Send for Oldest<T> {}

pub(crate) struct Letter<T> {
    /// The letter before it; once it is taken, the one after it.
    next: *mut Self,
    pub(crate) request: T,
    /// 0, or the answer plus 1.
    answer: AtomicU32,
}

impl<T> Mail<T> {
    pub(crate) const fn new() -> Self {
        Self { last: AtomicPtr::new(null_mut()), bell: AtomicU32::new(0), taken: Mutex::new(Oldest(null_mut())) }
    }

    /// Passes a request on, and waits for the answer; `None` when `is_served` finds that a receiver has ended. Async-signal-safe.
    ///
    /// How long a request takes is up to what serves it: a fault handler may take as long as it likes.
    pub(crate) fn ask(&self, request: T, is_served: impl Fn() -> bool) -> Option<u32> {
        let mut letter = Letter { next: null_mut(), request, answer: AtomicU32::new(0) };
        let place = &raw mut letter;
        let mut before = self.last.load(Ordering::Relaxed);
        loop {
            // SAFETY: the letter is this thread's until it is in the mail.
            unsafe { (*place).next = before };
            match self.last.compare_exchange_weak(before, place, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        self.bell.fetch_add(1, Ordering::Release);
        wake(self.bell.as_ptr());
        loop {
            // SAFETY: the letter lives on this stack.
            let word = unsafe { &(*place).answer };
            match word.load(Ordering::Acquire) {
                0 if !wait(word, 0, Some(SECOND)) && !is_served() => {
                    // An answer that came before the receiver ended counts.
                    return word.load(Ordering::Acquire).checked_sub(1);
                }
                0 => {}
                answer => return Some(answer - 1),
            }
        }
    }

    /// Waits for a letter. It is for threads that live as long as the process, so that the wait need not end.
    pub(crate) fn next(&self) -> *const Letter<T> {
        loop {
            let heard = self.bell.load(Ordering::Acquire);
            if let Some(letter) = self.take() {
                return letter;
            }
            wait(&self.bell, heard, None);
        }
    }

    /// The oldest letter. Allocates nothing: a sender may hold a lock of the allocator.
    fn take(&self) -> Option<*const Letter<T>> {
        let mut oldest = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if oldest.0.is_null() {
            let mut letter = self.last.swap(null_mut(), Ordering::Acquire);
            while !letter.is_null() {
                // SAFETY: letters in the mail are there until they are answered, and the sender only looks at the answer.
                let before = unsafe { ptr::replace(&raw mut (*letter).next, oldest.0) };
                (oldest.0, letter) = (letter, before);
            }
        }
        let letter = oldest.0;
        if letter.is_null() {
            return None;
        }
        // SAFETY: not answered yet.
        oldest.0 = unsafe { (*letter).next };
        Some(letter)
    }
}

impl<T> Letter<T> {
    /// Answers the letter, which may be gone when this returns.
    pub(crate) fn give(&self, answer: u32) {
        let word = self.answer.as_ptr();
        self.answer.store(answer + 1, Ordering::Release);
        // A wake on an address that nobody waits on does nothing.
        wake(word);
    }
}

const SECOND: libc::timespec = libc::timespec { tv_sec: 1, tv_nsec: 0 };

/// Wakes one thread that waits on a word, of which only the address is looked at.
pub(crate) fn wake(word: *const u32) {
    // SAFETY: futex(2) uses the address of a private futex as a name.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
}

/// Waits while the word has this value; false when the time is over. It may return early.
pub(crate) fn wait(word: &AtomicU32, value: u32, limit: Option<libc::timespec>) -> bool {
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a live word, and a time limit that is null or a live local.
    let done = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, limit) };
    done == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}
