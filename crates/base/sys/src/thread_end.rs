//! A word in shared memory that the kernel marks when a thread ends, also by SIGKILL.
//!
//! Source: set_robust_list(2). Other processes see the mark without knowing the thread's number,
//! which differs between pid namespaces. Cost: three system calls for each thread.
#![allow(unsafe_code, reason = "get_robust_list and set_robust_list have no safe form")]

use std::mem::offset_of;
use std::ptr::{from_ref, null, null_mut};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Release;

/// `struct robust_list` of `linux/futex.h`.
#[repr(C)]
struct Entry {
    next: *const Entry,
}

/// `struct robust_list_head` of `linux/futex.h`.
#[repr(C)]
struct Head {
    list: Entry,
    /// From an entry to its word.
    word_offset: isize,
    pending: *const Entry,
}

/// Runs `work` with the number of this thread in `word`. When `work` or the thread ends, the word gets
/// the bit `FUTEX_OWNER_DIED`. Robust mutexes of pthread must not be locked in `work`.
pub fn with_mark<R>(word: &AtomicU32, work: impl FnOnce() -> R) -> R {
    let mut head = Head { list: Entry { next: null() }, word_offset: 0, pending: null() };
    let entry = Entry { next: &raw const head.list };
    head.list.next = &raw const entry;
    head.word_offset = from_ref(word).addr().wrapping_sub((&raw const entry).addr()).cast_signed();
    word.store(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), Release);
    let former = robust_list();
    set_robust_list(&raw const head);
    let _mark = Mark { word, former };
    work()
}

/// Marks the word and restores the former list when it is dropped: `word` and the list's entry do not
/// outlive it.
struct Mark<'a> {
    word: &'a AtomicU32,
    former: *const Head,
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        set_robust_list(self.former);
        self.word.fetch_or(libc::FUTEX_OWNER_DIED, Release);
    }
}

/// The list of this thread.
fn robust_list() -> *const Head {
    let (mut head, mut bytes) = (null_mut::<Head>(), 0_usize);
    // SAFETY: the kernel stores the address and the size of the list of this thread.
    unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut bytes) };
    head
}

/// Replaces the list of this thread. The kernel reads it when the thread ends, and checks each
/// address.
fn set_robust_list(head: *const Head) {
    const { assert!(offset_of!(Head, pending) == 16, "the kernel's structure has three words") };
    // SAFETY: the call stores the address only. The caller keeps the list until it replaces it.
    unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<Head>()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Acquire;

    #[test]
    fn the_word_is_marked_at_the_end_of_the_work_and_of_the_thread() {
        let word = AtomicU32::new(0);
        let former = robust_list();
        let inside = with_mark(&word, || word.load(Acquire));
        assert_eq!(inside, rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
        assert_eq!(word.load(Acquire), inside | libc::FUTEX_OWNER_DIED);
        assert_eq!(robust_list(), former);
        static KILLED: AtomicU32 = AtomicU32::new(0);
        let thread = std::thread::spawn(|| {
            // SAFETY: the thread ends by a system call of its own; nothing of it is used later.
            with_mark(&KILLED, || unsafe { libc::syscall(libc::SYS_exit, 0) });
        });
        while KILLED.load(Acquire) & libc::FUTEX_OWNER_DIED == 0 {
            std::thread::yield_now();
        }
        // The thread ended behind the back of the library, so it is not joined.
        std::mem::forget(thread);
    }
}
