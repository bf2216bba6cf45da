//! A helper process: forked from this one without exec, connected to it by a socket.
//!
//! ```text
//!   this process                 helper (all signals blocked, only the socket open)
//!   UnixStream ─── requests ───▶ work(line) ... _exit
//!              ◀── answers ───── end of file when this process ends, however it ends
//! ```
//! Invariant: from the fork on the helper neither allocates nor takes a lock. Another thread of the parent may have held the
//! allocator's lock at that moment, and no thread of the helper will ever release it.
#![allow(unsafe_code, reason = "fork, signal masks and _exit have no safe form")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr;

use crate::{Error, Result};

/// Forks a helper that runs `work` with its end of the socket, and then ends. Returns our end, and the helper's pid.
///
/// `work` must not allocate. It starts in `/`, and the standard descriptors lead to `/dev/null`.
///
/// # Errors
/// [`Error::Call`] where there can be no more processes or descriptors.
pub(crate) fn fork(work: impl FnOnce(&OwnedFd)) -> Result<(UnixStream, u32)> {
    let failed = |call| move |source| Error::Call { call, source };
    let (ours, theirs) = UnixStream::pair().map_err(failed("socketpair"))?;
    let former_mask = block_signals();
    // SAFETY: the child runs `live` only, which makes system calls on its own stack and never returns here.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(ours);
        live(&theirs.into(), work);
    }
    let forked = u32::try_from(pid).map_err(|_| io::Error::last_os_error());
    // SAFETY: the mask is the one that this thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const former_mask, ptr::null_mut()) };
    Ok((ours, forked.map_err(failed("fork"))?))
}

/// Blocks every signal for this thread, so that no handler of the parent's ever runs in the child; returns the former mask.
pub(crate) fn block_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut former = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigfillset writes all of `all` before it is used; a zeroed mask is a valid empty one, so `former` is
    // initialised whatever happens.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), former.as_mut_ptr());
        former.assume_init()
    }
}

/// Ends the helper without running anything of the parent's: its exit handlers, its buffers, its destructors.
fn leave() -> ! {
    // SAFETY: _exit is async-signal-safe and takes no memory.
    unsafe { libc::_exit(0) }
}

/// Ends the helper even where a panic unwinds.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        leave();
    }
}

fn live(line: &OwnedFd, work: impl FnOnce(&OwnedFd)) -> ! {
    let _leave = Leave;
    close_all_but(line);
    let _ = rustix::process::chdir(c"/");
    work(line);
    leave()
}

/// Closes all that was inherited: a pipe kept open here would keep its reader waiting. (A kernel before 5.9 has no
/// close_range(2); there they stay open until the end.)
fn close_all_but(line: &OwnedFd) {
    let keep = line.as_raw_fd();
    // SAFETY: only descriptors are touched, and nothing in this process uses any of them but `keep`.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for standard in (0..3).filter(|standard| *standard != keep && null >= 0) {
            libc::dup2(null, standard);
        }
        let close = |first: i32, last: i32| libc::syscall(libc::SYS_close_range, first, last, 0);
        if keep > 3 {
            close(3, keep - 1);
        }
        close(keep.max(2) + 1, i32::MAX);
    }
}
