//! Descriptors that stay open from the start of the program, which may drop the right to open them
//! again.
//!
//! They have high numbers and are closed on exec. A descriptor belongs to the process that opened
//! it: a child that inherits it must not use it, since it acts on the memory of the parent. The
//! program may close any descriptor and reuse its number, so each user of a stored descriptor
//! checks what it refers to.

#![allow(unsafe_code, reason = "duplicates and closes descriptors of the agent")]

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};

use crate::raw;

/// The lowest number of the agent's descriptors, above those that programs rely on.
const HIGH_DESCRIPTOR: usize = 700;
/// The distance from the limit on descriptors, if that is lower.
const BELOW_LIMIT: usize = 8;
const NONE: i32 = -1;

/// A stored descriptor, or none.
pub(crate) struct StoredDescriptor {
    fd: AtomicI32,
    owner: AtomicU32,
}

impl StoredDescriptor {
    pub(crate) const fn new() -> Self {
        Self { fd: AtomicI32::new(NONE), owner: AtomicU32::new(0) }
    }

    /// Stores `fd` for this process.
    pub(crate) fn store(&self, fd: i32) {
        self.owner.store(raw::getpid(), SeqCst);
        self.fd.store(fd, SeqCst);
    }

    /// The stored number, if this process opened it.
    pub(crate) fn get(&self) -> Option<i32> {
        let fd = self.fd.load(SeqCst);
        (fd != NONE && self.owner.load(SeqCst) == raw::getpid()).then_some(fd)
    }

    /// Removes the stored number, and closes the descriptor if `is_ours` identifies it.
    pub(crate) fn discard(&self, is_ours: impl Fn(i32) -> bool) {
        if let Some(fd) = self.get()
            && is_ours(fd)
        {
            raw::close(fd);
        }
        self.fd.store(NONE, SeqCst);
    }
}

/// A descriptor in use: closed when dropped, unless it is stored.
pub(crate) struct Descriptor {
    pub(crate) fd: i32,
    is_stored: bool,
}

impl Descriptor {
    pub(crate) fn stored(fd: i32) -> Self {
        Self { fd, is_stored: true }
    }

    pub(crate) fn fresh(fd: i32) -> Self {
        Self { fd, is_stored: false }
    }

    /// Returns the number without closing the descriptor.
    pub(crate) fn into_stored(mut self) -> i32 {
        self.is_stored = true;
        self.fd
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if !self.is_stored {
            raw::close(self.fd);
        }
    }
}

/// Moves a descriptor to a high number. It keeps its number if the limit on descriptors is too low.
pub(crate) fn move_high(fd: i32) -> i32 {
    let lowest = raw::limit(libc::RLIMIT_NOFILE).saturating_sub(BELOW_LIMIT).min(HIGH_DESCRIPTOR);
    let duplicate = [fd as usize, libc::F_DUPFD_CLOEXEC as usize, lowest, 0, 0, 0];
    // SAFETY: F_DUPFD_CLOEXEC duplicates a descriptor that the agent opened.
    let high = unsafe { raw::syscall(libc::SYS_fcntl, duplicate) };
    if raw::failed(high) {
        return fd;
    }
    raw::close(fd);
    high as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_stored_until_it_is_discarded() {
        let stored = StoredDescriptor::new();
        assert_eq!(stored.get(), None);
        // SAFETY: the path is a NUL-terminated C string.
        let fd = move_high(unsafe { raw::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) } as i32);
        stored.store(Descriptor::fresh(fd).into_stored());
        assert_eq!(stored.get(), Some(fd));
        assert!(raw::status(fd).st_ino != 0, "open");
        stored.discard(|found| found == fd);
        assert_eq!((stored.get(), raw::status(fd).st_ino), (None, 0));
    }

    #[test]
    fn a_number_that_the_program_reuses_stays_open() {
        // SAFETY: the path is a NUL-terminated C string.
        let fd = unsafe { raw::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) } as i32;
        let stored = StoredDescriptor::new();
        stored.store(fd);
        stored.discard(|_| false);
        assert!(raw::status(fd).st_ino != 0);
        raw::close(fd);
    }
}
