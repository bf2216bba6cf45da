//! Descriptors that stay open from the start of the program: a program may later give up the right to open them again.
//!
//! They have high numbers and are closed by exec. A descriptor belongs to the process that opened it: a child that inherits
//! it must not use it, since it acts on the memory of the parent. A program may close every descriptor that it finds, and
//! its own may then have the number; so each user of a kept descriptor checks what it is.

#![allow(unsafe_code, reason = "duplicates and closes descriptors of the agent")]

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};

use crate::raw;

/// Descriptors of the agent lie above those that programs count on.
const HIGH_DESCRIPTOR: usize = 700;
/// Distance from the limit on descriptors where that is lower.
const BELOW_LIMIT: usize = 8;
const NONE: i32 = -1;

/// A descriptor that stays open, or none.
pub(crate) struct Kept {
    fd: AtomicI32,
    owner: AtomicU32,
}

impl Kept {
    pub(crate) const fn new() -> Self {
        Self { fd: AtomicI32::new(NONE), owner: AtomicU32::new(0) }
    }

    /// Keeps `fd` open for this process.
    pub(crate) fn keep(&self, fd: i32) {
        self.owner.store(raw::getpid(), SeqCst);
        self.fd.store(fd, SeqCst);
    }

    /// The number that was kept, if this process opened it.
    pub(crate) fn get(&self) -> Option<i32> {
        let fd = self.fd.load(SeqCst);
        (fd != NONE && self.owner.load(SeqCst) == raw::getpid()).then_some(fd)
    }

    /// Keeps nothing any more; closes the descriptor if `is_ours` recognises it.
    pub(crate) fn discard(&self, is_ours: impl Fn(i32) -> bool) {
        if let Some(fd) = self.get()
            && is_ours(fd)
        {
            raw::close(fd);
        }
        self.fd.store(NONE, SeqCst);
    }
}

/// A descriptor in use: closed at the end of the use, unless it is kept.
pub(crate) struct Descriptor {
    pub(crate) fd: i32,
    kept: bool,
}

impl Descriptor {
    pub(crate) fn kept(fd: i32) -> Self {
        Self { fd, kept: true }
    }

    pub(crate) fn fresh(fd: i32) -> Self {
        Self { fd, kept: false }
    }

    /// Ends the use without closing it; its number.
    pub(crate) fn into_kept(mut self) -> i32 {
        self.kept = true;
        self.fd
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if !self.kept {
            raw::close(self.fd);
        }
    }
}

/// Moves a descriptor out of the program's way; it stays where it is if the limit on descriptors is too low.
pub(crate) fn raise(fd: i32) -> i32 {
    let lowest = raw::limit(libc::RLIMIT_NOFILE).saturating_sub(BELOW_LIMIT).min(HIGH_DESCRIPTOR);
    let duplicate = [fd as usize, libc::F_DUPFD_CLOEXEC as usize, lowest, 0, 0, 0];
    // SAFETY: duplicates a descriptor of the agent's own.
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
    fn a_descriptor_is_kept_until_it_is_discarded() {
        let kept = Kept::new();
        assert_eq!(kept.get(), None);
        // SAFETY: a C string.
        let fd = raise(unsafe { raw::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) } as i32);
        kept.keep(Descriptor::fresh(fd).into_kept());
        assert_eq!(kept.get(), Some(fd));
        assert!(raw::status(fd).st_ino != 0, "open");
        kept.discard(|found| found == fd);
        assert_eq!((kept.get(), raw::status(fd).st_ino), (None, 0));
    }

    #[test]
    fn a_number_that_the_program_took_over_stays_open() {
        // SAFETY: a C string.
        let fd = unsafe { raw::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) } as i32;
        let kept = Kept::new();
        kept.keep(fd);
        kept.discard(|_| false);
        assert!(raw::status(fd).st_ino != 0);
        raw::close(fd);
    }
}
