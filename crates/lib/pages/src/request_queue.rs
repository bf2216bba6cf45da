//! A queue of requests from threads that wait for the reply to a thread of this crate. The sender
//! may be in a signal handler.
//!
//! ```text
//! sender:    request on its stack -> `last` (compare and swap), `posted` += 1, wake; sleeps
//! receiver:  sleeps on `posted`; takes all requests, serves the oldest first; replies, wakes
//! ```
//! Both sleep by futex(2), so no descriptor exists that the program could close. A waiting sender
//! checks every second whether a receiver still runs.

#![allow(unsafe_code, reason = "shares requests between threads")]

use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// A lock-free queue for senders; receivers take turns under a lock.
pub(crate) struct RequestQueue<T> {
    /// The newest request, linked to the one before it, and so on.
    last: AtomicPtr<QueuedRequest<T>>,
    /// Requests submitted so far.
    posted: AtomicU32,
    /// Requests that a receiver has removed from `last`, linked from the oldest to the newest.
    dequeued: Mutex<Oldest<T>>,
}

struct Oldest<T>(*mut QueuedRequest<T>);

// SAFETY: a request is on the stack of a thread that sleeps until it is completed.
unsafe impl<T> Send for Oldest<T> {}

/// A request on its sender's stack.
pub(crate) struct QueuedRequest<T> {
    /// The request before it; once dequeued, the request after it.
    next: *mut Self,
    pub(crate) body: T,
    /// 0, or the reply plus 1.
    reply: AtomicU32,
}

impl<T> RequestQueue<T> {
    pub(crate) const fn new() -> Self {
        Self { last: AtomicPtr::new(null_mut()), posted: AtomicU32::new(0), dequeued: Mutex::new(Oldest(null_mut())) }
    }

    /// Submits a request and waits for the reply; `None` when `is_served` reports that a receiver
    /// has ended. Async-signal-safe.
    ///
    /// The receiver determines how long that takes: a fault handler may take any time.
    pub(crate) fn submit(&self, body: T, is_served: impl Fn() -> bool) -> Option<u32> {
        let mut request = QueuedRequest { next: null_mut(), body, reply: AtomicU32::new(0) };
        let place = &raw mut request;
        let mut before = self.last.load(Ordering::Relaxed);
        loop {
            // SAFETY: only this thread uses the request before it is queued.
            unsafe { (*place).next = before };
            match self.last.compare_exchange_weak(before, place, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        self.posted.fetch_add(1, Ordering::Release);
        wake(self.posted.as_ptr());
        loop {
            // SAFETY: the request is on this thread's stack.
            let word = unsafe { &(*place).reply };
            match word.load(Ordering::Acquire) {
                0 if !wait(word, 0, Some(SECOND)) && !is_served() => {
                    // A reply written before the receiver ended counts.
                    return word.load(Ordering::Acquire).checked_sub(1);
                }
                0 => {}
                reply => return Some(reply - 1),
            }
        }
    }

    /// Waits for a request. Only for threads that live as long as the process, so the wait need not
    /// end.
    pub(crate) fn receive(&self) -> *const QueuedRequest<T> {
        loop {
            let posted = self.posted.load(Ordering::Acquire);
            if let Some(request) = self.pop() {
                return request;
            }
            wait(&self.posted, posted, None);
        }
    }

    /// The oldest request. Does not allocate: a sender may hold a lock of the allocator.
    fn pop(&self) -> Option<*const QueuedRequest<T>> {
        let mut oldest = self.dequeued.lock().unwrap_or_else(PoisonError::into_inner);
        if oldest.0.is_null() {
            let mut request = self.last.swap(null_mut(), Ordering::Acquire);
            while !request.is_null() {
                // SAFETY: queued requests exist until they are completed, and their senders access
                // only the reply.
                let before = unsafe { ptr::replace(&raw mut (*request).next, oldest.0) };
                (oldest.0, request) = (request, before);
            }
        }
        let request = oldest.0;
        if request.is_null() {
            return None;
        }
        // SAFETY: the request is not completed yet, so its sender keeps it.
        oldest.0 = unsafe { (*request).next };
        Some(request)
    }
}

impl<T> QueuedRequest<T> {
    /// Writes the reply. The request may no longer exist when this returns.
    pub(crate) fn complete(&self, reply: u32) {
        let word = self.reply.as_ptr();
        self.reply.store(reply + 1, Ordering::Release);
        // A wake on an address without waiting threads has no effect.
        wake(word);
    }
}

const SECOND: libc::timespec = libc::timespec { tv_sec: 1, tv_nsec: 0 };

/// Wakes one thread that waits on a word, of which only the address is used.
pub(crate) fn wake(word: *const u32) {
    // SAFETY: futex(2) uses the address of a private futex only as a key.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
}

/// Waits while the word has this value; false on timeout. May return early.
pub(crate) fn wait(word: &AtomicU32, value: u32, limit: Option<libc::timespec>) -> bool {
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is live, and the timeout is null or a live local.
    let done = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, limit) };
    done == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}
